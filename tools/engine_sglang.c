/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang.
 *
 *	pause	POST /pause_generation {"mode":"retract"|"abort"|"in_place"}
 *	reload	POST /update_weights_from_disk {"model_path":...,"weight_version":"N",
 *			"abort_all_requests":false,"flush_cache":true}
 *	verify	GET /model_info, or /get_weight_version of older servers
 *	resume	POST /continue_generation {}
 *
 * Reload: HTTP 400, or "success": false, is a failure.  The server sets its path before it loads,
 * and on an error reads that same path once more: a failing version fails twice, leaves mixed
 * weights, and its path is that of the model from then on.  Expert rebalancing may at any time read
 * the path of the last reload that succeeded.  So both versions must stay where they are.
 *
 * The cache of prefixes is flushed with the reload, unless requests were frozen with their cache
 * ("in_place"), when the server cannot.  Bodies are never empty: the server wants one.
 *
 * Pure; no I/O, no state.
 */
#include "tools/engine.h"

#include <inttypes.h>
#include <stdio.h>

#define REMEDY "this SGLang is too old to be followed"

static const char *const routes[] = {"disk", NULL};
static const char *const pause_modes[] = {"retract", "abort", "in_place", NULL};
static const char *const keys[] = {"SGLANG_ADMIN_API_KEY", "SGLANG_API_KEY", NULL};

static void post(struct engine_request *out, const char *target)
{
	out->post = true;
	snprintf(out->target, sizeof(out->target), "%s", target);
}

static bool request(enum engine_step step, unsigned n, const struct engine_ask *ask,
		    struct engine_request *out)
{
	switch (step) {
	case ENGINE_PAUSE:
		post(out, "/pause_generation");
		buf_addf(&out->body, "{\"mode\":\"%s\"}", ask->pause_mode);
		return n == 0;
	case ENGINE_RELOAD:
		post(out, "/update_weights_from_disk");
		buf_addstr(&out->body, "{\"model_path\":");
		buf_addjson(&out->body, ask->path, strlen(ask->path));
		buf_addf(&out->body,
			 ",\"weight_version\":\"%" PRIu64
			 "\",\"abort_all_requests\":false,\"flush_cache\":%s}",
			 ask->version, strcmp(ask->pause_mode, "in_place") == 0 ? "false" : "true");
		return n == 0;
	case ENGINE_RESUME:
		post(out, "/continue_generation");
		buf_addstr(&out->body, "{}");
		return n == 0;
	case ENGINE_ASK:
	case ENGINE_VERIFY:
		snprintf(out->target, sizeof(out->target), "%s",
			 n == 0 ? "/model_info" : "/get_weight_version");
		return n < 2;
	default: return false;
	}
}

static enum plan_outcome judge_reload(const struct engine_answer *a, struct why *why)
{
	enum plan_outcome outcome = engine_judge(a, "update_weights_from_disk", REMEDY, why);
	char said[240] = "";

	if (outcome != PLAN_OK || engine_bool(a, "success") == 1)
		return outcome;
	engine_text(a, "message", said, sizeof(said));
	why_set(why, EIO, "update_weights_from_disk: the engine does not say that it succeeded%s%s",
		said[0] != '\0' ? ": " : "", said);
	return PLAN_FAILED;
}

static enum plan_outcome judge_verify(unsigned n, const struct engine_ask *ask,
				      const struct engine_answer *a, struct engine_seen *seen,
				      struct why *why)
{
	enum plan_outcome outcome;
	char path[400];

	if (a->err == 0 && a->status == 404)
		return PLAN_OK; /* the other one may be there; if not, it cannot say */
	outcome = engine_judge(a, n == 0 ? "model_info" : "get_weight_version", REMEDY, why);
	if (outcome != PLAN_OK)
		return outcome;
	if (engine_text_is(a, "model_path", ask->path) == 0) {
		engine_text(a, "model_path", path, sizeof(path));
		why_set(why, EIO, "model_info: the server has %s, not what it was given", path);
		return PLAN_FAILED;
	}
	if (!engine_number(a, "weight_version", &seen->version)) {
		if (!engine_text(a, "weight_version", path, sizeof(path)))
			return PLAN_OK; /* it does not say */
		why_set(why, EIO, "the server says it has version \"%.60s\", not %" PRIu64, path,
			ask->version);
		return PLAN_FAILED;
	}
	seen->any = true;
	if (seen->version != ask->version) {
		why_set(why, EIO, "the server says it has version %" PRIu64 ", not %" PRIu64,
			seen->version, ask->version);
		return PLAN_FAILED;
	}
	seen->verified = true;
	return PLAN_OK;
}

static enum plan_outcome judge(enum engine_step step, unsigned n, const struct engine_ask *ask,
			       const struct engine_answer *a, struct engine_seen *seen,
			       struct why *why)
{
	enum plan_outcome outcome;

	switch (step) {
	case ENGINE_PAUSE: return engine_judge(a, "pause_generation", REMEDY, why);
	case ENGINE_RELOAD: return judge_reload(a, why);
	case ENGINE_RESUME: return engine_judge(a, "continue_generation", REMEDY, why);
	case ENGINE_VERIFY:
		/* The first of the two that knew has been compared. */
		return seen->verified ? PLAN_OK : judge_verify(n, ask, a, seen, why);
	default:
		if (seen->any || (a->err == 0 && a->status == 404))
			return PLAN_OK;
		outcome = engine_judge(a, "model_info", REMEDY, why);
		if (outcome == PLAN_OK)
			seen->any = engine_number(a, "weight_version", &seen->version);
		return outcome;
	}
}

const struct engine engine_sglang = {"sglang", routes, pause_modes, keys, request, judge};
