/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follow does with the mount, through its .weightfs directory as any program can.
 *
 * A lease is two things.  The pin (control: "pin N") stays when this process ends, because the
 * engine keeps the path: vLLM and SGLang read it again when they like.  The open file keeps the
 * version also when somebody else unpins it.  A pin that was there before is left alone at the end,
 * unless it was an earlier follow's.
 *
 * Warming reads through versions/N, whose pages are those of the plain paths, too; a mount of a
 * remote source is told to fetch the newest version in parallel meanwhile.
 *
 * One thread.
 */
#include "tools/follow_mount.h"

#include "cache/fileio.h"
#include "tools/cli.h"
#include "tools/place.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 4 << 20, REPLY_MAX = 4096 };

/* JSON, which engines are spoken to in, has no other text. */
static bool is_utf8(const char *text)
{
	json_t *j = json_string(text);
	bool ok = j != NULL;

	json_decref(j);
	return ok;
}

static void lease_end(struct follow_lease *l)
{
	if (l->fd >= 0)
		close(l->fd);
	free(l->name);
}

int follow_mount_open(const char *mountpoint, struct follow_mount *out, struct why *why)
{
	struct follow_mount m = {.dot_fd = -1, .newest_fd = -1};
	int ret = place_open_run(mountpoint, &m.dot_fd, why);

	if (ret < 0)
		return ret;
	m.path = realpath(mountpoint, NULL);
	m.newest_fd = openat(m.dot_fd, "newest", O_RDONLY | O_CLOEXEC);
	if (m.path == NULL || m.newest_fd < 0) {
		ret = why_set(why, errno, "%s: %s", SHOWN(mountpoint), errno_text(errno));
		follow_mount_close(&m);
		return ret;
	}
	if (!is_utf8(m.path)) {
		ret = why_set(why, EILSEQ,
			      "%s: the path is not UTF-8, and no engine could be told it",
			      SHOWN(m.path));
		follow_mount_close(&m);
		return ret;
	}
	*out = m;
	return 0;
}

void follow_mount_close(struct follow_mount *m)
{
	for (size_t i = 0; i < m->lease_count; i++)
		lease_end(&m->leases[i]);
	free(m->leases);
	free(m->path);
	if (m->newest_fd >= 0)
		close(m->newest_fd);
	if (m->dot_fd >= 0)
		close(m->dot_fd);
}

/* One command; its reply is the sentence when it is an error. */
static int command(struct follow_mount *m, const char *text, struct why *why)
{
	char reply[REPLY_MAX];
	int fd = openat(m->dot_fd, "control", O_RDWR | O_CLOEXEC), ret = 0;
	ssize_t n;

	if (fd < 0)
		return why_set(why, errno, "%s: the mount takes no commands: %s", SHOWN(m->path),
			       errno_text(errno));
	if (write(fd, text, strlen(text)) < 0)
		ret = -errno;
	n = pread(fd, reply, sizeof(reply) - 1, 0);
	if (n < 0 && ret == 0)
		ret = -errno;
	reply[MAX(n, 0)] = '\0';
	reply[strcspn(reply, "\n")] = '\0';
	if (strncmp(reply, "error: ", 7) == 0)
		ret = why_set(why, ret < 0 ? -ret : EIO, "%s", reply + 7);
	else if (ret < 0)
		why_set(why, -ret, "%s: %s: %s", SHOWN(m->path), text, errno_text(ret));
	close(fd);
	return ret;
}

static bool is_pinned(struct follow_mount *m, uint64_t version)
{
	json_t *status = NULL, *one;
	struct why why = {0};
	bool pinned = false;
	size_t i;

	if (place_status(m->path, &status, &why) < 0)
		return false;
	json_array_foreach (json_object_get(status, "versions"), i, one)
		if ((uint64_t)json_integer_value(json_object_get(one, "version")) == version)
			pinned = json_is_true(json_object_get(one, "pinned"));
	json_decref(status);
	return pinned;
}

static DIR *open_tree(struct follow_mount *m, uint64_t version)
{
	char name[64];

	snprintf(name, sizeof(name), "versions/%" PRIu64, version);
	return file_opendir(m->dot_fd, name);
}

/* Opens one of its weight files. */
static int open_weights(struct follow_mount *m, uint64_t version, struct follow_lease *out)
{
	DIR *dir = open_tree(m, version);
	struct dirent *entry;
	int fd = -1;

	while (dir != NULL && fd < 0 && (entry = readdir(dir)) != NULL) {
		size_t len = strlen(entry->d_name);

		if (len > 12 && strcmp(entry->d_name + len - 12, ".safetensors") == 0)
			fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 &&
		    asprintf(&out->name, "versions/%" PRIu64 "/%s", version, entry->d_name) < 0) {
			out->name = NULL;
			close(fd);
			break;
		}
	}
	if (dir != NULL)
		closedir(dir);
	out->fd = out->name != NULL ? fd : -1;
	return out->fd < 0 ? -ENOENT : 0;
}

