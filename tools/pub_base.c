/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a new version is published on: whose run the destination holds, whether the local state is
 * that of its newest version, and so whether there can be a delta.
 *
 * The pointer decides.  An attempt that was interrupted is settled first: when the pointer names
 * its version with its state, it did happen, and the local state follows; otherwise it did not, and
 * what it uploaded is noted down as orphans.  These are removed only after the next replacement of
 * the pointer, since until then a request that seemed lost may still arrive and name them.
 *
 * A delta needs a base that is certain: the pointer's newest version is the one that the local
 * state (or --against) claims to be, and later, while diffing, the bytes turn out to have that very
 * hash.  In all other cases an anchor is published, which needs no base.
 *
 * One thread; reads from the store, writes only the local state.
 */
#include "tools/pub_internal.h"

#include "cache/fileio.h"
#include "fs/runs.h"
#include "fs/lineage.h"
#include "fs/rfc3339.h"
#include "tools/export_tree.h"
#include "tools/replace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void pub_note(struct attempt *a, const char *fmt, ...)
{
	va_list args;

	if (a->r->note[0] != '\0')
		return;
	va_start(args, fmt);
	vsnprintf(a->r->note, sizeof(a->r->note), fmt, args);
	va_end(args);
}

static bool new_run(const struct attempt *a)
{
	return a->p->o->new_run && !a->p->entered;
}

static bool take_over(const struct attempt *a)
{
	return a->p->o->take_over && !a->p->entered;
}

static const char *dest(const struct attempt *a)
{
	return a->p->store->name;
}

static void set_reason(struct attempt *a, const char *fmt, ...) PRINTF(2, 3);
static void set_reason(struct attempt *a, const char *fmt, ...)
{
	va_list args;

	if (a->reason[0] != '\0')
		return;
	va_start(args, fmt);
	vsnprintf(a->reason, sizeof(a->reason), fmt, args);
	va_end(args);
}

/* ---- an earlier attempt ---- */

static bool names_version(const struct manifest *m, const char *lineage, uint64_t version,
			  const char *state)
{
	const uint8_t *found;
	char hex[33];

	if (m == NULL || strcmp(m->lineage, lineage) != 0)
		return false;
	found = manifest_state(m, version);
	if (found == NULL)
		return false;
	manifest_hex(found, hex);
	return strcmp(hex, state) == 0;
}

static int settle(struct attempt *a, struct why *why)
{
	struct pub_state *s = a->p->state;
	const struct manifest *m = a->was.manifest;

	if (!s->has_pending || a->p->o->dry_run)
		return 0;
	if (m != NULL && strcmp(m->publisher.id, s->publisher) == 0 &&
	    names_version(m, s->pending.lineage, s->pending.version, s->pending.state))
		return pub_state_commit(s, why);
	a->dropped = true;
	return pub_state_drop(s, why);
}

/* ---- whose run it is ---- */

/* A run at the top would hide those in directories from the next mount. */
static int find_several(struct attempt *a, const struct listing *l, struct why *why)
{
	struct buf names = {0};
	struct runs runs;
	int ret = runs_find(l, true, &runs);

	if (ret < 0)
		return why_set(why, ENOMEM, "out of memory");
	runs_names(&runs, &names);
	if (!runs.top && runs.count > 0)
		ret = why_set(why, EEXIST,
			      "%s holds runs in directories (%s): publish to one of them or to a "
			      "directory of its own, or say --new-run, after which mounts show the "
			      "new run only",
			      dest(a), buf_str(&names));
	buf_release(&names);
	runs_release(&runs);
	return ret;
}

/* Objects of a run that is not declared by a pointer: another program's. */
static int find_foreign(struct attempt *a, struct why *why)
{
	const json_t *orphans = a->p->state->now.orphans;
	struct listing l = {0};
	int ret = store_list(a->p->store, "", &l, why);

	for (size_t i = 0; ret == 0 && i < l.count; i++) {
		const char *name = strrchr(l.v[i].key, '/');
		bool ours = false;
		const json_t *key;
		size_t k;

		/* Our own names have an attempt's digits behind the number. */
		if (!lineage_owns(l.v[i].key) || name == NULL || strchr(name, '-') != NULL ||
		    strchr(l.v[i].key, '-') != NULL)
			continue;
		json_array_foreach (orphans, k, key)
			ours |= strcmp(json_string_value(key), l.v[i].key) == 0;
		if (!ours)
			ret = why_set(why, EEXIST,
				      "%s holds a run that another program wrote (%s): publish "
				      "to another place, or say --new-run, after which mounts show "
				      "the new run only",
				      dest(a), SHOWN(l.v[i].key));
	}
	if (ret == 0)
		ret = find_several(a, &l, why);
	listing_release(&l);
	return ret;
}

