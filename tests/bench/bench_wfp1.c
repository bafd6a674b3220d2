/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wfp1 and wfp1x cost, against what they could cost and what others do: one line of JSON per
 * row.
 *
 * The model is simulated, at learning rates of 1e-6 and 3e-6, or comes from files that a trainer
 * has written (weights.h).
 *
 * "size": bits for each changed element.  The floor is the entropy of the positions, for each
 * tensor apart, and of the differences; the floor given exponents is the same where the exponent of
 * the reference is known.  TRL v1 (48), TRL v3 (32), the XOR of all weights with zstd -1 (slime,
 * SGLang), and PULSE's, which is version 3.1 of grail's codec (rows, columns, values; one frame of
 * zstd -1), are made of the same step.  "coding": million changed elements a second, into and out
 * of lists of positions and values: decoding after the encoder has had the caches, once more at
 * once, and the best of these, for machines that others use too.  "diff": of two bf16 arrays, alone
 * and with encoding, as a share of memcpy of the new one.  "wfp1x": the speed of going through the
 * reference, and changed elements a second with all of it.
 *
 * "packed": the new weights, compressed by blocks as an anchor may be, against their plain size.
 *
 * Rows that are compared alternate, and the clock is the thread's, so that others' noise falls on
 * all of them; medians.
 *
 * usage: bench_wfp1 [MEGAELEMENTS]     (of the simulated model, default 16)
 *        bench_wfp1 --from NAME DIR    (sizes only)
 */
#include "codec/diff.h"
#include "codec/pack.h"
#include "codec/patchx.h"
#include "codec/rice.h"
#include "tests/bench/weights.h"

#include <zstd.h>

enum { ROUNDS = 11, CODING_ROUNDS = 151, SAMPLE = 200000 };

static const char *const kernels[] = {"portable", "avx2", "avx512"};

/* ---- size ---- */

static double entropy(const uint64_t *seen, size_t n)
{
	double bits = 0, all = 0;

	for (size_t i = 0; i < n; i++)
		all += (double)seen[i];
	for (size_t i = 0; i < n; i++)
		if (seen[i] > 0)
			bits += (double)seen[i] * log2(all / (double)seen[i]);
	return bits;
}

/* Positions of c among n. */
static double position_bits(uint64_t c, uint64_t n)
{
	return entropy((uint64_t[]){c, n - c}, 2);
}

static uint16_t difference(const struct tensor *t, uint64_t i)
{
	return (uint16_t)(load_le16(t->new + 2 * i) - load_le16(t->old + 2 * i));
}

static double floor_bits(const struct weights *w)
{
	uint64_t *seen = need(calloc(65536, sizeof(*seen)));
	double bits = 0;

	for (unsigned t = 0; t < w->tensors; t++) {
		bits += position_bits(w->t[t].changed, w->t[t].numel);
		for (uint64_t i = 0; i < w->t[t].numel; i++)
			seen[difference(&w->t[t], i)]++;
	}
	seen[0] = 0;
	bits += entropy(seen, 65536);
	free(seen);
	return bits;
}

static double floor_given_exponents(const struct weights *w)
{
	uint64_t *seen = need(calloc(256 * 65536, sizeof(*seen)));
	double bits = 0;

	for (unsigned t = 0; t < w->tensors; t++) {
		uint64_t all[256] = {0}, changed[256] = {0};

		for (uint64_t i = 0; i < w->t[t].numel; i++) {
			unsigned e = load_le16(w->t[t].reference + 2 * i) >> 7 & 0xff;
			uint16_t d = difference(&w->t[t], i);

			all[e]++;
			changed[e] += d != 0;
			seen[e << 16 | d]++;
		}
		for (unsigned e = 0; e < 256; e++)
			bits += position_bits(changed[e], all[e]);
	}
	for (unsigned e = 0; e < 256; e++) {
		seen[e << 16] = 0;
		bits += entropy(seen + (e << 16), 65536);
	}
	free(seen);
	return bits;
}

static void write_patch(const struct tensor *t, const struct rice_kernel *kernel,
			struct memory *mem)
{
	struct sink sink = memory_sink(mem);
	struct patch_writer *w = need(patch_writer_new(PATCH_ADD, 2, t->numel, &sink, 0));
	struct why why;
	uint64_t len;

	must(patch_writer_rice(w, kernel, false, &why), &why);
	must(diff_add(w, kernel, t->old, t->new, 0, t->numel, &why), &why);
	must(patch_writer_end(w, &len, NULL, &why), &why);
	patch_writer_free(w);
}

