/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher: a checkpoint from its files to the moment when the destination's pointer names it.
 *
 *	look	   the pointer, what an earlier attempt left, whose run it is, the last state
 *	open	   the checkpoint (a stream is written to the free slot first)
 *	compare	   one pass: patches, hashes of both states, the copy for the next time
 *	decide	   delta, anchor or both
 *	encode	   local files with the keys they will have
 *	upload	   data, companions, index, pointer
 *	switch	   the local state follows
 *
 * Up to the upload nothing but the free slot and the work directory is written, so a failure costs
 * only time.  Afterwards pending.json knows what is on its way; see pub_base.c for how the next
 * attempt settles it.
 *
 * One thread, which starts others for comparing and encoding and waits for them.
 */
#include "tools/pub_internal.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "tools/pub_fault.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned count_cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* What names the destination among all of this user. */
static char *place_name(const struct pub_options *o)
{
	const char *endpoint = o->source->endpoint_url;
	char *name = NULL, *real;
	size_t len;

	if (strstr(o->dest, "://") == NULL) {
		real = realpath(o->dest, NULL);
		return real != NULL ? real : strdup(o->dest);
	}
	for (len = strlen(o->dest); len > 0 && o->dest[len - 1] == '/';)
		len--;
	if (endpoint == NULL)
		endpoint = getenv("AWS_ENDPOINT_URL_S3");
	if (endpoint == NULL)
		endpoint = getenv("AWS_ENDPOINT_URL");
	if (asprintf(&name, "%.*s%s%s", (int)MIN(len, (size_t)INT_MAX), o->dest,
		     endpoint != NULL ? " " : "", endpoint != NULL ? endpoint : "") < 0)
		return NULL;
	return name;
}

int pub_open(const struct pub_options *options, struct publisher **out, struct why *why)
{
	struct publisher *p = calloc(1, sizeof(*p));
	char *place = NULL;
	int ret = 0;

	if (p == NULL)
		return why_set(why, ENOMEM, "out of memory");
	p->o = options;
	p->jobs = options->jobs != 0 ? options->jobs : count_cores();
	p->encoding =
		pub_encoding_find(options->encoding != NULL ? options->encoding : "wfp1", why);
	p->anchors = options->anchor_encoding != NULL
			     ? pub_encoding_find(options->anchor_encoding, why)
			     : p->encoding;
	if (p->encoding == NULL || p->anchors == NULL)
		ret = -EINVAL;
	else if (p->anchors != p->encoding && (p->encoding->alone || p->anchors->alone))
		ret = why_set(why, EINVAL,
			      "--encoding %s does not go with --anchor-encoding %s: who reads the "
			      "one does not read the other",
			      p->encoding->name, p->anchors->name);
	p->made = options->dry_run && strstr(options->dest, "://") == NULL &&
		  access(options->dest, F_OK) < 0;
	if (ret == 0)
		ret = stack_new_writable(options->source, options->dest, true, &p->stack, why);
	if (ret == 0) {
		p->store = p->stack->store;
		place = place_name(options);
		ret = place != NULL ? pub_state_open(options->state_dir, place, &p->state, why)
				    : why_set(why, ENOMEM, "out of memory");
	}
	free(place);
	if (ret < 0)
		pub_close(p);
	else
		*out = p;
	return ret;
}

void pub_stop(struct publisher *p)
{
	p->stop = true;
}

void pub_close(struct publisher *p)
{
	if (p == NULL)
		return;
	pub_state_close(p->state);
	stack_free(p->stack);
	if (p->made) /* only when it is empty, which is how a dry run leaves it */
		(void)!rmdir(p->o->dest);
	free(p);
}

int pub_newest(struct publisher *p, uint64_t *out, struct why *why)
{
	struct pointer now = {0};
	int ret = pointer_read(p->store, &now, why);

	if (ret == 0)
		*out = now.manifest != NULL ? now.manifest->newest : 0;
	pointer_release(&now);
	return ret;
}

/* ---- the checkpoint ---- */

