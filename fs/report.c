/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a round: every version with its state, every problem as a sentence, and notes about
 * choices that were made.
 *
 * Built afresh from what the round found, then swapped in; readers hold a reference as long as they
 * format it.  A problem is logged when it is new in this report, so that the log has each sentence
 * once and not once a second.
 */
#include "fs/run_internal.h"

#include "cache/clock.h"
#include "cache/log.h"

#include <stdio.h>
#include <stdlib.h>

enum { PROBLEMS_MAX = 256 }; /* more are counted in a note */

const char *version_kind_name(enum version_kind k)
{
	static const char *const names[] = {"base", "anchor", "partial", "delta", "empty"};

	return names[k];
}

const char *version_state_name(enum version_state s)
{
	static const char *const names[] = {"ok",      "waiting",    "broken",
					    "blocked", "superseded", "unread"};

	return names[s];
}

void run_report_unref(struct run_report *p)
{
	if (p == NULL || __atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (size_t i = 0; i < p->version_count; i++) {
		free(p->versions[i].key);
		free(p->versions[i].problem);
	}
	for (size_t i = 0; i < p->problem_count; i++) {
		free(p->problems[i].object);
		free(p->problems[i].text);
	}
	for (size_t i = 0; i < p->note_count; i++)
		free(p->notes[i]);
	free(p->versions);
	free(p->spans);
	free(p->problems);
	free(p->notes);
	free(p->store_error);
	free(p);
}

int64_t run_report_time(const struct run_report *p)
{
	return __atomic_load_n(&p->scanned_real_ns, __ATOMIC_RELAXED);
}

struct run_report *run_report(struct run *r)
{
	struct run_report *p;

	lock_take(&r->lock);
	p = r->report;
	if (p != NULL)
		__atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
	lock_release(&r->lock);
	return p;
}

void run_report_because(const struct run_report *p, struct buf *out)
{
	if (p->problem_count == 0)
		return;
	if (p->problems[0].object[0] != '\0')
		buf_addf(out, ": %s", p->problems[0].object);
	buf_addf(out, ": %s", p->problems[0].text);
}

static char *shown(const char *text)
{
	char out[900];

	return strdup(printable(out, sizeof(out), text, strlen(text)));
}

static bool add_problem(struct run_report *p, const char *key, const char *text)
{
	size_t n = strlen(key);
	char *object = shown(key), *sentence;

	/* Sentences begin with "key: " for the log; here the key has its own field. */
	if (strncmp(text, key, n) == 0 && strncmp(text + n, ": ", 2) == 0)
		text += n + 2;
	sentence = strdup(text);
	if (object == NULL || sentence == NULL) {
		free(object);
		free(sentence);
		return false;
	}
	p->problems[p->problem_count].object = object;
	p->problems[p->problem_count++].text = sentence;
	return true;
}

/* Is it step_NUMBER-XXXXXXXX.safetensors, as a publisher names an object? */
static bool has_tag(const char *key)
{
	static const char end[] = ".safetensors";
	const char *dash = strrchr(key, '-');

	return dash != NULL && strspn(dash + 1, "0123456789abcdef") == 8 &&
	       strcmp(dash + 9, end) == 0;
}

static bool add_stray(struct run_report *p, const struct stray *s)
{
	struct buf text = {0};
	struct why why = {0};
	char *key = strdup(s->object->key);
	bool ok;

	if (key == NULL)
		return false;
	if (s->kind == STRAY_DIRECTORY) {
		char *name = strchr(key, '/') + 1;

		name[strcspn(name, "/")] = '\0';
		buf_addstr(&text, "is a directory, not an object; it is ignored");
	} else if (s->kind == STRAY_NAME && s->object->err != 0) {
		listed_error(s->object, &why);
		buf_addstr(&text, why.text);
	} else if (s->kind == STRAY_NAME && has_tag(key))
		buf_addstr(&text,
			   "is of a run that weightfs publishes, and there is no " MANIFEST_KEY
			   " yet, or none any more; it is ignored");
	else if (s->kind == STRAY_NAME)
		buf_addstr(&text, "is not named step_NUMBER.safetensors (with a number below "
				  "2^63); it is ignored");
	else
		buf_addf(&text, "is older than %s, which has the same number; it is ignored",
			 s->against->key);
	ok = !text.failed && add_problem(p, key, buf_str(&text));
	buf_release(&text);
	free(key);
	return ok;
}

static enum version_kind kind_of(const struct exam *e)
{
	return e->complete     ? VERSION_ANCHOR
	       : e->sparse > 0 ? VERSION_DELTA
	       : e->full > 0   ? VERSION_PARTIAL
			       : VERSION_EMPTY;
}

/* One object in: the worst state of several, and the sums. */
static bool fill_object(struct run *r, struct version_info *v, const struct object *o)
{
	const struct exam *e = table_get_str(r->exams, o->key);
	enum version_state state = VERSION_UNREAD;

	v->bytes += o->size;
	v->mtime_ns = MAX(v->mtime_ns, o->mtime_ns);
	if (e != NULL && e->state == EXAM_OK) {
		v->kind = kind_of(e);
		v->changed += e->changed;
		memcpy(v->format, e->format, sizeof(v->format));
		state = VERSION_OK;
		if (e->has_states && !v->has_state) {
			memcpy(v->state_hash, e->to, sizeof(v->state_hash));
			v->has_state = true;
		}
	} else if (e != NULL) {
		state = e->state == EXAM_WAITING ? VERSION_WAITING : VERSION_BROKEN;
		if (v->problem == NULL)
			v->problem = strdup(e->why.text);
		if (v->problem == NULL)
			return false;
	}
	if (v->objects++ == 0 || (state != VERSION_OK && v->state != VERSION_BROKEN))
		v->state = state;
	return true;
}

static bool fill(struct run *r, struct version_info *v, const struct pieces *p, uint64_t number)
{
	const struct object *first = p->count > 0 ? p->v[0].object : NULL;

	*v = (struct version_info){
		.number = number,
		.state = VERSION_OK,
		.kind = first == NULL						? VERSION_EMPTY
			: p->entry != NULL && p->entry->kind == MANIFEST_ANCHOR ? VERSION_ANCHOR
			: strncmp(first->key, "anchors/", 8) == 0		? VERSION_ANCHOR
										: VERSION_DELTA,
		.mtime_ns = first != NULL ? first->mtime_ns : p->entry->time_ns,
	};
	v->key = shown(first != NULL ? first->key : "");
	memcpy(v->lineage, r->label, sizeof(v->lineage));
	if (p->entry != NULL) {
		memcpy(v->encoding, p->entry->encoding, sizeof(v->encoding));
		memcpy(v->writer, p->entry->writer, sizeof(v->writer));
		v->has_state = lineage_is_declared(&r->lineage);
		if (v->has_state)
			memcpy(v->state_hash, p->entry->state, sizeof(v->state_hash));
	}
	for (size_t i = 0; i < p->count && v->key != NULL; i++)
		if (!fill_object(r, v, p->v[i].object))
			return false;
	return v->key != NULL;
}

static uint64_t model_elements(const struct run *r)
{
	const struct layout *l = r->newest != NULL && r->newest->state != NULL
					 ? r->newest->state->layout
				 : r->layout_count > 0 ? r->layouts[0]
						       : NULL;
	uint64_t n = 0;

	for (uint32_t i = 0; l != NULL && i < l->tensor_count; i++)
		n += l->tensors[i].alias == i ? l->tensors[i].numel : 0;
	return n;
}

static int compare_versions(const void *a, const void *b)
{
	const struct version_info *x = a, *y = b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return (x->state != VERSION_SUPERSEDED) - (y->state != VERSION_SUPERSEDED);
}

/* Versions whole in themselves, above what is shown, build on something that is not. */
static void mark_blocked(const struct run *r, struct run_report *p)
{
	uint64_t newest = r->newest != NULL && strcmp(r->newest->lineage, r->label) == 0
				  ? r->newest->version
				  : 0;

	for (size_t i = 0; i < p->version_count; i++) {
		struct version_info *v = &p->versions[i];

		/* What a span stands for has not been looked into, and is part of what is shown. */
		if (v->state == VERSION_UNREAD && r->lineage.manifest != NULL && newest > 0 &&
		    r->newest->state != NULL && v->number <= newest &&
		    v->number > r->newest->state->anchor)
			v->state = VERSION_OK;
		if (v->state != VERSION_OK || v->number <= newest)
			continue;
		v->state = r->obstacle.waiting && v->number >= r->obstacle.number ? VERSION_WAITING
										  : VERSION_BLOCKED;
	}
}

/* The same for every version, when all objects have been looked into. */
static bool mark_whole(struct run *r, struct run_report *p)
{
	const struct lineage *l = &r->lineage;
	bool *whole = calloc(l->step_count + 1, sizeof(*whole));

	if (whole == NULL)
		return false;
	plan_whole(r, whole);
	for (size_t i = 0; i < p->version_count; i++) {
		const struct step *s = lineage_find(l, p->versions[i].number);

		if (p->versions[i].state == VERSION_OK && s != NULL && !whole[s - l->steps])
			p->versions[i].state = VERSION_BLOCKED;
	}
	free(whole);
	return true;
}

static bool add_version(struct run *r, struct run_report *p, const struct pieces *pieces,
			uint64_t number)
{
	struct version_info *v = &p->versions[p->version_count++];

	return fill(r, v, pieces, number) &&
	       (v->problem == NULL || add_problem(p, v->key, v->problem));
}

static bool fill_versions(struct run *r, struct run_report *p)
{
	const struct lineage *l = &r->lineage;
	uint64_t elements = model_elements(r);
	bool ok = true;

	for (size_t i = 0; i < l->step_count && ok; i++) {
		if (l->steps[i].delta.present)
			ok = add_version(r, p, &l->steps[i].delta, l->steps[i].number);
		if (l->steps[i].anchor.present && ok)
			ok = add_version(r, p, &l->steps[i].anchor, l->steps[i].number);
	}
	for (size_t i = 0; i < p->version_count; i++)
		p->versions[i].elements = elements;
	for (size_t i = 0; i < l->stray_count && ok; i++) {
		const struct stray *s = &l->strays[i];
		const struct piece piece = {.object = s->object};
		const struct pieces pieces = {.v = &piece, .count = 1, .present = true};

		/* An upload on its way is no problem: there is a note. */
		if (s->kind == STRAY_UNNAMED)
			continue;
		if (s->kind != STRAY_SUPERSEDED) {
			ok = add_stray(p, s);
			continue;
		}
		ok = fill(r, &p->versions[p->version_count], &pieces, s->number);
		p->versions[p->version_count].lineage[0] = '\0';
		p->versions[p->version_count++].state = VERSION_SUPERSEDED;
	}
	return ok;
}

/* Is something that could not be listed a place where versions may lie? */
static bool is_shut(const struct run *r, const struct object *o)
{
	const struct lineage *l = &r->lineage;

	return directories_shut(o, l->own == NULL && l->step_count > 0);
}

static size_t count_shut(const struct run *r)
{
	size_t n = 0;

	for (size_t i = 0; r->current != NULL && i < r->current->listing.count; i++)
		n += is_shut(r, &r->current->listing.v[i]);
	return n;
}

static bool fill_shut(const struct run *r, struct run_report *p)
{
	for (size_t i = 0; r->current != NULL && i < r->current->listing.count; i++) {
		const struct object *o = &r->current->listing.v[i];
		struct why why = {0};

		if (!is_shut(r, o))
			continue;
		listed_error(o, &why);
		if (!add_problem(p, o->key, why.text))
			return false;
	}
	return true;
}

/* What was found wrong with version directories, where there is no run of another kind. */
static bool fill_directories(const struct run *r, struct run_report *p)
{
	const struct lineage *l = &r->lineage;
	const struct directories *d = &r->directories;

	if (l->own == NULL && (l->manifest != NULL || l->step_count > 0))
		return true;
	for (size_t i = 0; i < d->problem_count; i++)
		if (!add_problem(p, d->problems[i].object, d->problems[i].text))
			return false;
	return true;
}

/* weightfs.json itself, and its spans. */
static bool fill_pointer(struct run *r, struct run_report *p)
{
	const struct lineage *l = &r->lineage;
	const struct manifest *m = l->manifest;

	if (r->misfit.err != 0 && !add_problem(p, "", r->misfit.text))
		return false;
	if (r->pointer.why.err != 0 && !add_problem(p, MANIFEST_KEY, r->pointer.why.text))
		return false;
	if (!fill_directories(r, p))
		return false;
	if (!fill_shut(r, p))
		return false;
	if (m == NULL || l->own != NULL)
		return true;
	memcpy(p->pointer.lineage, m->lineage, sizeof(p->pointer.lineage));
	memcpy(p->pointer.publisher, m->publisher.id, sizeof(p->pointer.publisher));
	memcpy(p->pointer.host, m->publisher.host, sizeof(p->pointer.host));
	p->pointer.pid = m->publisher.pid;
	p->pointer.time_ns = m->publisher.time_ns;
	p->pointer.newest = m->newest;
	p->pointer.oldest = m->step_count > 0 ? m->steps[0].version : 0;
	p->spans = calloc(l->span_count + 1, sizeof(*p->spans));
	if (p->spans == NULL)
		return false;
	for (size_t i = 0; i < l->span_count; i++) {
		struct version_info v;
		bool ok = fill(r, &v, &l->spans[i].pieces, l->spans[i].version) &&
			  (v.problem == NULL || add_problem(p, v.key, v.problem));

		p->spans[p->span_count++] = (struct span_info){.base = l->spans[i].base,
							       .version = l->spans[i].version,
							       .bytes = v.bytes,
							       .state = v.state};
		free(v.key);
		free(v.problem);
		if (!ok)
			return false;
	}
	return true;
}

/* What is newer than the pointer may well be on its way. */
static bool note_unnamed(struct run *r, struct run_report *p)
{
	const struct object *pointer =
		r->current != NULL ? listing_find(&r->current->listing, MANIFEST_KEY) : NULL;
	const struct object *first = NULL;
	size_t n = 0;

	for (size_t i = 0; i < r->lineage.stray_count && pointer != NULL; i++) {
		const struct stray *s = &r->lineage.strays[i];

		if (s->kind == STRAY_UNNAMED && s->object->mtime_ns < pointer->mtime_ns && n++ == 0)
			first = s->object;
	}
	if (n == 0)
		return true;
	if (asprintf(&p->notes[p->note_count],
		     "%zu object%s not named by " MANIFEST_KEY
		     ", such as %.200s: an upload that is not finished, or something that was "
		     "pruned; ignored",
		     n, n == 1 ? " is" : "s are", SHOWN(first->key)) < 0)
		return false;
	p->note_count++;
	return true;
}

/* Version directories that are being written. */
static bool note_unfinished(const struct run *r, struct run_report *p)
{
	const struct directories *d = &r->directories;

	if (r->lineage.own == NULL || d->unfinished == 0)
		return true;
	if (asprintf(&p->notes[p->note_count], "%zu director%s not finished: %s", d->unfinished,
		     d->unfinished == 1 ? "y is" : "ies are", d->unfinished_why) < 0)
		return false;
	p->note_count++;
	return true;
}

/* Numbers count, but a run may have begun anew. */
static bool note_younger(const struct run *r, struct run_report *p)
{
	const struct directories *d = &r->directories;

	if (r->lineage.own == NULL || d->younger[0] == '\0')
		return true;
	if (asprintf(&p->notes[p->note_count],
		     "%s was finished after version %llu, which has a higher number and is shown: "
		     "where a run has begun anew, remove what the one before it left",
		     SHOWN(d->younger), (unsigned long long)d->younger_than) < 0)
		return false;
	p->note_count++;
	return true;
}

static bool fill_notes(struct run *r, struct run_report *p)
{
	const char *text = buf_str(&r->notes);
	size_t superseded = 0;

	for (size_t i = 0; i < r->lineage.stray_count; i++)
		superseded += r->lineage.strays[i].kind == STRAY_SUPERSEDED;
	p->notes = calloc(r->notes.len + 6, sizeof(char *));
	if (p->notes == NULL)
		return false;
	while (*text != '\0') {
		size_t n = strcspn(text, "\n");

		p->notes[p->note_count] = strndup(text, n);
		if (p->notes[p->note_count++] == NULL)
			return false;
		text += n + (text[n] == '\n');
	}
	if (superseded > 0) {
		const struct stray *s = r->lineage.strays;

		while (s->kind != STRAY_SUPERSEDED)
			s++;
		if (asprintf(&p->notes[p->note_count],
			     "%zu objects are older than one with a lower number (%s than %s) and "
			     "belong to an earlier run; "
			     "if they do not, the bucket was copied without its times: --times "
			     "ignore",
			     superseded, s->object->key, s->against->key) < 0)
			return false;
		p->note_count++;
	}
	return note_unnamed(r, p) && note_unfinished(r, p) && note_younger(r, p);
}

static bool had_problem(const struct run_report *p, const char *object, const char *text)
{
	for (size_t i = 0; p != NULL && i < p->problem_count; i++)
		if (strcmp(p->problems[i].object, object) == 0 &&
		    strcmp(p->problems[i].text, text) == 0)
			return true;
	return false;
}

/* What stands in the way of a version and is no object's own fault (a hole, no anchor) is a problem
 * of the run. */
static bool add_obstacle(const struct run *r, struct run_report *p)
{
	for (size_t i = 0; i < p->version_count; i++)
		if (p->versions[i].problem != NULL &&
		    strcmp(p->versions[i].problem, r->obstacle.text) == 0)
			return true;
	return r->obstacle.text[0] == '\0' || add_problem(p, "", r->obstacle.text);
}

/* Keeps a bucket full of rubbish from filling log and status: the last problems are those of the
 * highest numbers. */
static bool cap_problems(struct run_report *p)
{
	size_t over = p->problem_count > PROBLEMS_MAX ? p->problem_count - PROBLEMS_MAX : 0;

	if (over == 0)
		return true;
	for (size_t i = 0; i < over; i++) {
		free(p->problems[i].object);
		free(p->problems[i].text);
	}
	p->problem_count = PROBLEMS_MAX;
	memmove(p->problems, p->problems + over, PROBLEMS_MAX * sizeof(*p->problems));
	if (asprintf(&p->notes[p->note_count], "%zu more objects have problems", over) < 0)
		return false;
	p->note_count++;
	return true;
}

static bool fill_report(struct run *r, struct run_report *p)
{
	if (!fill_versions(r, p) || !fill_pointer(r, p) || !add_obstacle(r, p) ||
	    !fill_notes(r, p) || !cap_problems(p))
		return false;
	qsort(p->versions, p->version_count, sizeof(*p->versions), compare_versions);
	if (r->config.history == NULL && r->config.deep)
		return mark_whole(r, p);
	mark_blocked(r, p);
	return true;
}

void report_again(struct run *r)
{
	lock_take(&r->lock);
	if (r->report != NULL)
		__atomic_store_n(&r->report->scanned_real_ns, clock_real_ns(), __ATOMIC_RELAXED);
	lock_release(&r->lock);
}

void report_publish(struct run *r)
{
	struct run_report *p = calloc(1, sizeof(*p)), *old;
	size_t room = 2 * r->lineage.step_count + r->lineage.stray_count + 1;
	bool ok;

	if (p == NULL)
		return;
	p->refs = 1;
	p->scanned_real_ns = clock_real_ns();
	p->versions = calloc(room, sizeof(*p->versions));
	p->problems = calloc(room + r->lineage.span_count + r->directories.problem_count +
				     count_shut(r) + 3,
			     sizeof(*p->problems));
	ok = p->versions != NULL && p->problems != NULL && fill_report(r, p);
	if (ok && r->store_error != NULL) {
		p->store_error = strdup(r->store_error);
		ok = p->store_error != NULL;
	}
	if (!ok) {
		run_report_unref(p);
		return; /* out of memory: the old report stays */
	}
	lock_take(&r->lock);
	old = r->report;
	r->report = p;
	lock_release(&r->lock);
	for (size_t i = 0; i < p->problem_count; i++)
		if (!had_problem(old, p->problems[i].object, p->problems[i].text))
			log_warning("%s%s%s", p->problems[i].object,
				    p->problems[i].object[0] != '\0' ? ": " : "",
				    p->problems[i].text);
	run_report_unref(old);
}