static void write_patchx(const struct tensor *t, const struct rice_kernel *kernel,
			 const struct memory *blob, struct memory *out)
{
	struct source reference = source_memory(t->reference, 2 * t->numel);
	struct sink sink = memory_sink(out);
	struct patch p;
	struct why why;
	uint64_t len;

	must(patch_open(blob->bytes, blob->len, &p, &why), &why);
	p.kernel = kernel;
	must(patchx_encode(&p, ST_BF16, &reference, &sink, 0, &len, &why), &why);
	out->len = len; /* 0 where nothing changes */
}

static void read_patchx(const struct tensor *t, const struct rice_kernel *kernel,
			const struct memory *x, struct memory *out)
{
	struct source reference = source_memory(t->reference, 2 * t->numel);
	struct sink sink = memory_sink(out);
	struct patchx view;
	struct why why;
	uint64_t len, read;

	if (x->len == 0)
		return;
	must(patchx_open(x->bytes, x->len, &view, &why), &why);
	must(patchx_decode(&view, &reference, kernel, PATCH_CODING_RICE, &sink, 0, &len, &read,
			   &why),
	     &why);
}

static size_t zstd_size(const void *bytes, size_t len)
{
	size_t cap = ZSTD_compressBound(len);
	void *out = need(malloc(cap));
	size_t size = ZSTD_compress(out, cap, bytes, len, 1);

	free(out);
	return size;
}

/* Streams of rows, columns and values of one tensor, behind one another at out; their length. */
static size_t put_pulse(const struct tensor *t, uint8_t *out)
{
	const bool wide_rows = t->numel / t->columns > 256, wide = t->columns > 65536;
	uint64_t n = 0, row = 0, column = 0, c = t->changed;
	uint8_t *rows = out, *columns = rows + (wide_rows ? 2 * c : c);
	uint8_t *values = columns + (wide ? 4 * c : 2 * c);

	for (uint64_t i = 0; i < t->numel; i++) {
		uint64_t r = i / t->columns, at = i % t->columns;
		uint64_t gap = n > 0 && r == row ? at - column : at;

		if (difference(t, i) == 0)
			continue;
		if (wide_rows)
			store_le16(rows + 2 * n, (uint16_t)(r - row));
		else
			rows[n] = (uint8_t)(r - row);
		if (wide)
			store_le32(columns + 4 * n, (uint32_t)gap);
		else
			store_le16(columns + 2 * n, (uint16_t)gap);
		memcpy(values + 2 * n++, t->new + 2 * i, 2);
		row = r;
		column = at;
	}
	return (size_t)(values + 2 * n - out);
}

static size_t xor_size(const struct tensor *t)
{
	uint8_t *all = need(malloc(2 * t->numel));
	size_t size;

	for (uint64_t i = 0; i < 2 * t->numel; i++)
		all[i] = t->old[i] ^ t->new[i];
	size = zstd_size(all, 2 * t->numel);
	free(all);
	return size;
}

static void size_row(const struct weights *w, const char *name, const struct memory *blobs,
		     const struct memory *blobs_x)
{
	const double c = (double)w->changed, low = floor_bits(w), lower = floor_given_exponents(w);
	uint8_t *pulse = need(malloc(8 * w->changed + 1));
	uint64_t wfp1 = 0, wfp1x = 0, xor_zstd = 0, pulse_len = 0;

	for (unsigned t = 0; t < w->tensors; t++) {
		wfp1 += w->t[t].changed > 0 ? blobs[t].len : 0;
		wfp1x += blobs_x[t].len;
		xor_zstd += xor_size(&w->t[t]);
		pulse_len += put_pulse(&w->t[t], pulse + pulse_len);
	}
	printf("{\"bench\":\"wfp1 size\",\"run\":\"%s\",\"density\":%.5f,\"floor_bits\":%.2f,"
	       "\"wfp1_bits\":%.2f,\"ratio\":%.3f,\"floor_given_exponents\":%.2f,"
	       "\"wfp1x_bits\":%.2f,\"ratio_x\":%.3f,\"trl_v1_bits\":48.0,\"trl_v3_bits\":32.0,"
	       "\"xor_zstd_bits\":%.1f,\"pulse_bits\":%.1f}\n",
	       name, c / (double)w->numel, low / c, 8.0 * (double)wfp1 / c,
	       8.0 * (double)wfp1 / low, lower / c, 8.0 * (double)wfp1x / c,
	       8.0 * (double)wfp1x / low, 8.0 * (double)xor_zstd / c,
	       8.0 * (double)zstd_size(pulse, pulse_len) / c);
	fflush(stdout);
	free(pulse);
}

