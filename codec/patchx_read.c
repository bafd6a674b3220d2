/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From wfp1x to a patch.
 *
 * A span at a time: its lists are checked, then the reference comes block by block.  Each class has
 * a walk over its lists, which gives the changed members in order; while the elements go by in
 * groups of 64, the members of each class are counted, and where a walk's next member is among them
 * its change goes into the block that a patch writer is filling.  So changes come out in the order
 * of elements, and nothing larger than a block is held.
 *
 * Nothing trusts the blob, not even what the check has seen of it (it may lie in a file that
 * changes): members that do not ascend end the decoding, and a list that gives too few is found at
 * the end of its span.
 *
 * Invariants of class c: walk->next is the member that changes next, NONE when there is no other;
 * left[c] is that less the members that are in the groups so far.
 */
#include "codec/patchx.h"

#include "codec/class_kernel.h"
#include "codec/cursor.h"
#include "codec/patch_block.h"

#include <stdlib.h>
#include <xxhash.h>

#define NONE (UINT32_C(1) << 30) /* more than a class has members, also after some are gone */

enum { NUMBER_BYTES = 5, HASHES = 1, LISTS = PATCHX_SPAN_BLOCKS + CLASSES };

struct list {
	const uint8_t *bytes;
	uint32_t len, count, members;
};

struct walk {
	struct rice_reader reader;
	const uint8_t *positions, *values; /* of the reader; n of them, `at` are done */
	uint32_t n, at;
	uint32_t list, lists_end; /* of struct span's lists: the one being read; behind the last */
	uint32_t first;		  /* member that the list begins with */
	uint32_t next, end;	  /* end: members of the class */
	uint32_t least;		  /* what `next` has to be at least */
};

struct span {
	const uint8_t *next; /* the span behind */
	uint64_t hash;
	uint32_t elements;
	struct class_key key;
	uint32_t members[CLASSES];
	uint32_t first_list[CLASSES + 1];
	struct list lists[LISTS];
};

struct decoder {
	const struct patchx *x;
	const struct rice_kernel *kernel;
	struct patch_writer *writer; /* owned */
	XXH3_state_t *hash;	     /* owned */
	struct walk *walks;	     /* owned: CLASSES of them */
	uint8_t *block;		     /* owned: of the reference */
	uint8_t *classes;	     /* owned: of its elements */
	uint32_t left[CLASSES];
	struct span span;
	uint32_t listed;  /* blocks that changed so far */
	uint64_t changed; /* and elements: a writer also counts those that add 0 */
};

bool patchx_is(const void *blob, uint64_t len)
{
	return len >= PATCHX_HEAD && memcmp(blob, "WFX\0", 4) == 0;
}

int patchx_open(const void *blob, uint64_t len, struct patchx *out, struct why *why)
{
	const uint8_t *b = blob;
	uint64_t hashes;

	if (!patchx_is(blob, len))
		return why_set(why, EBADMSG, "not a patch of wfp1x: it does not begin like one");
	if (b[4] != 0)
		return why_set(why, ENOTSUP,
			       "a patch of wfp1x in form version %u: a newer weightfs reads it",
			       b[4]);
	*out = (struct patchx){
		.spans = b + PATCHX_HEAD,
		.numel = load_le64(b + 8),
		.changed = load_le64(b + 16),
		.listed = load_le32(b + 28),
		.width = b[6],
		.shift = b[24],
		.bits = b[25],
	};
	if (b[5] != PATCH_ADD || (b[6] != 1 && b[6] != 2 && b[6] != 4 && b[6] != 8) ||
	    (b[7] & ~HASHES) != 0 || b[26] != 0 || b[27] != 0 || out->bits > PATCHX_KEY_BITS ||
	    out->shift + out->bits > 8 * out->width)
		return why_set(why, EBADMSG,
			       "the head of a patch of wfp1x has an operation, width, key or flag "
			       "that does not exist");
	hashes = b[7] & HASHES ? 8 * (uint64_t)out->listed : 0;
	if (len % 8 != 0 || hashes > len - PATCHX_HEAD || out->changed > out->numel ||
	    out->listed > patch_blocks(out->numel) || out->listed > out->changed ||
	    out->numel > UINT64_MAX / 8)
		return why_set(why, EBADMSG,
			       "the head of a patch of wfp1x says more than the patch can have");
	out->spans_end = b + len - hashes;
	out->hashes = hashes > 0 ? out->spans_end : NULL;
	return 0;
}

/* ---- a span's directory ---- */

