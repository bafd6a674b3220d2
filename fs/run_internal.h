/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a run share: reference.c (--base and layouts), cover.c (what a complete anchor
 * has), exam.c (what an object is), plan.c (which objects make a version), fold.c and fold_merge.c
 * (short stacks), assemble.c (states and trees), companions.c, report.c, run.c (one round), walk.c
 * (all versions in order).  All of it belongs to the thread that runs run_scan() and run_build();
 * only `report` and `listing` are shared, under `lock`.
 */
#ifndef FS_RUN_INTERNAL_H
#define FS_RUN_INTERNAL_H

#include "cache/lock.h"
#include "cache/table.h"
#include "codec/format.h"
#include "fs/directories.h"
#include "fs/lineage.h"
#include "fs/run.h"

enum cover_from {
	COVER_NONE,
	COVER_FIRST,	/* the run's first object */
	COVER_BASE,	/* --base */
	COVER_ASSUMED,	/* every name that an object at hand has: nothing to compare with */
	COVER_DECLARED, /* weightfs.json says which anchors are complete: no names are needed */
};

/* The names a complete anchor has to have; sorted. */
struct cover {
	char **names;
	size_t count;
	enum cover_from from;
	char *origin;	    /* whose names these are, for sentences: a key, "--base", ... */
	struct identity id; /* FIRST: of that object; BASE: of the base */
	char label[9];	    /* the lineage it was made for */
	size_t counted;	    /* ASSUMED: objects whose names are in it */
};

/* --base: the model a run started from. */
struct base {
	struct listing listing;
	struct layout *layout;	 /* with aliases for tied tensors */
	struct layout *own;	 /* without: what version 0 shows */
	struct sources *sources; /* one per layout tensor: the base's own bytes */
	struct identity id;	 /* of all its weight files, and `tied` */
	int64_t mtime_ns;	 /* of the newest of them */
	bool tied;		 /* config.json says tie_word_embeddings */
};

enum exam_state { EXAM_OK, EXAM_WAITING, EXAM_BROKEN };

struct full { /* a whole tensor in an object */
	uint64_t offset;
	uint32_t tensor;
	uint8_t dtype;
	bool packed;
};

/* One object, looked into.  Kept by key as long as the object keeps its identity. */
struct exam {
	char *key;
	struct identity id;
	int listed_err;	       /* object->err it was made for */
	bool seen;	       /* asked for since the last sweep */
	int64_t first_seen_ns; /* monotonic */
	uint64_t round;	       /* of the last failure: what WAITS is tried once a round */
	enum exam_state state;
	struct why why;		  /* unless OK; begins with the key */
	struct identity declared; /* of what weightfs.json says of it; zero: nothing */
	/* From the header, once OK: */
	bool complete; /* covers every name of the cover with full tensors */
	bool foreign;  /* has a name that the cover lacks */
	bool counted;  /* cover.counted includes it */
	bool holes_legal;
	bool native;	 /* a patch file, used as it is */
	bool blind;	 /* its changes are counted when they become a patch */
	bool given_base; /* native, but to be made with the bytes of its base version */
	char format[32];
	int64_t base_version;
	bool has_states;	  /* the two below are known */
	uint8_t to[16], from[16]; /* of the version, and of what it applies to */
	size_t full, sparse;
	uint64_t changed, bytes;
	struct { /* of a note, read or made, see note.c */
		bool there;
		struct identity layout, dtypes;
		size_t patches;
	} noted;
	/* Matched to a layout, on demand: */
	struct layout *layout;	/* NULL: not matched */
	struct identity dtypes; /* of the tensors as stored, when it was matched */
	struct full *fulls;	/* full tensors that the layout shows */
	size_t full_count;
	size_t patches;	   /* sparse parts that change something the layout shows */
	struct blob *blob; /* while a state is known to need its full tensors */
	struct link *link; /* the changed elements, while no fold stands for them */
};

/* What objects are matched to: a layout, and its tensors as they are stored below. */
struct target {
	struct layout *layout;	   /* borrowed */
	const struct sources *now; /* borrowed; NULL: nothing yet (for a complete anchor) */
	struct identity dtypes;	   /* of `now` */
	uint64_t anchor; /* version that `now` is of, as far as deltas are matched to it */
};

