/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a remote store.
 *
 *	no listing yet -- the place answers --> good
 *	no listing yet -- it cannot be reached, a file is there --> remembered --> good
 *
 * A listing that succeeds is written to a file when it differs from what the file holds.  Only the
 * first listing of a process may come from the file, and only when the place could not be reached:
 * that it refuses, or that nothing is there, is an answer and not an absence.  From then on
 *failures are passed on, and whoever lists keeps what it has.  The description says that it is a
 *memory until a listing succeeds.
 *
 * The file is whole or not there (temp, fsync, rename) and ends in a hash; a damaged one is as good
 * as none, and one that cannot be written costs the next start without a network, nothing else.
 *
 * Handles are the inner store's own.  Threads: any; the lock guards the few fields that change.
 */
#include "fs/remember.h"

#include <fcntl.h>
#include <stdlib.h>
#include <xxhash.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/lock.h"
#include "fs/human.h"

enum { FILE_MAX = 1 << 30, HEAD = 24, ENTRY = 40, KEY_MAX = 4095 };

static const char magic[8] = "wfslist1";

struct memory {
	struct store base;
	struct store *inner;
	char *dir, *path; /* NULL: nowhere to keep it */
	struct lock lock; /* LOCK_QUEUE; guards what follows */
	bool listed;	  /* somebody has been given a listing */
	bool from_file;	  /* and that was the remembered one */
	int64_t saved_ns; /* of what is remembered: wall clock */
	uint64_t hash;	  /* of what the file holds; 0: not known */
	char trouble[500];
};

/* ---- the file ---- */

static void put_u64(struct buf *b, uint64_t v)
{
	uint8_t raw[8];

	store_le64(raw, v);
	buf_add(b, raw, sizeof(raw));
}

/* magic, time, count; per object: size, mtime, identity, err, length of key, key; xxh3 of all. */
static void encode(const struct listing *l, struct buf *b)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct object *o = &l->v[i];
		uint8_t raw[8];

		put_u64(b, o->size);
		put_u64(b, (uint64_t)o->mtime_ns);
		buf_add(b, o->id.bytes, sizeof(o->id.bytes));
		store_le32(raw, (uint32_t)o->err);
		store_le32(raw + 4, (uint32_t)strlen(o->key));
		buf_add(b, raw, sizeof(raw));
		buf_addstr(b, o->key);
	}
}

static int save(struct memory *m, const struct listing *l, const struct buf *objects)
{
	struct buf file = {0};
	int rc = -ENOMEM;

	buf_add(&file, magic, sizeof(magic));
	put_u64(&file, (uint64_t)clock_real_ns());
	put_u64(&file, l->count);
	buf_add(&file, objects->data, objects->len);
	if (!file.failed)
		put_u64(&file, XXH3_64bits(file.data, file.len));
	if (!file.failed) {
		rc = file_mkdirs(m->dir);
		if (rc == 0)
			rc = file_replace_soon(m->path, file.data, file.len);
	}
	buf_release(&file);
	return rc;
}

static int decode_object(const uint8_t **p, const uint8_t *end, struct object *out)
{
	const uint8_t *at = *p;
	uint32_t len;

	if (end - at < ENTRY)
		return -EBADMSG;
	out->size = load_le64(at);
	out->mtime_ns = (int64_t)load_le64(at + 8);
	memcpy(out->id.bytes, at + 16, sizeof(out->id.bytes));
	out->err = (int)load_le32(at + 32);
	len = load_le32(at + 36);
	at += ENTRY;
	if (len > KEY_MAX || (size_t)(end - at) < len || memchr(at, 0, len) != NULL)
		return -EBADMSG;
	out->key = strndup((const char *)at, len);
	if (out->key == NULL)
		return -ENOMEM;
	*p = at + len;
	return path_is_safe(out->key) ? 0 : -EBADMSG;
}

static int decode(const uint8_t *bytes, size_t len, struct listing *out, int64_t *saved_ns)
{
	const uint8_t *p, *end;
	struct listing l = {0};
	uint64_t count;
	int rc = 0;

	if (len < HEAD + 8 || memcmp(bytes, magic, sizeof(magic)) != 0 ||
	    load_le64(bytes + len - 8) != XXH3_64bits(bytes, len - 8))
		return -EBADMSG;
	p = bytes + HEAD;
	end = bytes + len - 8;
	count = load_le64(bytes + 16);
	if (count > len / ENTRY)
		return -EBADMSG;
	l.v = calloc(MAX((size_t)count, 1), sizeof(*l.v));
	if (l.v == NULL)
		return -ENOMEM;
	while (rc == 0 && l.count < count) {
		rc = decode_object(&p, end, &l.v[l.count]);
		l.count++; /* also a broken one: its key may be there */
		if (rc == 0 && l.count > 1 &&
		    strcmp(l.v[l.count - 2].key, l.v[l.count - 1].key) >= 0)
			rc = -EBADMSG;
	}
	if (rc == 0 && p != end)
		rc = -EBADMSG;
	if (rc < 0) {
		listing_release(&l);
		return rc;
	}
	*saved_ns = (int64_t)load_le64(bytes + 8);
	*out = l;
	return 0;
}

static int load(struct memory *m, struct listing *out, int64_t *saved_ns)
{
	char *bytes = NULL;
	size_t len = 0;
	int rc;

	if (m->path == NULL)
		return -ENOENT;
	rc = file_slurp(AT_FDCWD, m->path, FILE_MAX, &bytes, &len);
	if (rc == 0)
		rc = decode((const uint8_t *)bytes, len, out, saved_ns);
	free(bytes);
	return rc;
}