int follow_mount_lease(struct follow_mount *m, uint64_t version, bool adopt, struct why *why)
{
	struct follow_lease *grown, lease = {.version = version, .fd = -1};
	char text[64];
	int ret;

	for (size_t i = 0; i < m->lease_count; i++)
		if (m->leases[i].version == version)
			return 0;
	grown = reallocarray(m->leases, m->lease_count + 1, sizeof(*grown));
	if (grown == NULL)
		return why_set(why, ENOMEM, "out of memory");
	m->leases = grown;
	lease.pinned = adopt || !is_pinned(m, version);
	snprintf(text, sizeof(text), "pin %" PRIu64, version);
	ret = command(m, text, why);
	if (ret < 0)
		return ret;
	if (open_weights(m, version, &lease) < 0)
		return why_set(why, ENOENT, "%s/.weightfs/versions/%" PRIu64 " cannot be opened",
			       SHOWN(m->path), version);
	m->leases[m->lease_count++] = lease;
	return 0;
}

bool follow_mount_renewed(struct follow_mount *m, size_t lease)
{
	struct follow_lease *l = &m->leases[lease], fresh = *l;
	struct stat was, is;
	struct why why = {0};
	char text[64];

	/* A mount that has gone says nothing about its versions. */
	if (fstat(l->fd, &was) < 0 ||
	    (fstatat(m->dot_fd, l->name, &is, 0) == 0 ? is.st_ino == was.st_ino : errno != ENOENT))
		return false;
	snprintf(text, sizeof(text), "pin %" PRIu64, l->version);
	fresh.name = NULL;
	if (command(m, text, &why) < 0 || open_weights(m, l->version, &fresh) < 0)
		return false; /* not there yet */
	lease_end(l);
	*l = fresh;
	return true;
}

void follow_mount_repin(struct follow_mount *m)
{
	for (size_t i = 0; i < m->lease_count; i++) {
		struct follow_lease *l = &m->leases[i];
		struct why why = {0};
		char text[64];

		if (is_pinned(m, l->version))
			continue;
		snprintf(text, sizeof(text), "pin %" PRIu64, l->version);
		l->pinned |= command(m, text, &why) == 0;
	}
}

void follow_mount_keep(struct follow_mount *m, const uint64_t *versions, size_t count)
{
	size_t kept = 0;

	for (size_t i = 0; i < m->lease_count; i++) {
		struct follow_lease *l = &m->leases[i];
		struct why why = {0};
		bool keep = false;
		char text[64];

		for (size_t j = 0; j < count; j++)
			keep |= versions[j] == l->version;
		if (keep) {
			m->leases[kept++] = *l;
			continue;
		}
		snprintf(text, sizeof(text), "unpin %" PRIu64, l->version);
		/* One that somebody else has unpinned is what we want, too. */
		if (l->pinned)
			(void)command(m, text, &why);
		lease_end(l);
	}
	m->lease_count = kept;
}

/* ---- warming ---- */

static bool is_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, 0) > 0;
}

static int read_through(int fd, void *piece, int stop_fd, uint64_t *bytes)
{
	uint64_t off = 0;
	ssize_t n;

	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	for (;;) {
		if (is_readable(stop_fd))
			return -ECANCELED;
		n = pread(fd, piece, PIECE, (off_t)off);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		off += (uint64_t)n;
		*bytes += (uint64_t)n;
	}
}

int follow_mount_warm(struct follow_mount *m, uint64_t version, int stop_fd, uint64_t *out_bytes,
		      struct why *why)
{
	DIR *dir = open_tree(m, version);
	void *piece = malloc(PIECE);
	struct why ignored = {0};
	struct dirent *entry;
	int ret = 0;

	*out_bytes = 0;
	if (dir == NULL || piece == NULL) {
		ret = why_set(why, dir == NULL ? ENOENT : ENOMEM,
			      "version %" PRIu64 " cannot be read: %s", version,
			      errno_text(dir == NULL ? ENOENT : ENOMEM));
		goto out;
	}
	/* A hint: where the newest is another version by now, reading fetches this one. */
	(void)command(m, "prefetch", &ignored);
	while (ret == 0 && (entry = readdir(dir)) != NULL) {
		int fd;

		if (entry->d_type != DT_REG)
			continue;
		fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
		ret = fd >= 0 ? read_through(fd, piece, stop_fd, out_bytes) : -errno;
		if (fd >= 0)
			close(fd);
		if (ret == -ECANCELED)
			why_set(why, ECANCELED, "told to end");
		else if (ret < 0)
			why_set(why, -ret, "version %" PRIu64 ": %s cannot be read: %s", version,
				SHOWN(entry->d_name), errno_text(ret));
	}
out:
	free(piece);
	if (dir != NULL)
		closedir(dir);
	return ret;
}
