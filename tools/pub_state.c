/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher's local state.
 *
 * What it says is never believed over what the run's pointer says: after a crash pending.json tells
 * which of the two sides of the pointer's replacement it happened on, and the hash of a copy is
 * compared before anything is derived from it.  So nothing here has to be ordered with the uploads,
 * except that pending.json is on disk before the first of them and that a slot is rewritten only
 * when no record names it.
 *
 * One process at a time, by flock(2) on `lock`; one thread.
 */
#include "tools/pub_state.h"

#include "cache/fileio.h"
#include "codec/buf.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FORMAT "weightfs-publisher"

enum { VERSION = 1, RECORD_MAX = 64 << 20 };

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static int cannot(struct why *why, int err, const char *path, const char *what)
{
	return why_set(why, err,
		       "the publisher's state %s cannot be %s: %s (--state-dir chooses another "
		       "place)",
		       SHOWN(path), what, strerrordesc_np(err));
}

int pub_random(char *out, size_t bytes)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t raw[32];

	if (bytes > sizeof(raw) || getrandom(raw, bytes, 0) != (ssize_t)bytes)
		return -EIO;
	for (size_t i = 0; i < bytes; i++) {
		out[2 * i] = digits[raw[i] >> 4];
		out[2 * i + 1] = digits[raw[i] & 15];
	}
	out[2 * bytes] = '\0';
	return 0;
}

void pub_record_release(struct pub_record *r)
{
	json_decref(r->companions);
	json_decref(r->keys);
	json_decref(r->patches);
	json_decref(r->orphans);
	*r = (struct pub_record){0};
}

/* ---- records ---- */

static bool take_text(const json_t *root, const char *key, size_t len, char *out)
{
	const char *text = json_string_value(json_object_get(root, key));

	if (text == NULL || strlen(text) != len || strspn(text, "0123456789abcdef") != len)
		return false;
	memcpy(out, text, len + 1);
	return true;
}

/* An array of safe paths; NULL: there is none. */
static json_t *take_names(const json_t *root, const char *key)
{
	json_t *list = json_object_get(root, key), *name;
	size_t i;

	if (!json_is_array(list))
		return NULL;
	json_array_foreach (list, i, name)
		if (!json_is_string(name) || !path_is_safe(json_string_value(name)))
			return NULL;
	return json_incref(list);
}

static bool parse_record(const json_t *root, char publisher[33], struct pub_record *out)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	const char *slot = json_string_value(json_object_get(root, "slot"));
	json_t *version = json_object_get(root, "newest");

	if (format == NULL || strcmp(format, FORMAT) != 0 ||
	    json_integer_value(json_object_get(root, "version")) != VERSION ||
	    !take_text(root, "publisher", 32, publisher) || !json_is_integer(version) ||
	    json_integer_value(version) < 0)
		return false;
	out->version = (uint64_t)json_integer_value(version);
	if (out->version > 0 && (!take_text(root, "lineage", 8, out->lineage) ||
				 !take_text(root, "state", 32, out->state)))
		return false;
	out->slot = slot != NULL && (slot[0] == 'a' || slot[0] == 'b') ? slot[0] : 0;
	out->companions = json_object_get(root, "companions");
	out->companions = json_is_object(out->companions) ? json_incref(out->companions) : NULL;
	out->keys = take_names(root, "keys");
	out->patches = take_names(root, "patches");
	out->orphans = take_names(root, "orphans");
	return true;
}

/* 0, or -ENOENT: there is none, or none that can be used (which is as good as none). */
static int read_record(const struct pub_state *s, const char *name, char publisher[33],
		       struct pub_record *out, struct why *why)
{
	char *path = path_join(s->dir, name), *text = NULL;
	json_t *root = NULL;
	size_t len = 0;
	int ret;

	if (path == NULL)
		return out_of_memory(why);
	ret = file_slurp(AT_FDCWD, path, RECORD_MAX, &text, &len);
	if (ret == 0)
		root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	if (ret < 0 && ret != -ENOENT)
		cannot(why, -ret, path, "read");
	else if (ret == 0 && (root == NULL || !parse_record(root, publisher, out)))
		ret = -ENOENT;
	json_decref(root);
	free(text);
	free(path);
	return ret;
}