/* ---- listing ---- */

static void remember(struct memory *m, const struct listing *l)
{
	struct buf objects = {0};
	uint64_t hash;
	bool fresh;

	encode(l, &objects);
	hash = XXH3_64bits(objects.data != NULL ? objects.data : "", objects.len) | 1;
	lock_take(&m->lock);
	m->listed = true;
	m->from_file = false;
	fresh = m->hash != hash;
	lock_release(&m->lock);
	if (fresh && m->path != NULL && !objects.failed && save(m, l, &objects) == 0) {
		lock_take(&m->lock);
		m->hash = hash;
		lock_release(&m->lock);
	}
	buf_release(&objects);
}

/* The place gave an answer, so what is remembered is not asked. */
static bool is_answer(int err)
{
	switch (err) {
	case -ENOENT:
	case -EACCES:
	case -EINVAL:
	case -ENOTSUP:
	case -EFBIG:
	case -ENOMEM:
	case -ECANCELED: return true;
	default: return false;
	}
}

static int recall(struct memory *m, int err, struct listing *out, const struct why *why)
{
	struct listing l = {0};
	int64_t saved_ns = 0;
	bool first;

	lock_take(&m->lock);
	first = !m->listed;
	lock_release(&m->lock);
	if (!first || is_answer(err) || load(m, &l, &saved_ns) < 0)
		return err;
	lock_take(&m->lock);
	m->listed = m->from_file = true;
	m->saved_ns = saved_ns;
	memcpy(m->trouble, why->text, sizeof(m->trouble));
	lock_release(&m->lock);
	*out = l;
	return 0;
}

static int list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	struct memory *m = (struct memory *)s;
	struct why local = {0};
	int rc = store_list(m->inner, prefix, out, &local);

	/* Only whole listings are worth remembering. */
	if (*prefix == '\0') {
		if (rc == 0)
			remember(m, out);
		else
			rc = recall(m, rc, out, &local);
	}
	if (rc < 0 && why != NULL)
		*why = local;
	return rc;
}

/* ---- the rest is passed on ---- */

static int open_object(struct store *s, const struct object *object, struct handle **out,
		       struct why *why)
{
	return store_open(((struct memory *)s)->inner, object, out, why);
}

static int put(struct store *s, const char *key, const struct source *src, struct why *why)
{
	return store_put(((struct memory *)s)->inner, key, src, why);
}

static int put_if(struct store *s, const char *key, const struct source *src,
		  const struct put_condition *condition, struct why *why)
{
	return store_put_if(((struct memory *)s)->inner, key, src, condition, why);
}

static int watch_fd(struct store *s)
{
	return store_watch_fd(((struct memory *)s)->inner);
}

static void watch_drain(struct store *s)
{
	store_watch_drain(((struct memory *)s)->inner);
}

static void stop(struct store *s)
{
	store_stop(((struct memory *)s)->inner);
}

static void refresh(struct store *s)
{
	store_refresh(((struct memory *)s)->inner);
}

static void release(struct store *s)
{
	struct memory *m = (struct memory *)s;

	store_free(m->inner);
	lock_destroy(&m->lock);
	free(m->dir);
	free(m->path);
	free(m);
}

static bool describe(struct store *s, struct buf *out)
{
	struct memory *m = (struct memory *)s;
	bool offline;

	lock_take(&m->lock);
	offline = m->from_file;
	if (offline) {
		buf_addf(out, "offline: %s is shown as it was on ", m->inner->name);
		human_date(out, m->saved_ns);
		buf_addf(out, ", because %s", m->trouble);
	}
	lock_release(&m->lock);
	if (!offline)
		return store_describe(m->inner, out);
	return true;
}

/* ops is never asked for fetch, close and settled: handles are the inner store's. */
static const struct store_ops memory_ops = {
	.name = "memory",
	.list = list,
	.open = open_object,
	.put = put,
	.put_if = put_if,
	.watch_fd = watch_fd,
	.watch_drain = watch_drain,
	.free = release,
	.stop = stop,
	.refresh = refresh,
	.describe = describe,
};

static char *file_name(const char *dir, const char *name, const char *salt)
{
	struct buf b = {0};
	XXH128_hash_t h;
	char *text;

	buf_addf(&b, "%s\n%s", name, salt != NULL ? salt : "");
	h = XXH3_128bits(buf_str(&b), b.len);
	b.len = 0;
	buf_addf(&b, "%016llx%016llx.listing", (unsigned long long)h.high64,
		 (unsigned long long)h.low64);
	text = b.failed ? NULL : path_join(dir, buf_str(&b));
	buf_release(&b);
	return text;
}

int remember_new(struct store *inner, const char *dir, const char *salt, struct store **out,
		 struct why *why)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (m == NULL) {
		store_free(inner);
		return why_set(why, ENOMEM, "out of memory");
	}
	lock_init(&m->lock, LOCK_QUEUE);
	m->inner = inner;
	m->base.ops = &memory_ops;
	m->base.name = inner->name;
	store_front(&m->base, inner);
	if (dir != NULL) {
		m->dir = strdup(dir);
		m->path = file_name(dir, inner->name, salt);
		if (m->dir == NULL || m->path == NULL) {
			release(&m->base);
			return why_set(why, ENOMEM, "out of memory");
		}
	}
	*out = &m->base;
	return 0;
}
