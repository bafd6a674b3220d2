/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of classes that runs on every CPU: the plain loops of class_kernel.h as they are.
 *
 * Counting compares 16 bytes at a time, in vectors that every compiler makes of what the CPU has.
 *
 * No state; any number of threads.
 */
#include "codec/class_kernel.h"

#define PORTABLE

CLASSES_OF_ALL(PORTABLE)
PASS(PORTABLE, struct class_group, class_group_of, class_count)

static uint64_t mask(const uint8_t *group, unsigned c)
{
	return class_mask(group, c);
}

static unsigned select_one(uint64_t m, unsigned n)
{
	return class_select(m, n);
}

const struct class_kernel class_kernel_portable = {
	.classes = {classes_1, classes_2, classes_4, classes_8},
	.pass = pass,
	.count = count,
	.mask = mask,
	.select = select_one,
};
