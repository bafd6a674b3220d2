/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a version visible: data objects, companions, index.json, and last the pointer, by
 * compare-and-swap.
 *
 * Until the pointer moves nothing that was uploaded is part of the run.  Whether it has moved is
 * not always known: an answer may be lost, or come from a proxy.  So after any failure of that one
 * write the pointer is read again, and it decides.
 *
 * Local files are read through a source (tools/sending.h) that fails once the publisher is to stop,
 * which ends an upload at its next piece.
 *
 * One thread.
 */
#include "tools/pub_internal.h"

#include "cache/clock.h"
#include "fs/parallel.h"
#include "fs/rfc3339.h"
#include "tools/pub_fault.h"
#include "tools/sending.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#define INDEX_KEY "index.json"

enum { POINTER_TRIES = 20 }; /* compactions that get in between */

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

/* ---- composing ---- */

static int add_entry(struct attempt *a, enum manifest_kind kind, const struct pub_objects *objects,
		     struct why *why)
{
	struct manifest_entry e = {
		.kind = kind,
		.version = a->in.version,
		.base = kind == MANIFEST_DELTA ? a->in.base_version : 0,
		.time_ns = a->time_ns,
	};
	const char *encoding = objects->encoding[0] != '\0' ? objects->encoding : "wfp1";
	int ret = manifest_unhex(a->in.state, e.state);

	snprintf(e.encoding, sizeof(e.encoding), "%s", encoding);
	for (size_t i = 0; ret == 0 && i < objects->count; i++)
		ret = manifest_entry_object(&e, objects->v[i].key, objects->v[i].file,
					    objects->v[i].size);
	if (ret < 0)
		ret = out_of_memory(why);
	else
		ret = manifest_add(a->next, &e, why);
	manifest_entry_release(&e);
	return ret;
}

static int compose(struct attempt *a, struct why *why)
{
	struct manifest *m;
	int ret;

	manifest_free(a->next);
	a->next = NULL;
	ret = a->begins ? manifest_new(a->lineage, &a->next)
			: manifest_copy(a->was.manifest, &a->next);

	if (ret < 0)
		return out_of_memory(why);
	m = a->next;
	memcpy(m->publisher.id, a->p->state->publisher, sizeof(m->publisher.id));
	memset(m->publisher.host, 0, sizeof(m->publisher.host));
	if (gethostname(m->publisher.host, sizeof(m->publisher.host) - 1) < 0 ||
	    m->publisher.host[0] == '\0')
		memcpy(m->publisher.host, "unknown", sizeof("unknown"));
	m->publisher.pid = getpid();
	a->time_ns = clock_real_ns();
	m->publisher.time_ns = a->time_ns;
	if (a->want_delta)
		ret = add_entry(a, MANIFEST_DELTA, &a->delta, why);
	if (ret == 0 && a->want_anchor)
		ret = add_entry(a, MANIFEST_ANCHOR, &a->anchor, why);
	return ret;
}

/* ---- files ---- */

static int put_file(struct attempt *a, const char *key, int fd, uint64_t size,
		    struct progress *progress, struct why *why)
{
	struct sending s = {.fd = fd, .progress = progress, .stop = &a->p->stop, .size = size};
	const struct source src = sending_source(&s);
	int ret = store_put(a->p->store, key, &src, why);

	if (ret == 0)
		sending_done(&s);
	if (ret < 0 && a->p->stop)
		return why_set(why, EINTR, "interrupted; nothing was published");
	return ret < 0 ? why_prefix(why, "%s", a->p->store->name) : 0;
}

static int put_objects(struct attempt *a, const struct pub_objects *o, struct progress *progress,
		       struct why *why)
{
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < o->count; i++)
		ret = put_file(a, o->v[i].key, o->v[i].fd, o->v[i].size, progress, why);
	return ret;
}

/* ---- companions and the index ---- */

static const char *known_hash(const json_t *map, const char *key)
{
	const char *hash = json_string_value(json_object_get(json_object_get(map, key), "hash"));

	return hash != NULL ? hash : "";
}

