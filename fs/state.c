/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a version's weights at any offset.
 *
 * A range becomes header bytes and tensor pieces.  Base bytes are fetched first, in as few reads as
 * the layout allows: tensors that lie in the object as they lie in the view (nearly always all of
 * them) are one read however many they are.  Then the patches that overlap are applied in place,
 * block by block and oldest first, so that a block is patched by the whole stack while it is in the
 * CPU's cache. A tensor that is stored narrower than shown (a bf16 anchor under an fp32 --base)
 * takes a detour through a scratch buffer, as does an element that the range cuts where an ADD
 * needs all of it.
 *
 * All or nothing: on any error the caller gets no bytes.  Nothing is allocated, no lock is taken.
 */
#include "fs/state.h"

#include "cache/block.h"
#include "fs/packed.h"

#include <stdlib.h>

enum { WIDEN_ELEMENTS = 8192 };

int state_new(uint64_t version, uint64_t anchor, unsigned deltas, struct layout *layout,
	      struct sources *sources, struct link *const *links, uint32_t link_count,
	      const struct identity *fingerprint, struct state **out)
{
	struct state *s = calloc(1, sizeof(*s));
	struct link **copy = calloc(link_count ? link_count : 1, sizeof(struct link *));

	if (s == NULL || copy == NULL) {
		free(s);
		free(copy);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < link_count; i++)
		copy[i] = link_ref(links[i]);
	*s = (struct state){
		.refs = 1,
		.version = version,
		.anchor = anchor,
		.deltas = deltas,
		.layout = layout_ref(layout),
		.sources = sources_ref(sources),
		.links = copy,
		.link_count = link_count,
		.fingerprint = *fingerprint,
	};
	*out = s;
	return 0;
}

struct state *state_ref(struct state *s)
{
	__atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

void state_unref(struct state *s)
{
	if (s == NULL || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (uint32_t i = 0; i < s->link_count; i++)
		link_unref(s->links[i]);
	free(s->links);
	sources_unref(s->sources);
	layout_unref(s->layout);
	free(s);
}

/* The patch of tensor t in link l that applies on top of its source, or NULL. */
static const struct patch *patch_of(const struct state *s, const struct link *l, uint32_t t)
{
	if (l->slot == NULL || l->slot[t] < 0 || l->last <= s->sources->v[t].version)
		return NULL;
	return &l->file->patches[l->slot[t]];
}

static bool has_patches(const struct state *s, uint32_t t, bool adds_only)
{
	for (uint32_t i = 0; i < s->link_count; i++) {
		const struct patch *p = patch_of(s, s->links[i], t);

		if (p != NULL && (!adds_only || p->op == PATCH_ADD))
			return true;
	}
	return false;
}

/* Has the CPU fetch what patching the first block of a range will touch. */
static void prefetch_stack(const struct state *s, uint32_t t, uint64_t off, uint64_t len)
{
	const uint64_t step = (uint64_t)PATCH_BLOCK * st_dtype_width(s->sources->v[t].dtype);

	for (uint32_t i = 0; i < s->link_count; i++) {
		const struct patch *p = patch_of(s, s->links[i], t);

		if (p != NULL)
			patch_prefetch(p, off, (size_t)MIN(len, step - off % step));
	}
}

/* Applies the stack to bytes [off, off + len) of tensor t as stored. */
static int apply_stack(const struct state *s, uint32_t t, uint64_t off, uint8_t *dst, size_t len)
{
	const uint64_t step = (uint64_t)PATCH_BLOCK * st_dtype_width(s->sources->v[t].dtype);

	for (size_t done = 0; done < len;) {
		size_t n = (size_t)MIN(len - done, step - (off + done) % step);

		if (done + n < len)
			prefetch_stack(s, t, off + done + n, len - done - n);
		for (uint32_t i = 0; i < s->link_count; i++) {
			const struct patch *p = patch_of(s, s->links[i], t);
			int err;

			if (p == NULL)
				continue;
			err = patch_apply(p, off + done, dst + done, n);
			if (err == 0 && mapping_broken(s->links[i]->mapping))
				err = -EIO;
			if (err < 0)
				return err;
			/* A page at least, whatever of it was read. */
			mapping_touch(s->links[i]->mapping, 4096 + patch_cost(p, off + done, n));
		}
		done += n;
	}
	return 0;
}

/* Of a tensor as it is stored. */
static uint64_t stored_bytes(const struct state *s, uint32_t t)
{
	return (s->layout->tensors[t].numel * st_dtype_bits(s->sources->v[t].dtype) + 7) / 8;
}

static int read_stored(const struct state *s, uint32_t t, uint64_t off, void *dst, size_t len)
{
	const struct tensor_source *src = &s->sources->v[t];

	if (src->packed)
		return packed_read(s->sources->blobs[src->blob], src->offset, stored_bytes(s, t),
				   st_dtype_width(src->dtype), off, dst, len);
	return blob_read(s->sources->blobs[src->blob], src->offset + off, dst, len);
}

/* ---- widening: exact, by bits, so that NaN payloads survive ---- */

static uint32_t f16_bits_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31,
		 mantissa = h & 0x3ff;

	if (exponent == 31)
		return sign | 0x7f800000 | mantissa << 13;
	if (exponent == 0) {
		if (mantissa == 0)
			return sign;
		/* Subnormal: normalise; the leading bit moves to position 10. */
		unsigned shift = (unsigned)__builtin_clz(mantissa) - 21;

		return sign | (113 - shift) << 23 | ((mantissa << shift) & 0x3ff) << 13;
	}
	return sign | (exponent + 112) << 23 | mantissa << 13;
}

static void widen(uint8_t stored, const uint8_t *src, size_t n, uint8_t *dst)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t v = load_le16(src + 2 * i);

