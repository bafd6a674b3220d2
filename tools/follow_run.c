/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings one version to the replicas: asks the plan what to do next with each, makes the calls,
 * and hands the answers back.
 *
 * Together (the default): every replica is paused before the first one reloads, so that no two
 * serve different versions; after that each goes its own way.  Rolling: one after another, and no
 * further when one was left with mixed weights.
 *
 * A version superseded while replicas are being paused is brought to its end: it is the one that
 * is near and warm, and the newer one follows at once.
 *
 * Told to end: what has not begun does not begin; a pause is taken back; a reload is waited for,
 * because half of one is worse than either.  Told a second time: calls are given up, except those
 * that let traffic in.
 *
 * One thread (the transport has its own); all times are monotonic.
 */
#include "tools/follow.h"

#include "cache/clock.h"
#include "tools/cli.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SHORT_NS   (30 * NSEC_PER_SEC) /* verify, resume */
#define BACKOFF_NS (30 * NSEC_PER_SEC) /* at most */

struct run {
	struct follow *f;
	uint64_t version;
};

bool follow_stopping(struct follow *f)
{
	struct signalfd_siginfo info;

	while (f->signal_fd >= 0 && read(f->signal_fd, &info, sizeof(info)) == sizeof(info))
		f->stop++;
	return f->stop > 0;
}

static char *path_of(const struct follow *f, uint64_t version)
{
	char *path;

	if (asprintf(&path, "%s/.weightfs/versions/%" PRIu64,
		     f->set.engine_path != NULL ? f->set.engine_path : f->mount.path, version) < 0)
		return NULL;
	return path;
}

/* ---- one replica ---- */

static enum engine_step step_of(enum plan_state state)
{
	switch (state) {
	case PLAN_PAUSE: return ENGINE_PAUSE;
	case PLAN_RELOAD:
	case PLAN_BACK: return ENGINE_RELOAD;
	case PLAN_VERIFY: return ENGINE_VERIFY;
	default: return ENGINE_RESUME;
	}
}

static struct plan_facts facts_of(const struct follow *f, const struct follow_replica *r)
{
	return (struct plan_facts){
		.policy = f->set.policy,
		.can_pause = f->set.engine->pause_modes != NULL,
		.has_previous = r->has_whole && r->whole != r->target,
		.dirty = r->dirty,
		.paused = r->is_paused,
		.may_retry = !plan_is_end(r->state) && r->tries[r->state] <= f->set.retries,
		.stopping = f->stop > 0,
	};
}

/* What the step is about; the path is malloc'ed. */
static int fill_ask(const struct run *run, struct follow_replica *r, struct engine_ask *out)
{
	bool back = r->state == PLAN_BACK;
	uint64_t version = back ? r->whole : run->version;
	char *path = path_of(run->f, version);

	if (path == NULL)
		return -ENOMEM;
	*out = (struct engine_ask){
		.path = path,
		.version = version,
		.fresh = r->fresh || r->tries[PLAN_RELOAD] > 1 || back,
		.paused = r->is_paused,
		.route = run->f->set.route,
		.pause_mode = run->f->set.pause_mode,
		.reload_s = (unsigned)(run->f->set.reload_ns / NSEC_PER_SEC),
	};
	return 0;
}

static int64_t time_limit(const struct follow *f, enum engine_step step)
{
	switch (step) {
	case ENGINE_PAUSE: return f->set.pause_ns;
	case ENGINE_RELOAD: return f->set.reload_ns;
	default: return SHORT_NS;
	}
}

static void note_end(const struct run *run, struct follow_replica *r)
{
	switch (r->state) {
	case PLAN_NEW:
	case PLAN_NEW_PAUSED:
		r->has_whole = true;
		r->whole = run->version;
		r->fresh = r->dirty = false;
		break;
	default: r->fresh = true; break;
	}
	if (r->state == PLAN_NEW)
		r->why = (struct why){0};
	else
		r->failures++;
}

static void account(struct follow_replica *r, enum engine_step step, int64_t now)
{
	static const enum follow_phase phases[ENGINE_STEPS] = {
		[ENGINE_PAUSE] = FOLLOW_PAUSE,
		[ENGINE_RELOAD] = FOLLOW_RELOAD,
		[ENGINE_VERIFY] = FOLLOW_VERIFY,
		[ENGINE_RESUME] = FOLLOW_RESUME,
	};

	r->spent[phases[step]] += now - r->step_began;
}

