/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round of a run: list, order, plan, assemble, publish, report.
 *
 * Everything is recomputed from the listing each time, with what is known about unchanged objects
 * remembered (exam.c), so there is no state that a missed event could leave wrong: any round leads
 * to the right answer from wherever the last one ended.  One that finds the listing of the last,
 * which left nothing that time alone may change, ends there.  What is served changes only at the
 * very end, by one call to the history.
 */
#include "fs/run_internal.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/counters.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

void run_note(struct run *r, const char *fmt, ...)
{
	char text[600], line[1300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	printable(line, sizeof(line) - 1, text, strlen(text));
	strncat(line, "\n", sizeof(line) - strlen(line) - 1);
	if (strstr(buf_str(&r->notes), line) == NULL)
		buf_addstr(&r->notes, line);
}

int run_new(const struct run_config *config, struct run **out, struct why *why)
{
	struct run *r = calloc(1, sizeof(*r));
	int err = 0;

	if (r == NULL)
		return why_set(why, ENOMEM, "out of memory");
	r->config = *config;
	r->directories.forced = config->format != NULL ? scheme_find(config->format) : NULL;
	lock_init(&r->lock, LOCK_QUEUE);
	r->exams = table_new();
	r->companions = table_new();
	if (r->exams == NULL || r->companions == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	if (err == 0 && config->base != NULL)
		err = base_open(config->base, config->shard_size, &r->base, why);
	if (err < 0) {
		run_free(r);
		return err;
	}
	*out = r;
	return 0;
}

void identity_mix(struct identity *id, const void *bytes, size_t len)
{
	uint8_t both[2 * sizeof(id->bytes)];
	XXH128_canonical_t digest;

	XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, len));
	memcpy(both, id->bytes, sizeof(id->bytes));
	memcpy(both + sizeof(id->bytes), digest.digest, sizeof(id->bytes));
	XXH128_canonicalFromHash(&digest, XXH3_128bits(both, sizeof(both)));
	memcpy(id->bytes, digest.digest, sizeof(id->bytes));
}

