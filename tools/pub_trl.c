/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The encodings trl-v1 and trl-v3: objects as TRL's delta weight sync puts them into a bucket
 * (codec/write_trl.h), so that its receivers can follow a run that is published from here.
 *
 * Keys are TRL's own, anchors/step_N and deltas/step_N, the same at every attempt.  An anchor is
 * one file with every tensor, however many files the checkpoint has, and has no delta beside it. v1
 * counts without holes, so there a step without changes is a delta of no tensors; in v3 such a
 * number has no object.
 *
 * Which elements change is what the patches say; their new values are picked out of the new state.
 * Two walks over the patches: to count, for the header, and to write.  Memory is a batch of one
 * tensor's elements.  One thread.
 */
#include "cache/fileio.h"
#include "codec/write_trl.h"
#include "tools/pub_encode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCH = PATCH_BLOCK, WRITE = 8 << 20 };

struct object {
	const struct pub_input *in;
	const struct trl_form *form;
	struct trl_tensor *tensors; /* one for each of the input's */
	int fd;
	uint64_t *positions; /* of a batch; room for a block more */
	uint8_t *bytes;	     /* of its index, then of its values */
};

static int cannot_write(const struct object *o, int err, struct why *why)
{
	return why_set(why, -err, "an object cannot be written in %s: %s", SHOWN(o->in->work_dir),
		       strerrordesc_np(-err));
}

static void pick_values(const struct pub_tensor *t, const uint64_t *positions, size_t n,
			uint8_t *out)
{
	const unsigned width = st_dtype_width(t->dtype);

	if (width == 2) { /* the common one, as a loop of its own */
		for (size_t i = 0; i < n; i++)
			memcpy(out + 2 * i, t->data + 2 * positions[i], 2);
		return;
	}
	for (size_t i = 0; i < n; i++)
		memcpy(out + width * i, t->data + width * positions[i], width);
}

/* One tensor's elements on their way out. */
struct stream {
	const struct pub_tensor *t;
	const struct trl_tensor *trl;
	uint64_t index_at, values_at, next;
	size_t n; /* positions that wait */
};

static int flush(struct object *o, struct stream *s, struct why *why)
{
	const size_t index = s->n * st_dtype_width(trl_index_dtype(o->form, s->trl));
	const size_t values = s->n * st_dtype_width(s->t->dtype);
	int err;

	trl_index(o->form, s->trl, o->positions, s->n, &s->next, o->bytes);
	pick_values(s->t, o->positions, s->n, o->bytes + index);
	err = file_pwrite(o->fd, o->bytes, index, s->index_at);
	if (err == 0)
		err = file_pwrite(o->fd, o->bytes + index, values, s->values_at);
	if (err < 0)
		return cannot_write(o, err, why);
	s->index_at += index;
	s->values_at += values;
	s->n = 0;
	return 0;
}

static int damaged(const struct pub_tensor *t, int err, struct why *why)
{
	return why_set(why, -err, "the patch of tensor \"%s\" is damaged", SHOWN(t->name));
}

static int count_tensor(struct object *o, size_t i, struct why *why)
{
	const struct pub_tensor *t = &o->in->tensors[i];

	for (uint64_t b = 0; t->patch != NULL && b < t->patch->blocks; b++) {
		size_t n = 0;
		int err = trl_positions(t->patch, b, o->positions, &n);

		if (err < 0)
			return damaged(t, err, why);
		trl_count(&o->tensors[i], o->positions, n);
	}
	return 0;
}

/* So many bytes of a tensor are written, or were looked at. */
static int done(struct object *o, const uint8_t *bytes, uint64_t len, int err, struct why *why)
{
	if (err < 0)
		return err;
	pub_read_past(bytes, len);
	if (o->in->progress != NULL)
		progress_add(o->in->progress, len);
	return pub_stopped(o->in, why);
}

static int write_sparse(struct object *o, size_t i, struct why *why)
{
	const struct pub_tensor *t = &o->in->tensors[i];
	struct stream s = {
		.t = t,
		.trl = &o->tensors[i],
		.index_at = o->tensors[i].index_at,
		.values_at = o->tensors[i].values_at,
	};
	int err = 0;

	for (uint64_t b = 0; t->patch != NULL && b < t->patch->blocks; b++) {
		size_t n = 0;

		err = trl_positions(t->patch, b, o->positions + s.n, &n);
		if (err < 0)
			return damaged(t, err, why);
		s.n += n;
		if (s.n >= BATCH)
			err = flush(o, &s, why);
		if (err < 0)
			return err;
	}
	if (s.n > 0)
		err = flush(o, &s, why);
	return done(o, t->data, t->bytes, err, why);
}

