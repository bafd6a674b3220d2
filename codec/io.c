/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-memory source, the checked read, and a sink into memory.
 *
 * Everything that reads input through a `struct source` goes through source_read(), so that an
 * offset computed from damaged input becomes an error here and never reaches the owner's read().
 */
#include "codec/io.h"
#include "codec/base.h"

#include <stdlib.h>

static int memory_read(void *ctx, uint64_t off, void *dst, size_t len)
{
	if (len > 0)
		memcpy(dst, (const uint8_t *)ctx + off, len);
	return 0;
}

struct source source_memory(const void *bytes, size_t len)
{
	return (struct source){.read = memory_read, .ctx = (void *)(uintptr_t)bytes, .size = len};
}

int source_read(const struct source *src, uint64_t off, void *dst, size_t len)
{
	if (off > src->size || len > src->size - off)
		return -EBADMSG;
	return src->read(src->ctx, off, dst, len);
}

static int grown_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct grown *g = ctx;
	uint64_t end;

	if (add_overflows(off, len, &end) || end > SIZE_MAX / 2)
		return -ENOMEM;
	if (end > g->cap) {
		const size_t cap = MAX(2 * g->cap, (size_t)end);
		uint8_t *bytes = realloc(g->bytes, cap);

		if (bytes == NULL)
			return -ENOMEM;
		g->bytes = bytes;
		g->cap = cap;
	}
	if (off > g->len)
		memset(g->bytes + g->len, 0, (size_t)off - g->len);
	memcpy(g->bytes + off, src, len);
	g->len = MAX(g->len, (size_t)end);
	return 0;
}

struct sink sink_grown(struct grown *g)
{
	return (struct sink){.write = grown_write, .ctx = g};
}
