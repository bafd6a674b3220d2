/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the Rice form of a block, and choosing the kernel.
 *
 * rice_open() finds where each part of the payload begins: all parts before the unary ones have
 * lengths that the head says; the list of odd values is stepped over by counting its ones, and the
 * tail's length is in the nibbles.  rice_next() then decodes both lists a chunk at a time.
 *
 * Nothing here trusts the payload, not even what rice_open() has seen of it (it may lie in a file
 * that changes): bits beyond the stream read as zeros, bytes are taken from the tail only while it
 * has some, indices are compared before they are used.
 *
 * No state; a reader belongs to one thread.
 */
#include "codec/rice.h"

enum {
	INVERTED = 0x10,
	CODED = 0x20,
	PARAMETER = 0x0f,
	NIBBLE_BYTE = 14,
	NIBBLE_VALUE = 15,
	NIBBLES = RICE_WORD / 4, /* of a word */
};

static const struct rice_kernel *best(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2"))
		return &rice_kernel_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
	    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt"))
		return &rice_kernel_avx2;
#endif
	return &rice_kernel_portable;
}

const struct rice_kernel *patch_kernel(const char *name)
{
	const struct rice_kernel *k = best();

	if (name == NULL || strcmp(name, k->name) == 0)
		return k;
	if (strcmp(name, rice_kernel_portable.name) == 0)
		return &rice_kernel_portable;
#if defined(__x86_64__)
	/* what has AVX-512 has AVX2 */
	if (k == &rice_kernel_avx512 && strcmp(name, rice_kernel_avx2.name) == 0)
		return &rice_kernel_avx2;
#endif
	return NULL;
}

const char *patch_kernel_name(const struct rice_kernel *kernel)
{
	return kernel->name;
}

/* ---- where things are ---- */

/* The sum of 16 nibbles. */
static uint32_t sum_of_nibbles(uint64_t w)
{
	const uint64_t low = UINT64_C(0x0f0f0f0f0f0f0f0f);

	return (uint32_t)(((w & low) + (w >> 4 & low)) * UINT64_C(0x0101010101010101) >> 56);
}

/* The tail's bytes that n nibbles ask for.  Those of some words are counted together, place by
 * place, as long as a nibble holds the number. */
static uint64_t tail_of_nibbles(const uint8_t *bits, size_t bytes, uint64_t at, uint32_t n,
				unsigned width)
{
	const uint64_t ones = UINT64_C(0x1111111111111111);
	uint64_t tail = 0;

	while (n > 0) {
		uint64_t of_byte = 0, of_value = 0;

		for (unsigned i = 0; i < 15 && n > 0; i++, at += RICE_WORD) {
			uint32_t many = MIN(n, (uint32_t)NIBBLES);
			uint64_t w = rice_word(bits, bytes, at) & rice_mask(4 * many);
			uint64_t high = w >> 1 & w >> 2 & w >> 3 & ones;

			of_byte += high & ~w;
			of_value += high & w;
			n -= many;
		}
		tail += sum_of_nibbles(of_byte) + (uint64_t)sum_of_nibbles(of_value) * width;
	}
	return tail;
}

/* Fills the reader but for where the list's unary part begins; NULL, or what is wrong. */
static const char *parse(struct rice_reader *r, const uint8_t *payload, size_t len,
			 enum patch_op op)
{
	const uint32_t count = r->count;
	uint64_t at = 8, tail = (uint64_t)count * r->width, room = 8 * (uint64_t)len;
	unsigned flags, bits = 32 - (unsigned)__builtin_clz(count);

	if (len == 0)
		return "is empty";
	flags = payload[0];
	if (flags & ~(unsigned)(PARAMETER | INVERTED | CODED))
		return "has unknown flags";
	r->inverted = flags & INVERTED;
	r->coded = flags & CODED;
	r->signs = r->coded && op == PATCH_ADD;
	r->list.k = flags & PARAMETER;
	r->list.left = r->inverted ? r->elements - count : count;
	if (r->coded) {
		uint64_t w = rice_word(payload, len, at);

		if (op == PATCH_SET)
			return "sets elements and has coded values, which only ADD and XOR can";
		r->odd.left = (uint32_t)(w & rice_mask(bits));
		if (r->odd.left > count)
			return "has more odd values than values";
		at += bits;
		if (r->odd.left > 0) {
			r->odd.k = w >> bits & PARAMETER;
			at += 4;
		}
		r->sign = at;
		at += r->signs ? count : 0;
		r->nibble = at;
		at += 4 * (uint64_t)r->odd.left;
		if (at > room)
			return "is cut off in its nibbles";
		tail = tail_of_nibbles(payload, len, r->nibble, r->odd.left, r->width);
		r->odd.low = at;
		at += (uint64_t)r->odd.left * r->odd.k;
	}
	r->list.low = at;
	at += (uint64_t)r->list.left * r->list.k;
	if (tail > len || at > 8 * (len - tail))
		return "is cut off in its low parts or its tail";
	r->bits = r->odd.bits = r->list.bits = payload;
	r->bytes = r->odd.bytes = r->list.bytes = len - (size_t)tail;
	r->tail = payload + r->bytes;
	r->tail_end = payload + len;
	r->odd.unary = at;
	return NULL;
}

