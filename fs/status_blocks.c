/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status of remote bytes: what the block cache holds and did, and how much of the newest version
 * is near (what --prefetch all and a warm start are about).
 *
 * Any thread; snapshots only.
 */
#include "fs/status_private.h"

#include "cache/block.h"
#include "fs/history.h"
#include "fs/human.h"

typedef unsigned long long ull;

/* Bytes of the newest version's objects that are near; false: no version has weights. */
static bool nearness(const struct stack *s, uint64_t *out_present, uint64_t *out_size)
{
	struct generation *g = s->history != NULL ? history_newest(s->history) : NULL;
	bool has = g != NULL && g->state != NULL;

	if (has)
		state_progress(g->state, out_present, out_size);
	generation_unref(g);
	return has;
}

void status_blocks_text(const struct stack *s, struct buf *out)
{
	struct blockcache_stats st;
	uint64_t present, size;

	if (s->blocks == NULL)
		return;
	blockcache_stats(s->blocks, &st);
	buf_addstr(out, "remote bytes: ");
	human_bytes(out, st.used);
	buf_addstr(out, " on disk");
	if (st.limit > 0) {
		buf_addstr(out, " of at most ");
		human_bytes(out, st.limit);
	}
	buf_addstr(out, st.writing ? ", " : " (not written), ");
	human_bytes(out, st.hit_bytes);
	buf_addstr(out, " read from it, ");
	human_bytes(out, st.fetched_bytes);
	buf_addf(out, " fetched in %llu requests, %llu failed, ", (ull)st.requests, (ull)st.failed);
	human_bytes(out, st.evicted_bytes);
	buf_addf(out, " evicted, %llu found damaged\n", (ull)st.damaged);
	if (nearness(s, &present, &size)) {
		buf_addstr(out, "newest version: ");
		human_bytes(out, present);
		buf_addstr(out, " of ");
		human_bytes(out, size);
		buf_addstr(out, " near\n");
	}
}

json_t *status_blocks_json(const struct stack *s)
{
	struct blockcache_stats st;
	uint64_t present, size;
	json_t *o;

	if (s->blocks == NULL)
		return json_null();
	blockcache_stats(s->blocks, &st);
	o = json_object();
	json_object_set_new(o, "path", json_string(st.path));
	json_object_set_new(o, "writing", json_boolean(st.writing));
	json_object_set_new(o, "limit",
			    st.limit > 0 ? json_integer((json_int_t)st.limit) : json_null());
	json_object_set_new(o, "disk_bytes", json_integer((json_int_t)st.used));
	json_object_set_new(o, "memory_bytes", json_integer((json_int_t)st.memory));
	json_object_set_new(o, "hit_bytes", json_integer((json_int_t)st.hit_bytes));
	json_object_set_new(o, "fetches", json_integer((json_int_t)st.requests));
	json_object_set_new(o, "failed", json_integer((json_int_t)st.failed));
	json_object_set_new(o, "fetched_bytes", json_integer((json_int_t)st.fetched_bytes));
	json_object_set_new(o, "stored_bytes", json_integer((json_int_t)st.stored_bytes));
	json_object_set_new(o, "evicted_bytes", json_integer((json_int_t)st.evicted_bytes));
	json_object_set_new(o, "damaged", json_integer((json_int_t)st.damaged));
	if (nearness(s, &present, &size)) {
		json_object_set_new(o, "newest_present", json_integer((json_int_t)present));
		json_object_set_new(o, "newest_size", json_integer((json_int_t)size));
	}
	return o;
}