static uint32_t get_number(struct cursor *c)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < NUMBER_BYTES; i++) {
		uint8_t byte = cursor_u8(c);

		v |= (uint64_t)(byte & 0x7f) << 7 * i;
		if (byte < 0x80) {
			c->bad |= (byte == 0 && i > 0) || v > UINT32_MAX;
			return (uint32_t)v;
		}
	}
	c->bad = true;
	return 0;
}

/* Members of all classes, and which lists they have. */
static bool get_classes(const struct patchx *x, struct cursor *c, struct span *s)
{
	uint32_t left = s->elements, lists = 0;

	s->key = (struct class_key){.shift = x->shift, .bits = x->bits, .classes = cursor_u8(c)};
	if (s->key.classes < 1 || s->key.classes > CLASSES)
		return false;
	if (s->key.classes > 1)
		s->key.top = get_number(c);
	if (s->key.top >> x->bits != 0)
		return false;
	for (unsigned i = 0; i < s->key.classes; i++) {
		uint32_t m = i + 1 < s->key.classes ? get_number(c) : left;

		if (c->bad || m > left)
			return false;
		s->members[i] = m;
		left -= m;
		s->first_list[i] = lists;
		for (; m > 0; m -= s->lists[lists++].members)
			s->lists[lists].members = MIN(m, (uint32_t)PATCH_BLOCK);
	}
	s->first_list[s->key.classes] = lists;
	return true;
}

static bool get_lists(struct cursor *c, struct span *s)
{
	const uint32_t lists = s->first_list[s->key.classes];

	for (uint32_t i = 0; i < lists; i++) {
		struct list *l = &s->lists[i];

		l->count = get_number(c);
		l->len = l->count > 0 ? get_number(c) : 0;
		if (l->count > l->members)
			return false;
	}
	for (uint32_t i = 0; i < lists; i++)
		s->lists[i].bytes = cursor_take(c, s->lists[i].len);
	return !c->bad && cursor_left(c) == 0;
}

/* 1: the span changes; 0: it does not. */
static int get_span(const struct patchx *x, const uint8_t *at, uint64_t number, struct span *s,
		    struct why *why)
{
	const uint64_t first = number * PATCHX_SPAN;
	struct cursor c;
	uint32_t size;

	cursor_init(&c, at, (size_t)(x->spans_end - at));
	size = get_number(&c);
	s->next = c.at + size;
	s->elements = (uint32_t)MIN(x->numel - first, (uint64_t)PATCHX_SPAN);
	if (c.bad || size > cursor_left(&c))
		return why_set(why, EBADMSG, "span %llu of the patch is cut off",
			       (unsigned long long)number);
	if (size == 0)
		return 0;
	cursor_init(&c, c.at, size);
	s->hash = cursor_u64(&c);
	if (!get_classes(x, &c, s))
		return why_set(why, EBADMSG, "span %llu of the patch has classes that cannot be",
			       (unsigned long long)number);
	if (!get_lists(&c, s))
		return why_set(why, EBADMSG, "the lists of span %llu of the patch do not fit it",
			       (unsigned long long)number);
	return 1;
}

static int check_lists(const struct decoder *d, uint64_t number, struct why *why)
{
	const struct span *s = &d->span;

	for (uint32_t i = 0; i < s->first_list[s->key.classes]; i++) {
		const struct list *l = &s->lists[i];
		int ret = l->count == 0 ? 0
					: rice_check(d->kernel, l->bytes, l->len, PATCH_ADD,
						     d->x->width, l->count, l->members, why);

		if (ret < 0)
			return why_prefix(why, "list %u of span %llu of the patch", i,
					  (unsigned long long)number);
	}
	return 0;
}

/* ---- the walks ---- */

/* Moves a walk to the next list, or piece of one, with a member that changes; 0 with nothing there:
 * none does. */
static int walk_refill(struct decoder *d, struct walk *w)
{
	for (;;) {
		const struct list *l = &d->span.lists[w->list];
		int n = 0;

		if (w->list < w->lists_end && l->count > 0)
			n = rice_next(&w->reader);
		if (n < 0)
			return n;
		if (n > 0) {
			w->positions = w->reader.positions;
			w->values = w->reader.values;
			w->n = (uint32_t)n;
			w->at = 0;
			return 0;
		}
		/* the next list that has any */
		while (w->list < w->lists_end) {
			w->first += d->span.lists[w->list++].members;
			if (w->list < w->lists_end && d->span.lists[w->list].count > 0)
				break;
		}
		if (w->list >= w->lists_end)
			return 0;
		l = &d->span.lists[w->list];
		n = rice_open(&w->reader, d->kernel, l->bytes, l->len, PATCH_ADD, d->x->width,
			      l->count, l->members);
		if (n < 0)
			return n;
	}
}