/* What is in the destination of them. */
static const json_t *companions_there(const struct attempt *a)
{
	const struct pub_record *now = &a->p->state->now;

	return strcmp(now->lineage, a->lineage) == 0 ? now->companions : NULL;
}

static bool is_new(const struct attempt *a, size_t i)
{
	const struct pub_companions *c = &a->companions;

	return strcmp(known_hash(companions_there(a), c->files[i].name), c->hashes[i]) != 0;
}

static uint64_t companion_bytes(const struct attempt *a)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < a->companions.count; i++)
		sum += is_new(a, i) ? a->companions.files[i].size : 0;
	return sum;
}

static int put_companions(struct attempt *a, struct progress *progress, struct why *why)
{
	const struct pub_file *files = a->companions.files;
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < a->companions.count; i++) {
		if (!is_new(a, i))
			continue;
		ret = put_file(a, files[i].name, files[i].fd, files[i].size, progress, why);
		a->r->companions++;
	}
	return ret;
}

/* What is at the run's root afterwards. */
static json_t *companions_after(const struct attempt *a)
{
	const struct pub_companions *c = &a->companions;
	const json_t *there = companions_there(a);
	json_t *map = there != NULL ? json_deep_copy(there) : json_object();
	char time[RFC3339_LEN];

	for (size_t i = 0; map != NULL && i < c->count; i++) {
		rfc3339_format(c->times[i], time);
		if (json_object_set_new(map, c->files[i].name,
					json_pack("{ss, sI, ss}", "hash", c->hashes[i], "size",
						  (json_int_t)c->files[i].size, "time", time)) <
		    0) {
			json_decref(map);
			map = NULL;
		}
	}
	return map;
}

static void index_line(struct buf *b, const char *key, uint64_t size, const char *time)
{
	buf_addstr(b, b->len > 16 ? ",\n" : "\n");
	buf_addstr(b, "  {\"key\": ");
	buf_addjson(b, key, strlen(key));
	buf_addf(b, ", \"size\": %" PRIu64 ", \"mtime\": \"%s\"}", size, time);
}

static void index_entries(struct buf *b, const struct manifest_entry *v, size_t count)
{
	char time[RFC3339_LEN];

	for (size_t i = 0; i < count; i++) {
		rfc3339_format(v[i].time_ns, time);
		for (size_t j = 0; j < v[i].object_count; j++)
			index_line(b, v[i].objects[j].key, v[i].objects[j].size, time);
	}
}

/* For plain web servers (cache/remote/store_http.h), with the pointer as it will be. */
static int put_index(struct attempt *a, json_t *companions, size_t pointer_len, struct why *why)
{
	char time[RFC3339_LEN];
	struct buf b = {0};
	struct source src;
	const char *key;
	json_t *value;
	int ret;

	buf_addstr(&b, "{\"objects\": [");
	index_entries(&b, a->next->steps, a->next->step_count);
	index_entries(&b, a->next->spans, a->next->span_count);
	json_object_foreach (companions, key, value) {
		const char *when = json_string_value(json_object_get(value, "time"));

		index_line(&b, key, (uint64_t)json_integer_value(json_object_get(value, "size")),
			   when != NULL ? when : "1970-01-01T00:00:00Z");
	}
	rfc3339_format(a->time_ns, time);
	index_line(&b, MANIFEST_KEY, pointer_len, time);
	buf_addstr(&b, "\n]}\n");
	if (b.failed) {
		buf_release(&b);
		return out_of_memory(why);
	}
	src = source_memory(b.data, b.len);
	ret = store_put(a->p->store, INDEX_KEY, &src, why);
	buf_release(&b);
	return ret < 0 ? why_prefix(why, "%s", a->p->store->name) : 0;
}

/* ---- the pointer ---- */

static bool has_state(const struct manifest *m, uint64_t version, const char *state)
{
	const uint8_t *found = manifest_state(m, version);
	char hex[33] = "";

	if (found != NULL)
		manifest_hex(found, hex);
	return strcmp(hex, state) == 0;
}

