/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of golden blobs share: the files below tests/golden, and the text of a blob's
 * elements, a position and the bits of a value in hexadecimal per line, behind a first line of the
 * test's own.
 *
 * To be included behind cmocka.h.
 */
#ifndef TESTS_GOLDEN_TEXT_H
#define TESTS_GOLDEN_TEXT_H

#include "tests/unit/codec/patch_model.h"

enum { GOLDEN_MOST = 4096 };

/* tests/golden/<folder>/<name>.<suffix>; the test fails when it cannot be opened. */
static inline FILE *golden_open(const char *folder, const char *name, const char *suffix,
				const char *mode)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "tests/golden/%s/%s.%s", folder, name, suffix);
	f = fopen(path, mode);
	if (f == NULL)
		fail_msg("%s: cannot be opened; run this from the top of the repository", path);
	return f;
}

/* The bits of the i-th value. */
static inline uint64_t golden_bits(const struct model *m, size_t i)
{
	uint8_t le[8] = {0};

	memcpy(le, m->values + i * m->width, m->width);
	return load_le64(le);
}

static inline void golden_write(FILE *f, const struct model *m)
{
	for (size_t i = 0; i < m->count; i++)
		fprintf(f, "%llu %llx\n", (unsigned long long)m->positions[i],
			(unsigned long long)golden_bits(m, i));
}

/* Fills m, whose width is known, with the elements from here to the end. */
static inline void golden_read(FILE *f, struct model *m)
{
	unsigned long long position, value;

	m->positions = calloc(GOLDEN_MOST, 8);
	m->values = calloc(GOLDEN_MOST, 8);
	assert_true(m->positions != NULL && m->values != NULL);
	while (fscanf(f, "%llu %llx", &position, &value) == 2) {
		uint8_t le[8];

		assert_true(m->count < GOLDEN_MOST);
		store_le64(le, value);
		memcpy(m->values + m->count * m->width, le, m->width);
		m->positions[m->count++] = position;
	}
}

#endif
