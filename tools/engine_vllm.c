/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vLLM.  All routes need VLLM_SERVER_DEV_MODE=1 in the server's environment.
 *
 *	pause	POST /pause?mode=wait|keep|abort&clear_cache=true
 *	reload	route "rpc":
 *		  POST /collective_rpc {"method":"reload_weights","kwargs":{"weights_path":...,
 *			"is_checkpoint_format":true},"timeout":s}
 *		  POST /update_weight_version {"new_version":"N"}	(newer servers)
 *		route "transfer" (--weight-transfer-config with the "disk" backend):
 *		  POST /init_weight_transfer_engine {"init_info":{}}	(the first time, and again
 *			after a failure: the server may have been restarted)
 *		  POST /start_weight_update
 *		  POST /update_weights {"update_info":{"path":...}}
 *		  POST /finish_weight_update {"weight_version":"N"}
 *		and then POST /reset_prefix_cache, which no reload does by itself
 *	verify	GET /is_paused, GET /weight_info
 *	resume	POST /resume
 *
 * The server keeps weights_path for good, and reads it again in a reload without a path: the
 * version must stay where it is for as long as the server runs it.  Missing tensors are only a
 * warning there, so what is loaded must be whole, which a version of a mount is.
 *
 * Routes that older servers lack are left out (404): the tag and the questions, never the reset.
 *
 * Pure; no I/O, no state.
 */
#include "tools/engine.h"

#include <inttypes.h>
#include <stdio.h>

#define REMEDY "start the server with VLLM_SERVER_DEV_MODE=1"

static const char *const routes[] = {"rpc", "transfer", NULL};
static const char *const pause_modes[] = {"wait", "keep", "abort", NULL};
static const char *const keys[] = {"VLLM_API_KEY", NULL};

static void post(struct engine_request *out, const char *target)
{
	out->post = true;
	snprintf(out->target, sizeof(out->target), "%s", target);
}

static void reload_rpc(const struct engine_ask *ask, struct engine_request *out)
{
	post(out, "/collective_rpc");
	buf_addstr(&out->body, "{\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":");
	buf_addjson(&out->body, ask->path, strlen(ask->path));
	buf_addf(&out->body, ",\"is_checkpoint_format\":true},\"timeout\":%u}", ask->reload_s);
}

static bool request_rpc(unsigned n, const struct engine_ask *ask, struct engine_request *out)
{
	switch (n) {
	case 0: reload_rpc(ask, out); return true;
	case 1: post(out, "/reset_prefix_cache"); return true;
	case 2:
		post(out, "/update_weight_version");
		buf_addf(&out->body, "{\"new_version\":\"%" PRIu64 "\"}", ask->version);
		return true;
	default: return false;
	}
}

static bool request_transfer(unsigned n, const struct engine_ask *ask, struct engine_request *out)
{
	switch (n + (ask->fresh ? 0 : 1)) {
	case 0:
		post(out, "/init_weight_transfer_engine");
		buf_addstr(&out->body, "{\"init_info\":{}}");
		return true;
	case 1: post(out, "/start_weight_update"); return true;
	case 2:
		post(out, "/update_weights");
		buf_addstr(&out->body, "{\"update_info\":{\"path\":");
		buf_addjson(&out->body, ask->path, strlen(ask->path));
		buf_addstr(&out->body, "}}");
		return true;
	case 3:
		post(out, "/finish_weight_update");
		buf_addf(&out->body, "{\"weight_version\":\"%" PRIu64 "\"}", ask->version);
		return true;
	case 4: post(out, "/reset_prefix_cache"); return true;
	default: return false;
	}
}

static bool is_rpc(const struct engine_ask *ask)
{
	return strcmp(ask->route, "rpc") == 0;
}

static bool request(enum engine_step step, unsigned n, const struct engine_ask *ask,
		    struct engine_request *out)
{
	switch (step) {
	case ENGINE_PAUSE:
		post(out, "");
		snprintf(out->target, sizeof(out->target), "/pause?mode=%s&clear_cache=true",
			 ask->pause_mode);
		return n == 0;
	case ENGINE_RELOAD:
		return is_rpc(ask) ? request_rpc(n, ask, out) : request_transfer(n, ask, out);
	case ENGINE_RESUME: post(out, "/resume"); return n == 0;
	case ENGINE_ASK:
	case ENGINE_VERIFY:
		snprintf(out->target, sizeof(out->target), "%s",
			 n == 0 ? "/is_paused" : "/weight_info");
		return n < 2;
	default: return false;
	}
}

static enum plan_outcome judge_reload(unsigned n, const struct engine_ask *ask,
				      const struct engine_answer *a, struct why *why)
{
	const char *what;

	if (is_rpc(ask)) {
		static const char *const names[] = {"reload_weights", "reset_prefix_cache",
						    "update_weight_version"};
		what = names[n];
		if (n == 2 && a->err == 0 && a->status == 404)
			return PLAN_OK;
	} else {
		static const char *const names[] = {"init_weight_transfer_engine",
						    "start_weight_update", "update_weights",
						    "finish_weight_update", "reset_prefix_cache"};
		what = names[n + (ask->fresh ? 0 : 1)];
	}
	return engine_judge(a, what,
			    is_rpc(ask) ? REMEDY
					: REMEDY " and a disk weight transfer backend, or use "
						 "--route rpc",
			    why);
}

static enum plan_outcome judge_verify(unsigned n, const struct engine_ask *ask,
				      const struct engine_answer *a, struct engine_seen *seen,
				      struct why *why)
{
	enum plan_outcome outcome;

	if (a->err == 0 && a->status == 404)
		return PLAN_OK; /* an older server: it cannot say */
	outcome = engine_judge(a, n == 0 ? "is_paused" : "weight_info", REMEDY, why);
	if (outcome != PLAN_OK)
		return outcome;
	if (n == 0 && ask->paused && engine_bool(a, "is_paused") == 0) {
		why_set(why, EIO,
			"is_paused: the server is no longer paused; it was restarted, or "
			"somebody else resumed it");
		return PLAN_FAILED;
	}
	if (n == 0)
		return PLAN_OK;
	seen->any = engine_number(a, "weight_version", &seen->version);
	if (!seen->any || seen->version != ask->version) {
		char text[60] = "none";

		engine_text(a, "weight_version", text, sizeof(text));
		why_set(why, EIO,
			"weight_info: the server says it has version \"%s\", not %" PRIu64, text,
			ask->version);
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
	case ENGINE_PAUSE: return engine_judge(a, "pause", REMEDY, why);
	case ENGINE_RELOAD: return judge_reload(n, ask, a, why);
	case ENGINE_RESUME: return engine_judge(a, "resume", REMEDY, why);
	case ENGINE_VERIFY: return judge_verify(n, ask, a, seen, why);
	default:
		outcome = engine_judge(a, n == 0 ? "is_paused" : "weight_info", REMEDY, why);
		if (outcome == PLAN_OK && n == 0)
			seen->paused = engine_bool(a, "is_paused");
		else if (outcome == PLAN_OK)
			seen->any = engine_number(a, "weight_version", &seen->version);
		return outcome;
	}
}

const struct engine engine_vllm = {"vllm", routes, pause_modes, keys, request, judge};
