/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordering a run's objects.
 *
 * Two passes over the listing: find every key that names a step and sort by number; then walk up
 * the numbers with the newest time seen so far and set aside what is older than that.  The rule
 * needs no header and no memory of earlier scans, so a mount that starts after a restart of the
 * trainer sees what one sees that watched it happen.
 */
#include "fs/lineage.h"

#include <stdlib.h>

struct found {
	uint64_t number;
	bool anchor;
	const struct object *object;
};

static const char *const directories[] = {"anchors/", "deltas/", "steps/"};

/* Index into directories[], or -1. */
static int directory_of(const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(directories); i++)
		if (strncmp(key, directories[i], strlen(directories[i])) == 0)
			return (int)i;
	return -1;
}

bool lineage_owns(const char *key)
{
	return directory_of(key) >= 0 || strncmp(key, "compact/", 8) == 0 ||
	       strncmp(key, "leases/", 7) == 0 || strcmp(key, MANIFEST_KEY) == 0;
}

/* What lies in a step directory under this name. */
enum place_kind { PLACE_OTHER, PLACE_STEP, PLACE_MISNAMED, PLACE_DIRECTORY };

/* 1: a step's name, with its number; 0: some other file; -1: meant to be a weight file but without
 * a usable number. */
static int parse_name(const char *name, uint64_t *out_number)
{
	static const char prefix[] = "step_", suffix[] = ".safetensors";
	size_t len = strlen(name), at = sizeof(prefix) - 1;
	uint64_t number = 0;

	if (len < sizeof(suffix) - 1 || strcmp(name + len - (sizeof(suffix) - 1), suffix) != 0)
		return 0;
	if (strncmp(name, prefix, at) != 0)
		return -1;
	for (; name[at] >= '0' && name[at] <= '9'; at++)
		if (mul_overflows(number, 10, &number) ||
		    add_overflows(number, (uint64_t)(name[at] - '0'), &number) ||
		    number > INT64_MAX)
			return -1;
	if (at == sizeof(prefix) - 1 || strcmp(name + at, suffix) != 0)
		return -1;
	*out_number = number;
	return 1;
}

static enum place_kind kind_of_place(const struct object *o, const char *name, uint64_t *out_number)
{
	const char *slash = strchr(name, '/');
	char first[64]; /* longer ones have no number that counts */
	int what;

	if (slash != NULL) {
		if ((size_t)(slash - name) >= sizeof(first))
			return PLACE_OTHER;
		memcpy(first, name, (size_t)(slash - name));
		first[slash - name] = '\0';
		return parse_name(first, out_number) > 0 ? PLACE_DIRECTORY : PLACE_OTHER;
	}
	what = parse_name(name, out_number);
	if (what > 0 && o->err == EISDIR)
		return PLACE_DIRECTORY;
	return what > 0 ? PLACE_STEP : what < 0 ? PLACE_MISNAMED : PLACE_OTHER;
}

static int compare_found(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	if (x->anchor != y->anchor)
		return x->anchor ? -1 : 1;
	/* Of two names for one number ("step_5", "step_000005") the newer comes first. */
	if (x->object->mtime_ns != y->object->mtime_ns)
		return x->object->mtime_ns > y->object->mtime_ns ? -1 : 1;
	return strcmp(x->object->key, y->object->key);
}

static size_t to_name_end(const char *key)
{
	const char *name = strchr(key, '/') + 1;

	return (size_t)(name - key) + strcspn(name, "/");
}

/* One for each directory: the keys in it follow each other. */
static void add_directory(struct lineage *l, const struct object *o)
{
	const struct stray *last = l->stray_count > 0 ? &l->strays[l->stray_count - 1] : NULL;
	size_t len = to_name_end(o->key);

	if (last != NULL && last->kind == STRAY_DIRECTORY &&
	    to_name_end(last->object->key) == len && strncmp(last->object->key, o->key, len) == 0)
		return;
	l->strays[l->stray_count++] = (struct stray){STRAY_DIRECTORY, 0, o, NULL};
}

static void add_stray(struct lineage *l, enum stray_kind kind, uint64_t number,
		      const struct object *object, const struct object *against)
{
	l->strays[l->stray_count++] = (struct stray){kind, number, object, against};
}

/* Puts one object into the step of its number, unless it is older than `newest`, the newest object
 * of a lower number. */
static void place(struct lineage *l, const struct found *f, const struct object *newest)
{
	struct step *s = l->step_count > 0 ? &l->steps[l->step_count - 1] : NULL;
	struct pieces *slot;

	/* The time of an object that cannot be used (a stray link, say) tells nothing. */
	if (newest != NULL && f->object->err == 0 && f->object->mtime_ns < newest->mtime_ns) {
		add_stray(l, STRAY_SUPERSEDED, f->number, f->object, newest);
		return;
	}
	if (s == NULL || s->number != f->number) {
		s = &l->steps[l->step_count++];
		*s = (struct step){.number = f->number, .mtime_ns = f->object->mtime_ns};
	}
	slot = f->anchor ? &s->anchor : &s->delta;
	if (slot->present) {
		add_stray(l, STRAY_DUPLICATE, f->number, f->object, slot->v[0].object);
		return;
	}
	l->pieces[l->piece_count] = (struct piece){.object = f->object};
	*slot = (struct pieces){.v = &l->pieces[l->piece_count++], .count = 1, .present = true};
	s->mtime_ns = MAX(s->mtime_ns, f->object->mtime_ns);
}

