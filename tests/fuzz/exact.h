/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fuzz targets that write share: a sink into memory that is
 * never longer than what was written (so that AddressSanitizer sees a read past it, which the
 * slack of sink_grown() would hide), and bounded.
 */
#ifndef TESTS_FUZZ_EXACT_H
#define TESTS_FUZZ_EXACT_H

#include "codec/io.h"
#include "tests/fuzz/require.h"

enum { SINK_MAX = 64 << 20 };

struct memory { /* zero-initialise; free(bytes) */
	uint8_t *bytes;
	size_t len;
};

/* Of a sink whose ctx is a struct memory.  -ENOSPC beyond SINK_MAX. */
static inline int memory_write(void *ctx, uint64_t off, const void *src, size_t len)
{
	struct memory *m = ctx;

	if (off + len > SINK_MAX)
		return -ENOSPC;
	if (off + len > m->len) {
		m->bytes = realloc(m->bytes, (size_t)off + len);
		REQUIRE(m->bytes != NULL);
		memset(m->bytes + m->len, 0, (size_t)off + len - m->len);
		m->len = (size_t)off + len;
	}
	memcpy(m->bytes + off, src, len);
	return 0;
}

#endif
