/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options, as the command line, -o lists, fstab and the help texts know them; how each is
 * stored is in fs/opts.c, by the same names.
 *
 * A table of constants.
 */
#include "fs/opts.h"

const struct opt_def opt_defs[] = {
	{"base", 0, "DIR", "checkpoint the run started from: its files, names and headers", false},
	{"shard-size", 0, "SIZE", "cut the weights into files of at most SIZE (5GB, 512M, 1GiB)",
	 false},
	{"poll", 0, "SECONDS", "look for new objects that often (default 1; 0.25 and 500ms work)",
	 true},
	{"keep", 0, "N", "versions kept under .weightfs/versions (default 16)", true},
	{"hole-grace", 0, "SECONDS", "wait that long for a number that was skipped (default 5)",
	 false},
	{"settle", 0, "SECONDS",
	 "plain paths keep their version while they are being loaded and that long after "
	 "(default 5; 0: never)",
	 true},
	{"max-hold", 0, "SECONDS", "but no longer than that (default 600)", true},
	{"format", 0, "NAME",
	 "the run is laid out so, whatever else is there: trl, weightfs, hfdir, checkpoints, ... "
	 "(default auto)",
	 false},
	{"runs", 0, "auto|one|several",
	 "whether the source is one run or has one in each of its directories (default: as its "
	 "first objects show)",
	 false},
	{"times", 0, "trust|ignore",
	 "whether an object older than those before it belongs to an earlier run (default trust)",
	 false},
	{"verify", 0, "lazy|eager|off",
	 "compare tensors with the checksums that their writer recorded: after a version is shown "
	 "(default lazy), or before",
	 false},
	{"cache-dir", 0, "DIR", "where patches are kept (default: the user's cache directory)",
	 false},
	{"cache-size", 0, "SIZE",
	 "keep at most SIZE of remote objects' blocks (default: until 1 GiB or 5 % is left free)",
	 false},
	{"prefetch", 0, "read|all",
	 "fetch remote weights as they are read, or all of each new version (default read)", true},
	{"warm", 0, NULL, "fill the page cache with a new version before it becomes current", true},
	{"warm-budget", 0, "SIZE",
	 "of a version at most SIZE (default: half of the memory that is available)", true},
	{"materialize", 0, "auto|always|never",
	 "write the newest version out whole, so that the kernel reads it like a local file: once "
	 "it has stayed (default auto), or each one at once",
	 true},
	{"materialize-size", 0, "SIZE",
	 "keep at most SIZE of such files (default: those of the current and newest version)",
	 true},
	{"materialize-after", 0, "SECONDS", "auto: how long it must have stayed (default 300)",
	 true},
	{"inotify", 0, "on|off",
	 "give those who watch the mount an event at each switch (default on)", true},
	{"timeout", 0, "SECONDS",
	 "a read that waits for the network that long is an error (default 60)", false},
	{"token-file", 0, "FILE",
	 "the Hub's access token (default: HF_TOKEN, or where a login puts it)", false},
	{"ca-file", 0, "FILE",
	 "certificates of authorities to trust (default: SSL_CERT_FILE, or the "
	 "system's)",
	 false},
	{"endpoint-url", 0, "URL",
	 "S3: where the bucket is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS)", false},
	{"region", 0, "NAME", "S3: the bucket's region (default: AWS_REGION, or found out)", false},
	{"profile", 0, "NAME", "S3: the profile with credentials (default: AWS_PROFILE)", false},
	{"no-sign-request", 0, NULL, "S3: a public bucket: use no credentials", false},
	{"request-payer", 0, NULL, "S3: pay for what is read (requester pays)", false},
	{"threads", 0, "N", "threads kept ready; more come while reads wait (default 16)", true},
	{"allow-other", 0, NULL, "let other users see the mount", true},
	{"foreground", 'f', NULL, "stay in the foreground", true},
	{"ready-fd", 0, "N", "write \"ready\" to this file descriptor once the mount can be used",
	 true},
	{"log-level", 0, "LEVEL", "error, warning, info or debug", false},
	{"log-file", 0, "FILE", "append the log to FILE", false},
	{"options", 'o', "LIST", "comma-separated options, these and the kernel's, as in fstab",
	 true},
	{NULL, 0, NULL, NULL, false},
};