void listing_unref(struct listing_ref *l)
{
	if (l == NULL || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	listing_release(&l->listing);
	free(l);
}

void run_free(struct run *r)
{
	if (r == NULL)
		return;
	recorded_release(r);
	run_walk_end(r);
	opened_drop(r);
	lineage_release(&r->lineage);
	directories_release(&r->directories);
	manifest_free(r->pointer.manifest);
	folds_release(r, false);
	if (r->exams != NULL)
		exams_sweep(r, true);
	if (r->companions != NULL)
		companions_sweep(r, true);
	table_free(r->exams);
	table_free(r->companions);
	generation_unref(r->newest);
	cover_release(&r->cover);
	notes_release(r);
	for (size_t i = 0; i < r->layout_count; i++)
		layout_unref(r->layouts[i]);
	free(r->layouts);
	free(r->known.v);
	base_free(r->base);
	listing_unref(r->current);
	listing_unref(r->listing);
	run_report_unref(r->report);
	free(r->store_error);
	buf_release(&r->notes);
	lock_destroy(&r->lock);
	free(r);
}

struct store *run_store(struct run *r)
{
	return r->config.store;
}

struct listing_ref *run_listing(struct run *r)
{
	struct listing_ref *l;

	lock_take(&r->lock);
	l = r->listing;
	if (l != NULL)
		__atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
	lock_release(&r->lock);
	return l;
}

bool run_unsettled(const struct run *r)
{
	return r->unsettled || r->fold_due || r->backfill > 0;
}

static const char *plan_format(struct run *r, const struct plan *p)
{
	const struct step *last = &r->lineage.steps[p->last];
	const struct object *o;
	const char *format = "";

	/* What a span stands for was not looked into. */
	if (last->delta.entry != NULL && p->last > p->base)
		return last->delta.entry->encoding;
	if (r->lineage.own != NULL)
		return last->anchor.entry->encoding;
	for (size_t i = 0; (o = plan_objects(r, p, p->last, i)) != NULL; i++) {
		struct exam *e = exam_get(r, o);

		if (e != NULL && e->state == EXAM_OK)
			format = e->format;
	}
	return format;
}

/* And who writes it so. */
static void set_writer(const struct run *r, const struct plan *p, struct generation *g)
{
	const struct step *last = &r->lineage.steps[p->last];
	const struct manifest_entry *e = last->delta.entry != NULL && p->last > p->base
						 ? last->delta.entry
						 : last->anchor.entry;

	snprintf(g->writer, sizeof(g->writer), "%s", e != NULL ? e->writer : "");
}

int run_assemble(struct run *r, uint64_t limit, struct plan *p, struct state **out, struct why *why)
{
	int err = -EAGAIN;

	/* Every try that fails marks an object as not usable in this round. */
	for (size_t tries = 0; tries < r->lineage.piece_count + 2; tries++) {
		memset(&r->obstacle, 0, sizeof(r->obstacle));
		if (!plan_make(r, limit, p))
			return why_set(why, ENOENT, "%s",
				       r->obstacle.text[0] != '\0' ? r->obstacle.text
								   : "there is no version yet");
		err = assemble_state(r, p, out, why);
		if (err == 0 || err == -ENOMEM)
			return err;
	}
	return err;
}

/* Notes are about what the newest generation shows; they start anew with it. */
static void notes_begin(struct run *r, const struct state *state)
{
	uint32_t widened = 0;

	r->notes.len = 0;
	if (r->cover.from == COVER_ASSUMED && state != NULL)
		run_note(r,
			 "version %llu is taken for a complete anchor, since no object names a "
			 "tensor that it lacks: the run's first object is gone or damaged and "
			 "there is no --base to compare with",
			 (unsigned long long)state->anchor);
	for (uint32_t i = 0; state != NULL && i < state->layout->tensor_count; i++)
		widened += state->sources->v[state->layout->tensors[i].alias].dtype !=
			   state->layout->tensors[i].dtype;
	if (widened > 0)
		run_note(r,
			 "%u tensors are stored in 16 bits and shown as F32, the dtype of --base "
			 "(exactly)",
			 widened);
}

/* The report is there first: who sees the version finds in the status what goes with it, and not
 * what was wrong before. */
static int publish(struct run *r, struct generation *g)
{
	struct generation *before = r->newest;
	int err;

	r->newest = generation_ref(g);
	report_publish(r);
	err = r->config.history != NULL ? history_publish(r->config.history, g) : 0;
	if (err < 0) {
		generation_unref(r->newest);
		r->newest = before;
		return err;
	}
	generation_unref(before);
	r->published++;
	r->companions_sig = r->companions_made; /* of the tree just made */
	companions_sweep(r, false);
	folds_retry(r);
	if (r->config.pull && g->state != NULL)
		state_pull(g->state);
	return 0;
}

/* What is shown before anything of the run is whole: --base as it is, or just the companions. */
static int publish_start(struct run *r)
{
	struct generation *g = NULL;
	struct state *state = NULL;
	int err = 0;

	if (r->base != NULL)
		err = assemble_base(r, &state);
	notes_begin(r, NULL);
	if (err == 0)
		err = assemble_tree(r, state, 0,
				    r->base != NULL ? r->base->mtime_ns : clock_real_ns(),
				    r->base != NULL ? "safetensors" : "", NULL, &g);
	if (err == 0) {
		err = publish(r, g);
		r->last_mtime_ns = g->mtime_ns;
	}
	state_unref(state);
	generation_unref(g);
	return err;
}

static int publish_state(struct run *r, const struct plan *p, struct state *state,
			 enum verified verified)
{
	struct generation *g;
	int64_t mtime = MAX(plan_mtime(r, p), mtime_after(r->last_mtime_ns));
	int err;

	notes_begin(r, state);
	err = assemble_tree(r, state, state->version, mtime, plan_format(r, p), NULL, &g);

	if (err < 0)
		return err;
	set_writer(r, p, g);
	g->verified = (int)verified;
	err = publish(r, g);
	if (err == 0) {
		r->last_mtime_ns = mtime;
		log_info("version %llu of lineage %s is ready: anchor %llu + %u deltas, %s",
			 (unsigned long long)g->version, g->lineage,
			 (unsigned long long)state->anchor, state->deltas, g->format);
	}
	generation_unref(g);
	return err;
}

/* Companions may change without a new version: the newest generation follows them, weights and
 * their inodes stay. */
static int follow_companions(struct run *r)
{
	struct generation *g;
	int err;

	if (!companions_known(r, r->newest->state) ||
	    companions_signature(r, r->newest->state) == r->companions_sig)
		return 0;
	notes_begin(r, r->newest->state);
	err = assemble_tree(r, r->newest->state, r->newest->version, r->newest->mtime_ns,
			    r->newest->format, r->newest, &g);
	if (err < 0)
		return err;
	/* Another run may have begun that has nothing to show yet. */
	memcpy(g->lineage, r->newest->lineage, sizeof(g->lineage));
	memcpy(g->writer, r->newest->writer, sizeof(g->writer));
	g->verified = r->newest->verified;
	err = publish(r, g);
	generation_unref(g);
	return err;
}

/* Assembles what is to be shown; a version that is not as recorded is taken out, and the one below
 * it is tried.  -EAGAIN: nothing is to be shown instead of what is. */
static int next_state(struct run *r, struct plan *p, struct state **out,
		      enum verified *out_verified)
{
	struct why why = {0};
	int err = -EAGAIN;

	for (size_t tries = 0; tries < r->lineage.step_count + 1; tries++) {
		err = run_assemble(r, UINT64_MAX, p, out, &why);
		if (err < 0)
			return err == -ENOMEM ? err : -EAGAIN; /* the obstacle says it */
		if (shown_stays(r, p))
			err = -EAGAIN;
		else
			err = recorded_admit(r, p, *out, out_verified, &why);
		if (err == 0)
			return 0;
		state_unref(*out);
		if (err != -EBADMSG)
			break;
	}
	if (err == -ENOMEM)
		return err;
	if (why.err != 0 && obstacle(r, r->lineage.steps[p->last].number, "%s", why.text))
		r->unsettled = r->obstacle.waiting = true;
	return -EAGAIN;
}

/* Publishes the newest whole version if it is not the one that is there. */
static int advance(struct run *r)
{
	enum verified verified = VERIFIED_NO;
	struct state *state = NULL;
	struct plan p;
	int err;

	memset(&r->obstacle, 0, sizeof(r->obstacle));
	if (!cover_update(r)) {
		/* Nothing can be called complete; the exam of the first object says why. */
		plan_make(r, UINT64_MAX, &p);
		return 0;
	}
	if (!plan_make(r, UINT64_MAX, &p)) {
		err = shown_taken_out(r) ? publish_start(r) : 0;
		recorded_drop(r);
		return err;
	}
	if (plan_is_shown(r, &p) || shown_is_same(r, &p) || shown_stays(r, &p)) {
		recorded_drop(r);
		return 0;
	}
	err = next_state(r, &p, &state, &verified);
	if (err < 0)
		return err == -ENOMEM ? err : 0;
	if (r->newest == NULL || r->newest->state == NULL ||
	    !identity_equal(&r->newest->state->fingerprint, &state->fingerprint)) {
		bool same_run = r->newest != NULL && r->newest->version > 0 &&
				strcmp(r->newest->lineage, r->label) == 0;

		err = publish_state(r, &p, state, verified);
		if (err == 0 && !same_run) {
			r->backfill = state->version;
			r->backfilled = 1;
		}
	}
	if (err == 0)
		plan_remember(r, &p);
	if (err == 0)
		recorded_drop(r);
	state_unref(state);
	return err;
}

/* Older versions for `versions/`, one a round, until as many are there as are kept. */
static void backfill(struct run *r)
{
	struct generation *g = NULL;
	struct state *state = NULL;
	struct why why = {0};
	struct plan p;
	enum verified verified = VERIFIED_NO;
	int err = -EAGAIN;

	/* Older versions may not be known yet. */
	if (r->backfill == 0 || (r->lineage.own != NULL && r->directories.deferred))
		return;
	if (r->config.history == NULL || r->backfilled >= r->config.keep ||
	    run_assemble(r, r->backfill - 1, &p, &state, &why) < 0) {
		r->backfill = 0;
		return;
	}
	if (recorded_admit(r, &p, state, &verified, &why) == 0 &&
	    assemble_tree(r, state, state->version, plan_mtime(r, &p), plan_format(r, &p), NULL,
			  &g) == 0) {
		set_writer(r, &p, g);
		g->verified = (int)verified;
		err = history_add_older(r->config.history, g);
	}
	if (err == 0) {
		r->backfill = state->version;
		r->backfilled++;
	} else {
		r->backfill = 0;
	}
	state_unref(state);
	generation_unref(g);
}

/* Work that no reader waits for: one piece a round. */
static void idle_work(struct run *r)
{
	char text[sizeof(r->obstacle.text)];
	uint64_t number = r->obstacle.number;
	bool waiting = r->obstacle.waiting;
	struct why why = {0};
	struct plan p;

	r->fold_due = false;
	memcpy(text, r->obstacle.text, sizeof(text));
	if (r->backfill > 0) {
		backfill(r);
		r->fold_due = r->backfill == 0; /* next */
	} else if (r->newest != NULL && r->newest->state != NULL && plan_make(r, UINT64_MAX, &p) &&
		   plan_is_shown(r, &p)) {
		const struct target target = target_of_state(r->newest->state);

		r->fold_due = fold_work(r, &p, &target, &why) > 0;
	}
	r->obstacle.number = number;
	r->obstacle.waiting = waiting;
	memcpy(r->obstacle.text, text, sizeof(text));
}

/* What a round left that another one may change although nothing new came. */
static bool is_quiet(const struct run *r)
{
	return !run_unsettled(r) && !r->waited && !r->obstacle.waiting && !r->pointer.again &&
	       !r->directories.again;
}

int run_scan(struct run *r, struct why *why)
{
	struct generation *before;
	struct why local = {0};
	bool same;
	int err;

	r->waited = false;
	recorded_take(r);
	err = run_relist(r, &same, &local);
	COUNT(scans, 1);
	if (err == 0 && same) {
		COUNT(scans_alike, 1);
		report_again(r);
		recorded_follow(r);
		return 0;
	}
	before = r->newest != NULL ? generation_ref(r->newest) : NULL;
	free(r->store_error);
	r->store_error = err < 0 ? strdup(local.text) : NULL;
	r->round++;
	if (err == 0) {
		r->unsettled = r->pointer.again || (r->lineage.own != NULL && r->directories.again);
		err = advance(r);
		if (err == 0 && r->newest == NULL)
			err = publish_start(r);
		else if (err == 0)
			err = follow_companions(r);
		if (err < 0)
			why_set(&local, -err, "out of memory");
		if (err == 0 && before != NULL && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED))
			idle_work(r);
		if (r->config.deep)
			exam_all(r);
		report_publish(r);
		recorded_follow(r);
		run_tidy(r, before);
	} else {
		report_publish(r);
	}
	/* Idle work begins in the second round. */
	r->quiet = err == 0 && before != NULL && is_quiet(r) ? r->quiet + 1 : 0;
	generation_unref(before);
	if (err < 0 && why != NULL)
		*why = local;
	return err;
}