		store_le32(dst + 4 * i, stored == ST_BF16 ? (uint32_t)v << 16 : f16_bits_to_f32(v));
	}
}

/* Bytes [off, off + len) of tensor t as shown, which is stored in 16 bits and shown in 32. */
static int read_widened(const struct state *s, uint32_t t, uint64_t off, uint8_t *dst, size_t len)
{
	const uint8_t stored = s->sources->v[t].dtype;
	uint8_t narrow[WIDEN_ELEMENTS * 2], wide[WIDEN_ELEMENTS * 4];

	while (len > 0) {
		uint64_t first = off / 4;
		size_t skip = (size_t)(off % 4),
		       n = MIN((skip + len + 3) / 4, (size_t)WIDEN_ELEMENTS);
		size_t take = MIN(n * 4 - skip, len);
		int err = read_stored(s, t, first * 2, narrow, n * 2);

		if (err == 0)
			err = apply_stack(s, t, first * 2, narrow, n * 2);
		if (err < 0)
			return err;
		widen(stored, narrow, n, wide);
		memcpy(dst, wide + skip, take);
		dst += take;
		off += take;
		len -= take;
	}
	return 0;
}

/* Patches a piece whose stored bytes are in dst already. */
static int patch_piece(const struct state *s, uint32_t t, uint64_t off, uint8_t *dst, size_t len)
{
	const unsigned width = st_dtype_width(s->sources->v[t].dtype);
	size_t cut = (size_t)(off % width);

	if (cut != 0 && has_patches(s, t, true)) {
		uint8_t element[8];
		size_t n = MIN(width - cut, len);
		int err = read_stored(s, t, off - cut, element, width);

		if (err == 0)
			err = apply_stack(s, t, off - cut, element, width);
		if (err < 0)
			return err;
		memcpy(dst, element + cut, n);
		off += n;
		dst += n;
		len -= n;
	}
	return len > 0 ? apply_stack(s, t, off, dst, len) : 0;
}

