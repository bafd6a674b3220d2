/* SPDX-License-Identifier: Apache-2.0 */
/* Stack: the composition root.  Builds the layers in order from options, destroys them in reverse.
 * The one place that names concrete stores. */
#ifndef FS_STACK_H
#define FS_STACK_H

#include "fs/opts.h"
#include "fs/run.h"
#include "fs/serving.h"
#include "fs/watch.h"

struct stack {
	struct opts *opts;	   /* borrowed */
	struct http *http;	   /* the network; NULL where all places are local */
	struct blockcache *blocks; /* of the remote stores; NULL as well then */
	struct why blocks_why;	   /* why it does not write to disk; err 0: it does */
	struct store *store, *base;
	struct cachedir *cache;
	bool cache_in_memory;
	struct why cache_why; /* why it is in memory */
	/* Of a part of a source: the source, where it is ours, and what lists it; and its name. */
	struct store *source;
	struct parts *parts;
	const char *part_of;
	struct turns *preparing; /* in which versions are prepared, or NULL; borrowed */
	const char *subject;	 /* of its threads' log lines: the run's path; NULL; borrowed */
	bool part; /* one of several runs: network, block cache and --base are another stack's */
	struct nodes *nodes;
	struct history *history; /* NULL for tools */
	struct run *run;
	struct watch *watch; /* NULL for tools */
	int64_t started_real_ns;
	struct serving serving; /* what the kernel gives, and how preparation goes */
};

/* with_history: as a mount has it (history and watch, thread not started); without: a tool that
 * calls run_scan() and run_build() itself. No threads are started.  With opts->part only that
 * directory of the source is meant, and opts->source becomes its name. */
int stack_new(struct opts *opts, bool with_history, struct stack **out, struct why *why) MUST_CHECK;
/* One of the runs in the source of `top`, which outlives it, as a mount has it.  `store` is taken
 * over, also on failure; opts are its own, their source and mount point are the run's; subject is
 * borrowed, too. */
int stack_new_part(struct stack *top, struct opts *opts, struct store *store, uint64_t run,
		   const char *subject, struct stack **out, struct why *why) MUST_CHECK;
/* Only the network and the store of a place that is to be written to; make: a directory that is
 * absent is made.  Reads of it go to the place itself, without a cache. */
int stack_new_writable(struct opts *opts, const char *place, bool make, struct stack **out,
		       struct why *why) MUST_CHECK;
/* Stops the watch, and calls off what waits for the network, also for --base where that is ours:
 * what is asked for later fails at once.  Any thread but the watch's; may come again. */
void stack_stop(struct stack *s);
void stack_free(struct stack *s); /* stops the watch first; NULL is fine */

#endif