static int open_stream(struct attempt *a, struct why *why)
{
	const char *dir = a->slot != 0 ? a->slot_path : a->p->state->work;
	struct progress progress = {0}, *shown = a->p->o->quiet ? NULL : &progress;
	char *path = path_join(dir, PUB_SINGLE_NAME);
	int ret = path != NULL ? file_mkdirs(dir) : -ENOMEM;

	if (ret < 0)
		why_set(why, -ret, "%s cannot be made: %s", SHOWN(dir), strerrordesc_np(-ret));
	if (ret == 0) {
		if (shown != NULL)
			progress_begin(shown, "standard input", PROGRESS_UNKNOWN);
		ret = pub_checkpoint_spool(STDIN_FILENO, path, shown, &a->p->stop, why);
		progress_clear(&progress);
	}
	if (ret == 0) {
		ret = pub_checkpoint_open(path, false, &a->new, why);
		if (ret < 0) {
			const struct why what = *why;
			const char *name = SHOWN(path);

			/* Nobody knows the file that it was put into. */
			if (strncmp(what.text, name, strlen(name)) == 0)
				why_set(why, what.err, "standard input%s",
					what.text + strlen(name));
			else
				why_prefix(why, "standard input");
		}
	}
	free(path);
	return ret;
}

void pub_own_places(const struct publisher *p, struct pub_places *out)
{
	*out = (struct pub_places){
		{strstr(p->o->dest, "://") == NULL ? p->o->dest : NULL, p->state->dir,
		 p->o->state_dir},
	};
}

