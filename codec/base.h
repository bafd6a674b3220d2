/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few things every file may want: attributes, array length, arithmetic that notices overflow,
 * little-endian loads and stores, and `struct why`, the sentence that goes with an error.
 *
 * Errors everywhere: functions return 0 or a negative errno; results come through out_* parameters
 * that are untouched on failure.  Cold paths also carry a `struct why *` (may be NULL) so that a
 * person gets a sentence that names the object and the remedy.
 */
#ifndef CODEC_BASE_H
#define CODEC_BASE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ARRAY_LEN(a)   (sizeof(a) / sizeof((a)[0]))
#define PRINTF(f, a)   __attribute__((format(printf, f, a)))
#define MUST_CHECK     __attribute__((warn_unused_result))
#define CLEANUP(f)     __attribute__((cleanup(f)))
#define MIN(a, b)      ((a) < (b) ? (a) : (b))
#define MAX(a, b)      ((a) > (b) ? (a) : (b))
#define ALIGN_UP(x, a) (((x) + (a) - 1) / (a) * (a))

/* True when the sum or product does not fit in 64 bits; *out is then meaningless. */
static inline bool add_overflows(uint64_t a, uint64_t b, uint64_t *out)
{
	return __builtin_add_overflow(a, b, out);
}

static inline bool mul_overflows(uint64_t a, uint64_t b, uint64_t *out)
{
	return __builtin_mul_overflow(a, b, out);
}

/* Unaligned little-endian access, whatever the machine's own order. */
static inline uint16_t load_le16(const void *p)
{
	const uint8_t *b = p;
	return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t load_le32(const void *p)
{
	const uint8_t *b = p;
	return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t load_le64(const void *p)
{
	return load_le32(p) | (uint64_t)load_le32((const uint8_t *)p + 4) << 32;
}

static inline void store_le16(void *p, uint16_t v)
{
	uint8_t *b = p;
	b[0] = (uint8_t)v;
	b[1] = (uint8_t)(v >> 8);
}

static inline void store_le32(void *p, uint32_t v)
{
	store_le16(p, (uint16_t)v);
	store_le16((uint8_t *)p + 2, (uint16_t)(v >> 16));
}

static inline void store_le64(void *p, uint64_t v)
{
	store_le32(p, (uint32_t)v);
	store_le32((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

/* The reason for a failure, for people: one sentence without a final full stop or newline. */
struct why {
	int err;	/* positive errno, 0 when nothing failed */
	char text[500]; /* always NUL-terminated; printable ASCII/UTF-8 only */
};

/* Stores the sentence and returns -err, so that `return why_set(why, EBADMSG, "...")` reads well.
 * `why` may be NULL.  A longer text is cut. */
int why_set(struct why *why, int err, const char *fmt, ...) PRINTF(3, 4);

/* Puts "<context>: " before the sentence already stored; returns -why->err (or -EIO for NULL). */
int why_prefix(struct why *why, const char *fmt, ...) PRINTF(2, 3);

/* Copies a name that came from input into dst[cap] in printable form: control bytes, quotes,
 * backslashes and bytes that are not valid UTF-8 become \xNN, and what is longer than cap is cut
 * with "...".  Returns dst. */
const char *printable(char *dst, size_t cap, const char *name, size_t len);

/* The printable form of a NUL-terminated name, at most 199 bytes, until the end of the block: for
 * messages, where it is made only when there is something to say. */
#define SHOWN(name) printable((char[200]){0}, 200, (name), strlen(name))

#endif
