/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks replicas which version they have: all at once, each by the requests of its engine's "ask"
 * step.  Nothing changes in them.
 *
 * At the start, so that a follow that is started anew leaves alone what is right, and heals what
 * one that was killed has left behind.  Later, now and then, those that can say what they have: a
 * server that was restarted runs what it was started with, and nothing else would tell.
 *
 * One thread.
 */
#include "tools/follow.h"

#include "cache/clock.h"
#include "tools/cli.h"

#include <inttypes.h>

#define START_NS (30 * NSEC_PER_SEC)
#define CHECK_NS (5 * NSEC_PER_SEC) /* a version that comes meanwhile waits that long at most */

struct asking {
	struct follow *f;
	int64_t limit_ns;
	size_t in_flight;
};

/* The replica's next question, if there is one. */
static int ask_next(struct asking *a, struct follow_replica *r)
{
	const struct engine_ask ask = {.route = a->f->set.route,
				       .pause_mode = a->f->set.pause_mode};
	struct engine_request request = {0};
	int ret = 0;

	if (a->f->set.engine->request(ENGINE_ASK, r->n, &ask, &request)) {
		ret = follow_http_start(a->f->http, r->url, &request, a->limit_ns, r, &r->call);
		a->in_flight += ret == 0;
	}
	buf_release(&request.body);
	return ret;
}

static int take(struct asking *a, struct follow_call *call)
{
	const struct engine_ask ask = {.route = a->f->set.route,
				       .pause_mode = a->f->set.pause_mode};
	struct follow_replica *r = follow_call_ctx(call);
	struct engine_answer answer;
	struct why why = {0};
	enum plan_outcome outcome;

	follow_call_answer(call, &answer, &why);
	outcome = a->f->set.engine->judge(ENGINE_ASK, r->n, &ask, &answer, &r->seen, &why);
	follow_call_free(call); /* the answer is in it */
	r->call = NULL;
	r->seen.answered = outcome == PLAN_OK && (r->n == 0 || r->seen.answered);
	r->n++;
	a->in_flight--;
	/* Who does not answer one question will not answer the next in less time. */
	return outcome == PLAN_LOST || outcome == PLAN_DOWN ? 0 : ask_next(a, r);
}

/* Those that take part. */
static int ask_all(struct follow *f, int64_t limit_ns)
{
	struct asking a = {.f = f, .limit_ns = limit_ns};
	struct follow_call *call;
	int ret = 0;

	for (size_t i = 0; i < f->count && ret == 0; i++) {
		struct follow_replica *r = &f->replicas[i];

		r->seen = (struct engine_seen){.paused = -1};
		r->n = 0;
		if (r->taking_part)
			ret = ask_next(&a, r);
	}
	while (a.in_flight > 0) {
		if (ret == 0 && follow_stopping(f))
			ret = -ECANCELED;
		for (size_t i = 0; i < f->count && ret < 0; i++)
			if (f->replicas[i].call != NULL)
				follow_http_cancel(f->http, f->replicas[i].call);
		follow_doze(f, INT64_MAX);
		while ((call = follow_http_next(f->http)) != NULL) {
			int err = take(&a, call);

			if (ret == 0)
				ret = err;
		}
	}
	return ret;
}

int follow_ask(struct follow *f, struct why *why)
{
	int ret;

	for (size_t i = 0; i < f->count; i++)
		f->replicas[i].taking_part = true;
	ret = ask_all(f, START_NS);
	if (ret < 0)
		return why_set(why, -ret, "%s",
			       ret == -ECANCELED ? "told to end" : errno_text(ret));
	for (size_t i = 0; i < f->count; i++) {
		struct follow_replica *r = &f->replicas[i];

		/* Found paused, perhaps by a follow that was killed half way: whole anew, and not
		 * resumed with what it has. */
		r->is_paused = r->dirty = r->seen.paused == 1;
		/* One that cannot say gets the newest version, as one that is not there yet. */
		if (!r->seen.any)
			continue;
		r->has_whole = r->has_path = r->speaks = true;
		r->whole = r->path = r->target = r->seen.version;
		if (r->is_paused)
			continue;
		r->touched = true;
		r->state = r->seen.paused == 0 ? PLAN_NEW : PLAN_NEW_PAUSED;
	}
	return 0;
}

int follow_check(struct follow *f)
{
	int ret;

	for (size_t i = 0; i < f->count; i++) {
		struct follow_replica *r = &f->replicas[i];

		r->taking_part = r->touched && r->state == PLAN_NEW && r->speaks;
	}
	ret = ask_all(f, CHECK_NS);
	for (size_t i = 0; i < f->count && ret == 0; i++) {
		struct follow_replica *r = &f->replicas[i];

		if (!r->taking_part || !r->seen.answered ||
		    (r->seen.any && r->seen.version == r->whole))
			continue;
		cli_error("%s no longer has version %" PRIu64
			  "; it was restarted, or somebody else has loaded another",
			  r->url, r->whole);
		r->touched = r->is_paused = false;
		r->fresh = true;
		r->state = PLAN_OLD;
	}
	return ret;
}