static const char *begin(struct rice_reader *r, const struct rice_kernel *kernel,
			 const void *payload, size_t len, enum patch_op op, unsigned width,
			 uint32_t count, uint32_t elements)
{
	/* one by one: the lists behind these are large, and a block may be small */
	r->list = r->odd = (struct rice_list){0};
	r->kernel = kernel;
	r->width = width;
	r->count = count;
	r->elements = elements;
	r->done = r->place = 0;
	r->odd_at = r->odd_end = r->hole_at = r->hole_end = 0;
	r->sign = r->nibble = 0;
	return parse(r, payload, len, op);
}

/* ---- decoding ---- */

/* The next n elements that are not listed. */
static int positions_between(struct rice_reader *r, uint32_t n)
{
	uint32_t done = 0;

	while (done < n) {
		uint32_t hole = r->elements, run;

		if (r->hole_at == r->hole_end && r->list.left > 0) {
			uint32_t want = MIN(r->list.left, (uint32_t)RICE_CHUNK);

			if (r->kernel->list(&r->list, r->hole_list, want) < 0)
				return -EBADMSG;
			r->hole_at = 0;
			r->hole_end = want;
		}
		if (r->hole_at < r->hole_end)
			hole = rice_get16(r->hole_list + 2 * (size_t)r->hole_at);
		if (hole < r->place || (hole == r->elements && hole == r->place))
			return -EBADMSG;
		run = MIN(hole - r->place, n - done);
		/* eight at a time: what is too much is overwritten by the next */
		for (uint32_t i = 0; i < run; i += 8)
			for (uint32_t j = i; j < i + 8; j++)
				rice_set16(r->position_list + 2 * (size_t)(done + j),
					   (uint16_t)(r->place + j));
		done += run;
		r->place += run;
		if (r->place == hole && r->hole_at < r->hole_end) {
			r->hole_at++;
			r->place++;
		}
	}
	return 0;
}

/* Those of the chunk's values that go on in the tail. */
RICE_INLINE int take_tail(struct rice_reader *r, const struct rice_spread *s, unsigned width)
{
	const uint64_t top = UINT64_C(1) << (8 * width - 1);
	const uint8_t *more = s->more, *later = s->later, *tail = r->tail, *end = r->tail_end;
	const uint32_t many = s->many;
	uint8_t *values = r->value_list;

	for (uint32_t m = 0; m < many; m++) {
		uint32_t i = rice_get16(later + 2 * (size_t)m);
		bool byte = more[i] == NIBBLE_BYTE + 1;
		size_t size = byte ? 1 : width, left = (size_t)(end - tail);
		uint64_t t, v = rice_get(values + (size_t)i * width, width), sum;

		if (left < size)
			return -EBADMSG;
		t = RICE_LIKELY(left >= width) ? rice_get(tail, width) : *tail;
		/* with a byte it is u * 16 so far */
		sum = v & top ? v - (t & 0xff) : v + (t & 0xff);
		rice_set(values + (size_t)i * width, byte ? sum : t, width);
		tail += size;
	}
	r->tail = tail;
	return 0;
}

static int take_tail_of_width(struct rice_reader *r, const struct rice_spread *s)
{
	switch (r->width) {
	case 1: return take_tail(r, s, 1);
	case 2: return take_tail(r, s, 2);
	case 4: return take_tail(r, s, 4);
	default: return take_tail(r, s, 8);
	}
}

/* The next odd values. */
static int next_odd(struct rice_reader *r)
{
	uint32_t want = MIN(r->odd.left, (uint32_t)RICE_CHUNK);

	r->odd_at = r->odd_end = 0;
	if (want == 0)
		return 0;
	if (r->kernel->list(&r->odd, r->odd_list, want) < 0)
		return -EBADMSG;
	rice_nibbles(r->bits, r->bytes, r->nibble, want, r->nibble_list);
	r->nibble += 4 * (uint64_t)want;
	r->odd_end = want;
	return 0;
}

static int coded_values(struct rice_reader *r, uint32_t n)
{
	const unsigned column = (unsigned)__builtin_ctz(r->width);
	/* no stream: all bits are zero */
	const size_t bytes = r->signs ? r->bytes : 0;
	struct rice_spread s = {
		.odds = r->odd_list,
		.from = r->done,
		.n = n,
		.more = r->more_list,
		.later = r->later_list,
	};
	uint32_t room = n; /* n values have no more odd ones */

	do {
		uint32_t took;

		if (r->odd_at == r->odd_end && next_odd(r) < 0)
			return -EBADMSG;
		s.odds = r->odd_list + 2 * (size_t)r->odd_at;
		s.nibbles = r->nibble_list + r->odd_at;
		s.count = MIN(r->odd_end - r->odd_at, room);
		took = r->kernel->spread(&s);
		room -= took;
		r->odd_at += took;
		s.more_is_set = true;
	} while (r->odd_at == r->odd_end && r->odd.left > 0);
	r->kernel->values[column](r->bits, bytes, r->sign + r->done, n, r->more_list,
				  r->value_list);
	return take_tail_of_width(r, &s);
}

