/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the Rice form of a block, and choosing the kernel.
 *
 * rice_open() finds where each part of the payload begins: all parts before the unary ones have
 * lengths that the head says, the tail's length is in the nibbles, and where the list's unary part
 * begins is known when the ones of that of the odd values have been gone through, which is what
 * decoding these begins with.  rice_next() then decodes both lists a chunk at a time.
 *
 * A block of 64 Ki elements has some hundreds of changed ones, which take a fifth of a microsecond
 * to decode: each loop counts that is set up once for a block.
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

/* The tail's bytes that the odd values ask for.  From the last chunk to the first, whose factors
 * are in their list then. */
static uint64_t tail_of_odd(struct rice_reader *r, const uint8_t *bits, size_t bytes)
{
	uint64_t tail = 0;

	for (uint32_t left = r->odd.left, at; left > 0; left = at) {
		at = (left - 1) / RICE_CHUNK * RICE_CHUNK;
		tail += r->kernel->nibbles(bits, bytes, r->nibble + 4 * (uint64_t)at, left - at,
					   r->width, r->odd_factor_list);
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
		tail = tail_of_odd(r, payload, len);
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
	r->odd_begun = true;
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

			if (r->kernel->places(&r->list, r->hole_list, want) < 0)
				return -EBADMSG;
			r->kernel->entries(&r->list, r->hole_list, want);
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
	const uint8_t *later = s->later, *end = later + 2 * (size_t)s->many, *tail = r->tail;
	const unsigned above = 64 - 8 * width;

	for (; later < end; later += 2) {
		size_t i = rice_get16(later), left = (size_t)(r->tail_end - tail);
		bool byte = r->factor_list[i] == RICE_BYTE;
		uint8_t *value = r->value_list + i * width;
		int64_t v = (int64_t)(rice_get(value, width) << above) >> above;
		uint64_t t, sum;

		if (RICE_LIKELY(left >= width))
			t = rice_get(tail, width);
		else if (byte && left > 0)
			t = *tail;
		else
			return -EBADMSG;
		/* with a byte, v is u * 16 so far */
		sum = (uint64_t)v + (uint64_t)(v >> 4) * (t & 0xff);
		rice_set(value, byte ? sum : t, width);
		tail += byte ? 1 : width;
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

/* The unary part of the next odd values, up to a chunk of them. */
static int odd_places(struct rice_reader *r)
{
	uint32_t want = MIN(r->odd.left, (uint32_t)RICE_CHUNK);

	return want > 0 ? r->kernel->places(&r->odd, r->odd_list, want) : 0;
}

/* The next odd values. */
static int next_odd(struct rice_reader *r)
{
	uint32_t want = MIN(r->odd.left, (uint32_t)RICE_CHUNK);

	r->odd_at = 0;
	r->odd_end = want;
	if (want == 0)
		return 0;
	if (!r->odd_begun) {
		if (odd_places(r) < 0)
			return -EBADMSG;
		r->kernel->nibbles(r->bits, r->bytes, r->nibble, want, r->width,
				   r->odd_factor_list);
	}
	r->odd_begun = false;
	r->kernel->entries(&r->odd, r->odd_list, want);
	r->nibble += 4 * (uint64_t)want;
	return 0;
}

/* factor_list[] for the next n values. */
static int factors(struct rice_reader *r, struct rice_spread *s, uint32_t n)
{
	uint32_t room = n; /* n values have no more odd ones */

	*s = (struct rice_spread){
		.from = r->done,
		.n = n,
		.factors = r->factor_list,
		.later = r->later_list,
	};
	do {
		uint32_t took;

		if (r->odd_at == r->odd_end && next_odd(r) < 0)
			return -EBADMSG;
		s->odds = r->odd_list + 2 * (size_t)r->odd_at;
		s->odd_factors = r->odd_factor_list + r->odd_at;
		s->count = MIN(r->odd_end - r->odd_at, room);
		took = r->kernel->spread(s);
		room -= took;
		r->odd_at += took;
		s->is_set = true;
	} while (r->odd_at == r->odd_end && r->odd.left > 0);
	return 0;
}

static int coded_values(struct rice_reader *r, const struct rice_spread *s)
{
	const unsigned column = (unsigned)__builtin_ctz(r->width);
	/* no stream: all bits are zero */
	const size_t bytes = r->signs ? r->bytes : 0;

	r->kernel->values[column](r->bits, bytes, r->sign + r->done, s->n, r->factor_list,
				  r->value_list);
	return take_tail_of_width(r, s);
}

int rice_open(struct rice_reader *r, const struct rice_kernel *kernel, const void *payload,
	      size_t len, enum patch_op op, unsigned width, uint32_t count, uint32_t elements)
{
	if (begin(r, kernel, payload, len, op, width, count, elements) != NULL)
		return -EBADMSG;
	/* The list's unary part is behind that of the odd values, which is gone through at once if
	 * they are not too many, or else stepped over. */
	if (r->odd.left > RICE_CHUNK)
		r->list.unary = kernel->skip(r->bits, r->bytes, r->odd.unary, r->odd.left);
	if (r->list.unary == UINT64_MAX || odd_places(r) < 0)
		return -EBADMSG;
	if (r->odd.left <= RICE_CHUNK)
		r->list.unary = r->odd.unary;
	return 0;
}

/* The two lists in turns: what one step has stored is in the cache when the next but one loads it
 * in other pieces. */
int rice_next(struct rice_reader *r)
{
	uint32_t n = MIN(r->count - r->done, (uint32_t)RICE_CHUNK);
	struct rice_spread s;
	int ret;

	if (n == 0)
		return 0;
	ret = r->inverted ? positions_between(r, n)
			  : r->kernel->places(&r->list, r->position_list, n);
	if (ret == 0 && r->coded)
		ret = factors(r, &s, n);
	if (ret < 0)
		return ret;
	if (!r->inverted)
		r->kernel->entries(&r->list, r->position_list, n);
	r->positions = r->position_list;
	if (r->coded) {
		r->values = r->value_list;
		ret = coded_values(r, &s);
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

		if (kernel->places(&l, out, n) < 0)
			return why_set(why, EBADMSG, "the unary part of its list of %s is cut off",
				       what);
		kernel->entries(&l, out, n);
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