int lineage_order(const struct listing *listing, bool ignore_times, struct lineage *out)
{
	struct found *found = calloc(listing->count ? listing->count : 1, sizeof(*found));
	struct lineage l = {0};
	const struct object *below = NULL,
			    *here = NULL; /* newest of the lower numbers, and including this one */
	size_t n = 0;

	l.steps = calloc(listing->count ? listing->count : 1, sizeof(*l.steps));
	l.strays = calloc(listing->count ? listing->count : 1, sizeof(*l.strays));
	l.pieces = calloc(listing->count ? listing->count : 1, sizeof(*l.pieces));
	if (found == NULL || l.steps == NULL || l.strays == NULL || l.pieces == NULL) {
		free(found);
		lineage_release(&l);
		return -ENOMEM;
	}
	for (size_t i = 0; i < listing->count; i++) {
		const struct object *o = &listing->v[i];
		int dir = directory_of(o->key);
		uint64_t number;

		if (dir < 0)
			continue;
		switch (kind_of_place(o, o->key + strlen(directories[dir]), &number)) {
		case PLACE_STEP: found[n++] = (struct found){number, dir == 0, o}; break;
		case PLACE_MISNAMED: add_stray(&l, STRAY_NAME, 0, o, NULL); break;
		case PLACE_DIRECTORY: add_directory(&l, o); break;
		case PLACE_OTHER: break;
		}
	}
	qsort(found, n, sizeof(*found), compare_found);
	for (size_t i = 0; i < n; i++) {
		size_t strays = l.stray_count;

		if (i > 0 && found[i].number != found[i - 1].number)
			below = here;
		place(&l, &found[i], ignore_times ? NULL : below);
		if (l.stray_count == strays && found[i].object->err == 0 &&
		    (here == NULL || found[i].object->mtime_ns > here->mtime_ns))
			here = found[i].object;
	}
	free(found);
	*out = l;
	return 0;
}

void lineage_release(struct lineage *l)
{
	free(l->steps);
	free(l->strays);
	free(l->spans);
	free(l->pieces);
	manifest_free(l->own);
	free(l->missing);
	free(l->named);
	*l = (struct lineage){0};
}

const struct step *lineage_find(const struct lineage *l, uint64_t number)
{
	size_t lo = 0, hi = l->step_count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (l->steps[mid].number == number)
			return &l->steps[mid];
		if (l->steps[mid].number < number)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

const struct object *step_first(const struct step *s)
{
	if (s->anchor.count > 0)
		return s->anchor.v[0].object;
	return s->delta.count > 0 ? s->delta.v[0].object : NULL;
}

/* The time of the run's first object. */
static int64_t first_mtime(const struct lineage *l)
{
	const struct step *s = &l->steps[0];
	int64_t first = step_first(s)->mtime_ns;

	return s->delta.count > 0 ? MIN(first, s->delta.v[0].object->mtime_ns) : first;
}

/* Of the superseded objects just below a number: the highest one's, and the longest time between
 * two neighbours.  NULL: the number directly below has none. */
static const struct stray *left_below(const struct lineage *l, uint64_t below, int64_t *out_gap)
{
	enum { LOOK = 5 };
	const struct stray *left[LOOK] = {0};

	for (size_t i = 0; i < l->stray_count; i++) {
		const struct stray *s = &l->strays[i];

		if (s->kind == STRAY_SUPERSEDED && s->number < below && below - s->number <= LOOK)
			left[below - s->number - 1] = s;
	}
	*out_gap = 0;
	for (size_t i = 0; i + 1 < LOOK && left[i] != NULL && left[i + 1] != NULL; i++) {
		int64_t gap;

		if (!__builtin_sub_overflow(left[i]->object->mtime_ns,
					    left[i + 1]->object->mtime_ns, &gap))
			*out_gap = MAX(*out_gap, gap);
	}
	return left[0];
}

/* Did the step come as soon after what an earlier run left directly below it as that run's objects
 * came one after the other?  A trainer that began anew would have had to count up to there. */
static const struct stray *goes_on(const struct lineage *l, const struct step *step)
{
	int64_t usual, gap;
	const struct stray *s = left_below(l, step->number, &usual);

	if (s == NULL || usual <= 0 ||
	    __builtin_sub_overflow(step->mtime_ns, s->object->mtime_ns, &gap) || gap / 3 > usual)
		return NULL;
	return s;
}

const struct stray *lineage_unsure(const struct lineage *l, uint64_t above, uint64_t below)
{
	const struct step *step = lineage_find(l, below);

	for (size_t i = 0; i < l->stray_count; i++) {
		const struct stray *s = &l->strays[i];

		if (s->kind == STRAY_SUPERSEDED && s->number > above && s->number < below &&
		    s->object->mtime_ns >= first_mtime(l))
			return s;
	}
	return step != NULL && above + 1 < below ? goes_on(l, step) : NULL;
}

bool lineage_is_declared(const struct lineage *l)
{
	return l->manifest != NULL && l->manifest->origin == MANIFEST_READ;
}

const struct identity *lineage_origin(const struct lineage *l)
{
	const struct object *o;

	if (l->step_count == 0)
		return NULL;
	if (l->own != NULL)
		return &l->origin;
	o = step_first(&l->steps[0]);
	return o != NULL ? &o->id : NULL;
}

void lineage_label(const struct lineage *l, char out[9])
{
	static const char hex[] = "0123456789abcdef";
	const struct identity *id = lineage_origin(l);

	if (lineage_is_declared(l))
		memcpy(out, l->manifest->lineage, 9);
	else
		out[0] = '\0';
	if (lineage_is_declared(l) || id == NULL)
		return;
	for (int i = 0; i < 8; i++)
		out[i] = hex[id->bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
	out[8] = '\0';
}
