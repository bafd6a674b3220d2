/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines that follow knows: which requests a step is made of, and what an answer means.  Pure:
 * requests out, answers in; nothing here sends.
 *
 * Sources: vLLM's vllm/entrypoints/rl and its development router (collective_rpc,
 * reset_prefix_cache; all of them need VLLM_SERVER_DEV_MODE=1); SGLang's
 * srt/entrypoints/http_server.py and managers/io_struct.py; mlx-lm's server.py.
 */
#ifndef TOOLS_ENGINE_H
#define TOOLS_ENGINE_H

#include "codec/base.h"
#include "codec/buf.h"
#include "tools/follow_plan.h"

enum engine_step {
	ENGINE_ASK, /* which version it has; nothing changes */
	ENGINE_PAUSE,
	ENGINE_RELOAD,
	ENGINE_VERIFY,
	ENGINE_RESUME,
	ENGINE_STEPS,
};

struct engine_ask {
	const char *path;	/* of the version's directory, as the engine sees it */
	uint64_t version;	/* ENGINE_ASK: unused, as is path */
	bool fresh;		/* the first update of this replica, or one that failed before */
	bool paused;		/* ENGINE_VERIFY: it was, and must be still */
	const char *route;	/* one of the engine's `routes` */
	const char *pause_mode; /* one of its `pause_modes` */
	unsigned reload_s;	/* how long a reload may take */
};

struct engine_request {
	bool post;	 /* else GET */
	char target[96]; /* "/pause?mode=wait", after the replica's URL */
	struct buf body; /* JSON; empty: none.  The caller releases it */
};

struct engine_answer {
	int err;	/* 0, or -errno when no answer came */
	int status;	/* of HTTP */
	bool connected; /* err: it may have been received */
	const char *body;
	size_t len;
};

/* What was learnt about a replica. */
struct engine_seen {
	bool any;	  /* it says which version it has, and that is a number: */
	uint64_t version; /* that */
	bool answered;	  /* ENGINE_ASK: all its questions were (the caller's) */
	int paused;	  /* ENGINE_ASK: 1 it is, 0 it is not, -1 it does not say */
	bool verified;	  /* ENGINE_VERIFY: it was asked, and it was right */
};

struct engine {
	const char *name;
	const char *const *routes;	/* ends with NULL; the first is the default */
	const char *const *pause_modes; /* the same; NULL: it cannot be paused */
	const char *const *keys;	/* names of variables that may have a key, in order */
	/* Fills *out (zeroed) with the n-th request of a step; false: there is none. */
	bool (*request)(enum engine_step step, unsigned n, const struct engine_ask *ask,
			struct engine_request *out);
	/* What the answer to it means.  Not PLAN_OK: a sentence. */
	enum plan_outcome (*judge)(enum engine_step step, unsigned n, const struct engine_ask *ask,
				   const struct engine_answer *a, struct engine_seen *seen,
				   struct why *why);
};

extern const struct engine engine_vllm, engine_sglang, engine_mlx;

/* NULL: no engine of that name. */
const struct engine *engine_find(const char *name);
/* NULL (and no `default`) when value is not one of the list; value NULL: the first. */
const char *engine_choice(const char *const *list, const char *value);

/* ---- for the engines ---- */

/* What every engine's answers have in common.  remedy: what to do when the route is not there. */
enum plan_outcome engine_judge(const struct engine_answer *a, const char *what, const char *remedy,
			       struct why *why);
/* Reads {"key": "123"} or {"key": 123}; false: no JSON, no such key, or no version number. */
bool engine_number(const struct engine_answer *a, const char *key, uint64_t *out);
/* The text under a key into dst (cut); false: none. */
bool engine_text(const struct engine_answer *a, const char *key, char *dst, size_t cap);
/* 1: the text under the key is that one; 0: another one; -1: none. */
int engine_text_is(const struct engine_answer *a, const char *key, const char *text);
/* 1 true, 0 false, -1: no such key. */
int engine_bool(const struct engine_answer *a, const char *key);

#endif