/* The step has ended so. */
static void step_ended(const struct run *run, struct follow_replica *r, enum plan_outcome outcome)
{
	struct plan_facts facts = facts_of(run->f, r);
	enum plan_state was = r->state;
	int64_t now = clock_mono_ns();

	account(r, step_of(was), now);
	r->verified |= r->seen.verified;
	r->speaks |= r->seen.verified && step_of(was) == ENGINE_VERIFY;
	if (step_of(was) == ENGINE_PAUSE && (outcome == PLAN_OK || outcome == PLAN_LOST) &&
	    facts.can_pause && !r->is_paused) {
		r->is_paused = true;
		r->pause_began = now;
	}
	if ((step_of(was) == ENGINE_RESUME && outcome == PLAN_OK) || outcome == PLAN_DOWN) {
		if (r->is_paused)
			r->paused_ns += now - r->pause_began;
		r->is_paused = false;
	}
	/* The first request was understood and a later one was not: no longer untouched. */
	if (outcome == PLAN_REFUSED && was == PLAN_RELOAD && r->n > 0)
		outcome = PLAN_FAILED;
	if (was == PLAN_RELOAD && outcome != PLAN_REFUSED && outcome != PLAN_DOWN)
		r->dirty = facts.dirty = true;
	if (was == PLAN_BACK && outcome == PLAN_OK)
		r->dirty = facts.dirty = false;
	r->state = plan_next(was, outcome, &facts);
	r->n = 0;
	if (outcome != PLAN_OK && !plan_is_end(r->state) && r->tries[r->state] > 0 &&
	    !facts.stopping) {
		unsigned again = MIN(r->tries[was] - 1, 20U);

		r->not_before = now + MIN(run->f->set.backoff_ns << again, BACKOFF_NS);
	}
	if (plan_is_end(r->state))
		note_end(run, r);
}

/* Sends the next request of the replica's step, or ends the step when there is none. */
static int send_next(const struct run *run, struct follow_replica *r)
{
	struct follow *f = run->f;
	enum engine_step step = step_of(r->state);
	struct engine_request request = {0};
	struct engine_ask ask;
	int ret;

	if (r->n == 0) {
		r->tries[r->state]++;
		r->step_began = clock_mono_ns();
		r->not_before = 0;
		r->seen = (struct engine_seen){.paused = -1};
	}
	ret = fill_ask(run, r, &ask);
	if (ret < 0)
		return ret;
	if (!f->set.engine->request(step, r->n, &ask, &request)) {
		step_ended(run, r, PLAN_OK);
		goto out;
	}
	if (step == ENGINE_RELOAD) {
		r->has_path = true;
		r->path = ask.version;
	}
	ret = follow_http_start(f->http, r->url, &request, time_limit(f, step), r, &r->call);
out:
	buf_release(&request.body);
	free((char *)ask.path);
	return ret;
}

static int take_answer(const struct run *run, struct follow_call *call)
{
	struct follow_replica *r = follow_call_ctx(call);
	enum engine_step step = step_of(r->state);
	struct engine_answer answer;
	struct engine_ask ask;
	struct why why = {0};
	enum plan_outcome outcome;
	int ret = fill_ask(run, r, &ask);

	r->call = NULL;
	if (ret < 0)
		return ret;
	follow_call_answer(call, &answer, &why);
	outcome = run->f->set.engine->judge(step, r->n, &ask, &answer, &r->seen, &why);
	free((char *)ask.path);
	if (outcome == PLAN_OK) {
		r->n++;
	} else {
		/* What began the trouble is worth more than what followed from it. */
		if (r->why.text[0] == '\0' || (r->state != PLAN_UNDO && r->state != PLAN_LET))
			r->why = why;
		step_ended(run, r, outcome);
	}
	return 0;
}

/* ---- all that take part ---- */

/* No replica reloads while another is still to be paused for the first time. */
static bool must_wait(const struct follow *f, const struct follow_replica *r)
{
	if (r->state != PLAN_RELOAD || r->tries[PLAN_RELOAD] > 0)
		return false;
	for (size_t i = 0; i < f->count; i++) {
		const struct follow_replica *o = &f->replicas[i];

		if (o->taking_part && o->state == PLAN_PAUSE && o->tries[PLAN_RELOAD] == 0)
			return true;
	}
	return false;
}

/* Begins what can begin; *out_until: when to look again at the latest; *out_busy: anything left? */
static int begin_all(const struct run *run, int64_t *out_until, bool *out_busy)
{
	struct follow *f = run->f;
	bool again;

	do {
		again = *out_busy = false;
		*out_until = INT64_MAX;
		for (size_t i = 0; i < f->count; i++) {
			struct follow_replica *r = &f->replicas[i];
			int ret;

			if (!r->taking_part || plan_is_end(r->state))
				continue;
			*out_busy = true;
			if (r->call != NULL || must_wait(f, r))
				continue;
			if (r->not_before > clock_mono_ns()) {
				*out_until = MIN(*out_until, r->not_before);
				continue;
			}
			ret = send_next(run, r);
			if (ret < 0)
				return ret;
			again |= r->call == NULL;
		}
	} while (again);
	return 0;
}