static int write_whole(struct object *o, size_t i, struct why *why)
{
	const struct pub_tensor *t = &o->in->tensors[i];

	for (uint64_t off = 0; off < t->bytes; off += WRITE) {
		const size_t len = (size_t)MIN(t->bytes - off, (uint64_t)WRITE);
		int err = file_pwrite(o->fd, t->data + off, len, o->tensors[i].values_at + off);

		if (err < 0)
			return cannot_write(o, err, why);
		err = done(o, t->data + off, len, 0, why);
		if (err < 0)
			return err;
	}
	return 0;
}

static int write_object(struct object *o, bool whole, struct why *why)
{
	const struct pub_input *in = o->in;
	struct buf header = {0};
	struct trl_meta meta = {0};
	uint64_t size = 0;
	int err = 0;

	for (size_t i = 0; err == 0 && i < in->count; i++) {
		const struct pub_tensor *t = &in->tensors[i];

		o->tensors[i] = (struct trl_tensor){
			.name = t->name,
			.shape = t->shape,
			.numel = t->bytes * 8 / st_dtype_bits(t->dtype),
			.dtype = t->dtype,
			.rank = t->rank,
			.whole = whole,
		};
		if (!whole)
			err = count_tensor(o, i, why);
	}
	if (err < 0)
		return err;
	trl_meta_make(&meta, o->form, in->version, !whole, o->tensors, in->count);
	if (meta.names.failed)
		err = why_set(why, ENOMEM, "out of memory");
	else
		err = trl_layout(o->form, o->tensors, in->count, meta.pairs, meta.count, &header,
				 &size, why);
	if (err == 0) {
		err = file_pwrite(o->fd, header.data, header.len, 0);
		if (err == 0 && ftruncate(o->fd, (off_t)size) < 0)
			err = -errno;
		if (err < 0)
			cannot_write(o, err, why);
	}
	for (size_t i = 0; err == 0 && i < in->count; i++)
		err = whole ? write_whole(o, i, why) : write_sparse(o, i, why);
	trl_meta_release(&meta);
	buf_release(&header);
	return err;
}

static int make(const struct pub_input *in, const struct trl_form *form, bool whole,
		struct pub_objects *out, struct why *why)
{
	struct object o = {.in = in, .form = form, .fd = -1};
	char key[64], *path = NULL;
	int err;

	snprintf(key, sizeof(key), "%s/step_%06" PRIu64 ".safetensors",
		 whole ? "anchors" : "deltas", in->version);
	o.tensors = calloc(in->count + 1, sizeof(*o.tensors));
	o.positions = calloc(BATCH + PATCH_BLOCK, sizeof(*o.positions));
	o.bytes = malloc((size_t)(BATCH + PATCH_BLOCK) * (4 + 8));
	if (o.tensors == NULL || o.positions == NULL || o.bytes == NULL)
		err = why_set(why, ENOMEM, "out of memory");
	else
		err = pub_work_file(in, whole ? "anchor" : "delta", &path, &o.fd, why);
	if (err == 0)
		err = write_object(&o, whole, why);
	if (err == 0) {
		err = pub_objects_add(out, key, NULL, path, o.fd, why);
	} else if (path != NULL) {
		free(path);
		close(o.fd);
	}
	free(o.tensors);
	free(o.positions);
	free(o.bytes);
	return err;
}

static int v1_delta(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	snprintf(out->encoding, sizeof(out->encoding), "trl-v1");
	return make(in, &trl_form_v1, false, out, why);
}

static int v3_delta(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	snprintf(out->encoding, sizeof(out->encoding), "trl-v3");
	return make(in, &trl_form_gaps, false, out, why);
}

static int v1_anchor(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	snprintf(out->encoding, sizeof(out->encoding), "safetensors");
	return make(in, &trl_form_v1, true, out, why);
}

static int v3_anchor(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	snprintf(out->encoding, sizeof(out->encoding), "safetensors");
	return make(in, &trl_form_gaps, true, out, why);
}

const struct pub_encoding pub_trl_v1 = {
	.name = "trl-v1",
	.help = "TRL's first: 48 bits per changed element of bf16",
	.delta = v1_delta,
	.anchor = v1_anchor,
	.empty = true,
	.alone = true,
	.overwrites = true,
};

const struct pub_encoding pub_trl_v3 = {
	.name = "trl-v3",
	.help = "TRL's v2 and v3 (gap_delta): 32 bits per changed element of bf16",
	.delta = v3_delta,
	.anchor = v3_anchor,
	.alone = true,
	.overwrites = true,
};