static int look_at_nothing(struct attempt *a, struct why *why)
{
	const struct pub_record *now = &a->p->state->now;

	if (new_run(a))
		return 0;
	if (now->version > 0)
		return why_set(why, ENOENT,
			       "%s has no %s any more, although version %" PRIu64
			       " was published there: is it the right place, and is it mounted?  "
			       "--new-run begins a new run",
			       dest(a), MANIFEST_KEY, now->version);
	return find_foreign(a, why);
}

static int refuse_other(const struct attempt *a, struct why *why)
{
	const struct manifest *m = a->was.manifest;
	char time[RFC3339_LEN] = "an unknown time", seconds[24] = "";

	if (m->publisher.time_ns != 0)
		rfc3339_format(m->publisher.time_ns - m->publisher.time_ns % 1000000000, time);
	snprintf(seconds, sizeof(seconds), "%" PRId64, m->publisher.pid);
	return why_set(why, EBUSY,
		       "%s belongs to another publisher: process %s on %s published version "
		       "%" PRIu64 " at %s; --take-over goes on in its place with an anchor (end it "
		       "first), --new-run begins a new run",
		       dest(a), m->publisher.id[0] != '\0' ? seconds : "?",
		       m->publisher.host[0] != '\0' ? SHOWN(m->publisher.host) : "an unknown host",
		       m->newest, time);
}

static int look_at_pointer(struct attempt *a, struct why *why)
{
	const struct manifest *m = a->was.manifest;
	const struct pub_record *now = &a->p->state->now;
	const uint8_t *state;

	if (new_run(a))
		return 0;
	if (strcmp(m->publisher.id, a->p->state->publisher) != 0 && !take_over(a))
		return refuse_other(a, why);
	if (now->version > 0 && strcmp(now->lineage, m->lineage) != 0 && !take_over(a))
		return why_set(why, EBUSY,
			       "%s holds another run (%s) than the one published from here (%s): "
			       "--take-over goes on with it, --new-run begins a new one",
			       dest(a), m->lineage, now->lineage);
	a->begins = false;
	a->newest = m->newest;
	memcpy(a->lineage, m->lineage, sizeof(a->lineage));
	state = manifest_state(m, m->newest);
	if (state != NULL)
		manifest_hex(state, a->newest_state);
	return 0;
}

/* ---- the last state ---- */

/* A source, or the directory of a run, rather than a checkpoint? */
static bool is_source(const char *against)
{
	static const char *const marks[] = {"weightfs.json", "anchors", "deltas"};
	bool found = strstr(against, "://") != NULL;

	for (size_t i = 0; i < ARRAY_LEN(marks) && !found; i++) {
		char *path = path_join(against, marks[i]);

		found = path != NULL && access(path, F_OK) == 0;
		free(path);
	}
	return found;
}

/* The newest version, from wherever else the run can be read, for as long as it is compared: the
 * files are mapped, and need no names. */
static int fetch_against(struct attempt *a, struct why *why)
{
	const struct export_options options = {.quiet = a->p->o->quiet, .stop = &a->p->stop};
	struct opts from = *a->p->o->source;
	struct stack *stack = NULL;
	char *top = path_join(a->p->state->work, "against");
	char *dir = top != NULL ? path_join(top, "version") : NULL;
	uint64_t number;
	int ret;

	from.source = strdup(a->p->o->against);
	from.base = NULL;
	from.shard_size = 0;
	from.hole_grace_ns = 0;
	from.deep = false;
	if (dir == NULL || from.source == NULL) {
		ret = why_set(why, ENOMEM, "out of memory");
		goto out;
	}
	replace_abort(top); /* what a killed process left, also half written */
	ret = file_mkdirs(top);
	if (ret < 0)
		why_set(why, -ret, "%s cannot be made: %s", SHOWN(top), strerrordesc_np(-ret));
	if (ret == 0)
		ret = stack_new(&from, false, &stack, why);
	if (ret == 0)
		ret = export_version(stack, &a->newest, dir, &options, &number, why);
	if (ret == 0)
		ret = pub_checkpoint_open(dir, false, &a->old, why);
	replace_abort(top);
out:
	stack_free(stack);
	free(from.source);
	free(dir);
	free(top);
	return ret;
}