/* Moves `next` to the next member that changes. */
static inline int walk_on(struct decoder *d, struct walk *w)
{
	uint32_t next;

	if (w->at == w->n) {
		int ret = walk_refill(d, w);

		if (ret < 0)
			return ret;
		if (w->at == w->n) {
			w->next = NONE;
			return 0;
		}
	}
	next = w->first + load_le16(w->positions + 2 * (size_t)w->at);
	w->at++;
	if (next < w->least || next >= w->end)
		return -EBADMSG;
	w->next = next;
	w->least = next + 1;
	return 0;
}

static int start_walks(struct decoder *d)
{
	const struct span *s = &d->span;

	for (unsigned c = 0; c < CLASSES; c++)
		d->left[c] = NONE;
	for (unsigned c = 0; c < s->key.classes; c++) {
		struct walk *w = &d->walks[c];
		int ret;

		w->n = w->at = w->least = w->first = 0;
		w->end = s->members[c];
		w->list = s->first_list[c];
		w->lists_end = s->first_list[c + 1];
		if (w->list < w->lists_end && s->lists[w->list].count > 0) {
			const struct list *l = &s->lists[w->list];

			ret = rice_open(&w->reader, d->kernel, l->bytes, l->len, PATCH_ADD,
					d->x->width, l->count, l->members);
			if (ret < 0)
				return ret;
		}
		ret = walk_on(d, w);
		if (ret < 0)
			return ret;
		d->left[c] = w->next;
	}
	return 0;
}

/* ---- the elements ---- */

/* Members of class c that change in this group, which has `count` of them: their values go to
 * values[], by element. */
static int find_changes(struct decoder *d, const uint8_t *group, unsigned c, uint32_t count,
			uint8_t *values, uint64_t *touched)
{
	const struct class_kernel *kernel = d->kernel->classes;
	const uint64_t mask = kernel->mask(group, c);
	const unsigned width = d->x->width;
	struct walk *w = &d->walks[c];

	do {
		const uint32_t here = w->next, at = kernel->select(mask, d->left[c]);
		int ret;

		patch_store(values + (size_t)at * width,
			    patch_load(w->values + (size_t)(w->at - 1) * width, width), width);
		*touched |= UINT64_C(1) << at;
		ret = walk_on(d, w);
		if (ret < 0)
			return ret;
		d->left[c] += w->next - here;
	} while (count > d->left[c]);
	return 0;
}

/* The changes of a group go behind the writer's n; -EBADMSG, or how many. */
static int do_group(struct decoder *d, uint32_t first, const uint32_t counts[CLASSES], uint32_t n)
{
	const uint8_t *group = d->classes + first;
	const unsigned width = d->x->width;
	struct patch_writer *w = d->writer;
	uint8_t values[8 * CLASS_GROUP];
	uint64_t touched = 0;
	uint32_t m = n, found = 0;

	for (unsigned c = 0; c < CLASSES; c++)
		found |= (uint32_t)(counts[c] > d->left[c]) << c;
	for (; found != 0; found &= found - 1) {
		unsigned c = (unsigned)__builtin_ctz(found);
		int ret = find_changes(d, group, c, counts[c], values, &touched);

		if (ret < 0)
			return ret;
	}
	for (unsigned c = 0; c < CLASSES; c++)
		d->left[c] -= counts[c];
	for (; touched != 0; touched &= touched - 1, m++) {
		unsigned at = (unsigned)__builtin_ctzll(touched);

		store_le16(w->positions + 2 * (size_t)m, (uint16_t)(first + at));
		patch_store(w->values + (size_t)m * width,
			    patch_load(values + (size_t)at * width, width), width);
	}
	return (int)(m - n);
}

/* All changes of a block, into the writer's; *out_count of them. */
static int do_block(struct decoder *d, uint32_t elements, uint32_t *out_count)
{
	const unsigned classes = d->span.key.classes;
	uint32_t counts[CLASSES], n = 0;

	for (uint32_t i = 0; i < elements; i += CLASS_GROUP) {
		int ret;

		i = d->kernel->classes->pass(d->classes, i, elements, classes, d->left, counts);
		if (i >= elements)
			break;
		ret = do_group(d, i, counts, n);
		if (ret < 0)
			return ret;
		n += (uint32_t)ret;
	}
	*out_count = n;
	return 0;
}

static int put_block(struct decoder *d, uint64_t block, uint32_t count, struct why *why)
{
	if (count == 0)
		return 0;
	if (d->listed >= d->x->listed)
		return why_set(why, EBADMSG, "the patch changes more blocks than it says");
	if (d->x->hashes != NULL)
		patch_writer_hash(d->writer, block,
				  load_le64(d->x->hashes + 8 * (uint64_t)d->listed));
	d->listed++;
	d->changed += count;
	return patch_writer_block(d->writer, block, count, why);
}

