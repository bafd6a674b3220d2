/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command of --exec.
 */
#ifndef TOOLS_FOLLOW_HOOK_H
#define TOOLS_FOLLOW_HOOK_H

#include "codec/base.h"

struct follow_hook {
	const char *command; /* for the shell */
	const char *path;    /* WEIGHTFS_PATH */
	uint64_t version;    /* WEIGHTFS_VERSION */
	const char *result;  /* WEIGHTFS_RESULT: "ok", "partial", ... */
	int64_t timeout_ns;
	int stop_fd; /* readable: told to end; the command gets SIGTERM, and ten seconds */
};

/* Runs it to its end.  -ECANCELED: told to end; -ETIMEDOUT; -ECHILD: it failed.  All with a
 * sentence. */
int follow_hook_run(const struct follow_hook *hook, struct why *why) MUST_CHECK;

#endif
