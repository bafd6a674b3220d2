/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Malformed blobs of form version 1 and malformed Rice blocks: each kind of damage has its
 * sentence, and applying or merging whatever it is stays inside the buffers with every kernel
 * (which the address sanitizer checks, since every buffer here has exactly its size).
 */
#include "codec/rice.h"
#include "tests/unit/codec/rice_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const uint64_t seed = 20250303;

/* ---- blocks, put together bit by bit ---- */

struct bits {
	uint8_t bytes[256];
	size_t n; /* bits */
};

static void put(struct bits *b, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++, b->n++)
		b->bytes[b->n / 8] |= (uint8_t)((v >> i & 1) << b->n % 8);
}

static void put_unary(struct bits *b, unsigned zeros)
{
	put(b, 0, zeros);
	put(b, 1, 1);
}

enum { K = 4, INVERTED = 0x10, CODED = 0x20 };

/* What to get wrong; zeros make a good block of two elements, 3 and 40, of op ADD and two bytes,
 * with the values -1 and 5. */
struct wrong {
	const char *sentence;
	unsigned flags;	   /* besides CODED and k */
	unsigned odd;	   /* instead of 1; plus 1 */
	unsigned odd_gap;  /* of the list of odd values, instead of 1; plus 1 */
	unsigned nibble;   /* instead of 3; plus 1 */
	unsigned low, gap; /* of the second element, instead of 36 = 2 * 16 + 4; plus 1 */
	unsigned more;	   /* bytes behind the end */
	unsigned less;	   /* bytes fewer */
	unsigned padding;  /* what the last bits are, instead of zeros */
	unsigned set;	   /* the op is SET */
	uint32_t elements; /* instead of 65,536 */
};

static const struct wrong wrongs[] = {
	{.sentence = NULL},
	{.sentence = "unknown flags", .flags = 0x40},
	{.sentence = "unknown flags", .flags = 0x80},
	{.sentence = "sets elements and has coded values", .set = 1},
	{.sentence = "more odd values than values", .odd = 3 + 1},
	{.sentence = "cut off in its nibbles", .less = 3},
	{.sentence = "cut off in its low parts or its tail", .less = 2},
	{.sentence = "cut off in its low parts or its tail", .nibble = 15 + 1},
	{.sentence = "list of odd values has 2 and has to be below 2", .odd_gap = 2 + 1},
	{.sentence = "list of changed elements is cut off: it does not have 2 ones", .less = 1},
	{.sentence = "stream is 6 bytes long instead of 5", .more = 1},
	{.sentence = "stream is 7 bytes long instead of 5", .more = 2},
	{.sentence = "padding of its stream is not zero", .padding = 0x80},
	{.sentence = "list of changed elements has 40 and has to be below 40", .elements = 40},
	{.sentence = NULL, .elements = 41},
};

static size_t make_block(const struct wrong *w, uint8_t *out)
{
	struct bits b = {0};
	unsigned odd = w->odd > 0 ? w->odd - 1 : 1;

	put(&b, K | CODED | w->flags, 8);
	put(&b, odd, 2);
	put(&b, 0, 4); /* j */
	put(&b, 1, 2); /* signs */
	put(&b, w->nibble > 0 ? w->nibble - 1 : 3, 4);
	put(&b, 3, K);
	put(&b, w->low > 0 ? w->low - 1 : 4, K);
	put_unary(&b, w->odd_gap > 0 ? w->odd_gap - 1 : 1);
	put_unary(&b, 0);
	put_unary(&b, w->gap > 0 ? w->gap - 1 : 2);
	b.n = (b.n + 7) / 8 * 8 + 8 * (size_t)w->more;
	b.bytes[b.n / 8 - 1] |= (uint8_t)w->padding;
	memcpy(out, b.bytes, b.n / 8 - w->less);
	return b.n / 8 - w->less;
}