struct fold { /* the links of several steps, merged into one */
	uint64_t first, last;
	size_t steps;	    /* how many they are */
	struct identity id; /* of the objects it stands for */
	struct layout *layout;
	uint64_t orders;   /* of the lineage that `id` was compared with last */
	struct link *link; /* NULL: nothing changed in them, or failed */
	bool failed;	   /* could not be merged or stored: its parts are used one by one */
};

struct opened { /* an object with its header parsed, see opened.c */
	int uses;
	struct identity id;
	struct blob *blob;
	struct source src; /* the object, or what it is when unpacked */
	struct cachedir *cache;
	int fd; /* of that, or -1 */
	struct delta *delta;
};

/* What is known of checksums, see recorded.c. */
struct recorded {
	struct check_work *work; /* NULL: nothing was compared in the background yet */
	struct checks checks;	 /* of the version that was looked into last */
	uint64_t version;	 /* that */
	struct identity chain;	 /* and what it is made of */
	char label[9];
	uint64_t followed; /* publication that `checks` are of; lazy */
	bool failed;	   /* the last comparison ended by an error of reading */
	struct bad *bad;   /* objects that are not what they should be */
	size_t bad_count;
	bool taken;	     /* versions were taken out and may be shown: */
	uint64_t out, until; /* those */
};

enum { OPENED_MAX = 8 }; /* more than are ever in use at once */

enum { FORESEEN_MAX = 2 };

struct plan {
	size_t base, last; /* indices into lineage.steps */
};

struct walk {		     /* see walk.c */
	struct state *state; /* of the version that was asked for last; NULL: it has none */
	struct plan plan;    /* of that */
	bool *ends;	     /* by step: a span ends there; NULL: not looked up */
	size_t at;	     /* its step */
	bool blocked;	     /* that is not whole, for this reason: */
	bool of_version;     /* which run_not_whole() has */
	char why[600];
};

struct pointer {		   /* weightfs.json as it was read last */
	struct manifest *manifest; /* NULL: there is none, or none that could be used yet */
	struct identity id;	   /* of the object it is from */
	struct identity tried;	   /* of the last one that was read, whatever came of it */
	bool fresh;		   /* it was read in this round, and taken */
	bool moved;		   /* it was replaced between the listing and the reading */
	bool again;		   /* what went wrong may pass by itself */
	bool blocked;		   /* one is there, was never good, and so nothing can be shown */
	struct why why;		   /* what is wrong with the present one; err 0: nothing */
};