/* A signal came: see the opening comment. */
static void told_to_end(const struct run *run)
{
	struct follow *f = run->f;

	for (size_t i = 0; i < f->count; i++) {
		struct follow_replica *r = &f->replicas[i];
		struct plan_facts facts;

		if (!r->taking_part || plan_is_end(r->state))
			continue;
		if (r->call != NULL) {
			if (r->state == PLAN_PAUSE ||
			    (f->stop > 1 && step_of(r->state) != ENGINE_RESUME))
				follow_http_cancel(f->http, r->call);
			continue;
		}
		r->not_before = 0;
		if (r->n > 0)
			continue; /* between two requests of a step */
		facts = facts_of(f, r);
		r->state = plan_stop(r->state, &facts);
		if (r->why.text[0] == '\0')
			why_set(&r->why, ECANCELED, "told to end");
		if (plan_is_end(r->state))
			note_end(run, r);
	}
}

void follow_doze(const struct follow *f, int64_t until)
{
	struct pollfd p[2] = {{.fd = follow_http_fd(f->http), .events = POLLIN},
			      {.fd = f->signal_fd, .events = POLLIN}};
	int64_t left = until == INT64_MAX ? NSEC_PER_SEC : until - clock_mono_ns();
	struct timespec ts = clock_timespec(MAX(left, 0));

	(void)ppoll(p, 2, &ts, NULL);
}

/* Until every replica that takes part has come to an end. */
static int run_all(const struct run *run)
{
	struct follow *f = run->f;
	unsigned stop = 0;
	int64_t until;
	bool busy;
	int ret;

	for (;;) {
		struct follow_call *call;

		follow_stopping(f);
		if (f->stop != stop) {
			stop = f->stop;
			told_to_end(run);
		}
		ret = begin_all(run, &until, &busy);
		if (ret < 0 || !busy)
			break;
		follow_doze(f, until);
		while ((call = follow_http_next(f->http)) != NULL) {
			ret = take_answer(run, call);
			follow_call_free(call);
			if (ret < 0)
				return ret;
		}
	}
	return ret;
}

static void begin_replica(struct follow_replica *r, enum plan_state state)
{
	r->taking_part = true;
	r->state = state;
	memset(r->tries, 0, sizeof(r->tries));
	memset(r->spent, 0, sizeof(r->spent));
	r->n = 0;
	r->not_before = 0;
	r->paused_ns = 0;
	r->pause_began = clock_mono_ns();
	r->verified = false;
	r->why = (struct why){0};
}

static bool wants(const struct follow_replica *r, uint64_t version, enum plan_state *out)
{
	*out = r->touched ? plan_begin(r->state, r->target == version) : PLAN_PAUSE;
	return !plan_is_end(*out);
}

static bool is_broken(const struct follow_replica *r)
{
	return r->state == PLAN_MIXED_PAUSED || r->state == PLAN_MIXED_SERVING;
}

/* Rolling, and this version has left a replica with mixed weights: not another one. */
static bool is_halted(const struct follow *f, uint64_t version)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->set.rolling && is_broken(&f->replicas[i]) &&
		    f->replicas[i].target == version)
			return true;
	return false;
}

bool follow_wants(const struct follow *f, uint64_t version)
{
	enum plan_state state;

	for (size_t i = 0; i < f->count; i++)
		if (!is_halted(f, version) && wants(&f->replicas[i], version, &state))
			return true;
	return false;
}

int follow_bring(struct follow *f, struct follow_update *u, struct why *why)
{
	struct run run = {.f = f, .version = u->version};
	int64_t began = clock_mono_ns();
	int ret = 0;

	for (size_t i = 0; i < f->count; i++)
		f->replicas[i].taking_part = false;
	for (size_t i = 0; i < f->count && ret == 0 && !follow_stopping(f); i++) {
		struct follow_replica *r = &f->replicas[i];
		enum plan_state state;

		if (is_halted(f, u->version))
			break;
		if (!wants(r, u->version, &state))
			continue;
		begin_replica(r, state);
		r->touched = true;
		r->target = u->version;
		if (f->set.rolling)
			ret = run_all(&run);
	}
	if (ret == 0 && !f->set.rolling)
		ret = run_all(&run);
	u->engines_ns = clock_mono_ns() - began;
	return ret < 0 ? why_set(why, -ret, "%s", errno_text(ret)) : 0;
}

void follow_forget(struct follow_replica *r, uint64_t version)
{
	r->has_whole &= r->whole != version;
	if (!r->touched || r->target != version)
		return;
	r->touched = false;
	r->fresh = true;
}

int follow_let_go(struct follow *f, struct why *why)
{
	int ret;

	for (size_t i = 0; i < f->count; i++) {
		struct follow_replica *r = &f->replicas[i];
		struct run run = {.f = f, .version = r->target};

		for (size_t j = 0; j < f->count; j++)
			f->replicas[j].taking_part = false;
		if (r->state != PLAN_NEW_PAUSED && r->state != PLAN_OLD_PAUSED)
			continue;
		begin_replica(r, r->state == PLAN_NEW_PAUSED ? PLAN_RESUME : PLAN_UNDO);
		ret = run_all(&run);
		if (ret < 0)
			return why_set(why, -ret, "%s", errno_text(ret));
	}
	return 0;
}
