/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of follow share: its settings, its replicas, and one update.
 */
#ifndef TOOLS_FOLLOW_H
#define TOOLS_FOLLOW_H

#include "tools/engine.h"
#include "tools/follow_http.h"
#include "tools/follow_mount.h"
#include "tools/follow_plan.h"

struct follow_settings {
	const struct engine *engine; /* NULL: only the command */
	const char *route, *pause_mode;
	const char *hook;	 /* NULL: none */
	const char *metrics;	 /* file; NULL: none */
	const char *engine_path; /* where the engine sees the mount; NULL: where we do */
	enum plan_policy policy;
	bool warm, rolling, once;
	unsigned retries; /* of a step, besides the first attempt */
	int64_t backoff_ns, min_interval_ns;
	int64_t check_ns;	     /* between two follow_check(); 0: never */
	int64_t reload_ns, pause_ns; /* time limits */
};

enum follow_phase { FOLLOW_PAUSE, FOLLOW_RELOAD, FOLLOW_VERIFY, FOLLOW_RESUME, FOLLOW_PHASES };

/* An engine's server.  Fields of the first group live from update to update. */
struct follow_replica {
	char *url;
	enum plan_state state; /* an end between updates */
	bool touched;	       /* an update reached it at all: target is one */
	uint64_t target;       /* of the last update */
	bool has_whole;
	uint64_t whole; /* the last version that it has loaded whole: what it has, unless the state
			   says that its weights are mixed */
	bool has_path;
	uint64_t path;	/* the version whose directory it was last told to load */
	bool fresh;	/* see struct engine_ask */
	bool speaks;	/* it can say which version it has */
	bool is_paused; /* by us, or found so */
	bool dirty;	/* see struct plan_facts */
	uint64_t failures;

	/* One update: */
	bool taking_part;
	unsigned tries[PLAN_NEW]; /* per state under way */
	unsigned n;		  /* request of the step */
	struct follow_call *call; /* in flight, or NULL */
	int64_t not_before;	  /* back-off; monotonic */
	int64_t step_began, pause_began;
	int64_t spent[FOLLOW_PHASES];
	int64_t paused_ns; /* how long traffic was held */
	struct engine_seen seen;
	bool verified;	/* it says itself that it has the version */
	struct why why; /* the last thing that went wrong; "" */
};

struct follow {
	struct follow_settings set;
	struct follow_mount mount;
	struct follow_http *http;
	struct follow_replica *replicas;
	size_t count;
	int signal_fd;
	unsigned stop;		/* signals that told us to end */
	bool warmed, hook_done; /* of these versions: */
	uint64_t warm_version, hook_version;
	uint64_t updates[3], hook_failures;
	int64_t last_good_real_ns;
	uint64_t last_good;
	bool any_good;
};

enum follow_result {
	FOLLOW_OK,	/* all replicas serve the version, the command has succeeded */
	FOLLOW_PARTIAL, /* some do */
	FOLLOW_FAILED,	/* none does */
};

/* One update, for its report. */
struct follow_update {
	uint64_t version;
	bool superseded; /* a newer one came meanwhile: */
	uint64_t newest;
	bool stopped; /* told to end before it was done */
	enum follow_result result;
	int64_t began_real_ns, prepare_ns, engines_ns, hook_ns, total_ns;
	uint64_t warm_bytes;
	const char *path; /* as the engine sees it */
	struct why why;	  /* of the parts that are no replica's; "" */
};

/* ---- follow_run.c ---- */

/* Would an update to this version do anything? */
bool follow_wants(const struct follow *f, uint64_t version);
/* Brings it to the replicas that want it.  Blocks.  -errno: not even begun (memory). */
int follow_bring(struct follow *f, struct follow_update *u, struct why *why) MUST_CHECK;
/* A version is not what the replica has under its number any more. */
void follow_forget(struct follow_replica *r, uint64_t version);
/* Before the end: lets traffic in again where whole weights are held back. */
int follow_let_go(struct follow *f, struct why *why) MUST_CHECK;
/* Counts the signals that have come; true: told to end. */
bool follow_stopping(struct follow *f);
/* Sleeps until a call has ended, a signal has come, or that time. */
void follow_doze(const struct follow *f, int64_t until);

/* ---- follow_ask.c ---- */

/* Asks every replica which version it has, at the start. */
int follow_ask(struct follow *f, struct why *why) MUST_CHECK;
/* Asks those again that have the newest version and can say so: one that was restarted meanwhile
 * has another, and is to be updated.  -ECANCELED: told to end. */
int follow_check(struct follow *f) MUST_CHECK;

/* ---- follow_report.c ---- */

/* One line of JSON on standard output, a line on standard error for what went wrong, and the
 * metrics file. */
void follow_report(struct follow *f, const struct follow_update *u);
/* The metrics file alone; -errno. */
int follow_metrics(struct follow *f) MUST_CHECK;
const char *follow_result_name(enum follow_result result);

#endif
