/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to do next with one replica while a version is brought to it: the table of follow.  Pure:
 * states and outcomes in, the next state out.
 */
#ifndef TOOLS_FOLLOW_PLAN_H
#define TOOLS_FOLLOW_PLAN_H

#include "codec/base.h"

enum plan_state {
	/* Under way: there is something to do. */
	PLAN_PAUSE,  /* hold traffic */
	PLAN_RELOAD, /* load versions/N */
	PLAN_VERIFY, /* does it say that it has N, and is it still held? */
	PLAN_RESUME, /* let traffic in again, with N */
	PLAN_UNDO,   /* let traffic in again, with the old weights, which were not touched */
	PLAN_BACK,   /* N failed: load the version before it */
	PLAN_LET,    /* N failed: let traffic in all the same */
	/* Ends. */
	PLAN_NEW,	    /* serves N */
	PLAN_OLD,	    /* serves what it served before */
	PLAN_NEW_PAUSED,    /* has N, and could not be told to serve */
	PLAN_OLD_PAUSED,    /* has what it had, and could not be told to serve */
	PLAN_MIXED_PAUSED,  /* N failed on the way in: weights of no one version; kept paused */
	PLAN_MIXED_SERVING, /* the same, and serves them, because it was told to or cannot pause */
	PLAN_AWAY,	    /* nobody answers there */
	PLAN_STATES,
};

enum plan_outcome {
	PLAN_OK,
	PLAN_REFUSED, /* a clear no, before anything was done: no such route, wrong key */
	PLAN_FAILED,  /* tried, and did not work */
	PLAN_LOST,    /* no answer: whatever was asked for may have happened */
	PLAN_DOWN,    /* it cannot have been asked: no connection */
	PLAN_OUTCOMES,
};

enum plan_policy {
	PLAN_KEEP_PAUSED, /* after a failed update: leave it paused */
	PLAN_GO_BACK,	  /* load the version before; paused when that fails, too */
	PLAN_LET_SERVE,	  /* serve what there is */
};

struct plan_facts {
	enum plan_policy policy;
	bool can_pause;	   /* the engine has a way to hold traffic */
	bool has_previous; /* there is a version to go back to */
	bool dirty;	   /* a reload was begun, now or in an update before, and none has succeeded
			      since: the weights may be of no one version */
	bool paused;	   /* it was paused already before this step */
	bool may_retry;	   /* this state has attempts left */
	bool stopping;	   /* told to end: nothing new is begun */
};

/* Is there nothing more to do? */
bool plan_is_end(enum plan_state state);
/* The state after what was asked for in `state` ended so. */
enum plan_state plan_next(enum plan_state state, enum plan_outcome outcome,
			  const struct plan_facts *facts);
/* Told to end before what `state` stands for was begun. */
enum plan_state plan_stop(enum plan_state state, const struct plan_facts *facts);
/* Where a next update to version N begins with a replica that was left so; same: it is the version
 * that it was left with.  An end: there is nothing to be done for it. */
enum plan_state plan_begin(enum plan_state left, bool same);
/* "paused-mixed" and the like, for logs. */
const char *plan_name(enum plan_state state);

#endif
