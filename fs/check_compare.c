/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading tensors whole and comparing their checksums.
 *
 * A tensor is read in pieces, as it is stored (before --base widens it), so memory is a piece for
 * each thread.  Several threads take one tensor after the other; a hash of the whole state is made
 * by one, in order.  The first thing that is wrong ends it.
 *
 * Locks: none.  Threads write `done` of tensors that are theirs, and under an atomic flag what is
 * wrong.
 */
#include "fs/check.h"

#include "fs/parallel.h"
#include "fs/state_hash.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 4 << 20 };

const char *verified_name(enum verified v)
{
	static const char *const names[] = {"no", "in part", "yes"};

	return names[v];
}

int checks_new(struct layout *layout, struct checks *out)
{
	*out = (struct checks){.v = calloc(layout->tensor_count + 1, sizeof(*out->v))};
	if (out->v == NULL)
		return -ENOMEM;
	out->layout = layout_ref(layout);
	return 0;
}

int checks_copy(const struct checks *from, struct checks *out)
{
	struct check *v;

	if (from->layout == NULL) {
		*out = (struct checks){0};
		return 0;
	}
	v = malloc((from->layout->tensor_count + 1) * sizeof(*v));
	if (v == NULL)
		return -ENOMEM;
	memcpy(v, from->v, from->layout->tensor_count * sizeof(*v));
	*out = *from;
	out->v = v;
	layout_ref(out->layout);
	return 0;
}

void checks_release(struct checks *c)
{
	layout_unref(c->layout);
	free(c->v);
	*c = (struct checks){0};
}

static bool is_due(const struct check *c)
{
	return !c->done && checksum_known((enum checksum_kind)c->kind);
}

static void count(const struct check *c, size_t *recorded, size_t *done, size_t *unknown)
{
	if (c->kind == CHECKSUM_NONE)
		return;
	++*recorded;
	*done += c->done;
	*unknown += !checksum_known((enum checksum_kind)c->kind);
}

void checks_count(const struct checks *c, size_t *out_recorded, size_t *out_done,
		  size_t *out_unknown)
{
	*out_recorded = c->has_state;
	*out_done = c->has_state && c->state_done;
	*out_unknown = 0;
	for (uint32_t i = 0; c->layout != NULL && i < c->layout->tensor_count; i++)
		count(&c->v[i], out_recorded, out_done, out_unknown);
	count(&c->whole, out_recorded, out_done, out_unknown);
}

enum verified checks_sum(const struct checks *c)
{
	size_t recorded, done, unknown;

	checks_count(c, &recorded, &done, &unknown);
	return done == 0 ? VERIFIED_NO : done < recorded ? VERIFIED_PART : VERIFIED_YES;
}

bool checks_due(const struct checks *c)
{
	bool due = (c->has_state && !c->state_done) || is_due(&c->whole);

	for (uint32_t i = 0; c->layout != NULL && i < c->layout->tensor_count && !due; i++)
		due = is_due(&c->v[i]);
	return due;
}

/* ---- comparing ---- */

struct compare {
	const struct state *state;
	struct checks *checks;
	const volatile bool *stop;
	uint32_t *due; /* tensors */
	int err;       /* atomic; the first one's */
	struct check_miss *miss;
	struct why *why;
};

static bool is_stopped(const struct compare *c)
{
	return (c->stop != NULL && __atomic_load_n(c->stop, __ATOMIC_RELAXED)) ||
	       __atomic_load_n(&c->err, __ATOMIC_RELAXED) != 0;
}

/* True for the first to say so, who may then tell more. */
static bool fail(struct compare *c, int err)
{
	int none = 0;

	return __atomic_compare_exchange_n(&c->err, &none, err, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_RELAXED);
}

/* What a tensor has, as it is stored. */
static uint64_t bytes_of(const struct compare *c, uint32_t t)
{
	const uint64_t numel = c->state->layout->tensors[t].numel;

	return (numel * st_dtype_bits(c->state->sources->v[t].dtype) + 7) / 8;
}

static int feed_tensor(const struct compare *c, uint32_t t, struct checksum *sum, uint8_t *piece)
{
	const uint64_t bytes = bytes_of(c, t);

	for (uint64_t at = 0; at < bytes; at += PIECE) {
		const size_t n = (size_t)MIN(bytes - at, (uint64_t)PIECE);
		int err = is_stopped(c) ? -ECANCELED : state_read_stored(c->state, t, at, piece, n);

		if (err < 0)
			return err;
		checksum_feed(sum, piece, n);
	}
	return 0;
}

static void cannot_read(struct compare *c, int err, const char *what)
{
	if (fail(c, err) && err != -ECANCELED)
		why_set(c->why, -err, "\"%s\" cannot be read", SHOWN(what));
}