static int write_record(const struct pub_state *s, const char *name, const struct pub_record *r,
			struct why *why)
{
	char *path = path_join(s->dir, name), *text, slot[2] = {r->slot, '\0'};
	json_t *root = json_pack("{ss, si, ss, sI, ss, ss, ss*, sO*, sO*, sO*, sO*}", "format",
				 FORMAT, "version", VERSION, "publisher", s->publisher, "newest",
				 (json_int_t)r->version, "lineage", r->lineage, "state", r->state,
				 "slot", r->slot != 0 ? slot : NULL, "companions", r->companions,
				 "keys", r->keys, "orphans", r->orphans, "patches", r->patches);
	int ret;

	text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
	if (path == NULL || text == NULL) {
		ret = out_of_memory(why);
	} else {
		ret = file_replace(path, text, strlen(text));
		if (ret < 0)
			cannot(why, -ret, path, "written");
	}
	json_decref(root);
	free(text);
	free(path);
	return ret;
}

/* ---- opening ---- */

static char *default_parent(void)
{
	const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *out = NULL;

	if (xdg != NULL && xdg[0] == '/')
		return path_join(xdg, "weightfs");
	if (home == NULL || home[0] != '/')
		return NULL;
	return asprintf(&out, "%s/.local/state/weightfs", home) < 0 ? NULL : out;
}

static int make_dir(struct pub_state *s, const char *parent, const char *place, struct why *why)
{
	char *own = parent == NULL ? default_parent() : NULL, *path;
	uint64_t hash = XXH3_64bits(place, strlen(place));
	char name[24];
	int ret;

	if (parent == NULL && own == NULL)
		return why_set(why, ENOENT,
			       "there is no place for the publisher's state: neither "
			       "XDG_STATE_HOME nor HOME is set; --state-dir names one");
	snprintf(name, sizeof(name), "%016" PRIx64, hash);
	s->dir = path_join(parent != NULL ? parent : own, name);
	free(own);
	if (s->dir == NULL || (s->work = path_join(s->dir, "work")) == NULL ||
	    (s->patches = path_join(s->dir, "patches")) == NULL)
		return out_of_memory(why);
	ret = file_mkdirs(s->work);
	if (ret == 0)
		ret = file_mkdirs(s->patches);
	if (ret < 0)
		return cannot(why, -ret, s->dir, "made");
	path = path_join(s->dir, "place");
	if (path == NULL)
		return out_of_memory(why);
	if (access(path, F_OK) < 0)
		ret = file_replace(path, place, strlen(place));
	if (ret < 0)
		cannot(why, -ret, path, "written");
	free(path);
	return ret;
}

static int take_lock(struct pub_state *s, const char *place, struct why *why)
{
	char *path = path_join(s->dir, "lock"), who[300] = "", host[256] = "";
	ssize_t n;
	int ret = 0;

	if (path == NULL)
		return out_of_memory(why);
	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (s->lock_fd < 0)
		ret = cannot(why, errno, path, "written");
	free(path);
	if (ret < 0)
		return ret;
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return cannot(why, errno, s->dir, "locked");
		n = pread(s->lock_fd, who, sizeof(who) - 1, 0);
		who[n > 0 ? strcspn(who, "\n") : 0] = '\0';
		return why_set(why, EBUSY,
			       "another publisher is at work on %s: %s; wait for it, or end it",
			       SHOWN(place), who[0] != '\0' ? SHOWN(who) : "it is just starting");
	}
	(void)gethostname(host, sizeof(host) - 1);
	n = snprintf(who, sizeof(who), "process %ld on %s\n", (long)getpid(), host);
	if (ftruncate(s->lock_fd, 0) < 0 || file_pwrite(s->lock_fd, who, (size_t)n, 0) < 0)
		return cannot(why, errno, s->dir, "written");
	return 0;
}