/* ---- speed ---- */

/* Lists of blocks with changes, spread over the model: what an encoder gets and a decoder gives. As
 * many as stay in a cache from round to round: what is measured is the coding. */
struct lists {
	uint8_t *positions, *values; /* with RICE_SLACK behind each block's */
	uint8_t **codes;
	size_t *sizes, *at;
	uint32_t *counts;
	size_t blocks;
	uint64_t elements;
};

static void make_lists(const struct weights *w, struct lists *l)
{
	const struct rice_kernel *kernel = patch_kernel(NULL);
	const size_t each = (size_t)(w->t[0].numel / PATCH_BLOCK), most = w->tensors * each;
	struct rice_encoder *e = need(rice_encoder_new(kernel));
	size_t used = 0, room = (size_t)w->changed + most * RICE_SLACK;

	l->blocks = 0;
	l->elements = 0;
	l->positions = need(malloc(2 * room));
	l->values = need(malloc(2 * room));
	l->codes = need(calloc(most, sizeof(*l->codes)));
	l->sizes = need(calloc(most, sizeof(*l->sizes)));
	l->at = need(calloc(most, sizeof(*l->at)));
	l->counts = need(calloc(most, sizeof(*l->counts)));
	for (size_t i = 0; i < most && l->elements < SAMPLE; i++) {
		size_t b = i * 257 % most; /* a prime: all come once, in another order */
		const struct tensor *t = &w->t[b / each];
		size_t from = b % each * PATCH_BLOCK * 2;
		uint32_t n = kernel->diff[1](t->old + from, t->new + from, PATCH_BLOCK,
					     l->positions + 2 * used, l->values + 2 * used);
		size_t j = l->blocks;

		if (n == 0)
			continue;
		l->counts[j] = n;
		l->at[j] = used;
		l->sizes[j] = rice_plan(e, PATCH_ADD, 2, l->positions + 2 * used,
					l->values + 2 * used, n, PATCH_BLOCK);
		l->codes[j] = need(malloc(l->sizes[j] + 8));
		rice_write(e, l->codes[j]);
		used += n + RICE_SLACK;
		l->elements += n;
		l->blocks++;
	}
	rice_encoder_free(e);
}

static void free_lists(struct lists *l)
{
	for (size_t i = 0; i < l->blocks; i++)
		free(l->codes[i]);
	free(l->positions);
	free(l->values);
	free(l->codes);
	free(l->sizes);
	free(l->at);
	free(l->counts);
}

static double encode_all(const struct lists *l, const struct rice_kernel *kernel)
{
	static uint8_t code[PATCH_BLOCK * 4];
	struct rice_encoder *e = need(rice_encoder_new(kernel));
	double t = seconds();

	for (size_t i = 0; i < l->blocks; i++) {
		rice_plan(e, PATCH_ADD, 2, l->positions + 2 * l->at[i], l->values + 2 * l->at[i],
			  l->counts[i], PATCH_BLOCK);
		rice_write(e, code);
	}
	t = seconds() - t;
	rice_encoder_free(e);
	return t;
}

static double decode_all(const struct lists *l, const struct rice_kernel *kernel)
{
	struct rice_reader r;
	uint64_t seen = 0;
	double t = seconds();

	for (size_t i = 0; i < l->blocks; i++) {
		int n = rice_open(&r, kernel, l->codes[i], l->sizes[i], PATCH_ADD, 2, l->counts[i],
				  PATCH_BLOCK);

		for (; n == 0 && (n = rice_next(&r)) > 0; n = 0)
			seen += (unsigned)n;
	}
	t = seconds() - t;
	for (size_t i = 0; i < l->blocks; i++)
		seen -= l->counts[i];
	if (seen != 0) {
		fprintf(stderr, "bench_wfp1: not all elements came back\n");
		exit(1);
	}
	return t;
}