static int do_span(struct decoder *d, uint64_t number, const struct source *reference,
		   uint64_t *out_read, struct why *why)
{
	const uint64_t first = number * PATCHX_SPAN;
	const unsigned width = d->x->width;
	int ret = check_lists(d, number, why);

	if (ret == 0 && start_walks(d) < 0)
		ret = why_set(why, EBADMSG, "span %llu of the patch is damaged",
			      (unsigned long long)number);
	XXH3_64bits_reset(d->hash);
	for (uint32_t done = 0, n; ret == 0 && done < d->span.elements; done += n) {
		uint32_t count = 0;

		n = MIN(d->span.elements - done, (uint32_t)PATCH_BLOCK);
		ret = source_read(reference, (first + done) * width, d->block, (size_t)n * width);
		if (ret < 0)
			return why_set(why, -ret, "the patch's reference cannot be read");
		*out_read += (uint64_t)n * width;
		XXH3_64bits_update(d->hash, d->block, (size_t)n * width);
		d->kernel->classes->classes[patch_width_log(width)](&d->span.key, d->block, n,
								    d->classes);
		if (do_block(d, n, &count) < 0)
			return why_set(why, EBADMSG, "span %llu of the patch is damaged",
				       (unsigned long long)number);
		ret = put_block(d, (first + done) >> PATCH_BLOCK_SHIFT, count, why);
	}
	if (ret < 0)
		return ret;
	if (XXH3_64bits_digest(d->hash) != d->span.hash)
		return why_set(why, EBADMSG,
			       "span %llu of the tensor is not what the patch was made with: its "
			       "reference is another state",
			       (unsigned long long)number);
	for (unsigned c = 0; c < d->span.key.classes; c++)
		if (d->walks[c].next != NONE || NONE - d->left[c] != d->walks[c].end)
			return why_set(why, EBADMSG,
				       "span %llu of the patch changes members that are not there",
				       (unsigned long long)number);
	return 0;
}

static int do_spans(struct decoder *d, const struct source *reference, uint64_t *out_read,
		    struct why *why)
{
	const struct patchx *x = d->x;
	const uint64_t spans = x->numel / PATCHX_SPAN + (x->numel % PATCHX_SPAN != 0);
	const uint8_t *at = x->spans;

	for (uint64_t i = 0; i < spans; i++) {
		int ret = get_span(x, at, i, &d->span, why);

		if (ret > 0)
			ret = do_span(d, i, reference, out_read, why);
		if (ret < 0)
			return ret;
		at = d->span.next;
	}
	if (x->spans_end - at >= 8 || d->listed != x->listed || d->changed != x->changed)
		return why_set(why, EBADMSG, "the patch does not change what its head says");
	for (; at < x->spans_end; at++)
		if (*at != 0)
			return why_set(why, EBADMSG, "the padding of the patch is not zero");
	return 0;
}

int patchx_decode(const struct patchx *x, const struct source *reference,
		  const struct rice_kernel *kernel, enum patch_coding coding,
		  const struct sink *sink, uint64_t at, uint64_t *out_len, uint64_t *out_read,
		  struct why *why)
{
	struct decoder d = {.x = x, .kernel = kernel != NULL ? kernel : patch_kernel(NULL)};
	int ret = 0;

	*out_read = 0;
	*out_len = 0;
	if (reference->size / x->width != x->numel || reference->size % x->width != 0)
		return why_set(why, EBADMSG,
			       "the patch is for %llu elements and its reference has %llu",
			       (unsigned long long)x->numel,
			       (unsigned long long)(reference->size / x->width));
	d.writer = patch_writer_new(PATCH_ADD, x->width, x->numel, sink, at);
	d.hash = XXH3_createState();
	d.walks = calloc(CLASSES, sizeof(*d.walks));
	d.block = malloc((size_t)PATCH_BLOCK * x->width);
	d.classes = malloc(PATCH_BLOCK);
	if (d.writer == NULL || d.hash == NULL || d.walks == NULL || d.block == NULL ||
	    d.classes == NULL)
		ret = why_set(why, ENOMEM, "out of memory for decoding a patch");
	if (ret == 0 && coding == PATCH_CODING_RICE)
		ret = patch_writer_rice(d.writer, d.kernel, x->hashes != NULL, why);
	if (ret == 0)
		ret = do_spans(&d, reference, out_read, why);
	if (ret == 0 && x->changed > 0)
		ret = patch_writer_end(d.writer, out_len, NULL, why);
	patch_writer_free(d.writer);
	XXH3_freeState(d.hash);
	free(d.walks);
	free(d.block);
	free(d.classes);
	return ret;
}
