/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to try again, and how many calls at a time.
 *
 * Transient are: no or a broken connection, timeouts, answers that break the protocol (a proxy's
 * truncated or re-encoded body), 408, 429 and 5xx but 501 and 505.  A request that must not be sent
 * twice is only tried again when the server cannot have acted on it.  A 403 from a redirect's
 * target is a signed URL that ran out between the two answers: one more attempt makes a fresh one.
 *
 * Full jitter (a uniform wait between nothing and the doubled back-off) spreads a fleet that was
 * refused at the same moment.  What the server asks for is a lower bound, with up to a quarter on
 * top for the same reason.
 *
 * Pure, no state but the caller's.
 */
#include "cache/remote/retry.h"

static struct retry_policy with_defaults(const struct retry_policy *p)
{
	struct retry_policy full = *p;

	full.attempts = p->attempts ? p->attempts : 6;
	full.base_ms = p->base_ms > 0 ? p->base_ms : 250;
	full.cap_ms = p->cap_ms > 0 ? p->cap_ms : 10000;
	full.server_ms = p->server_ms > 0 ? p->server_ms : 300000;
	return full;
}

static bool transient_error(int err)
{
	switch (err) {
	case ETIMEDOUT:
	case ECONNRESET:
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EPROTO:
	case EIO: return true;
	default: return false;
	}
}

static bool transient_status(const struct retry_event *e)
{
	switch (e->status) {
	case 408:
	case 425:
	case 429:
	case 500:
	case 502:
	case 503:
	case 504: return true;
	case 403: return e->redirected && e->attempt < 2;
	default: return e->slow_down || (e->status >= 520 && e->status <= 529); /* edges */
	}
}

bool retry_is_transient(const struct retry_event *e)
{
	bool transient;

	/* A good status with an error: the answer itself was broken. */
	if (e->err != 0)
		transient = transient_error(e->err);
	else
		transient = transient_status(e);
	if (!transient)
		return false;
	if (e->repeatable || e->unsent)
		return true;
	return e->err == 0 && (e->status == 429 || e->status == 503);
}

/* Uniform in [0, max]. */
static int64_t share(int64_t max, uint32_t random)
{
	return (int64_t)(((unsigned __int128)(max + 1) * random) >> 32);
}

static int64_t back_off(const struct retry_policy *p, unsigned attempt)
{
	int64_t wait = MIN(p->base_ms, p->cap_ms);

	for (unsigned i = 1; i < attempt && wait < p->cap_ms; i++)
		wait = wait > p->cap_ms / 2 ? p->cap_ms : wait * 2;
	return wait;
}

struct retry_decision retry_decide(const struct retry_policy *policy, const struct retry_event *e)
{
	struct retry_policy p = with_defaults(policy);
	struct retry_decision d = {0};
	int64_t asked = -1;

	d.fewer = e->slow_down || (e->err == 0 && (e->status == 429 || e->status == 503));
	if (!retry_is_transient(e) || e->budget_ms == 0 ||
	    e->attempt - MIN(e->attempt, e->unanswered) >= p.attempts)
		return d;
	d.wait_ms = share(back_off(&p, e->attempt), e->random);
	if (e->err == 0 && (e->status == 429 || e->status == 503))
		asked = e->retry_after_ms;
	/* A 429 with calls left in the window comes from another limiter. */
	if (e->err == 0 && e->status == 429 && asked < 0 && e->rate_remaining <= 0)
		asked = e->rate_reset_ms;
	if (asked > p.server_ms)
		return d;
	if (asked >= 0)
		d.wait_ms = MAX(d.wait_ms, asked + share(asked / 4, e->random));
	if (e->budget_ms >= 0 && d.wait_ms > e->budget_ms) {
		/* What the jitter added may be given up, what the server asked for may not. */
		if (asked > e->budget_ms)
			return d;
		d.wait_ms = MAX(asked, e->budget_ms / 2);
	}
	d.again = true;
	return d;
}

void parallelism_init(struct parallelism *p, unsigned max)
{
	p->max = MAX(max, 1);
	p->limit = p->max;
	p->good = 0;
	p->epoch = 0;
}

void parallelism_good(struct parallelism *p)
{
	if (p->limit >= p->max || ++p->good < p->limit)
		return;
	p->limit++;
	p->good = 0;
}

void parallelism_fewer(struct parallelism *p, uint64_t epoch)
{
	if (epoch != p->epoch)
		return;
	p->limit = MAX(p->limit / 2, 1);
	p->good = 0;
	p->epoch++;
}