int rice_open(struct rice_reader *r, const struct rice_kernel *kernel, const void *payload,
	      size_t len, enum patch_op op, unsigned width, uint32_t count, uint32_t elements)
{
	if (begin(r, kernel, payload, len, op, width, count, elements) != NULL)
		return -EBADMSG;
	/* The list's unary part is behind that of the odd values, which are decoded at once if they
	 * are not too many, or else stepped over. */
	if (r->odd.left <= RICE_CHUNK) {
		if (next_odd(r) < 0)
			return -EBADMSG;
		r->list.unary = r->odd.unary;
		return 0;
	}
	r->list.unary = r->kernel->skip(r->bits, r->bytes, r->odd.unary, r->odd.left);
	return r->list.unary != UINT64_MAX ? 0 : -EBADMSG;
}

int rice_next(struct rice_reader *r)
{
	uint32_t n = MIN(r->count - r->done, (uint32_t)RICE_CHUNK);
	int ret;

	if (n == 0)
		return 0;
	r->positions = r->position_list;
	ret = r->inverted ? positions_between(r, n)
			  : r->kernel->list(&r->list, r->position_list, n);
	if (ret < 0)
		return ret;
	if (r->coded) {
		r->values = r->value_list;
		ret = coded_values(r, n);
	} else {
		r->values = r->tail + (size_t)r->done * r->width;
	}
	r->done += n;
	return ret < 0 ? ret : (int)n;
}

/* ---- check ---- */

/* All entries ascend and are below `limit`; the list is at its beginning and stays there. */
static int check_list(const struct rice_kernel *kernel, const struct rice_list *begin,
		      uint32_t limit, const char *what, uint64_t *out_end, struct why *why)
{
	uint8_t out[2 * (RICE_CHUNK + RICE_SLACK)] __attribute__((aligned(64)));
	const uint32_t all = begin->left;
	struct rice_list l = *begin;
	uint64_t end = kernel->skip(l.bits, l.bytes, l.unary, all);
	int64_t last = -1;

	if (end == UINT64_MAX)
		return why_set(why, EBADMSG,
			       "the unary part of its list of %s is cut off: it does not have %u "
			       "ones",
			       what, all);
	/* So no single gap is beyond 65,535, and an entry beyond it shows as one that descends. */
	if ((end - l.unary - all) << l.k >= PATCH_BLOCK)
		return why_set(why, EBADMSG,
			       "the unary part of its list of %s has %llu zeros, too many", what,
			       (unsigned long long)(end - l.unary - all));
	*out_end = end;
	while (l.left > 0) {
		uint32_t n = MIN(l.left, (uint32_t)RICE_CHUNK);

		if (kernel->list(&l, out, n) < 0)
			return why_set(why, EBADMSG, "the unary part of its list of %s is cut off",
				       what);
		for (uint32_t i = 0; i < n; i++) {
			int64_t v = rice_get16(out + 2 * (size_t)i);

			if (v <= last)
				return why_set(why, EBADMSG,
					       "its list of %s goes beyond %u: entry %u after "
					       "entry %lld",
					       what, PATCH_BLOCK - 1, (unsigned)v, (long long)last);
			last = v;
		}
	}
	if (last >= (int64_t)limit)
		return why_set(why, EBADMSG, "its list of %s has %lld and has to be below %u", what,
			       (long long)last, limit);
	return 0;
}

int rice_check(const struct rice_kernel *kernel, const void *payload, size_t len, enum patch_op op,
	       unsigned width, uint32_t count, uint32_t elements, struct why *why)
{
	struct rice_reader r;
	const char *wrong = begin(&r, kernel, payload, len, op, width, count, elements);
	uint64_t end;
	int ret;

	if (wrong != NULL)
		return why_set(why, EBADMSG, "its payload %s", wrong);
	if (kernel->skip(r.bits, r.bytes, r.odd.unary, r.odd.left) == UINT64_MAX)
		return why_set(why, EBADMSG,
			       "its payload is cut off in the unary part of its list of odd "
			       "values");
	ret = check_list(kernel, &r.odd, count, "odd values", &r.list.unary, why);
	if (ret == 0)
		ret = check_list(kernel, &r.list, elements,
				 r.inverted ? "unchanged elements" : "changed elements", &end, why);
	if (ret < 0)
		return ret;
	if ((end + 7) / 8 != r.bytes)
		return why_set(why, EBADMSG, "its stream is %zu bytes long instead of %llu",
			       r.bytes, (unsigned long long)(end + 7) / 8);
	if (end % 8 != 0 && r.bits[end / 8] >> end % 8 != 0)
		return why_set(why, EBADMSG, "the padding of its stream is not zero");
	return 0;
}