static int refuse(const struct attempt *a, const struct manifest *m, struct why *why)
{
	return why_set(why, EBUSY,
		       "another publisher was faster: process %" PRId64
		       " on %s changed %s while this version was on its way, which was not "
		       "published.  End one of the two: --take-over goes on in the other's place, "
		       "--new-run begins a new run",
		       m->publisher.pid, SHOWN(m->publisher.host), a->p->store->name);
}

/*
 * The pointer was not replaced, as it seems.  0 when it names this version all the same; -EAGAIN
 * when it is still ours at the version before (it was compacted or pruned meanwhile), and `was` is
 * what it is now; else the error.
 */
static int look_again(struct attempt *a, int err, struct why *why)
{
	const bool lost = err == -ESTALE || err == -EEXIST;
	struct pointer now = {0};
	struct why ignored = {0};
	const struct manifest *m;

	if (pointer_read(a->p->store, &now, &ignored) < 0 || now.manifest == NULL) {
		pointer_release(&now);
		return err;
	}
	m = now.manifest;
	if (strcmp(m->publisher.id, a->p->state->publisher) != 0 ||
	    strcmp(m->lineage, a->lineage) != 0) {
		err = lost ? refuse(a, m, why) : err;
	} else if (has_state(m, a->in.version, a->in.state)) {
		err = 0;
	} else if (lost && m->newest == a->newest && has_state(m, a->newest, a->newest_state)) {
		pointer_release(&a->was);
		a->was = now;
		return -EAGAIN;
	} else if (lost) {
		err = refuse(a, m, why);
	}
	pointer_release(&now);
	return err;
}

static int move_pointer(struct attempt *a, const struct buf *text, struct why *why)
{
	int ret = pointer_write(a->p->store, &a->was, text, why);

	if (ret < 0)
		ret = look_again(a, ret, why);
	if (ret < 0 && ret != -EBUSY && ret != -EAGAIN)
		why_prefix(why,
			   "%s: the version may or may not have been published; the same "
			   "command finds out",
			   a->p->store->name);
	return ret;
}

/* ---- all of it ---- */

struct recheck {
	struct attempt *a;
	bool differs;
};

static void recheck_one(void *ctx, size_t i)
{
	struct recheck *r = ctx;
	const struct pub_tensor *t = &r->a->new->tensors[i];
	XXH128_canonical_t hash;

	if (r->a->p->stop || __atomic_load_n(&r->differs, __ATOMIC_RELAXED))
		return;
	XXH128_canonicalFromHash(&hash, XXH3_128bits(t->data, (size_t)t->bytes));
	if (memcmp(hash.digest, t->hash.bytes, sizeof(t->hash.bytes)) != 0)
		__atomic_store_n(&r->differs, true, __ATOMIC_RELAXED);
}

/*
 * Is what was uploaded what the pointer will say?  Without a copy of our own, anchors and the
 * deltas of others are made from the trainer's files, and their times tell most writes but not
 * all: a page that is mapped and dirty is written to without a trace.
 */
static int check_bytes(struct attempt *a, struct why *why)
{
	const bool again = a->want_anchor || (a->delta.count > 0 && a->p->encoding->delta != NULL);
	struct recheck r = {.a = a};
	bool faulted;
	int ret = pub_checkpoint_unchanged(a->new, why);

	if (ret < 0 || !again || a->new->moved || a->streamed)
		return ret;
	pub_fault_begin();
	parallel_for(a->p->jobs, a->new->count, recheck_one, &r);
	faulted = pub_fault_end();
	return !r.differs && !faulted
		       ? pub_checkpoint_unchanged(a->new, why)
		       : why_set(why, ESTALE,
				 "%s was written to while it was read: publish a checkpoint when "
				 "it is finished",
				 SHOWN(a->new->path));
}

static int add_keys(json_t *keys, const struct pub_objects *o)
{
	for (size_t i = 0; i < o->count; i++)
		if (json_array_append_new(keys, json_string(o->v[i].key)) < 0)
			return -ENOMEM;
	return 0;
}

