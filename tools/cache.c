/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs cache [show|verify|prune|clear]: the cache directory, for people and scripts.
 *
 * Works on the files alone, through cache/disk.h, whether something is mounted or not.  Looking and
 * verifying go beside a mount that owns the directory; taking away does not, since that mount
 * trusts what it has seen there: prune and clear then say who it is.  Patches and remembered
 * listings are files that anybody may remove at any time, so clear needs nothing for those.
 *
 * One thread.
 */
#include "cache/cachedir.h"
#include "cache/clock.h"
#include "cache/disk.h"
#include "cache/fileio.h"
#include "fs/human.h"
#include "tools/cli.h"
#include "tools/progress.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPT_DIR, OPT_TO, OPT_JSON };

static const struct cli_opt own[] = {
	[OPT_DIR] = {"cache-dir", 0, "DIR", "the cache (default: the user's, as for mount)"},
	[OPT_TO] = {"to", 0, "SIZE", "prune: what may stay (such as 200GB); required"},
	[OPT_JSON] = {"json", 0, NULL, "show, verify: as JSON, for scripts"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "cache",
	.args = "[show|verify|prune|clear] [options]",
	.about = "The blocks of remote objects that are kept on disk.\n"
		 "show    lists them: size, how much of it is there, when it was last used, name\n"
		 "verify  hashes every block; damaged ones are dropped, and fetched again when "
		 "needed\n"
		 "prune   removes what was not used for longest, until --to SIZE is left\n"
		 "clear   removes everything, decoded deltas, versions written out and listings "
		 "too\n"
		 "A mount checks what it reads, and keeps to its --cache-size, by itself.\n",
	.own = own,
	.max_args = 1,
	.examples = "  weightfs cache\n"
		    "  weightfs cache verify\n"
		    "  weightfs cache prune --to 100GB\n",
};

/* What there is to know of one object. */
struct shown {
	struct disk_entry entry;
	char *key;     /* NULL: the files are damaged */
	uint64_t size; /* of the object */
	uint64_t present;
	uint64_t damaged; /* pieces; verify only */
};

struct place {
	char *parent;
	struct disk *disk; /* NULL: nothing was ever kept */
	struct shown *v;   /* most recently used first */
	size_t count;
};

static void place_release(struct place *p)
{
	for (size_t i = 0; i < p->count; i++)
		free(p->v[i].key);
	free(p->v);
	disk_close(p->disk);
	free(p->parent);
}

enum purpose {
	LOOK,
	MEND, /* damage is dropped if the cache is nobody's just now */
	TAKE, /* blocks are removed: it has to be ours */
};

static int open_cache(const char *dir, enum purpose purpose, struct place *p, struct why *why)
{
	struct why guest = {0};
	char *blocks;
	int rc;

	p->parent = dir != NULL ? strdup(dir) : cachedir_default();
	blocks = p->parent != NULL ? path_join(p->parent, "blocks") : NULL;
	if (blocks == NULL)
		return why_set(why, ENOENT, "there is no cache directory: give one by --cache-dir");
	rc = access(blocks, F_OK) < 0 ? -errno : 0;
	free(blocks);
	if (rc == -ENOENT)
		return 0;
	rc = disk_open(p->parent, purpose == LOOK ? NULL : "weightfs cache", &p->disk, &guest);
	if (rc == 0 && purpose == TAKE && !disk_owned(p->disk))
		return why_set(why, EBUSY, "%s: unmount it first", guest.text);
	if (rc < 0)
		*why = guest;
	return rc;
}

static int count_present(struct disk *d, struct shown *s)
{
	uint64_t records[512];
	uint32_t pieces = piece_count(s->size);
	struct disk_file *f;
	bool foreign;
	int rc = disk_file_open(d, &s->entry.id, s->size, s->key, &f, &foreign);

	if (rc < 0)
		return rc;
	for (uint32_t p = 0, n; rc == 0 && p < pieces; p += n) {
		n = MIN(pieces - p, (uint32_t)ARRAY_LEN(records));
		rc = disk_file_records(f, p, n, records);
		for (uint32_t i = 0; rc == 0 && i < n; i++)
			s->present += records[i] != 0 ? piece_len(s->size, p + i) : 0;
	}
	disk_file_unref(f);
	return rc;
}

static int look(struct place *p, struct why *why)
{
	struct disk_entry *entries = NULL;
	size_t count = 0;
	int rc = p->disk != NULL ? disk_list(p->disk, &entries, &count) : 0;

	if (rc < 0)
		return why_set(why, -rc, "%s cannot be listed: %s", disk_path(p->disk),
			       errno_text(rc));
	p->v = calloc(count + 1, sizeof(*p->v));
	if (p->v == NULL) {
		free(entries);
		return why_set(why, ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < count; i++) {
		struct shown *s = &p->v[p->count++];

		s->entry = entries[i];
		if (disk_inspect(p->disk, &s->entry.id, &s->size, &s->key) == 0)
			(void)count_present(p->disk, s);
	}
	free(entries);
	return 0;
}

/* ---- show ---- */

/* Bytes of the files in one of the other directories; take: they are removed.  The directories
 * stay: a process that has one open goes on using it. */
static uint64_t files_of(int parent_fd, const char *name, bool take)
{
	DIR *dir = file_opendir(parent_fd, name);
	uint64_t bytes = 0;
	struct dirent *de;
	struct stat st;

	while (dir != NULL && (de = readdir(dir)) != NULL) {
		if (fstatat(dirfd(dir), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		if (!take || unlinkat(dirfd(dir), de->d_name, 0) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	}
	if (dir != NULL)
		closedir(dir);
	return bytes;
}

/* Patches (a directory of 32 hex digits for each run) and listings. */
static uint64_t others(const struct place *p, bool take)
{
	DIR *dir = opendir(p->parent);
	uint64_t bytes = 0;
	struct dirent *de;

	while (dir != NULL && (de = readdir(dir)) != NULL) {
		size_t len = strlen(de->d_name);

		if (strcmp(de->d_name, "listings") == 0 || strcmp(de->d_name, "whole") == 0 ||
		    (len == 32 && strspn(de->d_name, "0123456789abcdef") == len))
			bytes += files_of(dirfd(dir), de->d_name, take);
	}
	if (dir != NULL)
		closedir(dir);
	return bytes;
}

static void print_one(const struct shown *s, int64_t now)
{
	struct buf size = {0}, present = {0}, age = {0};
	char hex[33], shown[300];

	identity_hex(&s->entry.id, hex);
	human_bytes(&size, s->size);
	human_bytes(&present, s->present);
	human_time(&age, now - s->entry.used_ns);
	printf("%.12s  %9s  %9s  %3.0f %%  %8s", hex, s->key != NULL ? buf_str(&size) : "-",
	       buf_str(&present),
	       s->size > 0 ? 100.0 * (double)s->present / (double)s->size : 100.0, buf_str(&age));
	if (s->key != NULL)
		printf("  %s", printable(shown, sizeof(shown), s->key, strlen(s->key)));
	else
		printf("  damaged: dropped at its next use");
	if (s->damaged > 0)
		printf("  %" PRIu64 " damaged", s->damaged);
	printf("\n");
	buf_release(&size);
	buf_release(&present);
	buf_release(&age);
}

static int print_lines(const struct place *p)
{
	int64_t now = clock_real_ns();
	struct buf b = {0};
	uint64_t bytes = 0;
	size_t start;

	if (p->count > 0)
		printf("%-12s  %9s  %9s  %5s  %8s  %s\n", "identity", "size", "on disk", "", "used",
		       "name");
	for (size_t i = 0; i < p->count; i++) {
		print_one(&p->v[i], now);
		bytes += p->v[i].entry.bytes;
	}
	human_bytes(&b, bytes);
	printf("%s: %zu objects, %s", p->parent, p->count, buf_str(&b));
	start = b.len;
	human_bytes(&b, others(p, false));
	printf("; decoded deltas, whole versions and listings %s\n", buf_str(&b) + start);
	buf_release(&b);
	return cli_done();
}

static int print_json(const struct place *p)
{
	json_t *list = json_array(), *top;
	int ret = EXIT_CODE_OK;

	for (size_t i = 0; i < p->count; i++) {
		const struct shown *s = &p->v[i];
		char hex[33], key[600];

		identity_hex(&s->entry.id, hex);
		if (s->key != NULL)
			printable(key, sizeof(key), s->key, strlen(s->key));
		json_array_append_new(
			list,
			json_pack("{s:s, s:s?, s:I, s:I, s:I, s:I, s:f}", "identity", hex, "name",
				  s->key != NULL ? key : NULL, "size", (json_int_t)s->size,
				  "present", (json_int_t)s->present, "allocated",
				  (json_int_t)s->entry.bytes, "damaged", (json_int_t)s->damaged,
				  "used", (double)s->entry.used_ns / NSEC_PER_SEC));
	}
	top = json_pack("{s:s, s:o}", "path", p->parent, "objects", list);
	if (top == NULL || json_dumpf(top, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) < 0)
		ret = cli_error("the cache cannot be written as JSON");
	else
		printf("\n");
	json_decref(top);
	return ret == EXIT_CODE_OK ? cli_done() : ret;
}

static int print(const struct place *p, bool json)
{
	return json ? print_json(p) : print_lines(p);
}

/* ---- verify ---- */

static int verify_one(struct place *p, struct shown *s, uint8_t *bytes, struct progress *progress)
{
	uint32_t pieces = piece_count(s->size);
	struct disk_file *f;
	bool foreign;
	int rc = disk_file_open(p->disk, &s->entry.id, s->size, s->key, &f, &foreign);

	if (rc < 0)
		return rc;
	s->present = 0;
	for (uint32_t i = 0; i < pieces; i++) {
		int bad = disk_file_check(f, i, bytes);

		if (bad != -ENOENT)
			progress_add(progress, piece_len(s->size, i));
		if (bad == 0)
			s->present += piece_len(s->size, i);
		if (bad == 0 || bad == -ENOENT)
			continue;
		s->damaged++;
		if (disk_file_writable(f) && disk_file_drop(f, i, 1) < 0)
			rc = -EIO;
	}
	disk_file_unref(f);
	return rc;
}

static int verify(struct place *p, bool json)
{
	uint8_t *bytes = malloc(PIECE_SIZE);
	uint64_t damaged = 0, total = 0;
	struct progress progress;
	int ret;

	if (bytes == NULL)
		return cli_error("out of memory");
	for (size_t i = 0; i < p->count; i++)
		total += p->v[i].present;
	progress_begin(&progress, "cache verify", total);
	for (size_t i = 0; i < p->count; i++) {
		struct shown *s = &p->v[i];

		if (s->key == NULL) {
			s->damaged = 1;
			if (disk_owned(p->disk))
				disk_remove(p->disk, &s->entry.id);
		} else if (verify_one(p, s, bytes, &progress) < 0 && s->damaged == 0) {
			s->damaged = 1;
		}
		damaged += s->damaged;
	}
	free(bytes);
	progress_end(&progress, "%zu objects hashed", p->count);
	ret = print(p, json);
	if (ret == EXIT_CODE_OK && damaged > 0)
		ret = cli_error(
			"%" PRIu64 " damaged: %s", damaged,
			p->disk != NULL && disk_owned(p->disk)
				? "dropped; they are fetched again when they are needed"
				: "the mount that owns the cache drops what it meets of them");
	return ret;
}

/* ---- prune and clear ---- */

/* Takes blocks from the end of an object, so that its header stays longest. */
static uint64_t shorten(struct place *p, struct shown *s, uint64_t excess)
{
	struct disk_file *f;
	uint64_t before, freed = 0;
	bool foreign;

	if (disk_file_open(p->disk, &s->entry.id, s->size, s->key, &f, &foreign) < 0)
		return 0;
	before = disk_file_allocated(f);
	for (uint32_t end = piece_count(s->size); end > 0 && freed < excess;) {
		uint32_t first = (end - 1) / BLOCK_PIECES * BLOCK_PIECES;
		uint64_t now;

		if (disk_file_drop(f, first, end - first) < 0)
			break;
		now = disk_file_allocated(f);
		freed = before > now ? before - now : 0;
		end = first;
	}
	disk_file_unref(f);
	return freed;
}

static int prune(struct place *p, uint64_t to)
{
	uint64_t total = 0, before;
	struct progress progress;
	struct buf b = {0};
	size_t start;

	for (size_t i = 0; i < p->count; i++)
		total += p->v[i].entry.bytes;
	before = total;
	progress_begin(&progress, "cache prune", before - MIN(before, to));
	for (size_t i = p->count; i-- > 0 && total > to;) {
		struct shown *s = &p->v[i];
		const uint64_t had = total;

		if (s->key == NULL || s->entry.bytes <= total - to) {
			disk_remove(p->disk, &s->entry.id);
			total -= s->entry.bytes;
		} else {
			total -= MIN(total, shorten(p, s, total - to));
		}
		progress_add(&progress, had - total);
	}
	progress_clear(&progress);
	human_bytes(&b, before - total);
	printf("removed %s", buf_str(&b));
	start = b.len;
	human_bytes(&b, total);
	printf(", %s left\n", buf_str(&b) + start);
	buf_release(&b);
	return cli_done();
}

static int clear(struct place *p)
{
	struct progress progress;
	struct buf b = {0};
	uint64_t bytes = 0;

	progress_begin_count(&progress, "cache clear", "objects", p->count);
	for (size_t i = 0; i < p->count; i++) {
		bytes += p->v[i].entry.bytes;
		disk_remove(p->disk, &p->v[i].entry.id);
		progress_add(&progress, 1);
	}
	progress_clear(&progress);
	bytes += others(p, true);
	human_bytes(&b, bytes);
	printf("removed %s\n", buf_str(&b));
	buf_release(&b);
	return cli_done();
}

int verb_cache(int argc, char **argv)
{
	struct cli_line line;
	struct place p = {0};
	struct why why = {0};
	uint64_t to = 0;
	const char *what;
	bool json;
	int ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	what = line.count > 0 ? line.args[0] : "show";
	json = line.value[OPT_JSON] != NULL;
	if (strcmp(what, "show") != 0 && strcmp(what, "verify") != 0 &&
	    strcmp(what, "prune") != 0 && strcmp(what, "clear") != 0)
		return cli_usage(&cli, "cache: \"%.40s\" is not show, verify, prune or clear",
				 what);
	if ((strcmp(what, "prune") == 0) != (line.value[OPT_TO] != NULL))
		return cli_usage(&cli, "cache: prune and --to SIZE go together");
	if (line.value[OPT_TO] != NULL && parse_size(line.value[OPT_TO], &to) < 0)
		return cli_usage(&cli, "cache: --to: \"%.40s\" is not a size (such as 100GB)",
				 line.value[OPT_TO]);
	ret = open_cache(line.value[OPT_DIR],
			 *what == 's'	? LOOK
			 : *what == 'v' ? MEND
					: TAKE,
			 &p, &why);
	if (ret == 0)
		ret = look(&p, &why);
	if (ret < 0)
		ret = cli_fail(&why);
	else if (*what == 's')
		ret = print(&p, json);
	else if (*what == 'v')
		ret = verify(&p, json);
	else if (*what == 'p')
		ret = prune(&p, to);
	else
		ret = clear(&p);
	place_release(&p);
	return ret;
}
