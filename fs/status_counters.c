/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the status that counts: reads, opens, versions, and what deltas of wfp1x have cost.
 *
 * The counters are of the process and only ever grow; each is read by itself, so those of one
 * answer may be a request apart.
 *
 * Threads: any.
 */
#include "fs/status_private.h"

#include "cache/clock.h"
#include "fs/counters.h"
#include "fs/human.h"

typedef unsigned long long ull;

static uint64_t counter(const uint64_t *c)
{
	return __atomic_load_n(c, __ATOMIC_RELAXED);
}

static void put(json_t *object, const char *key, json_t *value)
{
	if (json_object_set_new(object, key, value) < 0)
		return; /* for want of memory; the answer is not complete then */
}

static json_t *number_json(uint64_t n)
{
	return json_integer((json_int_t)n);
}

/* What deltas have cost that need the bytes of the version before them. */
static void text_given_base(struct buf *out)
{
	const uint64_t n = counter(&counters.given_base);

	if (n == 0)
		return;
	buf_addf(out, "wfp1x: %llu delta%s made into patches, ", (ull)n, n == 1 ? "" : "s");
	human_bytes(out, counter(&counters.given_base_bytes));
	buf_addf(out, " of the versions before them read for it, %.1f s\n",
		 (double)counter(&counters.given_base_ns) / NSEC_PER_SEC);
}

void status_counters_text(struct buf *out)
{
	buf_addf(out, "reads: %llu, ", (ull)counter(&counters.reads));
	human_bytes(out, counter(&counters.read_bytes));
	buf_addf(out, ", %llu failed\n", (ull)counter(&counters.read_errors));
	buf_addf(out, "opens: %llu, lookups: %llu, versions published: %llu\n",
		 (ull)counter(&counters.opens), (ull)counter(&counters.lookups),
		 (ull)counter(&counters.versions_published));
	buf_addf(out, "scans: %llu, %llu of them found the same as before\n",
		 (ull)counter(&counters.scans), (ull)counter(&counters.scans_alike));
	text_given_base(out);
}

json_t *status_counters_json(void)
{
	json_t *o = json_object();

	put(o, "reads", number_json(counter(&counters.reads)));
	put(o, "read_bytes", number_json(counter(&counters.read_bytes)));
	put(o, "read_errors", number_json(counter(&counters.read_errors)));
	put(o, "opens", number_json(counter(&counters.opens)));
	put(o, "lookups", number_json(counter(&counters.lookups)));
	put(o, "versions_published", number_json(counter(&counters.versions_published)));
	put(o, "scans", number_json(counter(&counters.scans)));
	put(o, "scans_alike", number_json(counter(&counters.scans_alike)));
	put(o, "looks", number_json(counter(&counters.looks)));
	put(o, "wfp1x_deltas", number_json(counter(&counters.given_base)));
	put(o, "wfp1x_base_bytes", number_json(counter(&counters.given_base_bytes)));
	put(o, "wfp1x_seconds", json_real((double)counter(&counters.given_base_ns) / NSEC_PER_SEC));
	return o;
}