static void coding_rows(const struct weights *w, const char *name)
{
	static double encode[ARRAY_LEN(kernels)][CODING_ROUNDS];
	static double decode[ARRAY_LEN(kernels)][CODING_ROUNDS];
	static double again[ARRAY_LEN(kernels)][CODING_ROUNDS];
	struct lists l;

	make_lists(w, &l);
	for (unsigned r = 0; r < CODING_ROUNDS; r++) {
		for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernels[k]);

			if (kernel == NULL)
				continue;
			encode[k][r] = encode_all(&l, kernel);
			decode[k][r] = decode_all(&l, kernel);
			again[k][r] = decode_all(&l, kernel);
		}
	}
	for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
		const double million = 1e-6 * (double)l.elements;
		double usual = median(again[k], CODING_ROUNDS), best = again[k][0];

		if (patch_kernel(kernels[k]) != NULL)
			printf("{\"bench\":\"wfp1 coding\",\"run\":\"%s\",\"kernel\":\"%s\","
			       "\"encode_me_per_s\":%.0f,\"decode_me_per_s\":%.0f,"
			       "\"decode_again_me_per_s\":%.0f,\"decode_best_me_per_s\":%.0f}\n",
			       name, kernels[k], million / median(encode[k], CODING_ROUNDS),
			       million / median(decode[k], CODING_ROUNDS), million / usual,
			       million / best);
	}
	fflush(stdout);
	free_lists(&l);
}

static double copy_all(const struct weights *w, uint8_t *dst)
{
	double t = seconds();

	for (unsigned i = 0; i < w->tensors; i++) {
		memcpy(dst, w->t[i].new, 2 * w->t[i].numel);
		__asm__ volatile("" : : "r"(dst) : "memory");
	}
	return seconds() - t;
}

static double diff_all(const struct weights *w, const struct rice_kernel *kernel)
{
	double t = seconds();

	for (unsigned i = 0; i < w->tensors; i++)
		if (diff_count(kernel, 2, w->t[i].old, w->t[i].new, w->t[i].numel) !=
		    w->t[i].changed)
			exit(1);
	return seconds() - t;
}

static double publish_all(const struct weights *w, const struct rice_kernel *kernel,
			  struct memory *blobs)
{
	double t = seconds();

	for (unsigned i = 0; i < w->tensors; i++)
		write_patch(&w->t[i], kernel, &blobs[i]);
	return seconds() - t;
}

static void diff_rows(const struct weights *w, const char *name, struct memory *blobs)
{
	const double gb = 2e-9 * (double)w->numel;
	double copy[ROUNDS], diff[ARRAY_LEN(kernels)][ROUNDS], both[ARRAY_LEN(kernels)][ROUNDS];
	uint8_t *dst = need(malloc(2 * w->t[0].numel));
	double copied;

	memset(dst, 1, 2 * w->t[0].numel);
	for (unsigned r = 0; r < ROUNDS; r++) {
		copy[r] = copy_all(w, dst);
		for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
			const struct rice_kernel *kernel = patch_kernel(kernels[k]);

			if (kernel == NULL)
				continue;
			diff[k][r] = diff_all(w, kernel);
			both[k][r] = publish_all(w, kernel, blobs);
		}
	}
	copied = median(copy, ROUNDS);
	for (unsigned k = 0; k < ARRAY_LEN(kernels); k++)
		if (patch_kernel(kernels[k]) != NULL)
			printf("{\"bench\":\"wfp1 diff\",\"run\":\"%s\",\"kernel\":\"%s\","
			       "\"memcpy_gb_per_s\":%.1f,\"diff\":%.2f,\"diff_encode\":%.2f}\n",
			       name, kernels[k], gb / copied, copied / median(diff[k], ROUNDS),
			       copied / median(both[k], ROUNDS));
	fflush(stdout);
	free(dst);
}

/* With the reference in memory: elements gone through, and changed ones. */
static void patchx_rows(const struct weights *w, const char *name, const struct memory *blobs,
			struct memory *blobs_x, struct memory *scratch)
{
	enum { TURNS = 5 };
	double encode[TURNS], decode[TURNS];

	for (unsigned k = 0; k < ARRAY_LEN(kernels); k++) {
		const struct rice_kernel *kernel = patch_kernel(kernels[k]);

		for (unsigned r = 0; kernel != NULL && r < TURNS; r++) {
			double t0 = seconds(), t1;

			for (unsigned t = 0; t < w->tensors; t++)
				write_patchx(&w->t[t], kernel, &blobs[t], &blobs_x[t]);
			t1 = seconds();
			for (unsigned t = 0; t < w->tensors; t++)
				read_patchx(&w->t[t], kernel, &blobs_x[t], scratch);
			encode[r] = t1 - t0;
			decode[r] = seconds() - t1;
		}
		if (kernel != NULL)
			printf("{\"bench\":\"wfp1x\",\"run\":\"%s\",\"kernel\":\"%s\","
			       "\"encode_gb_per_s\":%.2f,\"encode_me_per_s\":%.1f,"
			       "\"decode_gb_per_s\":%.2f,\"decode_me_per_s\":%.1f}\n",
			       name, kernels[k], 2e-9 * (double)w->numel / median(encode, TURNS),
			       1e-6 * (double)w->changed / median(encode, TURNS),
			       2e-9 * (double)w->numel / median(decode, TURNS),
			       1e-6 * (double)w->changed / median(decode, TURNS));
	}
	fflush(stdout);
}