static int open_against(struct attempt *a, struct why *why)
{
	int ret;

	if (is_source(a->p->o->against))
		ret = fetch_against(a, why);
	else
		ret = pub_checkpoint_open(a->p->o->against, false, &a->old, why);
	return ret < 0 ? why_prefix(why, "--against") : 0;
}

static bool is_current(const struct attempt *a)
{
	const struct pub_record *now = &a->p->state->now;

	return now->version == a->newest && strcmp(now->lineage, a->lineage) == 0 &&
	       strcmp(now->state, a->newest_state) == 0;
}

static int open_base(struct attempt *a, struct why *why)
{
	const struct pub_record *now = &a->p->state->now;
	struct why ignored = {0};
	char *path;

	if (a->newest == 0) {
		set_reason(a, "the first version of the run");
		return 0;
	}
	if (a->p->o->against != NULL)
		return open_against(a, why);
	if (!is_current(a)) {
		set_reason(a, "the local state is not that of version %" PRIu64, a->newest);
		if (now->version > 0)
			pub_note(a,
				 "the run is at version %" PRIu64 " and the local state at %" PRIu64
				 ": an anchor goes on from there",
				 a->newest, now->version);
		return 0;
	}
	if (now->slot == 0) {
		set_reason(a, "no copy of the last state is kept");
		return 0;
	}
	path = pub_state_slot_path(a->p->state, now->slot);
	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (pub_checkpoint_open(path, true, &a->old, &ignored) < 0 ||
	    pub_chain_open(a->p->state->patches, now->patches, a->old, &a->chain, &ignored) < 0) {
		pub_checkpoint_free(a->old);
		a->old = NULL;
		set_reason(a, "the copy of the last state cannot be read");
		pub_note(a, "the copy of version %" PRIu64 " cannot be used: %s", a->newest,
			 ignored.text);
	}
	free(path);
	if (a->old != NULL && a->chain.count > 0 && a->p->encoding->reads_old) {
		set_reason(a, "%s needs the last state whole, and it is kept as patches",
			   a->p->encoding->name);
		pub_checkpoint_free(a->old);
		a->old = NULL;
	}
	return 0;
}

int pub_look(struct attempt *a, struct why *why)
{
	int ret = pointer_read(a->p->store, &a->was, why);

	if (ret == 0)
		ret = settle(a, why);
	if (ret < 0)
		return ret;
	a->begins = true;
	if (pub_random(a->lineage, 4) < 0 || pub_random(a->in.attempt, 4) < 0)
		return why_set(why, EIO, "the system gives no random numbers");
	ret = a->was.manifest == NULL ? look_at_nothing(a, why) : look_at_pointer(a, why);
	return ret == 0 ? open_base(a, why) : ret;
}

int pub_choose_version(struct attempt *a, const uint64_t *version, struct why *why)
{
	const uint64_t v = version != NULL ? *version : a->newest + 1;

	if (version == NULL && a->newest >= INT64_MAX)
		return why_set(why, ERANGE,
			       "%s is at version %" PRIu64 ", and no number is above it: --new-run "
			       "begins a new run",
			       dest(a), a->newest);
	if (v == 0 || v > INT64_MAX)
		return why_set(why, EINVAL, "versions are numbers from 1 on");
	if (v < a->newest)
		return why_set(why, EEXIST,
			       "version %" PRIu64 " is below the newest of %s, %" PRIu64
			       ": numbers only grow (--new-run begins a new run)",
			       v, dest(a), a->newest);
	a->in.version = v;
	a->in.base_version = a->newest;
	return 0;
}

/* ---- delta or anchor ---- */

static uint64_t entry_bytes(const struct manifest_entry *e)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < e->object_count; i++)
		sum += e->objects[i].size;
	return sum;
}

static uint64_t min_sum(uint64_t a, uint64_t b, uint64_t least)
{
	uint64_t sum;

	return add_overflows(a, b, &sum) ? least : MIN(sum, least);
}

/*
 * What a late joiner reads after the last anchor: the cheapest way through deltas and spans.
 * cost[i] is that to step i.  Spans are few.
 */
