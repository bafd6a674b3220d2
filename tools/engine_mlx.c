/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mlx-lm's server.  It has no route for reloading, and none for pausing: it loads whatever model a
 * request names, when that is another than the one it has.
 *
 *	reload	POST /v1/completions {"model":<path of versions/N>,"prompt":"a","max_tokens":1}
 *	verify	the answer names that model
 *
 * So the new version is loaded before the first user asks for it, and a load that fails is known.
 * But it is the users' requests that decide: they must name the path of the version, which follow
 * prints and gives to --exec; one that names an older path, or "default_model", makes the server
 * load that again.  The same path is never loaded twice, which is why it must be the version's.
 * Some releases take local paths only below the directory that they were started in.
 *
 * A load that fails leaves the server without a model until a request names one that loads.
 *
 * Pure; no I/O, no state.
 */
#include "tools/engine.h"

#include <stdio.h>

static const char *const routes[] = {"model", NULL};
static const char *const keys[] = {"MLX_API_KEY", NULL};

static bool request(enum engine_step step, unsigned n, const struct engine_ask *ask,
		    struct engine_request *out)
{
	if (step != ENGINE_RELOAD || n > 0)
		return false;
	out->post = true;
	snprintf(out->target, sizeof(out->target), "/v1/completions");
	buf_addstr(&out->body, "{\"model\":");
	buf_addjson(&out->body, ask->path, strlen(ask->path));
	buf_addstr(&out->body, ",\"prompt\":\"a\",\"max_tokens\":1,\"temperature\":0}");
	return true;
}

static enum plan_outcome judge(enum engine_step step, unsigned n, const struct engine_ask *ask,
			       const struct engine_answer *a, struct engine_seen *seen,
			       struct why *why)
{
	enum plan_outcome outcome;
	char model[200], said[240] = "";

	/* A model that cannot be loaded is answered with 404. */
	if (a->err == 0 && a->status == 404) {
		engine_text(a, "error", said, sizeof(said));
		why_set(why, EIO,
			"completions: the server cannot load %s%s%s; can it see that path? (an old "
			"one has to be started in a directory above the mount)",
			ask->path, said[0] != '\0' ? ": " : "", said);
		return PLAN_FAILED;
	}
	outcome = engine_judge(a, "completions", "is it mlx_lm.server?", why);
	if (outcome != PLAN_OK)
		return outcome;
	switch (engine_text_is(a, "model", ask->path)) {
	case -1: return PLAN_OK; /* it does not say */
	case 0:
		engine_text(a, "model", model, sizeof(model));
		why_set(why, EIO, "completions: the server answered with model %s, not %s", model,
			ask->path);
		return PLAN_FAILED;
	default: break;
	}
	seen->any = seen->verified = true;
	seen->version = ask->version;
	return PLAN_OK;
}

const struct engine engine_mlx = {"mlx", routes, NULL, keys, request, judge};
