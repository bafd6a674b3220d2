/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping stacks short: groups of 8 consecutive steps after the anchor are merged into one patch
 * file, groups of 16 into another, and so on, so that a read applies at most 7 single steps and one
 * fold of each size however long the chain is (TRL's buckets without complete anchors grow without
 * bound).  A fold costs a read nearly the same however much it changes (PATCH_BITS): their number
 * counts.  Of groups that end with the same step only the smallest and the largest are made.
 *
 * A group depends on its own objects and the layout only, so it serves every version at or above
 * its end, and its file is named by a hash of them: a restart finds it again, and has no need of
 * the single patches then.  Where a tensor was replaced as a whole inside a group, older patches of
 * it are left out.  A span (a cumulative delta in the bucket) is used like a fold, and no group is
 * made across one.  Folds are written for speed (PATCH_CODING_RAW), not in wfp1: every read applies
 * them (make bench has the rows "merged" and "merged wfp1").  Folding is done one group at a time
 * between scans, or at once while the stack is very long; what a fold stands for is let go of, so
 * that files, maps and memory are bounded by the height of the stack and not by its age.
 */
#include "fs/run_internal.h"

#include "cache/log.h"
#include "fs/counters.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	FOLD = 8,
	FOLD_MAX = 1 << 18,
	FOLD_KEEP = 64, /* one of 8 is kept until it is inside one of these, for older versions */
	STACK_MAX = 32, /* a stack above this is folded before it is served */
};

/* Does another fold stand for this one's steps, too, so that this one can go? */
static bool is_inside_another(const struct run *r, const struct fold *f)
{
	const size_t least = f->steps == FOLD ? FOLD_KEEP : 2 * f->steps;

	for (size_t i = 0; i < r->fold_count; i++) {
		const struct fold *g = &r->folds[i];

		if (!g->failed && g->layout == f->layout && g->first <= f->first &&
		    g->last >= f->last && g->steps >= least)
			return true;
	}
	return false;
}

static void fold_drop(struct run *r, size_t i)
{
	link_unref(r->folds[i].link);
	layout_unref(r->folds[i].layout);
	r->folds[i] = r->folds[--r->fold_count];
}

void folds_retry(struct run *r)
{
	for (size_t i = r->fold_count; i-- > 0;)
		if (r->folds[i].failed)
			fold_drop(r, i);
}

/* Identity of the steps [first, first + n), and of what else decides about their patches. */
static struct identity group_id(const struct run *r, size_t first, size_t n)
{
	struct identity id = {0};
	const struct object *o;

	if (r->base != NULL)
		identity_mix(&id, r->base->id.bytes, sizeof(r->base->id.bytes));
	COUNT(looks, n);
	for (size_t i = first; i < first + n; i++) {
		const struct step *s = &r->lineage.steps[i];

		identity_mix(&id, &s->number, sizeof(s->number));
		for (size_t k = 0; (o = step_above(s, k)) != NULL; k++)
			identity_mix(&id, o->id.bytes, sizeof(o->id.bytes));
	}
	return id;
}

/* Does it still stand for steps that are there, and that a version from the newest anchor on builds
 * on? */
static bool is_stale(const struct run *r, const struct fold *f, uint64_t anchor)
{
	const struct step *first = lineage_find(&r->lineage, f->first);
	const struct step *last = lineage_find(&r->lineage, f->last);
	struct identity id;

	if (first == NULL || last == NULL || f->first <= anchor ||
	    (f->link != NULL && link_broken(f->link)))
		return true;
	id = group_id(r, (size_t)(first - r->lineage.steps), (size_t)(last - first) + 1);
	return !identity_equal(&id, &f->id);
}

void folds_release(struct run *r, bool stale_only)
{
	const struct state *newest = r->newest != NULL ? r->newest->state : NULL;
	bool same_run = newest != NULL && strcmp(r->newest->lineage, r->label) == 0;

	for (size_t i = r->fold_count; i-- > 0;)
		if (!stale_only || is_stale(r, &r->folds[i], same_run ? newest->anchor : 0))
			fold_drop(r, i);
	for (size_t i = r->fold_count; i-- > 0;)
		if (is_inside_another(r, &r->folds[i]))
			fold_drop(r, i);
	if (r->fold_count == 0) {
		free(r->folds);
		r->folds = NULL;
	}
}

