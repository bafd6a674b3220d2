/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-memory source and the checked read.
 *
 * Everything that reads input through a `struct source` goes through source_read(), so that an
 * offset computed from damaged input becomes an error here and never reaches the owner's read().
 */
#include "codec/io.h"
#include "codec/base.h"

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
