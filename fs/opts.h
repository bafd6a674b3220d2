/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a mount (and of the tools that read a source): one table for --long options, -o lists
 * and fstab.  No I/O. */
#ifndef FS_OPTS_H
#define FS_OPTS_H

#include "codec/base.h"
#include "codec/buf.h"
#include "fs/check.h"

/* Is the source a run, or does it hold several? */
enum runs_choice { RUNS_AUTO, RUNS_ONE, RUNS_SEVERAL };
enum materialize { MATERIALIZE_AUTO, MATERIALIZE_ALWAYS, MATERIALIZE_NEVER };

struct opts {
	char *source, *mountpoint;
	char *part; /* no option: the directory of the source that is the run; NULL: all of it */
	char *base, *cache_dir, *log_file;
	char *token_file, *ca_file;
	char *endpoint_url, *region, *profile; /* of S3 */
	char *format;			       /* of the run's layout; NULL: auto */
	uint64_t shard_size;
	uint64_t cache_size; /* 0: no limit but the free space kept */
	int64_t poll_ns, hole_grace_ns;
	int64_t timeout_ns;		/* of a read over the network */
	int64_t settle_ns, max_hold_ns; /* of the load guard; settle 0: off */
	unsigned keep, threads;
	int log_level, ready_fd;
	bool ignore_times, foreground, allow_other;
	enum verify_mode verify;
	enum runs_choice runs;
	bool warm, inotify;
	uint64_t warm_budget; /* 0: half of what memory has left */
	enum materialize materialize;
	uint64_t materialize_size; /* 0: what is current and newest */
	int64_t materialize_after_ns;
	bool prefetch_all;		     /* pull every new version's weights near */
	bool no_sign_request, request_payer; /* of S3 */
	const char *uploader; /* "s3" or "hf"; NULL: whichever can; no option here either */
	bool deep;	      /* no option: a tool that wants every object looked into sets it */
	struct buf fuse;      /* comma-separated options for the kernel mount that are not ours */
};

struct opt_def {
	const char *name; /* long name, "poll" */
	char letter;	  /* or 0 */
	const char *arg;  /* "SECONDS", NULL for a switch */
	const char *help;
	bool mount_only; /* tools that read a source do not have it */
};
extern const struct opt_def opt_defs[]; /* ends with name NULL */

void opts_init(struct opts *o);
void opts_release(struct opts *o);
/* Sets one option by its long name; value NULL for switches. -EINVAL with a sentence, -ENOENT
 * unknown. */
int opts_set(struct opts *o, const char *name, const char *value, struct why *why) MUST_CHECK;
/* An -o list: ours are set, kernel mount options (ro, nosuid, nodev, noexec, noatime, dev, suid,
 * exec …) pass, fstab words (auto, _netdev, nofail, user, x-…) are ignored, others -EINVAL. */
int opts_set_list(struct opts *o, const char *list, struct why *why) MUST_CHECK;
/* Parses argv (after the verb) into o: options anywhere, up to max_args positional ones into args.
 * Sentences for people; -EINVAL.  mount: also options marked mount_only. *out_help set when --help
 * was given. */
int opts_parse(struct opts *o, int argc, char **argv, bool mount, const char **args,
	       size_t max_args, size_t *out_args, bool *out_help, struct why *why) MUST_CHECK;
/* "512M", "5GB", "1.5GiB", plain bytes; powers of 1024 for K/M/G/T and Ki..., of 1000 for
 * KB/MB/GB/TB.  -EINVAL. */
int parse_size(const char *text, uint64_t *out) MUST_CHECK;
/* "1", "0.25", "500ms", "2m".  -EINVAL. */
int parse_duration_ns(const char *text, int64_t *out) MUST_CHECK;

/* A plain number from min to max.  -EINVAL. */
int parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out) MUST_CHECK;

#endif