/* Reads the block with every kernel, from a buffer of its size. */
static void read_block(const uint8_t *bytes, size_t len, enum patch_op op, unsigned width,
		       uint32_t count, uint32_t elements, bool valid)
{
	uint8_t *exact = malloc(MAX(len, (size_t)1));

	assert_non_null(exact);
	memcpy(exact, bytes, len);
	for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
		struct rice_reader r;
		uint32_t seen = 0;
		int n;

		if (kernel == NULL)
			continue;
		n = rice_open(&r, kernel, exact, len, op, width, count, elements);
		while (n == 0 && (n = rice_next(&r)) > 0) {
			seen += (uint32_t)n;
			n = 0;
			if (seen == count)
				break;
		}
		assert_true(n == -EBADMSG || (n == 0 && seen == count));
		assert_true(!valid || n == 0);
	}
	free(exact);
}

static void test_each_damage_of_a_block_has_its_sentence(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
		const struct wrong *w = &wrongs[i];
		const enum patch_op op = w->set ? PATCH_SET : PATCH_ADD;
		const uint32_t elements = w->elements > 0 ? w->elements : PATCH_BLOCK;
		uint8_t block[256];
		size_t len = make_block(w, block);

		read_block(block, len, op, 2, 2, elements, w->sentence == NULL);
		for (size_t k = 0; k < ARRAY_LEN(kernel_names); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernel_names[k]);
			struct why why = {0};
			int ret;

			if (kernel == NULL)
				continue;
			ret = rice_check(kernel, block, len, op, 2, 2, elements, &why);
			if (w->sentence == NULL
				    ? ret != 0
				    : ret != -EBADMSG || strstr(why.text, w->sentence) == NULL)
				fail_msg("damage %zu: %d \"%s\" instead of \"%s\"", i, ret,
					 why.text, w->sentence);
		}
	}
}

static int check(const struct bits *b, size_t len, enum patch_op op, uint32_t count,
		 struct why *why)
{
	read_block(b->bytes, len, op, 1, count, PATCH_BLOCK, false);
	return rice_check(patch_kernel(NULL), b->bytes, len, op, 1, count, PATCH_BLOCK, why);
}

/* The lists themselves: too far in one jump, in several, and the list of odd values cut off. */
static void test_lists_that_go_too_far(void **state)
{
	struct bits far = {0}, wrap = {0}, cut = {0}, none = {0};
	struct why why = {0};

	put(&far, 15, 8);
	put(&far, 0x7fff, 15);
	put(&far, 0x7fff, 15);
	put_unary(&far, 1);
	put_unary(&far, 1); /* 65,535 twice */
	assert_int_equal(check(&far, 8, PATCH_SET, 2, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "changed elements has 2 zeros, too many"));

	put(&wrap, 15, 8);
	for (int i = 0; i < 3; i++)
		put(&wrap, 0x7fff, 15);
	for (int i = 0; i < 3; i++)
		put_unary(&wrap, 0); /* 32,767, 65,535, and 98,303 */
	assert_int_equal(check(&wrap, 7 + 3, PATCH_SET, 3, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "goes beyond 65535: entry 32767 after entry 65535"));

	put(&cut, CODED, 8);
	put(&cut, 3, 2); /* of 3, all odd */
	put(&cut, 0, 4 + 3 + 12);
	put_unary(&cut, 0);
	assert_int_equal(check(&cut, 4, PATCH_ADD, 3, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "cut off in the unary part of its list of odd values"));

	assert_int_equal(check(&none, 0, PATCH_SET, 1, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "payload is empty"));
}

static void test_random_blocks(void **state)
{
	struct rng r = {seed};

	for (int i = 0; i < 20000; i++) {
		uint8_t bytes[128];
		size_t len = (size_t)rng_below(&r, sizeof(bytes) + 1);
		uint32_t elements = i % 2 ? PATCH_BLOCK : 1 + (uint32_t)rng_below(&r, 300);

		rng_fill(&r, bytes, len);
		if (i % 3 && len > 0)
			bytes[0] &= 0x3f;
		read_block(bytes, len, (enum patch_op)(1 + i % 3), 1U << (i / 3) % 4,
			   1 + (uint32_t)rng_below(&r, MIN(elements, 1U << i % 13)), elements,
			   false);
	}
}

/* ---- blobs ---- */