/* The first tensor of the file that ends after off; the file's end when none does. */
static uint32_t tensor_at(const struct layout *l, const struct layout_file *f, uint64_t off)
{
	uint32_t lo = f->first, hi = f->first + f->count;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (l->tensors[mid].end > off)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* True when tensor `next` directly continues what `prev` has, both in the view and in the same
 * blob. */
static bool continues(const struct state *s, uint32_t prev, uint32_t next)
{
	const struct layout_tensor *a = &s->layout->tensors[prev], *b = &s->layout->tensors[next];
	const struct tensor_source *x = &s->sources->v[a->alias], *y = &s->sources->v[b->alias];

	return x->blob == y->blob && y->dtype == b->dtype && !x->packed && !y->packed &&
	       y->offset - x->offset == b->begin - a->begin && y->offset >= x->offset;
}

/* Reads [off, end) of the file, which begins inside tensor t; *out_next is the first tensor not
 * covered.  Base bytes of a run of tensors in one read, then their patches. */
static int read_run(const struct state *s, uint32_t t, uint32_t stop, uint64_t off, uint64_t end,
		    uint8_t *dst, uint32_t *out_next)
{
	const struct layout_tensor *tensors = s->layout->tensors;
	uint32_t last = t, first = tensors[t].alias;
	uint64_t run_end;
	int err;

	if (s->sources->v[first].dtype != tensors[t].dtype) {
		*out_next = t + 1;
		return read_widened(s, first, off - tensors[t].begin, dst,
				    (size_t)(MIN(end, tensors[t].end) - off));
	}
	while (last + 1 < stop && tensors[last + 1].begin < end && continues(s, last, last + 1))
		last++;
	*out_next = last + 1;
	run_end = MIN(end, tensors[last].end);
	if (run_end == off)
		return 0; /* nothing but tensors of no elements */
	/* While the base bytes come. */
	prefetch_stack(s, first, off - tensors[t].begin, run_end - off);
	err = read_stored(s, first, off - tensors[t].begin, dst, (size_t)(run_end - off));
	for (uint32_t i = t; i <= last && err == 0; i++) {
		uint64_t from = MAX(off, tensors[i].begin), to = MIN(run_end, tensors[i].end);

		if (from < to && has_patches(s, tensors[i].alias, false))
			err = patch_piece(s, tensors[i].alias, from - tensors[i].begin,
					  dst + (from - off), (size_t)(to - from));
	}
	return err;
}

int state_read(const struct state *s, uint32_t file, uint64_t off, void *dst, size_t len)
{
	const struct layout_file *f = &s->layout->files[file];
	const uint64_t end = off + len;
	uint8_t *out = dst;
	uint32_t stop, t;

	if (off > f->size || len > f->size - off)
		return -EINVAL;
	if (off < f->head_len && len > 0) {
		size_t n = (size_t)MIN(f->head_len - off, (uint64_t)len);

		memcpy(out, f->head + off, n);
		out += n;
		off += n;
	}
	stop = f->first + f->count;
	t = tensor_at(s->layout, f, off);
	while (off < end) {
		uint32_t next;
		uint64_t reached;
		int err;

		if (t >= stop)
			return -EIO; /* cannot be: tensors tile the file */
		err = read_run(s, t, stop, off, end, out, &next);
		if (err < 0)
			return err;
		reached = MIN(end, s->layout->tensors[next - 1].end);
		out += reached - off;
		off = reached;
		t = next;
	}
	return 0;
}

int state_lend(const struct state *s, uint32_t file, uint64_t off, size_t len,
	       struct blob_loan *out)
{
	const struct layout_file *f = &s->layout->files[file];
	const struct layout_tensor *tensors = s->layout->tensors;
	const struct tensor_source *src;
	uint32_t first, last;

	if (len < LOAN_MIN || off < f->head_len || off > f->size || len > f->size - off)
		return -EAGAIN;
	first = last = tensor_at(s->layout, f, off);
	for (;; last++) {
		uint32_t t;

		if (last >= f->first + f->count)
			return -EAGAIN;
		t = tensors[last].alias;
		if (s->sources->v[t].packed || s->sources->v[t].dtype != tensors[last].dtype ||
		    has_patches(s, t, false) || (last > first && !continues(s, last - 1, last)))
			return -EAGAIN;
		if (tensors[last].end >= off + len)
			break;
	}
	src = &s->sources->v[tensors[first].alias];
	return blob_lend(s->sources->blobs[src->blob], src->offset + (off - tensors[first].begin),
			 len, out);
}

int state_read_stored(const struct state *s, uint32_t tensor, uint64_t off, void *dst, size_t len)
{
	int err = read_stored(s, tensor, off, dst, len);

	return err < 0 ? err : apply_stack(s, tensor, off, dst, len);
}

void state_pull(const struct state *s)
{
	for (uint32_t i = 0; i < s->sources->blob_count; i++)
		blob_pull(s->sources->blobs[i]);
}

void state_progress(const struct state *s, uint64_t *out_present, uint64_t *out_size)
{
	*out_present = *out_size = 0;
	for (uint32_t i = 0; i < s->sources->blob_count; i++) {
		struct block_progress p;

		blob_progress(s->sources->blobs[i], &p);
		*out_present += p.present;
		*out_size += p.size;
	}
}