static struct fold *fold_find(struct run *r, size_t first, size_t n, const struct layout *layout)
{
	uint64_t lo = r->lineage.steps[first].number, hi = r->lineage.steps[first + n - 1].number;

	for (size_t i = 0; i < r->fold_count; i++) {
		struct fold *f = &r->folds[i];
		struct identity id;

		if (f->first != lo || f->last != hi || f->layout != layout)
			continue;
		if (f->orders == r->orders)
			return f;
		id = group_id(r, first, n);
		if (identity_equal(&id, &f->id)) {
			f->orders = r->orders;
			return f;
		}
	}
	return NULL;
}

/* Notes a fold; takes over the link, also on failure. */
static int fold_add(struct run *r, size_t first, size_t n, struct layout *layout, struct link *link,
		    bool failed)
{
	struct fold *grown = realloc(r->folds, (r->fold_count + 1) * sizeof(*grown));

	if (grown == NULL) {
		link_unref(link);
		return -ENOMEM;
	}
	r->folds = grown;
	r->folds[r->fold_count++] = (struct fold){
		.first = r->lineage.steps[first].number,
		.last = r->lineage.steps[first + n - 1].number,
		.steps = n,
		.id = group_id(r, first, n),
		.layout = layout_ref(layout),
		.orders = r->orders,
		.link = link,
		.failed = failed,
	};
	return 0;
}

static void fold_name(const struct identity *id, char out[48])
{
	char hex[33];

	identity_hex(id, hex);
	snprintf(out, 48, "%s.fold", hex);
}

/* The fold of a group, also one that an earlier process has left. */
static struct fold *fold_known(struct run *r, size_t first, size_t n, struct layout *layout)
{
	struct fold *f = fold_find(r, first, n, layout);
	struct mapping *mapping = NULL;
	struct link *link = NULL;
	struct identity id;
	char name[48];

	if (f != NULL)
		return f->failed ? NULL : f;
	id = group_id(r, first, n);
	fold_name(&id, name);
	if (cachedir_map(r->config.cache, name, &mapping) < 0)
		return NULL;
	if (link_new(r->lineage.steps[first].number, r->lineage.steps[first + n - 1].number,
		     mapping, true, name, layout, NULL, &link, NULL) < 0) {
		cachedir_remove(r->config.cache, name); /* damaged: make it again */
		return NULL;
	}
	return fold_add(r, first, n, layout, link, false) == 0 ? &r->folds[r->fold_count - 1]
							       : NULL;
}

/* The largest fold that begins at step i, and how many steps it stands for (1: none does). */
static const struct fold *fold_at(struct run *r, const struct plan *p, size_t i,
				  struct layout *layout, size_t *out_size)
{
	size_t place = i - p->base - 1, fits = 1;

	for (size_t size = FOLD; size <= FOLD_MAX; size *= 2) {
		if (place % size != 0 || size > p->last - i + 1)
			break;
		fits = size;
	}
	for (*out_size = fits; *out_size >= FOLD; *out_size /= 2) {
		const struct fold *f = fold_known(r, i, *out_size, layout);

		if (f != NULL)
			return f;
	}
	*out_size = 1;
	return NULL;
}

/* How high the stack is with the folds there are.  *out_folded: so many steps lie below the first
 * that is in none. */
static size_t stack_height(struct run *r, const struct plan *p, struct layout *layout,
			   size_t *out_folded)
{
	size_t height = 0, size;
	bool folded = true;

	*out_folded = 0;
	for (size_t i = p->base + 1; i <= p->last; i += size) {
		if (fold_at(r, p, i, layout, &size) == NULL) {
			span_at(r, i, p->last, &size);
			folded = false;
		} else if (folded) {
			*out_folded += size;
		}
		height++;
	}
	return height;
}