/* The new weights as a packed file has them, a block at a time. */
static void pack_row(const struct weights *w, const char *name)
{
	const uint32_t bound = pack_bound(2 * PACK_BLOCK, 2);
	uint8_t *packed = need(malloc(bound)), *back = need(malloc(2 * PACK_BLOCK));
	uint8_t *scratch = need(malloc(2 * PACK_BLOCK));
	struct packer *p = need(packer_new());
	double encode = 0, decode = 0, plain = 0, small = 0;

	for (unsigned t = 0; t < w->tensors; t++)
		for (uint64_t b = 0; b < pack_blocks(2 * w->t[t].numel, 2); b += 4) {
			uint32_t len = pack_block_bytes(2 * w->t[t].numel, 2, b);
			double t0 = seconds(), t1;
			uint64_t hash;
			size_t n = packer_block(p, w->t[t].new + b * 2 * PACK_BLOCK, len, 2, packed,
						&hash);

			t1 = seconds();
			encode += t1 - t0;
			if (pack_decode(packed, n, 2, hash, back, len, scratch) < 0)
				exit(1);
			decode += seconds() - t1;
			plain += len;
			small += (double)n + PACK_ENTRY;
		}
	printf("{\"bench\":\"packed\",\"run\":\"%s\",\"size\":%.3f,\"pack_gb_per_s\":%.2f,"
	       "\"unpack_gb_per_s\":%.2f}\n",
	       name, small / plain, 1e-9 * plain / encode, 1e-9 * plain / decode);
	fflush(stdout);
	packer_free(p);
	free(packed);
	free(back);
	free(scratch);
}

/* All rows of a model, or its sizes alone. */
static void rows(const struct weights *w, const char *name, bool speed)
{
	struct memory *blobs = need(calloc(w->tensors, sizeof(*blobs)));
	struct memory *blobs_x = need(calloc(w->tensors, sizeof(*blobs_x))), scratch = {0};

	for (unsigned t = 0; t < w->tensors; t++) {
		uint64_t cap = patch_bound_rice(2, w->t[t].numel, w->t[t].numel / 2 + 1);

		blobs[t] = (struct memory){need(calloc(1, cap)), cap, 0};
		blobs_x[t] = (struct memory){need(calloc(1, cap)), cap, 0};
		if (cap > scratch.cap) {
			free(scratch.bytes);
			scratch = (struct memory){need(calloc(1, cap)), cap, 0};
		}
		write_patch(&w->t[t], patch_kernel(NULL), &blobs[t]);
		write_patchx(&w->t[t], patch_kernel(NULL), &blobs[t], &blobs_x[t]);
		read_patchx(&w->t[t], patch_kernel(NULL), &blobs_x[t], &scratch);
		if (w->t[t].changed > 0 &&
		    (scratch.len != blobs[t].len ||
		     memcmp(scratch.bytes, blobs[t].bytes, scratch.len) != 0)) {
			fprintf(stderr, "bench_wfp1: wfp1x does not give the patch again\n");
			exit(1);
		}
	}
	size_row(w, name, blobs, blobs_x);
	pack_row(w, name);
	if (speed) {
		coding_rows(w, name);
		diff_rows(w, name, blobs);
		patchx_rows(w, name, blobs, blobs_x, &scratch);
	}
	for (unsigned t = 0; t < w->tensors; t++) {
		free(blobs[t].bytes);
		free(blobs_x[t].bytes);
	}
	free(scratch.bytes);
	free(blobs);
	free(blobs_x);
}

int main(int argc, char **argv)
{
	static const double rates[] = {1e-6, 3e-6};
	static struct weights w;
	unsigned long mega = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
	char name[32];

	if (argc == 4 && strcmp(argv[1], "--from") == 0) {
		weights_load(&w, argv[3]);
		rows(&w, argv[2], false);
		weights_free(&w);
		return 0;
	}
	if (mega < 1 || mega > 4096 || argc > 2) {
		fprintf(stderr, "usage: bench_wfp1 [MEGAELEMENTS]    (1 to 4096)\n"
				"       bench_wfp1 --from NAME DIR\n");
		return 2;
	}
	for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
		snprintf(name, sizeof(name), "simulated %g", rates[i]);
		weights_simulate(&w, (uint64_t)mega << 20, rates[i]);
		rows(&w, name, true);
		weights_free(&w);
	}
	return 0;
}