/* 130 blocks of one-byte elements, of which 0, 64 and 129 change; the last has ten elements. */
enum {
	NUMEL = 129 * PATCH_BLOCK + 10,
	GROUPS = 3,
};

static uint8_t *good(size_t *out_len)
{
	static const uint64_t positions[] = {
		1, 500, 900, 64 * PATCH_BLOCK + 9, NUMEL - 10, NUMEL - 9, NUMEL - 8, NUMEL - 1,
	};
	static const uint8_t values[] = {1, 1, 5, 1, 7, 1, 1, 1};
	struct memory mem = {0};
	struct sink sink = memory_sink(&mem);
	struct patch_writer *w = patch_writer_new(PATCH_ADD, 1, NUMEL, &sink, 0);
	uint8_t *exact;
	uint64_t len;

	assert_non_null(w);
	assert_int_equal(patch_writer_rice(w, NULL, true, NULL), 0);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(patch_writer_add(w, &positions[i], &values[i], 1, NULL), 0);
		patch_writer_hash(w, positions[i] >> 16, 0);
	}
	assert_int_equal(patch_writer_end(w, &len, NULL, NULL), 0);
	patch_writer_free(w);
	exact = malloc((size_t)len);
	assert_non_null(exact);
	memcpy(exact, mem.bytes, (size_t)len);
	free(mem.bytes);
	*out_len = (size_t)len;
	return exact;
}

/* Reads all there is of a blob in all ways; results do not matter. */
static void survive(const uint8_t *blob, uint64_t len)
{
	static const size_t offsets[] = {0, 64 * PATCH_BLOCK + 3, NUMEL - 7, 128 * PATCH_BLOCK};
	static const size_t lengths[] = {PATCH_BLOCK + 9, 20, 7, PATCH_BLOCK + 10};
	struct patch p;

	if (patch_open(blob, len, &p, NULL) < 0)
		return;
	for (size_t i = 0; i < 4 * ARRAY_LEN(kernel_names); i++) {
		const struct rice_kernel *kernel = patch_kernel(kernel_names[i / 4]);
		uint64_t size = p.numel * p.width, off = MIN(offsets[i % 4], size);
		size_t n = (size_t)MIN(lengths[i % 4], size - off);
		uint8_t *dst = calloc(1, MAX(n, (size_t)1));

		assert_non_null(dst);
		if (kernel != NULL) {
			p.kernel = kernel;
			patch_prefetch(&p, off, n);
			patch_cost(&p, off, n);
			if (patch_apply(&p, off, dst, n) > 0)
				fail();
			if (n >= PATCH_BLOCK && p.width == 1 &&
			    patch_check_result(&p, off >> 16, dst, NULL) > 0)
				fail();
		}
		free(dst);
	}
	if (p.numel == NUMEL) {
		const struct patch *twice[] = {&p, &p};
		struct memory mem = {0};
		struct sink sink = memory_sink(&mem);
		uint64_t merged;

		if (patch_merge_as(PATCH_CODING_RICE, twice, 2, &sink, 0, &merged, NULL, NULL) > 0)
			fail();
		free(mem.bytes);
	}
}

static int open_and_check(const uint8_t *blob, uint64_t len, struct why *why)
{
	struct patch p;
	int ret = patch_open(blob, len, &p, why);

	return ret < 0 ? ret : patch_check(&p, why);
}

/* Where damage goes: `at` counts from the beginning, the directory, the lengths or the end. */
enum from { HEAD, DIR, LENGTHS, END };

