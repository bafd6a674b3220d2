/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs: an object's bytes, shared by reference.
 *
 * A blob holds one of three: the store's handle, and reads through it; an open object of the block
 * cache, which then owns the store's handle; or, for small objects that are to outlive their file,
 * a copy in memory, so that a descriptor is not kept for what is there. Nothing of a blob changes
 * after blob_open() but the count of references, hence no lock: any number of threads may read at
 * once.
 */
#include "cache/blob.h"

#include <assert.h>
#include <stdlib.h>

enum {
	KEEP_MAX = 1 << 20,
	WANT_FIRST = 256 << 10, /* a header */
	WANT_STEP = 2 << 20,	/* while one is decoded the next ones come */
	WANT_MAX = 32 << 20,	/* then the stream has its own window */
};

static int read_copy(struct blob *b, struct why *why)
{
	char shown[256], *copy = malloc((size_t)b->size + 1);
	int rc;

	if (copy == NULL)
		return why_set(why, ENOMEM, "out of memory");
	rc = blob_read(b, 0, copy, (size_t)b->size);
	if (rc < 0) {
		free(copy);
		return why_set(why, -rc, "'%s' cannot be read: %s",
			       printable(shown, sizeof(shown), b->key, strlen(b->key)),
			       rc == -ESTALE ? "it changed meanwhile" : strerrordesc_np(-rc));
	}
	store_close(b->handle);
	block_close(b->block);
	b->handle = NULL;
	b->block = NULL;
	b->copy = copy;
	return 0;
}

/* Puts the block cache between the blob and its store. */
static int open_block(struct blob *b, struct blockcache *blocks, struct why *why)
{
	char shown[256];
	struct handle *handle = b->handle;
	int rc;

	b->handle = NULL;
	rc = block_open(blocks, &b->id, b->size, b->key, handle, &b->block);
	if (rc == 0)
		return 0;
	return why_set(why, -rc, "'%s' cannot be opened: %s",
		       printable(shown, sizeof(shown), b->key, strlen(b->key)),
		       rc == -EBADMSG ? "the store tells two sizes of the same content"
				      : strerrordesc_np(-rc));
}

int blob_open(struct store *s, const struct object *object, bool keep, struct blob **out,
	      struct why *why)
{
	struct blob *b = calloc(1, sizeof(*b));
	int rc;

	if (b == NULL)
		return why_set(why, ENOMEM, "out of memory");
	b->refs = 1;
	b->size = object->size;
	b->mtime_ns = object->mtime_ns;
	b->id = object->id;
	b->key = strdup(object->key);
	if (b->key == NULL) {
		rc = why_set(why, ENOMEM, "out of memory");
		goto out;
	}
	rc = store_open(s, object, &b->handle, why);
	if (rc == 0 && s->remote && s->blocks != NULL)
		rc = open_block(b, s->blocks, why);
	if (rc == 0 && keep && b->size <= KEEP_MAX)
		rc = read_copy(b, why);
out:
	if (rc == 0)
		*out = b;
	else
		blob_unref(b);
	return rc;
}

struct blob *blob_ref(struct blob *b)
{
	__atomic_add_fetch(&b->refs, 1, __ATOMIC_RELAXED);
	return b;
}

void blob_unref(struct blob *b)
{
	int left;

	if (b == NULL)
		return;
	left = __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL);
	assert(left >= 0);
	if (left > 0)
		return;
	store_close(b->handle);
	block_close(b->block);
	free(b->copy);
	free(b->key);
	free(b);
}

int blob_read(struct blob *b, uint64_t off, void *dst, size_t len)
{
	uint64_t end;

	if (b->block != NULL)
		return block_read(b->block, off, dst, len);
	if (b->copy == NULL)
		return store_read(b->handle, off, dst, len);
	if (add_overflows(off, len, &end) || end > b->size)
		return -EBADMSG;
	if (len > 0)
		memcpy(dst, b->copy + off, len);
	return 0;
}

int blob_lend(struct blob *b, uint64_t off, size_t len, struct blob_loan *out)
{
	int rc = -EAGAIN;

	if (b->block != NULL)
		rc = block_lend(b->block, off, len, &out->loan);
	else if (b->copy == NULL)
		rc = store_lend(b->handle, off, len, &out->loan);
	if (rc == 0)
		out->blob = blob_ref(b);
	return rc;
}

void blob_loan_end(struct blob_loan *l)
{
	loan_end(&l->loan);
	blob_unref(l->blob);
}

void blob_want(struct blob *b, const struct block_range *ranges, size_t count)
{
	if (b->block != NULL)
		block_want(b->block, ranges, count);
}

void blob_want_beginning(struct blob *b)
{
	struct block_range ranges[1 + WANT_MAX / WANT_STEP];
	uint64_t end = MIN(b->size, (uint64_t)WANT_MAX);
	size_t count = 0;

	for (uint64_t at = 0; at < end; at += ranges[count++].len) {
		uint64_t step = at == 0 ? WANT_FIRST : WANT_STEP - at % WANT_STEP;

		ranges[count] = (struct block_range){at, MIN(step, end - at)};
	}
	blob_want(b, ranges, count);
}

void blob_pull(struct blob *b)
{
	if (b->block != NULL)
		block_pull(b->block);
}

void blob_progress(struct blob *b, struct block_progress *out)
{
	if (b->block != NULL)
		block_progress(b->block, out);
	else
		*out = (struct block_progress){.size = b->size, .present = b->size};
}

void blob_pin(struct blob *b)
{
	if (b->block != NULL)
		block_pin(b->block);
}

void blob_unpin(struct blob *b)
{
	if (b->block != NULL)
		block_unpin(b->block);
}

static int blob_source_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	return blob_read(ctx, off, dst, len);
}

struct source blob_source(struct blob *b)
{
	return (struct source){.read = blob_source_read, .ctx = b, .size = b->size};
}
