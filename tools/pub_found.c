/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding checkpoints, and telling when one is finished.
 *
 * The directory is listed as a store, whose identities (device, inode, size, time) say whether a
 * file is still the same.  Two sums are made of them for each checkpoint: of the weight files,
 * which says what has been published, and of all files, which says whether somebody writes.
 *
 * What cannot be known is whether a writer that pauses will go on; that is what the interval of
 * quiet is for, and the publisher compares sizes and times again after its last read.
 */
#include "tools/pub_found.h"

#include "fs/layout.h"
#include "tools/pub_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

/* How much longer to wait for what looks as if the writer had only paused. */
enum { DEPTH = 3, DOUBT = 10 };

static const char suffix[] = ".safetensors";

void found_release(struct found_list *l)
{
	for (size_t i = 0; i < l->count; i++) {
		free(l->v[i].name);
		free(l->v[i].path);
	}
	free(l->v);
	*l = (struct found_list){0};
}

/* ---- names ---- */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

bool found_number(const char *name, uint64_t *out)
{
	const char *end = name + strlen(name);

	while (end > name) {
		const char *slash = memrchr(name, '/', (size_t)(end - name));
		const char *begin = slash != NULL ? slash + 1 : name, *digits = end;
		uint64_t n = 0;
		bool fits = true;

		while (digits > begin && is_digit(digits[-1]))
			digits--;
		for (const char *d = digits; d < end; d++)
			fits = fits && !mul_overflows(n, 10, &n) &&
			       !add_overflows(n, (uint64_t)(*d - '0'), &n);
		if (digits < end && fits && n <= INT64_MAX) {
			*out = n;
			return true;
		}
		end = slash != NULL ? slash : name;
	}
	return false;
}

static bool ends_in(const char *name, const char *end)
{
	const size_t a = strlen(name), b = strlen(end);

	return a > b && strcmp(name + a - b, end) == 0;
}

/* "model-00001-of-00003.safetensors" */
static bool is_shard(const char *file)
{
	const size_t len = strlen(file), tail = strlen("-00001-of-00003.safetensors");
	const char *p = file + len - tail;

	if (len < tail || strncmp(p + 6, "-of-", 4) != 0 || *p != '-')
		return false;
	for (unsigned i = 0; i < 5; i++)
		if (!is_digit(p[1 + i]) || !is_digit(p[10 + i]))
			return false;
	return true;
}

/* Names under which trainers write before they rename. */
static bool is_temporary(const char *name)
{
	for (const char *at = name; at != NULL; at = strchr(at, '/')) {
		at += *at == '/';
		if (strncmp(at, "tmp-", 4) == 0 || strncmp(at, "tmp_", 4) == 0)
			return true;
	}
	return ends_in(name, ".tmp") || strstr(name, ".tmp/") != NULL;
}

/* ---- the listing ---- */

static void mix(uint64_t *sum, const void *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		*sum = (*sum ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
}

static void take_file(struct found *f, const char *file, const struct object *o, int64_t *index_ns)
{
	const bool index = strcmp(file, LAYOUT_INDEX_NAME) == 0, weights = ends_in(file, suffix);

	mix(&f->activity, file, strlen(file) + 1);
	mix(&f->activity, o->id.bytes, sizeof(o->id.bytes));
	if (!index && !weights)
		return;
	mix(&f->signature, file, strlen(file) + 1);
	mix(&f->signature, o->id.bytes, sizeof(o->id.bytes));
	f->sharded |= weights && is_shard(file);
	if (index) {
		f->indexed = true;
		*index_ns = o->mtime_ns;
	} else {
		f->newest_ns = MAX(f->newest_ns, o->mtime_ns);
	}
}

static bool in_directory(const char *key, const char *dir, size_t len)
{
	if (len == 0)
		return strchr(key, '/') == NULL;
	return strncmp(key, dir, len) == 0 && key[len] == '/' && strchr(key + len + 1, '/') == NULL;
}

/* All that is directly in it. */
static void take_files(struct found *f, const struct listing *l)
{
	const size_t len = strlen(f->name);
	int64_t index_ns = INT64_MIN;

	f->signature = f->activity = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < l->count; i++)
		if (in_directory(l->v[i].key, f->name, len))
			take_file(f, l->v[i].key + len + (len > 0), &l->v[i], &index_ns);
	f->activity |= 1; /* 0 stands for none */
	f->index_old = f->indexed && index_ns < f->newest_ns;
}

