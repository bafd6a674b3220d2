/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run: one run of a source.  Lists it, orders its objects into a lineage, makes patches of deltas,
 * builds generations, and publishes the newest whole one to the history.  No thread of its own:
 * run_scan() and run_build() are called by one thread at a time (the watch thread, or a tool).
 * run_report() and run_listing() may be called by any thread.
 */
#ifndef FS_RUN_H
#define FS_RUN_H

#include "cache/cachedir.h"
#include "cache/store.h"
#include "codec/checksum.h"
#include "fs/check.h"
#include "fs/history.h"

struct run_config {
	struct store *store;	 /* the run's objects; borrowed */
	struct store *base;	 /* --base, or NULL; borrowed */
	struct cachedir *cache;	 /* borrowed */
	struct nodes *nodes;	 /* borrowed */
	struct history *history; /* borrowed; NULL: nothing is published (tools) */
	uint64_t shard_size;	 /* 0: the reference's own files */
	int64_t hole_grace_ns;
	unsigned keep; /* versions for the history */
	bool pull;     /* pull each new version's base bytes near */
	bool deep;     /* look into every object, also those that the newest version does not need
			  (tools) */
	bool ignore_times;  /* do not recognise a restarted run by object times */
	const char *format; /* "trl", "weightfs" or a scheme's name (codec/scheme.h): the run is
			       laid out so; NULL: by what is there */
	enum verify_mode verify;
};

struct run; /* opaque */
/* Reads --base when there is one: its errors are errors of the start. */
int run_new(const struct run_config *config, struct run **out, struct why *why) MUST_CHECK;
void run_free(struct run *r);

/* One round.  0 also when objects are bad (the report has them); an error when the store cannot be
 * listed (what is served stays). */
int run_scan(struct run *r, struct why *why) MUST_CHECK;
/* True when run_scan() should come again soon by itself: something was unsettled or a hole waits
 * for its grace. */
bool run_unsettled(const struct run *r);

/* Builds the generation of any version of the present lineage (reference).  -ENOENT with a
 * sentence.  A number that is a legal hole gives the version before it. */
int run_build(struct run *r, uint64_t version, struct generation **out, struct why *why) MUST_CHECK;

struct check_result {
	size_t recorded, right, unknown; /* checksums; unknown: of a kind that is not known here */
};
/* Compares a version of the present lineage, built by run_build(), with the checksums that its
 * objects record: those of its own objects, or of its whole chain.  -EBADMSG with a sentence; 0,
 * and nothing recorded, for formats that have none; -ECANCELED: *stop (atomic, may be NULL) was
 * set.  Reads tensors whole. */
int run_check(struct run *r, const struct state *state, bool own, const volatile bool *stop,
	      struct check_result *out, struct why *why) MUST_CHECK;
/* The state of a version as run_build() makes it, a reference, with the same errors: for who asks
 * for all of them, ascending and without a scan between.  Each then costs what it adds to the one
 * before it, and only what the last one needs is kept.  The other forgets all.  Without a history.
 */
int run_walk(struct run *r, uint64_t version, struct state **out, struct why *why) MUST_CHECK;
void run_walk_end(struct run *r);

/* From now on whatever compares checksums ends soon, and nothing new is shown; or may go on again.
 * Any thread. */
void run_stop(struct run *r, bool stop);

enum version_kind { VERSION_BASE, VERSION_ANCHOR, VERSION_PARTIAL, VERSION_DELTA, VERSION_EMPTY };
enum version_state {
	VERSION_OK,	    /* whole; can be shown */
	VERSION_WAITING,    /* being written, or a hole before it is not settled */
	VERSION_BROKEN,	    /* damaged or against the format: see problem */
	VERSION_BLOCKED,    /* whole in itself, but something it builds on is broken or missing */
	VERSION_SUPERSEDED, /* of an earlier run in the same place */
	VERSION_UNREAD,	    /* older than the newest complete anchor: not looked into */
};
const char *version_kind_name(enum version_kind k);
const char *version_state_name(enum version_state s);

struct version_info {
	uint64_t number;
	char *key; /* the object's, the first one's where there are several; "" for none */
	size_t objects;
	enum version_kind kind;
	enum version_state state;
	uint64_t changed, elements; /* elements changed; elements of the model.  0 when not known */
	uint64_t bytes;		    /* size of the object */
	int64_t mtime_ns;
	char lineage[9];
	char format[32];
	char encoding[32]; /* as weightfs.json or a directory's index says, or "" */
	char writer[24];   /* of version directories: who writes them so, or "" */
	bool has_state;	   /* the hash of the version's state is recorded (fs/manifest.h) */
	uint8_t state_hash[16];
	char *problem; /* sentence, or NULL */
};

struct span_info { /* a cumulative delta */
	uint64_t base, version, bytes;
	enum version_state state;
};

struct pointer_info { /* weightfs.json; lineage "" when there is none */
	char lineage[9];
	char publisher[33]; /* its id */
	char host[256];
	int64_t pid, time_ns; /* 0: not said */
	uint64_t newest, oldest;
};

struct run_report { /* immutable snapshot, reference-counted */
	int refs;
	struct version_info *versions; /* ascending by number */
	size_t version_count;
	struct {
		char *object, *text;
	} *problems;
	size_t problem_count;
	struct pointer_info pointer;
	struct span_info *spans; /* ascending by base */
	size_t span_count;
	char **notes; /* sentences about choices: dtypes widened, reference assumed … */
	size_t note_count;
	int64_t scanned_real_ns; /* when; the one field that changes: run_report_time() */
	char *store_error;	 /* the last listing failed: sentence, or NULL */
};
/* When the source was last looked at and this was what there is to report. */
int64_t run_report_time(const struct run_report *p);
struct run_report *run_report(struct run *r); /* a reference; NULL before the first scan */
/* ": " and the first problem, of which there may be none: for a sentence that nothing is there. */
void run_report_because(const struct run_report *p, struct buf *out);
void run_report_unref(struct run_report *p);

/* The last good listing, reference-counted, for the raw view. */
struct listing_ref {
	int refs;
	struct listing listing;
};
struct listing_ref *run_listing(struct run *r); /* a reference; NULL before the first scan */
void listing_unref(struct listing_ref *l);
struct store *run_store(struct run *r);
/* The checksum that the run's own index has of a whole object; false: none.  For whoever scans,
 * after a scan. */
bool run_object_sum(struct run *r, const char *key, enum checksum_kind *out_kind,
		    char out[CHECKSUM_HEX]);

#endif