struct run {
	struct run_config config;
	struct base *base;	     /* NULL without --base */
	struct listing_ref *current; /* what `lineage` borrows from */
	bool adapters;		     /* some lie in it, or in the base */
	struct recorded recorded;
	bool stop;			/* atomic: run_stop() */
	uint64_t published;		/* how often something was */
	struct pointer pointer;		/* so does it from its manifest */
	struct directories directories; /* what is known of them, where the run consists of such */
	struct why misfit;		/* --format and what is there; err 0: they agree */
	struct lineage lineage;
	uint64_t orders; /* how often that was made anew */
	struct walk walk;
	char label[9];
	struct identity first_id; /* of the lineage's first object, for the label */
	struct cover cover;
	struct table *exams;		   /* key -> struct exam */
	struct opened *opened[OPENED_MAX]; /* most recently used first */
	size_t opened_count;
	struct blob *foreseen[FORESEEN_MAX]; /* see foresee.c */
	size_t foreseen_count;
	struct layout **layouts; /* those in use, first is the first */
	size_t layout_count;
	struct fold *folds;
	size_t fold_count;
	struct table *companions;  /* identity and key -> struct companion */
	uint64_t companions_sig;   /* of what the newest generation shows */
	uint64_t companions_made;  /* of what the last tree made has */
	struct generation *newest; /* last published, a reference */
	struct identity shown;	   /* of the objects it is made of */
	uint8_t shown_state[16];   /* of a declared version: the state it has */
	int64_t shown_ns;	   /* of its step */
	int64_t last_mtime_ns;
	uint64_t backfill; /* versions below this one may still be added to the history; 0: done */
	unsigned backfilled;
	bool unsettled, fold_due;
	bool waited;	/* something was met in this round that may pass by itself */
	unsigned quiet; /* rounds in a row that left nothing to be done */
	uint64_t round;
	struct { /* numbers that had an object at some time, ascending: they are no holes */
		uint64_t *v;
		size_t count;
		char label[9]; /* of the lineage they belong to */
	} known;
	struct {
		uint64_t number; /* of the step it is about; 0: about none */
		bool waiting;	 /* time alone will clear it */
		char text[600];	 /* empty: nothing stands in the way of the newest number */
	} obstacle;
	struct {		     /* note.c */
		struct table *table; /* of what the file had at the start; NULL: not read yet */
		uint8_t *bytes;
		size_t count; /* records in the file, as far as this process knows */
	} noted;
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
bool tied_name(const char *name);
/* The layout for a complete anchor: one in use with the same tensors, or a new one. Borrowed. */
int layout_for(struct run *r, const struct pieces *anchor, struct layout **out,
	       struct why *why) MUST_CHECK;
/* What a step has that is complete in itself, the anchor if both are; NULL: nothing. */
const struct pieces *complete_pieces(struct run *r, const struct step *step);
/* Drops layouts that nothing shows any more. */
void layouts_sweep(struct run *r);

/* cover.c */
/* Makes run->cover fit the present lineage; false when it cannot be known yet (the exam of its
 * object says why). */
bool cover_update(struct run *r);
void cover_release(struct cover *c);

/* opened.c */
/* The object, opened and parsed; give it back with opened_put().  Same errors as delta_open() and
 * blob_open(), -EAGAIN while somebody is writing it. */
int opened_get(struct run *r, const struct object *object, struct opened **out,
	       struct why *why) MUST_CHECK;
void opened_put(struct opened *o); /* NULL is fine */
/* The same without keeping it for the next who asks, while the run's thread waits: any thread. */
int opened_new(struct run *r, const struct object *object, struct opened **out,
	       struct why *why) MUST_CHECK;
void opened_free(struct opened *o); /* NULL is fine */
/* At the end of a round. */
void opened_drop(struct run *r);
/* Can it be opened, as opened_get() would, and is nobody writing it?  Reads nothing of it. */
int opened_try(struct run *r, const struct object *object, struct why *why) MUST_CHECK;

/* foresee.c */
/* weightfs.json has changed and is going to be read: asks for what it may name now. */
void foresee(struct run *r, const struct listing *now);
/* At the end of a round. */
void foresee_end(struct run *r);

/* note.c */
/* Fills the exam from its note, as its header would; false: there is none. */
bool note_read(struct run *r, struct exam *e);
/* Was it for this target that the noted parts were checked? */
bool note_fits(const struct exam *e, const struct target *target);
/* Keeps what was found, of an exam that has just been matched to the target. */
void note_write(struct run *r, struct exam *e, const struct delta *d, const struct target *target);
/* Is this file of the cache directory the one with notes?  If so, it is made smaller when that is
 * worth it. */
bool notes_sweep(struct run *r, const char *name);
void notes_release(struct run *r);

/* exam.c */
/* Looked into, as far as that is possible now; NULL: out of memory. */
struct exam *exam_get(struct run *r, const struct object *object);
/* Matches to a layout; sets exam->state and why on failure.  With `link` the changed elements are
 * validated and become exam->link, unless there are none. */
int exam_match(struct run *r, struct exam *e, const struct object *object, uint64_t number,
	       const struct target *target, bool link) MUST_CHECK;
/* The link of one that is matched and has patches; changes nothing else of the run, so several
 * threads may do this for several exams while the run's waits.  Failed: exam_unlinked(). */
int exam_link(struct run *r, struct exam *e, const struct object *object, uint64_t number,
	      const struct target *target, struct why *why) MUST_CHECK;
void exam_unlinked(struct run *r, struct exam *e, int err, const struct why *why);
/* Marks it as not usable: for good, or until a later round where the error may pass.  Returns
 * err. */
int exam_fail(struct run *r, struct exam *e, int err);
/* Are all of them OK?  If not, *out_bad (may be NULL) is one that is not, or NULL. */
bool exams_ok(struct run *r, const struct pieces *p, const struct exam **out_bad);
/* The layout tensor that a part changes: LAYOUT_NONE for one that is not shown (the other half of a
 * tied pair). -EBADMSG when it is unknown. */
int exam_target(const struct run *r, const struct layout *l, const struct delta *d,
		const struct part *p, uint32_t *out, struct why *why) MUST_CHECK;
/* Why an object cannot be used as the store lists it. */
int listed_error(const struct object *o, struct why *why);
void exams_sweep(struct run *r, bool all); /* drops those not seen (or all) */
/* Opens every object of the lineage, for tools that show them all. */
void exam_all(struct run *r);

/* relist.c */
/* Lists the store and orders what is there.  On failure everything stays as it was, and so it does
 * where the last round was quiet and the same is there still: *out_same. */
int run_relist(struct run *r, bool *out_same, struct why *why) MUST_CHECK;

/* pointer.c */
/* Reads weightfs.json where it is new; what is wrong with it is in r->pointer.  *out_old: the
 * manifest that was replaced, for the caller to free once nothing borrows from it.  -ENOMEM. */
int pointer_update(struct run *r, const struct listing *listing, struct manifest **out_old,
		   struct why *why) MUST_CHECK;
/* Has the publisher taken back the version that is shown? */
bool pointer_rewound(const struct run *r);
/* Of all that is said of the object; zero for NULL. */
struct identity declared_identity(const struct run *r, const struct named *named);
/* May it be opened at all?  -ENOTSUP, -EBADMSG.  (0 where nothing is said of it, as below.) */
int declared_admit(const struct named *named, const struct object *o, struct why *why) MUST_CHECK;
/* Does the object say the same of itself as weightfs.json does?  -EBADMSG. */
int declared_check(const struct run *r, const struct named *named, const struct delta *d,
		   struct why *why) MUST_CHECK;

/* declared.c */
/* plan_follows() of a declared lineage; `ends`: at which steps spans end. */
bool declared_follows(struct run *r, size_t i, const bool *ends);
/* plan_make() of a declared lineage. */
bool declared_plan(struct run *r, uint64_t limit, struct plan *out);
/* Is step i whole, given which of those below are? */
bool declared_whole(struct run *r, size_t i, const bool *below);
/* The largest usable span from the step before `first` that ends at `last` or below, and how many
 * steps it stands for; NULL: none, or the steps are at hand one by one. */
const struct span *span_at(struct run *r, size_t first, size_t last, size_t *out_size);
/* A span that was found damaged stays known as that, also when nothing asks for it any more. */
void spans_keep_bad(struct run *r);
/* Which steps above the plan's base a span stands for that is used, by their place above it;
 * malloc'ed, NULL: none.  false: out of memory. */
bool spans_used(struct run *r, const struct plan *p, bool **out) MUST_CHECK;

/* native.c */
/* The link of a published patch file: from the cache directory, or downloaded into it now, whole
 * and as it is, and checked. */
int native_link(struct run *r, const struct delta *d, struct blob *blob, uint64_t number,
		const struct target *target, const char *name, struct link **out,
		struct why *why) MUST_CHECK;

/* Of native_link(): all bytes of the object in a new file of the cache directory, for
 * cachedir_commit() or cachedir_abort(); the layout tensor of each of its tensors, malloc'ed; the
 * link of the file as it lies in the cache directory, after all checks. */
int native_fetch(struct cachedir *cache, struct blob *blob, int *out_fd,
		 struct why *why) MUST_CHECK;
int native_targets(struct run *r, const struct delta *d, const struct layout *l, uint32_t **out,
		   struct why *why) MUST_CHECK;
int native_open(uint64_t number, struct mapping *mapping, const char *name,
		const struct target *target, const uint32_t *targets, struct link **out,
		struct why *why) MUST_CHECK;

/* given_base.c */
/* As native_link(), of a delta of wfp1x: made with the bytes of its base version, which has to be
 * at or above target->anchor. */
int given_base_link(struct run *r, const struct delta *d, struct blob *blob, uint64_t number,
		    const struct target *target, const char *name, struct link **out,
		    struct why *why) MUST_CHECK;

/* exam_encode.c */
/* Encodes all sparse parts of an object into the file behind fd, which is to have this name, by
 * several threads if it is `alone`. */
int exam_encode(struct run *r, const struct exam *exam, const struct delta *d,
		const struct source *src, const struct target *target, int fd, const char *name,
		bool alone, uint64_t *out_size, struct why *why) MUST_CHECK;

/* many.c */
/* Asks for the headers of several objects all at once, where that takes a network. */
void many_heads(struct run *r, const struct pieces *p);
/* Makes the links of objects of one version, several at once. */
void many_links(struct run *r, const struct pieces *p, uint64_t number,
		const struct target *target);

/* plan.c */
/* Records what stands in the way of a version, the first one only; true when that was it. */
bool obstacle(struct run *r, uint64_t number, const char *fmt, ...) PRINTF(3, 4);
/* The newest whole version not above `limit`; false: none. Sets run->obstacle and unsettled. */
bool plan_make(struct run *r, uint64_t limit, struct plan *out);
/* Is step i made of the one below it and its own delta, as plan_make() sees it?  What stands in its
 * way may be recorded. */
bool plan_follows(struct run *r, size_t i, const bool *ends);
/* All objects of a step, i = 0, 1, ...: those of the delta, then those of the anchor; NULL: no
 * more. */
const struct object *step_objects(const struct step *s, size_t i);
/* Those that it adds to a chain: of a declared step the delta's only. */
const struct object *step_above(const struct step *s, size_t i);
/* Has it nothing but patch files above a base?  Then no tensor is replaced. */
bool step_is_native(const struct step *s);
/* For each step of the lineage: is it whole with all it builds on?  Looks into every object. */
void plan_whole(struct run *r, bool *out);
/* What step i of the plan consists of, k = 0, 1, ...: of a declared base the anchor's objects,
 * above it what step_above() says. */
const struct object *plan_objects(const struct run *r, const struct plan *p, size_t i, size_t k);
/* Is the newest generation made of just these objects?  And: it is now. */
bool plan_is_shown(const struct run *r, const struct plan *p);
void plan_remember(struct run *r, const struct plan *p);
/* Is `version`, which has no object, shown by this plan (for a lower number), whose steps it
 * follows? */
bool plan_hole_legal(struct run *r, const struct plan *p, uint64_t version);
int64_t plan_mtime(const struct run *r, const struct plan *p);
int64_t mtime_after(int64_t mtime_ns); /* the least that counts as later */
/* Takes note of the numbers that are there; -ENOMEM. */
int known_update(struct run *r) MUST_CHECK;

/* fold.c */
/* Stack of links for the steps (base, last], with what is folded already; a very long one is folded
 * first.  *out malloc'ed, links borrowed. */
int fold_stack(struct run *r, const struct plan *p, const struct target *target, struct link ***out,
	       uint32_t *out_count, struct why *why) MUST_CHECK;
/* The stack of a version at or above target->anchor, with what is folded already.  *out malloc'ed,
 * links borrowed. */
int fold_below(struct run *r, uint64_t version, const struct target *target, struct link ***out,
	       uint32_t *out_count, struct why *why) MUST_CHECK;
/* Folds one group if one is due for the plan: 1; nothing to do: 0; or an error. */
int fold_work(struct run *r, const struct plan *p, const struct target *target, struct why *why);
/* The version from which on patches count, per tensor: that of the last full tensor inside the
 * group, else 0.  malloc'ed. */
int fold_last_fulls(struct run *r, size_t first, size_t n, const struct target *target,
		    uint64_t **out, struct why *why) MUST_CHECK;
/* Writes the merged patches of links, oldest first, of each tensor from version from[] on. */
int fold_merge(int fd, const char *name, struct link *const *links, uint32_t n,
	       const uint64_t *from, const struct layout *layout, uint64_t *out_size,
	       struct why *why) MUST_CHECK;
/* Lets go of the links of single steps that folds stand for. */
void fold_trim(struct run *r);
void folds_release(struct run *r, bool stale_only);
/* Lets go of links and open objects of the steps [first, last], which no version asked for from now
 * on is built on; they are made again if one is. */
void folds_pass(struct run *r, size_t first, size_t last);
/* Forgets merges that failed, so that they are tried again. */
void folds_retry(struct run *r);

/* assemble.c */
int assemble_state(struct run *r, const struct plan *p, struct state **out,
		   struct why *why) MUST_CHECK;
/* The same of a plan that is one step longer than that of `below`. */
int assemble_next(struct run *r, const struct plan *p, const struct state *below,
		  struct state **out, struct why *why) MUST_CHECK;
/* Tree of weights and companions; `like`: an earlier generation whose weight nodes are taken over
 * when it shows the same state. */
int assemble_tree(struct run *r, struct state *state, uint64_t version, int64_t mtime_ns,
		  const char *format, const struct generation *like,
		  struct generation **out) MUST_CHECK;
/* Version 0: --base as it is. */
int assemble_base(struct run *r, struct state **out) MUST_CHECK;
/* What the objects above a state would be matched to.  Borrows from it. */
struct target target_of_state(const struct state *s);

/* shown.c */
/* Does what is shown stay, although the plan is for a version of the same run below it? */
bool shown_stays(struct run *r, const struct plan *p);
/* Is what is shown a version of the present lineage?  A version 0 has no lineage written to it; it
 * is the run's own unless it is --base. */
bool shown_of_run(const struct run *r);
/* Was the version shown found to be other than its writer recorded? */
bool shown_taken_out(const struct run *r);
/* Does the plan make the very state that is shown, from objects that need not be touched? */
bool shown_is_same(struct run *r, const struct plan *p);

/* companions.c */
/* To be called when r->current is another listing. */
void companions_listed(struct run *r);
/* Of what would be shown now. */
uint64_t companions_signature(struct run *r, const struct state *state);
/* Puts them all into the tree of a state (NULL: of none) being made; *out_sig: the signature of
 * what was put. */
int companions_put(struct run *r, const struct state *state, struct node *root,
		   uint64_t *out_sig) MUST_CHECK;
/* Is it known which companions go with it?  Not once its own directory is gone. */
bool companions_known(const struct run *r, const struct state *state);
void companions_sweep(struct run *r, bool all); /* drops those no longer listed (or all) */

/* recorded.c */
/* Eager: may the version become visible?  -EBADMSG: no, and what it is made of is not what it was
 * any more: plan again.  Or an error of reading, which may pass. */
int recorded_admit(struct run *r, const struct plan *p, const struct state *state,
		   enum verified *out, struct why *why) MUST_CHECK;
/* Lazy: takes what was compared in the background since the last round; before a round. */
void recorded_take(struct run *r);
/* And has the newest version compared, as far as it is not; after a round. */
void recorded_follow(struct run *r);
/* Takes the versions that were taken out from the history, once another one is shown. */
void recorded_drop(struct run *r);
/* Was the object found to be bad?  Then why. */
bool recorded_bad(const struct run *r, const struct object *o, struct why *why);
void recorded_release(struct run *r);

/* recorded_collect.c */
/* What is recorded of the plan's last version; `states`: also by weightfs.json.  Empty (no layout)
 * where no manifest says anything.  -ENOMEM. */
int recorded_collect(struct run *r, const struct plan *p, struct layout *layout, bool states,
		     struct checks *out) MUST_CHECK;
/* What these objects record of tensors, over what is there; an error of opening them. */
int recorded_pieces(struct run *r, const struct pieces *p, uint64_t version,
		    struct checks *out) MUST_CHECK;
/* What is recorded of the version as a whole. */
void recorded_whole(const struct run *r, const struct step *s, bool states, struct checks *out);
/* Of all objects that the version of the last step is made of. */
struct identity recorded_chain(const struct run *r, size_t base, size_t last);

/* run_tidy.c */
/* At the end of a round: lets go of what no version needs that is shown or will be.  `before`: what
 * was the newest at its beginning. */
void run_tidy(struct run *r, const struct generation *before);

/* report.c */
void report_publish(struct run *r);
/* The last report holds still. */
void report_again(struct run *r);

/* run.c */
/* Plans and assembles the newest whole version not above limit; an object that turns out bad on the
 * way is marked, and the next plan goes without it. */
int run_assemble(struct run *r, uint64_t limit, struct plan *p, struct state **out,
		 struct why *why) MUST_CHECK;
/* Mixes bytes into an identity that stands for several things in order. */
void identity_mix(struct identity *id, const void *bytes, size_t len);
void run_note(struct run *r, const char *fmt, ...) PRINTF(2, 3);
/* Plans and assembles this very version; what is wrong as run_build() says it. */
int run_find(struct run *r, uint64_t version, struct plan *p, struct state **out,
	     struct why *why) MUST_CHECK;
/* The sentence that the obstacle is what stands in its way.  -ENOENT. */
int run_not_whole(const struct run *r, uint64_t version, struct why *why);

#endif
