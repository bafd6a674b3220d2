/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a run share: reference.c (what the model is), exam.c (what an object is),
 * plan.c (which objects make a version), fold.c (short stacks), assemble.c (states and trees),
 * report.c, run.c (one round).  All of it belongs to the thread that runs run_scan() and
 * run_build(); only `report` and `listing` are shared, under `lock`.
 */
#ifndef FS_RUN_INTERNAL_H
#define FS_RUN_INTERNAL_H

#include "cache/lock.h"
#include "cache/table.h"
#include "codec/format.h"
#include "fs/lineage.h"
#include "fs/run.h"

/* The names a complete anchor has to have; sorted. */
struct cover {
	char **names;
	size_t count;
	char *origin;	    /* key of the object, or "--base" */
	struct identity id; /* of that object */
	bool assumed;	    /* taken from the objects at hand, without anything to compare with */
};

/* --base: the model a run started from. */
struct base {
	struct listing listing;
	struct layout *layout;
	struct sources *sources; /* one per layout tensor: the base's own bytes */
	struct identity id;	 /* of all its weight files */
	int64_t mtime_ns;	 /* of the newest of them */
	bool tied;		 /* config.json says tie_word_embeddings */
};

enum exam_state { EXAM_OK, EXAM_WAITING, EXAM_BROKEN };

struct full { /* a whole tensor in an object */
	uint64_t offset;
	uint32_t tensor;
	uint8_t dtype;
};

/* One object, looked into.  Kept by key as long as the object keeps its identity. */
struct exam {
	char *key;
	struct identity id;
	int listed_err;	       /* object->err it was made for */
	bool seen;	       /* in the present listing */
	int64_t first_seen_ns; /* monotonic */
	enum exam_state state;
	struct why why; /* unless OK; begins with the key */
	/* From the header, once OK: */
	bool complete; /* covers every name of the cover with full tensors */
	bool holes_legal;
	char format[32];
	int64_t base_version;
	size_t full, sparse;
	uint64_t changed, bytes;
	/* Matched to a layout, on demand: */
	struct layout *layout; /* NULL: not matched */
	struct full *fulls;    /* full tensors that the layout shows */
	size_t full_count;
	struct blob *blob; /* when full_count > 0 */
	struct link *link; /* the changed elements; NULL: none */
};

struct fold { /* links that were merged into one */
	uint64_t first, last;
	struct identity id; /* of the objects it stands for */
	struct layout *layout;
	struct link *link; /* NULL: nothing changed in them, or failed */
	bool failed;	   /* could not be merged or stored: its parts are used one by one */
};

struct plan {
	size_t base, last; /* indices into lineage.steps */
};

struct run {
	struct run_config config;
	struct base *base;	     /* NULL without --base */
	struct listing_ref *current; /* what `lineage` borrows from */
	struct lineage lineage;
	char label[9];
	struct identity first_id; /* of the lineage's first object, for the label */
	struct cover cover;
	struct table *exams;	 /* key -> struct exam */
	struct layout **layouts; /* those in use, first is the first */
	size_t layout_count;
	struct fold *folds;
	size_t fold_count;
	struct table *companions;  /* key and identity -> struct node */
	uint64_t companions_sig;   /* of what the newest generation shows */
	struct generation *newest; /* last published, a reference */
	struct identity shown;	   /* of the objects it is made of */
	int64_t last_mtime_ns;
	uint64_t backfill; /* versions below this one may still be added to the history; 0: done */
	unsigned backfilled;
	bool unsettled, fold_due;
	struct {
		uint64_t number; /* 0: nothing stands in the way of the newest number */
		char text[600];
	} obstacle;
	struct lock lock; /* guards the two below */
	struct run_report *report;
	struct listing_ref *listing;
	char *store_error;
	struct buf notes; /* sentences, each ended by a newline */
};

/* reference.c */
int base_open(struct store *store, uint64_t shard_size, struct base **out,
	      struct why *why) MUST_CHECK;
void base_free(struct base *b);
/* Makes run->cover fit the present lineage; false when it cannot be known yet (the exam of its
 * object says why). */
bool cover_update(struct run *r);
void cover_release(struct cover *c);
/* Sets aliases of tied embeddings in a layout being made. */
void layout_tie(struct layout *l);
bool tied_name(const char *name);
/* The layout for a complete anchor: one in use with the same tensors, or a new one. Borrowed. */
int layout_for(struct run *r, const struct object *object, struct layout **out,
	       struct why *why) MUST_CHECK;

/* exam.c */
struct exam *exam_get(struct run *r, const struct object *object); /* NULL: out of memory */
/* Matches to a layout whose tensors are at present stored as `now` has them; sets exam->state and
 * why on failure. */
int exam_match(struct run *r, struct exam *e, const struct object *object, uint64_t number,
	       struct layout *layout, const struct sources *now);
void exams_sweep(struct run *r, bool all); /* drops those not seen (or all) */

/* Opens every object of the lineage, for tools that show them all. */
void exam_all(struct run *r);

/* plan.c */
/* The newest whole version not above `limit`; false: none. Sets run->obstacle and unsettled. */
bool plan_make(struct run *r, uint64_t limit, struct plan *out);
const struct object *
step_objects(const struct step *s,
	     size_t i); /* i = 0, 1: the delta, then the anchor; NULL: no more */

/* fold.c */
/* Stack of links for steps (base, last], with what is folded already; *out malloc'ed, links
 * borrowed. */
int fold_stack(struct run *r, const struct plan *p, struct layout *layout, struct link ***out,
	       uint32_t *out_count);
/* Folds one group if one is due for the plan; false: nothing to do. */
bool fold_work(struct run *r, const struct plan *p, struct layout *layout);
void folds_release(struct run *r, bool stale_only);

/* assemble.c */
int assemble_state(struct run *r, const struct plan *p, struct state **out,
		   struct why *why) MUST_CHECK;
/* Tree of weights and companions; `like`: an earlier generation whose weight nodes are taken over
 * when it shows the same state. */
int assemble_tree(struct run *r, struct state *state, uint64_t version, int64_t mtime_ns,
		  const char *format, const struct generation *like,
		  struct generation **out) MUST_CHECK;
/* Version 0: --base as it is. */
int assemble_base(struct run *r, struct state **out) MUST_CHECK;
/* Is the newest generation made of just these objects?  And: it is now. */
bool plan_is_shown(const struct run *r, const struct plan *p);
void plan_remember(struct run *r, const struct plan *p);
/* May there be numbers without objects right above the plan's last step? */
bool plan_hole_legal(struct run *r, const struct plan *p);
int64_t plan_mtime(const struct run *r, const struct plan *p);
uint64_t companions_signature(struct run *r);
bool companion_key(const struct run *r, const char *key);

/* report.c */
void report_publish(struct run *r);

void run_note(struct run *r, const char *fmt, ...) PRINTF(2, 3);

#endif