static int load(struct pub_state *s, struct why *why)
{
	char other[33];
	int ret = read_record(s, "state.json", s->publisher, &s->now, why);

	if (ret == -ENOENT) {
		pub_record_release(&s->now);
		if (pub_random(s->publisher, 16) < 0)
			return why_set(why, EIO, "the system gives no random numbers");
		ret = write_record(s, "state.json", &s->now, why);
	}
	if (ret < 0)
		return ret;
	ret = read_record(s, "pending.json", other, &s->pending, why);
	s->has_pending = ret == 0 && strcmp(other, s->publisher) == 0 && s->pending.version > 0;
	if (!s->has_pending)
		pub_record_release(&s->pending);
	return ret == -ENOENT ? 0 : ret;
}

int pub_state_open(const char *parent, const char *place, struct pub_state **out, struct why *why)
{
	struct pub_state *s = calloc(1, sizeof(*s));
	int ret;

	if (s == NULL)
		return out_of_memory(why);
	s->lock_fd = -1;
	ret = make_dir(s, parent, place, why);
	if (ret == 0)
		ret = take_lock(s, place, why);
	if (ret == 0)
		ret = load(s, why);
	if (ret < 0)
		pub_state_close(s);
	else
		*out = s;
	return ret;
}

void pub_state_close(struct pub_state *s)
{
	if (s == NULL)
		return;
	pub_record_release(&s->now);
	pub_record_release(&s->pending);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	free(s->dir);
	free(s->work);
	free(s->patches);
	free(s);
}

/* ---- slots and work ---- */

char pub_state_free_slot(const struct pub_state *s)
{
	return s->now.slot == 'a' ? 'b' : 'a';
}

char *pub_state_slot_path(const struct pub_state *s, char slot)
{
	return path_join(s->dir, slot == 'a' ? "slot-a" : "slot-b");
}

static bool is_named(const json_t *names, const char *name)
{
	const json_t *value;
	size_t i;

	json_array_foreach (names, i, value) {
		const char *text = json_string_value(value);

		if (text != NULL && strcmp(text, name) == 0)
			return true;
	}
	return false;
}

static void clean_dir(const char *path, const json_t *keep, const json_t *keep_too)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir != NULL && (e = readdir(dir)) != NULL)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
		    !is_named(keep, e->d_name) && !is_named(keep_too, e->d_name))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir != NULL)
		closedir(dir);
}

void pub_state_clean(const struct pub_state *s)
{
	clean_dir(s->work, NULL, NULL);
	clean_dir(s->patches, s->now.patches, s->pending.patches);
}

/* ---- an attempt ---- */

int pub_state_begin(struct pub_state *s, struct why *why)
{
	int ret = write_record(s, "pending.json", &s->pending, why);

	if (ret == 0)
		s->has_pending = true;
	return ret;
}

static int remove_pending(struct pub_state *s, struct why *why)
{
	char *path = path_join(s->dir, "pending.json");
	int ret = 0;

	if (path == NULL)
		return out_of_memory(why);
	if (unlink(path) < 0 && errno != ENOENT)
		ret = cannot(why, errno, path, "removed");
	free(path);
	s->has_pending = false;
	return ret;
}

int pub_state_commit(struct pub_state *s, struct why *why)
{
	int ret;

	json_decref(s->pending.keys);
	s->pending.keys = NULL;
	ret = write_record(s, "state.json", &s->pending, why);
	if (ret < 0)
		return ret;
	pub_record_release(&s->now);
	s->now = s->pending;
	s->pending = (struct pub_record){0};
	return remove_pending(s, why);
}

int pub_state_drop(struct pub_state *s, struct why *why)
{
	int ret = 0;

	if (json_array_size(s->pending.keys) > 0) {
		if (s->now.orphans == NULL)
			s->now.orphans = json_array();
		if (json_array_extend(s->now.orphans, s->pending.keys) < 0)
			return out_of_memory(why);
		ret = pub_state_save(s, why);
	}
	pub_record_release(&s->pending);
	return ret == 0 ? remove_pending(s, why) : ret;
}

int pub_state_save(struct pub_state *s, struct why *why)
{
	return write_record(s, "state.json", &s->now, why);
}