bool pub_is_dest(const struct publisher *p, const char *path)
{
	const char *dest = p->o->dest;
	struct stat x, y;

	return strstr(dest, "://") == NULL && stat(path, &x) == 0 && stat(dest, &y) == 0 &&
	       x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int open_new(struct attempt *a, const char *checkpoint, struct why *why)
{
	const struct publisher *p = a->p;
	struct pub_places places;
	int ret;

	if (!p->o->no_state && !p->o->dry_run) {
		a->slot = pub_state_free_slot(p->state);
		a->slot_path = pub_state_slot_path(p->state, a->slot);
		if (a->slot_path == NULL)
			return why_set(why, ENOMEM, "out of memory");
	}
	a->streamed = strcmp(checkpoint, "-") == 0;
	if (a->streamed) {
		if (a->slot != 0)
			pub_slot_clear(a->slot_path);
		return open_stream(a, why);
	}
	if (pub_is_dest(p, checkpoint))
		return why_set(why, EINVAL, "the checkpoint and the destination are one directory");
	ret = pub_checkpoint_open(checkpoint, false, &a->new, why);
	if (ret < 0)
		return ret;
	pub_own_places(p, &places);
	return pub_companions_open(a->new, &places, &a->companions, why);
}

/* ---- comparing ---- */

static void drop_base(struct attempt *a)
{
	pub_checkpoint_free(a->old);
	a->old = NULL;
}

static void check_alike(struct attempt *a)
{
	struct why differs = {0};

	if (a->old == NULL || pub_checkpoint_alike(a->new, a->old, &differs))
		return;
	snprintf(a->reason, sizeof(a->reason), "%.290s", differs.text);
	drop_base(a);
}

/* The old bytes have been read: are they those of the newest version? */
static void check_base(struct attempt *a)
{
	if (a->old == NULL || strcmp(a->diff.old_state, a->newest_state) == 0)
		return;
	snprintf(a->reason, sizeof(a->reason),
		 "the last state here is not that of version %" PRIu64, a->newest);
	if (a->p->o->against != NULL)
		pub_note(a, "%s is not version %" PRIu64 " of the run: an anchor was published",
			 a->p->o->against, a->newest);
	else
		pub_note(a,
			 "the local copy of version %" PRIu64
			 " is damaged (its hash differs): an anchor was published",
			 a->newest);
	for (size_t i = 0; i < a->new->count; i++) {
		a->new->tensors[i].patch = NULL;
		a->new->tensors[i].old = NULL;
	}
	drop_base(a);
}

static int compare(struct attempt *a, struct why *why)
{
	struct progress progress = {0};
	struct pub_slot slot = {0};
	bool copy;
	int ret;

	a->diff.new = a->new;
	a->diff.old = a->old;
	a->diff.work_dir = a->p->state->work;
	a->diff.jobs = a->p->jobs;
	a->diff.stop = &a->p->stop;
	a->diff.chain = a->chain.count > 0 ? &a->chain : NULL;
	ret = pub_copy_begin(a, &slot, why);
	copy = slot.fds != NULL;
	a->diff.copies = copy ? slot.fds : NULL;
	if (ret == 0 && !a->p->o->quiet) {
		progress_begin(&progress, "compare", a->new->bytes);
		a->diff.progress = &progress;
	}
	if (ret == 0)
		ret = pub_diff_run(&a->diff, why);
	if (a->diff.progress != NULL)
		progress_clear(&progress);
	pub_slot_release(&slot);
	if (ret == 0)
		ret = pub_checkpoint_unchanged(a->new, why);
	if (ret == 0 && copy)
		ret = pub_checkpoint_move(a->new, a->slot_path, why);
	a->diff.progress = NULL;
	a->diff.copies = NULL;
	return ret;
}

/* ---- encoding ---- */

static void fill_input(struct attempt *a)
{
	struct pub_input *in = &a->in;

	in->tensors = a->new->tensors;
	in->count = a->new->count;
	in->files = a->new->files;
	in->file_count = a->new->file_count;
	in->companions = a->companions.files;
	in->companion_count = a->companions.count;
	memcpy(in->lineage, a->lineage, sizeof(in->lineage));
	memcpy(in->state, a->diff.state, sizeof(in->state));
	if (a->want_delta)
		memcpy(in->base_state, a->newest_state, sizeof(in->base_state));
	in->work_dir = a->p->state->work;
	in->jobs = a->p->jobs;
	in->stop = &a->p->stop;
}

/* What was encoded is of these bytes, or else of none. */
static int check_read(struct attempt *a, bool faulted, struct why *why)
{
	int ret = pub_checkpoint_unchanged(a->new, why);

	if (ret == 0 && a->old != NULL)
		ret = pub_checkpoint_unchanged(a->old, why);
	if (ret == 0 && faulted)
		ret = why_set(why, EIO, "%s cannot be read: the disk fails", SHOWN(a->new->path));
	return ret;
}

static int encode(struct attempt *a, struct why *why)
{
	const struct pub_encoding *d = a->p->encoding, *n = a->p->anchors;
	struct progress progress;
	bool faulted;
	int ret = 0;

	fill_input(a);
	if (!a->p->o->quiet) {
		progress_begin(&progress, "encode", a->new->bytes);
		a->in.progress = &progress;
	}
	pub_fault_begin();
	if (a->want_delta && (a->diff.changed > 0 || d->empty))
		ret = d->delta != NULL ? d->delta(&a->in, &a->delta, why)
				       : pub_wfp1_delta(&a->in, &a->delta, why);
	if (ret == 0 && a->want_anchor)
		ret = n->anchor != NULL ? n->anchor(&a->in, &a->anchor, why)
					: pub_anchor_plain(&a->in, &a->anchor, why);
	if (a->in.progress != NULL)
		progress_clear(&progress);
	a->in.progress = NULL;
	faulted = pub_fault_end();
	return ret == 0 ? check_read(a, faulted, why) : ret;
}

/* ---- the whole ---- */

static void fill_report(struct attempt *a)
{
	struct pub_report *r = a->r;
	const struct pub_objects *main = a->want_delta ? &a->delta : &a->anchor;

	r->version = a->in.version;
	r->compared = a->want_delta;
	r->changed = a->want_delta ? a->diff.changed : 0;
	r->kind = !a->want_delta ? "anchor" : r->changed == 0 ? "unchanged" : "delta";
	r->with_anchor = a->want_anchor;
	snprintf(r->reason, sizeof(r->reason), "%s", a->want_anchor ? a->reason : "");
	snprintf(r->encoding, sizeof(r->encoding), "%s",
		 main->encoding[0] != '\0' ? main->encoding : "wfp1");
	snprintf(r->state, sizeof(r->state), "%s", a->in.state);
	r->tensors = a->new->count;
	r->elements = a->new->elements;
	r->weights = a->new->bytes;
	r->objects = a->delta.count + a->anchor.count;
	r->bytes = r->delta_bytes = 0;
	for (size_t i = 0; i < a->delta.count; i++)
		r->delta_bytes += a->delta.v[i].size;
	r->bytes = r->delta_bytes;
	for (size_t i = 0; i < a->anchor.count; i++)
		r->bytes += a->anchor.v[i].size;
}

/* The same number once more is fine when it is the same state: a script was run again. */
static int already_there(struct attempt *a, bool *out_done, struct why *why)
{
	*out_done = a->newest > 0 && a->in.version == a->newest;
	if (!*out_done)
		return 0;
	if (strcmp(a->diff.state, a->newest_state) != 0)
		return why_set(why, EEXIST,
			       "version %" PRIu64
			       " of %s is published already, with other weights: "
			       "numbers only grow (--new-run begins a new run)",
			       a->newest, a->p->store->name);
	a->want_delta = true;
	a->diff.changed = 0;
	fill_input(a);
	fill_report(a);
	a->r->kind = "already there";
	if (!a->dropped && !a->p->o->dry_run)
		pub_remove_orphans(a);
	return 0;
}

static int finish(struct attempt *a, struct why *why)
{
	struct why local = {0};
	int64_t began = clock_mono_ns();
	int ret = pub_upload(a, why);

	a->r->upload_ns = clock_mono_ns() - began;
	if (ret < 0)
		return ret;
	/* It is published: what fails from here on is settled the next time. */
	a->p->entered = true;
	if (pub_state_commit(a->p->state, &local) < 0)
		pub_note(a, "%s", local.text);
	else
		pub_remove_orphans(a);
	return 0;
}

static int run(struct attempt *a, const char *checkpoint, const uint64_t *version, struct why *why)
{
	int64_t began;
	bool done = false;
	int ret = pub_look(a, why);

	if (ret == 0)
		ret = pub_choose_version(a, version, why);
	if (ret == 0)
		ret = open_new(a, checkpoint, why);
	if (ret < 0)
		return ret;
	check_alike(a);
	began = clock_mono_ns();
	ret = compare(a, why);
	a->r->diff_ns = clock_mono_ns() - began;
	if (ret < 0)
		return ret;
	check_base(a);
	ret = already_there(a, &done, why);
	if (ret < 0 || done)
		return ret;
	ret = pub_decide(a, why);
	if (ret == 0)
		ret = pub_copy_end(a, why);
	began = clock_mono_ns();
	if (ret == 0)
		ret = encode(a, why);
	a->r->encode_ns = clock_mono_ns() - began;
	if (ret < 0)
		return ret;
	fill_report(a);
	return a->p->o->dry_run ? 0 : finish(a, why);
}

static void attempt_release(struct attempt *a)
{
	pub_objects_release(&a->delta);
	pub_objects_release(&a->anchor);
	if (a->diff.new != NULL)
		pub_diff_release(&a->diff);
	pub_companions_release(&a->companions);
	pub_checkpoint_free(a->new);
	pub_checkpoint_free(a->old);
	pointer_release(&a->was);
	manifest_free(a->next);
	pub_chain_release(&a->chain);
	json_decref(a->patches);
	free(a->slot_path);
}

int pub_publish(struct publisher *p, const char *checkpoint, const uint64_t *version,
		struct pub_report *out, struct why *why)
{
	struct attempt a = {.p = p, .r = out, .diff.fd = -1};
	int64_t began = clock_mono_ns();
	int ret;

	*out = (struct pub_report){0};
	pub_state_clean(p->state);
	ret = run(&a, checkpoint, version, why);
	attempt_release(&a);
	pub_state_clean(p->state);
	out->total_ns = clock_mono_ns() - began;
	return ret;
}