struct links { /* being collected, borrowed */
	struct link **v;
	uint32_t count, room;
};

static int links_add(struct links *l, struct link *link)
{
	struct link **grown;

	if (link == NULL)
		return 0;
	if (l->count == l->room) {
		l->room = l->room > 0 ? 2 * l->room : 16;
		grown = realloc(l->v, l->room * sizeof(struct link *));
		if (grown == NULL)
			return -ENOMEM;
		l->v = grown;
	}
	l->v[l->count++] = link;
	return 0;
}

/* Appends the link of one object. */
static int object_link(struct run *r, const struct object *o, uint64_t number,
		       const struct target *target, struct links *out, struct why *why)
{
	struct exam *e = exam_get(r, o);
	int err = -EAGAIN;

	if (e == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (e->state == EXAM_OK)
		err = exam_match(r, e, o, number, target, true);
	if (err < 0) {
		*why = e->why;
		return err;
	}
	return links_add(out, e->link) < 0 ? why_set(why, ENOMEM, "out of memory") : 0;
}

/* Appends the links of one step. */
static int step_links(struct run *r, size_t i, const struct target *target, struct links *out,
		      struct why *why)
{
	const struct step *s = &r->lineage.steps[i];
	const struct object *o;
	int err = 0;

	many_links(r, &s->delta, s->number, target);
	for (size_t k = 0; err == 0 && (o = step_above(s, k)) != NULL; k++)
		err = object_link(r, o, s->number, target, out, why);
	return err;
}

static int span_links(struct run *r, const struct span *s, const struct target *target,
		      struct links *out, struct why *why)
{
	int err = 0;

	many_links(r, &s->pieces, s->version, target);
	for (size_t k = 0; err == 0 && k < s->pieces.count; k++)
		err = object_link(r, s->pieces.v[k].object, s->version, target, out, why);
	return err;
}

/* The links of a plan's steps, with what is folded already. */
static int collect_links(struct run *r, const struct plan *p, const struct target *target,
			 struct link ***out, uint32_t *out_count, struct why *why)
{
	struct links links = {0};
	size_t size;
	int err = 0;

	for (size_t i = p->base + 1; err == 0 && i <= p->last; i += size) {
		const struct fold *f = fold_at(r, p, i, target->layout, &size);
		const struct span *s = f == NULL ? span_at(r, i, p->last, &size) : NULL;

		if (f != NULL)
			err = links_add(&links, f->link);
		else if (s != NULL)
			err = span_links(r, s, target, &links, why);
		else
			err = step_links(r, i, target, &links, why);
	}
	if (err < 0) {
		free(links.v);
		return err == -ENOMEM ? why_set(why, ENOMEM, "out of memory") : err;
	}
	*out = links.v;
	*out_count = links.count;
	return 0;
}

/* Lets go of the links of single steps. */
static void trim_steps(struct run *r, size_t first, size_t n)
{
	const struct object *o;

	for (size_t i = first; i < first + n; i++)
		for (size_t k = 0; (o = step_above(&r->lineage.steps[i], k)) != NULL; k++) {
			struct exam *e = table_get_str(r->exams, o->key);

			if (e != NULL) {
				link_unref(e->link);
				e->link = NULL;
			}
		}
}

void fold_trim(struct run *r)
{
	for (size_t i = 0; i < r->fold_count; i++) {
		const struct step *first = lineage_find(&r->lineage, r->folds[i].first);
		const struct step *last = lineage_find(&r->lineage, r->folds[i].last);

		if (!r->folds[i].failed && first != NULL && last != NULL)
			trim_steps(r, (size_t)(first - r->lineage.steps),
				   (size_t)(last - first) + 1);
	}
}

void folds_pass(struct run *r, size_t first, size_t last)
{
	const struct object *o;

	for (size_t i = r->fold_count; i-- > 0;)
		if (r->folds[i].last <= r->lineage.steps[last].number)
			fold_drop(r, i);
	for (size_t i = first; i <= last; i++)
		for (size_t k = 0; (o = step_objects(&r->lineage.steps[i], k)) != NULL; k++) {
			struct exam *e = table_get_str(r->exams, o->key);

			if (e == NULL)
				continue;
			link_unref(e->link);
			blob_unref(e->blob);
			e->link = NULL;
			e->blob = NULL;
		}
}

/* Makes the merged link of the steps [first, first + n). */
static int merge_group(struct run *r, size_t first, size_t n, struct link *const *links,
		       uint32_t count, const uint64_t *from, struct layout *layout,
		       struct link **out, struct why *why)
{
	uint64_t lo = r->lineage.steps[first].number, hi = r->lineage.steps[first + n - 1].number;
	struct identity id = group_id(r, first, n);
	struct cachedir *cache = r->config.cache;
	struct mapping *mapping = NULL;
	uint64_t size = 0;
	char name[48];
	int fd, err;

	fold_name(&id, name);
	err = cachedir_create(cache, &fd);
	if (err < 0)
		return why_set(why, -err, "no file can be made in the cache directory");
	err = fold_merge(fd, name, links, count, from, layout, &size, why);
	if (err < 0 && cachedir_spill(cache, fd, err)) {
		*why = (struct why){0};
		err = fold_merge(fd, name, links, count, from, layout, &size, why);
	}
	if (err < 0) {
		cachedir_abort(cache, fd);
		return err;
	}
	err = cachedir_commit(cache, fd, name, size, &mapping);
	if (err < 0)
		return why_set(why, -err, "it cannot be stored in the cache directory%s",
			       err == -ENOSPC ? " (no space left)" : "");
	return link_new(lo, hi, mapping, false, name, layout, NULL, out, why);
}

/* Folds the steps [first, first + n) from the next smaller groups, or from the steps themselves.
 * Fails when one of them cannot be used; a merge that fails is noted and no failure. */
static int fold_one(struct run *r, size_t first, size_t n, const struct target *target,
		    struct why *why)
{
	const struct plan inside = {.base = first - 1, .last = first + n - 1};
	struct link **links = NULL, *link = NULL;
	struct why local = {0};
	uint64_t *from = NULL;
	uint32_t count = 0;
	int err = collect_links(r, &inside, target, &links, &count, why);

	if (err == 0)
		err = fold_last_fulls(r, first, n, target, &from, why);
	if (err < 0) {
		free(links);
		return err;
	}
	if (count == 1)
		link = link_ref(links[0]);
	else if (count > 1)
		err = merge_group(r, first, n, links, count, from, target->layout, &link, &local);
	free(links);
	free(from);
	if (err < 0)
		log_warning("versions %llu to %llu are not merged: %s",
			    (unsigned long long)r->lineage.steps[first].number,
			    (unsigned long long)r->lineage.steps[first + n - 1].number, local.text);
	if (fold_add(r, first, n, target->layout, link, err < 0) < 0)
		return why_set(why, ENOMEM, "out of memory");
	if (err == 0) {
		trim_steps(r, first, n);
		for (size_t i = r->fold_count; i-- > 0;)
			if (is_inside_another(r, &r->folds[i]))
				fold_drop(r, i);
	}
	return 0;
}

/* Is there in memory a fold of a larger group around this one?  This is asked of every group in
 * every round, and a hash of the larger groups that there are not would cost as much as they have
 * steps. */
static bool is_covered(struct run *r, const struct plan *p, size_t first, size_t size,
		       const struct layout *layout)
{
	const size_t start = p->base + 1;

	for (size_t i = 0; i < r->fold_count; i++) {
		const struct fold *f = &r->folds[i];
		const size_t at = start + (first - start) / f->steps * f->steps;

		if (!f->failed && f->steps > size && at + f->steps <= p->last + 1 &&
		    fold_find(r, at, f->steps, layout) == f)
			return true;
	}
	return false;
}

/* Is there a fold of this group, or of a larger one around it (or was it tried in vain)?  Or must
 * there be none, because a span reaches into it? */
static bool is_folded(struct run *r, const struct plan *p, size_t first, size_t size,
		      struct layout *layout, const bool *spanned)
{
	size_t start = p->base + 1, end = first + size;

	if (spanned != NULL && memchr(spanned + (first - start), true, size) != NULL)
		return true;
	if (fold_find(r, first, size, layout) != NULL || is_covered(r, p, first, size, layout))
		return true;
	while (size <= FOLD_MAX && end <= p->last + 1) {
		if (fold_known(r, first, size, layout) != NULL)
			return true;
		size *= 2;
		first = start + (first - start) / size * size;
		end = first + size;
	}
	return false;
}

/* Folds the group of `size` of the plan's first `end` steps that ends with the last of them, unless
 * it is folded.  1: it was not. */
static int fold_ending(struct run *r, const struct plan *p, size_t end, size_t size,
		       const struct target *target, const bool *spanned, struct why *why)
{
	size_t first = p->base + 1 + end - size;
	int err;

	if (is_folded(r, p, first, size, target->layout, spanned))
		return 0;
	err = fold_one(r, first, size, target, why);
	return err < 0 ? err : 1;
}

/* Newest group first: it is what the next versions gain most from. */
static int fold_newest(struct run *r, const struct plan *p, size_t size,
		       const struct target *target, const bool *spanned, struct why *why)
{
	int done = 0;

	for (size_t end = (p->last - p->base) / size * size; end > 0 && done == 0; end -= size)
		done = fold_ending(r, p, end, size, target, spanned, why);
	return done;
}

int fold_work(struct run *r, const struct plan *p, const struct target *target, struct why *why)
{
	bool *spanned;
	int done;

	if (!spans_used(r, p, &spanned))
		return why_set(why, ENOMEM, "out of memory");
	done = fold_newest(r, p, FOLD, target, spanned, why);
	/* The largest first: what is inside of them need not be made. */
	for (size_t size = FOLD_MAX; size > FOLD && done == 0; size /= 2)
		done = fold_newest(r, p, size, target, spanned, why);
	free(spanned);
	return done;
}

/* Folds all groups that end above the first `from` steps, oldest first and each group as soon as
 * its parts are there, so that few are held at a time. */
static int fold_all(struct run *r, const struct plan *p, size_t from, const struct target *target,
		    struct why *why)
{
	bool *spanned;
	int err = 0;

	if (!spans_used(r, p, &spanned))
		return why_set(why, ENOMEM, "out of memory");
	for (size_t end = from / FOLD * FOLD + FOLD; err >= 0 && end <= p->last - p->base;
	     end += FOLD) {
		const size_t largest = MIN(end & -end, (size_t)FOLD_MAX);

		err = fold_ending(r, p, end, FOLD, target, spanned, why);
		if (err >= 0 && largest > FOLD)
			err = fold_ending(r, p, end, largest, target, spanned, why);
	}
	free(spanned);
	return MIN(err, 0);
}

int fold_below(struct run *r, uint64_t version, const struct target *target, struct link ***out,
	       uint32_t *out_count, struct why *why)
{
	const struct step *base = lineage_find(&r->lineage, target->anchor);
	const struct step *last = lineage_find(&r->lineage, version);
	struct plan p;

	if (base == NULL || last == NULL || last < base)
		return why_set(why, EBADMSG, "is for version %llu, which is not there",
			       (unsigned long long)version);
	p.base = (size_t)(base - r->lineage.steps);
	p.last = (size_t)(last - r->lineage.steps);
	return collect_links(r, &p, target, out, out_count, why);
}

int fold_stack(struct run *r, const struct plan *p, const struct target *target, struct link ***out,
	       uint32_t *out_count, struct why *why)
{
	size_t folded;
	int err = 0;

	if (stack_height(r, p, target->layout, &folded) > STACK_MAX)
		err = fold_all(r, p, folded, target, why);
	/* Groups of groups below may be left, where they were made one a round. */
	if (err == 0 && folded > 0 && stack_height(r, p, target->layout, &folded) > STACK_MAX)
		err = fold_all(r, p, 0, target, why);
	return err < 0 ? err : collect_links(r, p, target, out, out_count, why);
}