static int chain(const struct manifest *m, uint64_t *out_bytes, uint64_t *out_steps,
		 uint64_t *out_anchor, struct why *why)
{
	uint64_t *cost = calloc(m->step_count + 1, sizeof(*cost));
	uint64_t here = 0;

	if (cost == NULL)
		return why_set(why, ENOMEM, "out of memory");
	*out_steps = 0;
	for (size_t i = 0; i < m->step_count; i++) {
		const struct manifest_entry *e = &m->steps[i];

		if (e->kind == MANIFEST_ANCHOR) {
			*out_anchor = e->version;
			*out_steps = 0;
			here = 0;
		} else if (e->version != *out_anchor) {
			++*out_steps;
			here = min_sum(here, entry_bytes(e), UINT64_MAX);
			for (size_t s = 0; s < m->span_count; s++)
				for (size_t j = i; m->spans[s].version == e->version && j-- > 0;)
					if (m->steps[j].version == m->spans[s].base &&
					    m->spans[s].base >= *out_anchor)
						here = min_sum(cost[j], entry_bytes(&m->spans[s]),
							       here);
		}
		cost[i] = here;
	}
	free(cost);
	*out_bytes = here;
	return 0;
}

static int decide_anchor(struct attempt *a, struct why *why)
{
	const struct pub_options *o = a->p->o;
	const struct manifest_entry *anchor;
	uint64_t bytes = 0, steps = 0, version = 0, size;
	int ret = chain(a->was.manifest, &bytes, &steps, &version, why);

	if (ret < 0)
		return ret;
	anchor = manifest_find(a->was.manifest, version, MANIFEST_ANCHOR);
	size = anchor != NULL ? MAX(entry_bytes(anchor), UINT64_C(1)) : 1;
	if (o->anchor)
		set_reason(a, "--anchor");
	else if (o->anchor_every > 0 && steps + 1 >= o->anchor_every)
		set_reason(a, "every %" PRIu64 " versions", o->anchor_every);
	else if (o->anchor_every == 0 &&
		 (double)bytes + (double)a->diff.encoded > PUB_CHAIN_SHARE * (double)size)
		set_reason(a, "the deltas since version %" PRIu64 " are %.0f %% of an anchor",
			   version, 100 * ((double)bytes + (double)a->diff.encoded) / (double)size);
	a->want_anchor = a->reason[0] != '\0';
	return 0;
}

/*
 * Can those who read this encoding have the newest version, which the delta is for?  Mounts read
 * all of them; other receivers read their own encoding only, and know our other objects by no
 * name.
 */
static bool can_follow(const struct attempt *a, const struct manifest_entry *e)
{
	const struct pub_encoding *ours = a->p->encoding;

	if (!ours->alone || strcmp(e->encoding, ours->name) == 0)
		return true;
	return !ours->consecutive && e->kind == MANIFEST_ANCHOR &&
	       strcmp(e->encoding, "safetensors") == 0 && e->object_count > 0 &&
	       strchr(e->objects[0].key, '-') == NULL; /* as TRL names it */
}

static void check_readers(struct attempt *a)
{
	const struct manifest *m = a->was.manifest;
	const char *other = NULL;
	uint64_t version = m->newest;

	for (size_t i = m->step_count; i-- > 0 && m->steps[i].version >= version;) {
		const struct manifest_entry *e = &m->steps[i];

		if (e->object_count == 0) { /* as good as the one before */
			version = e->base;
			continue;
		}
		if (can_follow(a, e))
			return;
		other = e->encoding;
	}
	if (other == NULL)
		return;
	set_reason(a, "the version before is in %s, which readers of %s do not have", other,
		   a->p->encoding->name);
	a->want_delta = false;
}

int pub_decide(struct attempt *a, struct why *why)
{
	int ret = 0;

	a->want_delta = a->old != NULL;
	if (a->want_delta)
		check_readers(a);
	if (a->want_delta && a->p->encoding->consecutive && a->in.version != a->newest + 1) {
		set_reason(a, "%s has no deltas over more than one number", a->p->encoding->name);
		a->want_delta = false;
	}
	if (a->want_delta && a->diff.encoded > 0 && a->diff.encoded >= a->new->bytes) {
		set_reason(a, "a delta would be larger than an anchor");
		a->want_delta = false;
	}
	if (a->want_delta)
		ret = decide_anchor(a, why);
	else
		a->want_anchor = true;
	if (a->want_anchor && a->p->encoding->alone)
		a->want_delta = false;
	return ret;
}
