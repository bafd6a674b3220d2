/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of encodings, and what they share: files of the work directory and the list of objects
 * to upload.
 *
 * Work files have names, so that an uploader of another program can be given one; the directory
 * belongs to one attempt at a time (its lock is the state's) and is emptied before the next, so
 * nothing here removes any.
 */
#include "tools/pub_encode.h"

#include "cache/fileio.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct pub_encoding *const encodings[] = {
	&pub_wfp1, &pub_wfp1x, &pub_packed, &pub_trl_v1, &pub_trl_v3, &pub_hfdir,
};

const struct pub_encoding *pub_encoding_find(const char *name, struct why *why)
{
	struct buf names = {0};

	for (size_t i = 0; i < ARRAY_LEN(encodings); i++) {
		if (strcmp(encodings[i]->name, name) == 0) {
			buf_release(&names);
			return encodings[i];
		}
		buf_addf(&names, "%s%s", i > 0 ? ", " : "", encodings[i]->name);
	}
	why_set(why, EINVAL, "--encoding: there is none of the name \"%s\"; there are %s",
		SHOWN(name), buf_str(&names));
	buf_release(&names);
	return NULL;
}

int pub_work_file(const struct pub_input *in, const char *name, char **out_path, int *out_fd,
		  struct why *why)
{
	char *path = path_join(in->work_dir, name);
	int fd;

	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		int err = errno;

		why_set(why, err, "%s cannot be made: %s", SHOWN(path), strerrordesc_np(err));
		free(path);
		return -err;
	}
	*out_path = path;
	*out_fd = fd;
	return 0;
}

int pub_stopped(const struct pub_input *in, struct why *why)
{
	if (in->stop == NULL || !*in->stop)
		return 0;
	return why_set(why, EINTR, "interrupted; nothing was published");
}

void pub_read_past(const void *bytes, uint64_t len)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
			at = (uintptr_t)bytes & ~(page - 1);

	/* The pages stay in the page cache; a neighbour's that go with them come back from there.
	 */
	if (len > 0)
		madvise((void *)at, (uintptr_t)bytes + len - at, MADV_DONTNEED);
}

int pub_objects_add(struct pub_objects *o, const char *key, const char *file, char *path, int fd,
		    struct why *why)
{
	struct pub_object *v = reallocarray(o->v, o->count + 1, sizeof(*v)), *new;
	struct stat st;
	int err = 0;

	if (v != NULL)
		o->v = v;
	if (fstat(fd, &st) < 0)
		err = errno;
	if (v == NULL || err != 0) {
		free(path);
		close(fd);
		return why_set(why, v == NULL ? ENOMEM : err, "an upload cannot be prepared: %s",
			       strerrordesc_np(v == NULL ? ENOMEM : err));
	}
	new = &o->v[o->count++];
	*new = (struct pub_object){.path = path, .fd = fd, .size = (uint64_t)st.st_size};
	new->key = strdup(key);
	if (file != NULL)
		new->file = strdup(file);
	return new->key != NULL && (file == NULL || new->file != NULL)
		       ? 0
		       : why_set(why, ENOMEM, "out of memory");
}

void pub_objects_release(struct pub_objects *o)
{
	for (size_t i = 0; i < o->count; i++) {
		free(o->v[i].key);
		free(o->v[i].file);
		free(o->v[i].path);
		if (o->v[i].fd >= 0)
			close(o->v[i].fd);
	}
	free(o->v);
	*o = (struct pub_objects){0};
}

int pub_anchor_plain(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	int ret = 0;

	snprintf(out->encoding, sizeof(out->encoding), "safetensors");
	for (size_t i = 0; ret == 0 && i < in->file_count; i++) {
		const struct pub_file *f = &in->files[i];
		char *key = NULL, *path = strdup(f->path);
		int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0), len;

		len = in->file_count == 1
			      ? asprintf(&key, "anchors/step_%06" PRIu64 "-%s.safetensors",
					 in->version, in->attempt)
			      : asprintf(&key, "anchors/step_%06" PRIu64 "-%s/%s", in->version,
					 in->attempt, f->name);
		if (len < 0 || path == NULL || fd < 0) {
			ret = why_set(why, fd < 0 ? errno : ENOMEM, "%s cannot be prepared: %s",
				      SHOWN(f->name), strerrordesc_np(fd < 0 ? errno : ENOMEM));
			free(path);
			if (fd >= 0)
				close(fd);
		} else {
			ret = pub_objects_add(out, key, f->name, path, fd, why);
		}
		free(len < 0 ? NULL : key);
	}
	return ret;
}