/* Is the sum what is recorded? */
static void settle(struct compare *c, struct check *check, uint32_t tensor, struct checksum *sum)
{
	char have[CHECKSUM_HEX];

	checksum_hex(sum, have);
	check->done = checksum_equal(have, check->hex);
	if (check->done || !fail(c, -EBADMSG))
		return;
	*c->miss = (struct check_miss){.tensor = tensor, .version = check->version};
	memcpy(c->miss->have, have, sizeof(have));
	memcpy(c->miss->want, check->hex, sizeof(check->hex));
}

static void compare_one(void *ctx, size_t i)
{
	struct compare *c = ctx;
	const uint32_t t = c->due[i];
	struct check *check = &c->checks->v[t];
	struct checksum *sum = NULL;
	uint8_t *piece;
	int err;

	if (is_stopped(c))
		return;
	piece = malloc((size_t)MIN(bytes_of(c, t), (uint64_t)PIECE) + 1);
	err = piece == NULL ? -ENOMEM : checksum_new((enum checksum_kind)check->kind, &sum);
	if (err == 0)
		err = feed_tensor(c, t, sum, piece);
	if (err == 0)
		settle(c, check, t, sum);
	else
		cannot_read(c, err, c->state->layout->tensors[t].name);
	checksum_free(sum);
	free(piece);
}

static int compare_whole(struct compare *c)
{
	const struct layout *l = c->state->layout;
	struct check *check = &c->checks->whole;
	struct checksum *sum = NULL;
	uint8_t *piece = malloc(PIECE);
	int err = piece == NULL ? -ENOMEM : checksum_new((enum checksum_kind)check->kind, &sum);

	for (uint32_t i = 0; i < l->tensor_count && err == 0; i++) {
		const uint32_t t = l->by_name[i];
		const struct layout_tensor *tensor = &l->tensors[t];

		checksum_tensor(sum, tensor->name, (enum st_dtype)c->state->sources->v[t].dtype,
				tensor->rank, tensor->shape);
		err = feed_tensor(c, t, sum, piece);
	}
	if (err == 0)
		settle(c, check, LAYOUT_NONE, sum);
	else
		cannot_read(c, err, "the state");
	checksum_free(sum);
	free(piece);
	return err;
}

static int feed_state(const struct compare *c, struct state_hash *h, uint8_t *piece)
{
	const struct layout *l = c->state->layout;

	for (uint32_t f = 0; f < l->file_count; f++)
		for (uint64_t at = 0; at < l->files[f].size;) {
			const size_t n = (size_t)MIN(l->files[f].size - at, (uint64_t)PIECE);
			int err =
				is_stopped(c) ? -ECANCELED : state_read(c->state, f, at, piece, n);

			if (err < 0)
				return err;
			state_hash_feed(h, f, piece, n);
			at += n;
		}
	return 0;
}

static void to_hex(const uint8_t bytes[16], char out[CHECKSUM_HEX])
{
	for (int i = 0; i < 16; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

static void compare_state(struct compare *c)
{
	struct state_hash *h = NULL;
	uint8_t have[16], *piece = malloc(PIECE);
	int err = piece == NULL ? -ENOMEM : state_hash_new(c->state->layout, &h);

	if (err == 0)
		err = feed_state(c, h, piece);
	if (err == 0)
		err = state_hash_end(h, have);
	if (err < 0) {
		cannot_read(c, err, "the state");
	} else {
		c->checks->state_done = memcmp(have, c->checks->state, sizeof(have)) == 0;
		if (!c->checks->state_done && fail(c, -EBADMSG)) {
			*c->miss = (struct check_miss){.tensor = LAYOUT_NONE,
						       .version = c->state->version,
						       .of_state = true};
			to_hex(have, c->miss->have);
			to_hex(c->checks->state, c->miss->want);
		}
	}
	state_hash_free(h);
	free(piece);
}

int checks_compare(const struct state *s, struct checks *c, unsigned jobs,
		   const volatile bool *stop, struct check_miss *out, struct why *why)
{
	struct compare work = {.state = s, .checks = c, .stop = stop, .miss = out, .why = why};
	size_t n = 0;

	if (c->layout == NULL)
		return 0;
	work.due = calloc(c->layout->tensor_count + 1, sizeof(*work.due));
	if (work.due == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (uint32_t t = 0; t < c->layout->tensor_count; t++)
		if (is_due(&c->v[t]))
			work.due[n++] = t;
	if (n > 0)
		parallel_for(jobs, n, compare_one, &work);
	if (work.err == 0 && is_due(&c->whole))
		compare_whole(&work);
	if (work.err == 0 && c->has_state && !c->state_done)
		compare_state(&work);
	free(work.due);
	/* What was stopped before it began. */
	if (work.err == 0 && is_stopped(&work))
		return -ECANCELED;
	return work.err;
}
