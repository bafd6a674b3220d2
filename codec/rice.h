/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Rice form of a patch block (PATCH_RICE in patch.h): which elements of the block change and by
 * what, in about ten bits each where one element in a hundred changes by plus or minus one.
 *
 * The payload of a block has `count` changed elements out of `elements` (both known from outside).
 * It is a bit stream, padded with zero bits to whole bytes, and then a tail of whole bytes.  Bit i
 * of the stream is bit i % 8 (0 the lowest) of byte i / 8; a number of several bits has its lowest
 * bit first.  The stream, one after the other and not aligned:
 *
 *	8 bits		k: bits 0-3 the list's parameter; bit 4 INVERTED; bit 5 CODED;
 *			bits 6-7 zero
 *	with CODED:
 *	  L bits	odd: how many values are odd, at most count.  L is the number of bits of
 *			count: floor(log2(count)) + 1
 *	  4 bits	j: the parameter of the list of odd values; only when odd > 0
 *	  count bits	ADD only: the sign of each value, 1 for minus
 *	  4*odd bits	a nibble for each odd value
 *	  j*odd bits	the low parts of the list of odd values
 *	k*listed bits	the low parts of the list
 *	with CODED:
 *	  the unary part of the list of odd values
 *	the unary part of the list
 *
 * A list is a strictly ascending sequence of numbers.  Each is sent as its gap, the difference to
 * the one before, less one; the first is its own gap.  The low part of a gap is its k low bits; in
 * the unary part a gap is gap >> k zeros followed by a one.
 *
 * The list has the positions within the block of the changed elements: listed = count.  When
 * INVERTED it has those of the elements that do not change: listed = elements - count.
 *
 * Values are in the order of their elements.  Without CODED the tail has them, width bytes each,
 * little-endian.  With CODED (ADD and XOR only; SET has no small values) a value is
 *
 *	u * m modulo 2^(8*width)	u = -1 where the sign bit is 1, else 1
 *	m = 1				unless the value is odd, that is, its index among the
 *					block's values is in the list of odd values
 *	m = nibble + 2			for nibbles 0-13
 *	m = byte + 16			for nibble 14; the byte is in the tail
 *	and for nibble 15 the value itself is in the tail, width bytes, whatever the sign says
 *
 * with the tail's bytes in the order of the odd values.
 *
 * An encoder chooses k and j so that the lists are shortest, and INVERTED when more than half of
 * the elements change; a reader takes what comes.
 *
 * Lists are below 65,536 and have no more than 65,536 entries, so all of them is arithmetic modulo
 * 65,536, and the two streams of a list (low and unary parts) are decoded without a branch per
 * element.
 *
 * Readers and encoders belong to one thread.  Only the encoder allocates.
 */
#ifndef CODEC_RICE_H
#define CODEC_RICE_H

#include "codec/patch.h"
#include "codec/rice_kernel.h"

/* ---- reading a block, RICE_CHUNK elements at a time; some 40 KB, for the stack ---- */

struct rice_reader {
	/* What rice_next() has decoded: n elements, little-endian. */
	const uint8_t *positions; /* u16 within the block */
	const uint8_t *values;

	const struct rice_kernel *kernel;
	const uint8_t *bits; /* the stream */
	size_t bytes;
	const uint8_t *tail, *tail_end;
	struct rice_list list, odd;
	uint32_t count, elements, done; /* done: elements handed out */
	unsigned width;
	bool inverted, coded, signs;
	bool odd_begun;		    /* the next odd values have places and factors already */
	uint64_t sign, nibble;	    /* in bits: where signs and the next nibbles begin */
	uint32_t odd_at, odd_end;   /* of odd_list[] and nibble_list[] */
	uint32_t hole_at, hole_end; /* of hole_list[] */
	uint32_t place;		    /* INVERTED: where the next run of elements begins */
	_Alignas(64) uint8_t position_list[2 * (RICE_CHUNK + RICE_SLACK)];
	_Alignas(64) uint8_t hole_list[2 * (RICE_CHUNK + RICE_SLACK)];
	_Alignas(64) uint8_t odd_list[2 * (RICE_CHUNK + RICE_SLACK)];
	_Alignas(64) uint8_t odd_factor_list[RICE_CHUNK + RICE_SLACK];
	_Alignas(64) uint8_t factor_list[RICE_CHUNK + RICE_SLACK]; /* see struct rice_spread */
	_Alignas(64) uint8_t later_list[2 * (RICE_CHUNK + RICE_SLACK)];
	_Alignas(64) uint8_t value_list[8 * (RICE_CHUNK + RICE_SLACK)];
};

/* Begins with a block's payload, which stays borrowed.  1 <= count <= elements <= 65,536.
 * -EBADMSG. */
int rice_open(struct rice_reader *r, const struct rice_kernel *kernel, const void *payload,
	      size_t len, enum patch_op op, unsigned width, uint32_t count,
	      uint32_t elements) MUST_CHECK;

/* The next elements: how many, 0 when all have come, -EBADMSG.  Positions of a malformed block may
 * have any values in any order. */
int rice_next(struct rice_reader *r) MUST_CHECK;

/* Looks for everything that a block has to be.  The sentence begins in the middle: the caller
 * prefixes whose block it is. */
int rice_check(const struct rice_kernel *kernel, const void *payload, size_t len, enum patch_op op,
	       unsigned width, uint32_t count, uint32_t elements, struct why *why) MUST_CHECK;

/* ---- making one ---- */

struct rice_encoder; /* opaque; half a MB of scratch */

struct rice_encoder *rice_encoder_new(const struct rice_kernel *kernel); /* NULL: out of memory */
void rice_encoder_free(struct rice_encoder *e);				 /* NULL is fine */

/* How long the block will be: `count` (at least 1) ascending u16 positions and their values.  They
 * are borrowed until rice_write(). */
size_t rice_plan(struct rice_encoder *e, enum patch_op op, unsigned width, const uint8_t *positions,
		 const uint8_t *values, uint32_t count, uint32_t elements);

/* Writes what was planned, of the length planned; dst has 8 bytes more. */
void rice_write(struct rice_encoder *e, uint8_t *dst);

#endif