static int begin(struct attempt *a, json_t *companions, struct why *why)
{
	struct pub_state *s = a->p->state;
	struct pub_record *r = &s->pending;

	pub_record_release(r);
	memcpy(r->lineage, a->lineage, sizeof(r->lineage));
	memcpy(r->state, a->in.state, sizeof(r->state));
	r->version = a->in.version;
	r->slot = a->slot;
	r->patches = json_incref(a->patches);
	r->companions = json_incref(companions);
	r->orphans = json_incref(s->now.orphans);
	r->keys = json_array();
	if (r->keys == NULL || add_keys(r->keys, &a->delta) < 0 ||
	    add_keys(r->keys, &a->anchor) < 0)
		return out_of_memory(why);
	return pub_state_begin(s, why);
}

static uint64_t bytes_of(const struct pub_objects *o)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < o->count; i++)
		sum += o->v[i].size;
	return sum;
}

/* The version's objects, then what comes with it. */
static int put_data(struct attempt *a, struct why *why)
{
	struct progress progress = {0}, *shown = a->p->o->quiet ? NULL : &progress;
	int ret;

	a->r->objects = a->delta.count + a->anchor.count;
	a->r->bytes = bytes_of(&a->delta) + bytes_of(&a->anchor);
	if (shown != NULL)
		progress_begin(shown, "upload", a->r->bytes + companion_bytes(a));
	ret = put_objects(a, &a->delta, shown, why);
	if (ret == 0)
		ret = put_objects(a, &a->anchor, shown, why);
	if (ret == 0)
		ret = put_companions(a, shown, why);
	if (shown != NULL)
		progress_clear(shown);
	return ret;
}

static int show_version(struct attempt *a, json_t *companions, struct why *why)
{
	struct buf text = {0};
	int ret = manifest_compose(a->next, &text) < 0 ? out_of_memory(why) : 0;

	if (ret == 0)
		ret = put_index(a, companions, text.len, why);
	if (ret == 0)
		ret = check_bytes(a, why);
	if (ret == 0 && a->p->stop)
		ret = why_set(why, EINTR, "interrupted; nothing was published");
	if (ret == 0)
		ret = move_pointer(a, &text, why);
	buf_release(&text);
	return ret;
}

int pub_upload(struct attempt *a, struct why *why)
{
	json_t *companions = companions_after(a);
	int ret = companions != NULL ? compose(a, why) : out_of_memory(why);

	if (ret == 0)
		ret = begin(a, companions, why);
	if (ret == 0)
		ret = put_data(a, why);
	if (ret == 0)
		ret = show_version(a, companions, why);
	for (int i = 0; ret == -EAGAIN && i < POINTER_TRIES; i++) {
		ret = compose(a, why);
		if (ret == 0)
			ret = show_version(a, companions, why);
	}
	json_decref(companions);
	return ret;
}

/* ---- what is left of attempts that failed ---- */

static bool is_named(const struct manifest_entry *v, size_t count, const char *key)
{
	for (size_t i = 0; i < count; i++)
		for (size_t j = 0; j < v[i].object_count; j++)
			if (strcmp(v[i].objects[j].key, key) == 0)
				return true;
	return false;
}

void pub_remove_orphans(struct attempt *a)
{
	const struct manifest *m = a->next != NULL ? a->next : a->was.manifest;
	struct pub_record *now = &a->p->state->now;
	json_t *left = json_array(), *value;
	struct why ignored = {0};
	size_t i;

	json_array_foreach (now->orphans, i, value) {
		const char *key = json_string_value(value);
		int ret = 0;

		/* Some encodings use the same key in each attempt. */
		if (key != NULL && !is_named(m->steps, m->step_count, key) &&
		    !is_named(m->spans, m->span_count, key))
			ret = store_remove(a->p->store, key, NULL, &ignored);
		if (ret < 0 && ret != -ENOENT && left != NULL)
			(void)json_array_append(left, value);
	}
	if (left != NULL && json_array_size(left) < json_array_size(now->orphans)) {
		json_decref(now->orphans);
		now->orphans = json_array_size(left) > 0 ? json_incref(left) : NULL;
		(void)!pub_state_save(a->p->state, &ignored);
	}
	json_decref(left);
}
