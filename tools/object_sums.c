/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole objects against the checksums that the run's own index has of them (grail's file_manifest).
 *
 * A version that has a hash of its state needs no more than that; a whole checkpoint has none in
 * some formats, and then its files are what can be compared.  They are read as they lie in the
 * store, which is not what a mount makes of them.
 *
 * After a scan, by whoever scans.  One thread.
 */
#include "tools/object_sums.h"

#include "cache/blob.h"

#include <stdlib.h>

enum { PIECE = 4 << 20 };

struct chain {
	struct run *run;
	struct run_report *report;
	const struct state *state;
	const volatile bool *stop;
	uint8_t *piece;
};

/* Does it lie in the directory of a version that the state is made of? */
static bool is_of_chain(const struct chain *c, const char *key)
{
	for (size_t i = 0; i < c->report->version_count; i++) {
		const struct version_info *v = &c->report->versions[i];
		const char *slash = strrchr(v->key, '/');

		if (v->number < c->state->anchor || v->number > c->state->version ||
		    v->state == VERSION_SUPERSEDED || slash == NULL)
			continue;
		if (strncmp(key, v->key, (size_t)(slash + 1 - v->key)) == 0)
			return true;
	}
	return false;
}

static int feed(const struct chain *c, const struct object *o, struct checksum *sum,
		struct why *why)
{
	struct blob *blob = NULL;
	int ret = blob_open(run_store(c->run), o, false, &blob, why);

	for (uint64_t at = 0; at < o->size && ret == 0; at += PIECE) {
		const size_t n = (size_t)MIN(o->size - at, (uint64_t)PIECE);

		ret = *c->stop ? -EINTR : blob_read(blob, at, c->piece, n);
		if (ret == -EINTR)
			why_set(why, EINTR, "interrupted; nothing was written");
		else if (ret < 0)
			why_set(why, -ret, "%s cannot be read", SHOWN(o->key));
		else
			checksum_feed(sum, c->piece, n);
	}
	blob_unref(blob);
	return ret;
}

static int check_one(const struct chain *c, const struct object *o, struct why *why)
{
	char want[CHECKSUM_HEX], have[CHECKSUM_HEX];
	enum checksum_kind kind;
	struct checksum *sum = NULL;
	int ret;

	if (!run_object_sum(c->run, o->key, &kind, want) || !checksum_known(kind) ||
	    !is_of_chain(c, o->key))
		return 0;
	if (checksum_new(kind, &sum) < 0)
		return why_set(why, ENOMEM, "out of memory");
	ret = feed(c, o, sum, why);
	if (ret == 0) {
		checksum_hex(sum, have);
		if (!checksum_equal(have, want))
			ret = why_set(why, EBADMSG,
				      "%s has the %s %s, and its index says %s: it is damaged, or "
				      "not what the trainer wrote",
				      SHOWN(o->key), checksum_name(kind), have, want);
	}
	checksum_free(sum);
	return ret;
}

int object_sums_check(struct run *run, const struct state *state, const volatile bool *stop,
		      struct why *why)
{
	struct chain c = {.run = run, .state = state, .stop = stop};
	struct listing_ref *l = run_listing(run);
	int ret = 0;

	c.report = run_report(run);
	c.piece = malloc(PIECE);
	if (l == NULL || c.report == NULL || c.piece == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; ret == 0 && i < l->listing.count; i++)
		ret = check_one(&c, &l->listing.v[i], why);
	free(c.piece);
	run_report_unref(c.report);
	listing_unref(l);
	return ret;
}