int run_find(struct run *r, uint64_t version, struct plan *p, struct state **out, struct why *why)
{
	const struct lineage *l = &r->lineage;
	struct state *state = NULL;
	struct why local = {0};
	int err;

	if (l->step_count == 0 || version > l->steps[l->step_count - 1].number ||
	    version < l->steps[0].number ||
	    (l->manifest != NULL && lineage_find(l, version) == NULL))
		return why_set(why, ENOENT, "version %llu is not in this run%s",
			       (unsigned long long)version,
			       l->step_count == 0 ? ", which has no versions yet" : "");
	err = run_assemble(r, version, p, &state, &local);
	if (err < 0) {
		if (why != NULL)
			*why = local;
		return err;
	}
	if (state->version != version &&
	    (lineage_find(l, version) != NULL || !plan_hole_legal(r, p, version))) {
		state_unref(state);
		return run_not_whole(r, version, why);
	}
	*out = state;
	return 0;
}

int run_not_whole(const struct run *r, uint64_t version, struct why *why)
{
	return why_set(why, ENOENT, "version %llu is not whole: %s", (unsigned long long)version,
		       r->obstacle.text[0] != '\0' ? r->obstacle.text : "its object is missing");
}

int run_build(struct run *r, uint64_t version, struct generation **out, struct why *why)
{
	enum verified verified = VERIFIED_NO;
	struct state *state = NULL;
	struct plan p;
	int err;

	r->round++;
	r->quiet = 0; /* what is found out here belongs into the next report */
	if (version == 0 && r->base != NULL) {
		err = assemble_base(r, &state);
		if (err == 0)
			err = assemble_tree(r, state, 0, r->base->mtime_ns, "safetensors", NULL,
					    out);
		state_unref(state);
		return err < 0 ? why_set(why, -err, "out of memory") : 0;
	}
	err = run_find(r, version, &p, &state, why);
	if (err < 0)
		return err;
	err = recorded_admit(r, &p, state, &verified, why);
	if (err == 0) {
		err = assemble_tree(r, state, state->version, plan_mtime(r, &p), plan_format(r, &p),
				    NULL, out);
		if (err < 0)
			why_set(why, -err, "out of memory");
	}
	if (err == 0) {
		set_writer(r, &p, *out);
		(*out)->verified = (int)verified;
	}
	state_unref(state);
	return err;
}