static const struct damage {
	const char *sentence;
	enum from from;
	int at, bytes;
	uint64_t value;
	int error;
} damages[] = {
	{"form version 3", HEAD, 4, 1, 3, -ENOTSUP},
	{"flags (4) that this program does not know", HEAD, 24, 1, 4, -ENOTSUP},
	{"reserved bytes", HEAD, 25, 1, 1, -EBADMSG},
	{"reserved bytes", HEAD, 27, 1, 1, -EBADMSG},
	{"lists 131 blocks, too many", HEAD, 28, 4, 131, -EBADMSG},
	{"lists 4294967295 blocks, too many", HEAD, 28, 4, UINT32_MAX, -EBADMSG},
	{"of which it lists 100, does not fit", HEAD, 28, 4, 100, -EBADMSG},
	{"says that it lists 3 blocks and its directory has 2", DIR, 32, 8, 0, -EBADMSG},
	{"does not fit", HEAD, 8, 8, (uint64_t)1000 * PATCH_BLOCK, -EBADMSG},
	{"says that it changes 9", HEAD, 16, 8, 9, -EBADMSG},
	{"group 1 of the patch's directory begins with listed block 2 instead of 1", DIR, 16 + 13,
	 3, 2, -EBADMSG},
	{"lists more than 3 blocks", DIR, 0, 8, 15, -EBADMSG},
	{"group 1 of the patch's directory begins at 1 instead", DIR, 16 + 8, 5, 1, -EBADMSG},
	{"lists blocks beyond its last, number 129", DIR, 32, 8, 5, -EBADMSG},
	{"and its blocks need", LENGTHS, 4, 2, 0xffff, -EBADMSG},
	{"and its blocks need", LENGTHS, 4, 2, 0, -EBADMSG},
	{"padding of the patch is not zero", END, -1, 1, 1, -EBADMSG},
	{"block 0 of the patch does not begin with its form and count", HEAD, 32, 3, 0xffffff,
	 -EBADMSG},
	{"block 0 of the patch does not begin with its form and count", HEAD, 32, 2, 0x0080,
	 -EBADMSG},
	{"block 0 of the patch has the unknown form 3", HEAD, 32, 1, 2 << 2 | 3, -EBADMSG},
	{"dense with 3 elements instead of 65536", HEAD, 32, 1, 2 << 2 | 1, -EBADMSG},
	{"bytes of payload instead of 6", HEAD, 32, 1, 1 << 2, -EBADMSG},
	{"block 0 of the patch: its payload has unknown flags", HEAD, 33, 1, 0xc0, -EBADMSG},
};

static void test_each_damage_of_a_blob_has_its_sentence(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
		const struct damage *d = &damages[i];
		struct why why = {0};
		uint8_t value[8];
		struct patch p;
		size_t len, at;
		uint8_t *blob = good(&len);
		int ret;

		assert_int_equal(patch_open(blob, len, &p, NULL), 0);
		at = (size_t)((d->from == HEAD	    ? 0
			       : d->from == DIR	    ? (int64_t)(p.dir - blob)
			       : d->from == LENGTHS ? (int64_t)(p.lengths - blob)
						    : (int64_t)len) +
			      d->at);
		store_le64(value, d->value);
		memcpy(blob + at, value, (size_t)d->bytes);
		ret = open_and_check(blob, len, &why);
		if (ret != d->error || strstr(why.text, d->sentence) == NULL)
			fail_msg("damage %zu: %d \"%s\" instead of \"%s\"", i, ret, why.text,
				 d->sentence);
		survive(blob, len);
		free(blob);
	}
}

static void test_truncation(void **state)
{
	size_t len;
	uint8_t *blob = good(&len);
	struct why why = {0};

	assert_int_equal(open_and_check(blob, len, &why), 0);
	for (size_t n = 0; n < len; n++) {
		uint8_t *part = malloc(MAX(n, (size_t)1));

		assert_non_null(part);
		memcpy(part, blob, n);
		assert_int_equal(open_and_check(part, n, &why), -EBADMSG);
		assert_true(why.text[0] != '\0');
		survive(part, n);
		free(part);
	}
	free(blob);
}

static void test_random_damage(void **state)
{
	struct rng r = {seed + 1};

	for (int i = 0; i < 800; i++) {
		size_t len, from = i % 2 ? PATCH_HEAD : 0;
		uint8_t *blob = good(&len);

		for (uint64_t n = 1 + rng_below(&r, 4); n > 0; n--)
			blob[from + rng_below(&r, len - from)] = (uint8_t)rng_next(&r);
		survive(blob, len);
		free(blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_damage_of_a_block_has_its_sentence),
		cmocka_unit_test(test_lists_that_go_too_far),
		cmocka_unit_test(test_random_blocks),
		cmocka_unit_test(test_each_damage_of_a_blob_has_its_sentence),
		cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_random_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