static struct found *find(const struct found_list *l, const char *name, size_t len)
{
	for (size_t i = 0; i < l->count; i++)
		if (strncmp(l->v[i].name, name, len) == 0 && l->v[i].name[len] == '\0')
			return &l->v[i];
	return NULL;
}

static unsigned depth(const char *name)
{
	unsigned n = *name != '\0';

	for (; *name != '\0'; name++)
		n += *name == '/';
	return n;
}

static int add(struct found_list *l, const char *path, const char *name, size_t len)
{
	struct found *v = reallocarray(l->v, l->count + 1, sizeof(*v)), *f;

	if (v == NULL)
		return -ENOMEM;
	l->v = v;
	f = &v[l->count];
	*f = (struct found){.name = strndup(name, len)};
	if (f->name == NULL ||
	    asprintf(&f->path, "%s%s%s", path, len > 0 ? "/" : "", f->name) < 0) {
		free(f->name);
		return -ENOMEM;
	}
	f->numbered = found_number(f->name, &f->number);
	l->count++;
	return 0;
}

static int collect(const struct listing *l, const char *path, const struct pub_apart *apart,
		   struct found_list *out)
{
	for (size_t i = 0; i < l->count; i++) {
		const char *key = l->v[i].key, *slash = strrchr(key, '/');
		const size_t len = slash != NULL ? (size_t)(slash - key) : 0;
		const char *file = slash != NULL ? slash + 1 : key;
		struct found *f;

		/* Adapters lie beside no weights, or are not what is published. */
		if (!ends_in(file, suffix) || strncmp(file, "adapter_", 8) == 0 ||
		    find(out, key, len) != NULL || pub_apart_has(apart, key))
			continue;
		if (add(out, path, key, len) < 0)
			return -ENOMEM;
		f = &out->v[out->count - 1];
		if (depth(f->name) > DEPTH || is_temporary(f->name)) {
			free(f->name);
			free(f->path);
			out->count--;
		}
	}
	return 0;
}

static int order(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->numbered != y->numbered)
		return x->numbered ? 1 : -1;
	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	if (x->newest_ns != y->newest_ns)
		return x->newest_ns < y->newest_ns ? -1 : 1;
	return strcmp(x->name, y->name);
}

int found_scan(struct store *dir, const char *path, const struct pub_places *places, int64_t now_ns,
	       struct found_list *io, struct why *why)
{
	struct pub_apart apart = {0};
	struct found_list new = {0};
	struct listing listing = {0};
	int err = store_list(dir, "", &listing, why);

	if (err < 0)
		return err;
	err = pub_apart_make(places, path, &listing, &apart);
	if (err == 0)
		err = collect(&listing, path, &apart, &new);
	pub_apart_release(&apart);
	for (size_t i = 0; err == 0 && i < new.count; i++) {
		struct found *f = &new.v[i];
		const struct found *before = find(io, f->name, strlen(f->name));

		take_files(f, &listing);
		f->quiet_ns = now_ns;
		if (before == NULL || before->activity != f->activity)
			continue;
		f->quiet_ns = before->quiet_ns;
		f->checked = before->checked;
		f->ready = before->ready;
		f->why = before->why;
	}
	listing_release(&listing);
	if (err < 0) {
		found_release(&new);
		return why_set(why, -err, "out of memory");
	}
	if (new.count > 0)
		qsort(new.v, new.count, sizeof(*new.v), order);
	found_release(io);
	*io = new;
	return 0;
}

/* ---- finished? ---- */

/* Looks into the files; only what they are, not what is in them. */
static void look(struct found *f)
{
	struct pub_checkpoint *c = NULL;

	f->checked = f->activity;
	f->why = (struct why){0};
	f->ready = false;
	if (f->sharded && !f->indexed) {
		why_set(&f->why, EAGAIN, "%s has shards and no %s yet", SHOWN(f->path),
			LAYOUT_INDEX_NAME);
		return;
	}
	f->ready = pub_checkpoint_open(f->path, false, &c, &f->why) == 0;
	pub_checkpoint_free(f->ready ? c : NULL);
}

bool found_finished(struct found *f, int64_t settle_ns, int64_t now_ns, int64_t *out_again)
{
	/* An index older than its files is that of the checkpoint before: the new one comes last.
	 */
	const int64_t until = f->quiet_ns + (f->index_old ? DOUBT : 1) * settle_ns;

	*out_again = -1;
	if (now_ns < until) {
		*out_again = until;
		return false;
	}
	if (f->checked != f->activity)
		look(f);
	return f->ready;
}
