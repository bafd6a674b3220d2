/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_read() against a slow oracle that builds every file whole: random layouts of several files,
 * sources in several objects, tensors stored narrower than shown, aliases, stacks of SET, ADD and
 * XOR, and ranges that begin and end anywhere.
 */
#include "tests/unit/fs/bucket.h"

#include "cache/fileio.h"
#include "fs/check.h"
#include "fs/state.h"

enum { FILES_MAX = 3, BLOBS = 3, BLOB_SIZE = 1 << 20, LINKS_MAX = 5 };

struct lab {
	char dir[64];
	uint64_t seed;
	struct store *store;
	struct cachedir *cache;
	struct blob *blobs[BLOBS];
	uint8_t *bytes[BLOBS];
	struct layout *layout;
	struct sources *sources;
	struct link *links[LINKS_MAX];
	uint32_t link_count;
	uint8_t *stored[TENSORS_MAX]; /* each tensor's patched bytes, as stored */
};

static int setup(void **state)
{
	struct lab *l = calloc(1, sizeof(*l));
	struct listing listing;
	struct why why = {0};
	bool in_memory;

	assert_non_null(l);
	snprintf(l->dir, sizeof(l->dir), "/tmp/wfs-state-XXXXXX");
	assert_non_null(mkdtemp(l->dir));
	l->seed = 77;
	for (int b = 0; b < BLOBS; b++) {
		char key[16];

		l->bytes[b] = malloc(BLOB_SIZE);
		assert_non_null(l->bytes[b]);
		for (size_t i = 0; i < BLOB_SIZE; i++)
			l->bytes[b][i] = (uint8_t)rnd(&l->seed);
		snprintf(key, sizeof(key), "blob%d", b);
		put_bytes(l->dir, key, l->bytes[b], BLOB_SIZE, 0);
	}
	assert_int_equal(store_dir_new(l->dir, false, &l->store, &why), 0);
	assert_int_equal(store_list(l->store, "", &listing, &why), 0);
	assert_int_equal(listing.count, BLOBS);
	for (int b = 0; b < BLOBS; b++)
		assert_int_equal(blob_open(l->store, &listing.v[b], false, &l->blobs[b], &why), 0);
	listing_release(&listing);
	assert_int_equal(cachedir_open("/proc/none", "x", &l->cache, &in_memory, &why), 0);
	*state = l;
	return 0;
}

static int teardown(void **state)
{
	struct lab *l = *state;

	for (int b = 0; b < BLOBS; b++) {
		blob_unref(l->blobs[b]);
		free(l->bytes[b]);
	}
	cachedir_close(l->cache);
	store_free(l->store);
	remove_tree(l->dir);
	free(l);
	return 0;
}

/* ---- making ---- */

static const enum st_dtype dtypes[] = {ST_U8,  ST_BF16, ST_F16,	 ST_F32, ST_F32,
				       ST_F64, ST_F4,	ST_BF16, ST_C64, ST_I32};

static void make_layout(struct lab *l)
{
	size_t files = 1 + below(&l->seed, FILES_MAX);
	struct layout_input in[FILES_MAX];
	struct st_header *headers[FILES_MAX];
	char names[FILES_MAX][32], *texts[FILES_MAX];
	struct why why = {0};
	int tensor = 0;

	for (size_t f = 0; f < files; f++) {
		struct obj o = {0};
		size_t len;

		for (size_t i = below(&l->seed, 9); i > 0; i--) {
			enum st_dtype dtype = dtypes[below(&l->seed, ARRAY_LEN(dtypes))];
			uint64_t n = below(&l->seed, 5) == 0 ? 0 : 2 * below(&l->seed, 40);
			char name[16];

			if (below(&l->seed, 12) == 0)
				n = 65530 + 2 * below(&l->seed, 10);
			snprintf(name, sizeof(name), "t%02d", tensor++);
			obj_tensor(&o, name, dtype, 0, n, l->bytes[0]);
		}
		texts[f] = obj_bytes(&o, &len);
		snprintf(names[f], sizeof(names[f]), "file%zu", f);
		assert_int_equal(
			st_parse(texts[f] + 8, load_le64(texts[f]), len, &headers[f], &why), 0);
		in[f] = (struct layout_input){names[f], headers[f], texts[f] + 8};
	}
	assert_int_equal(layout_keep(in, files, &l->layout, &why), 0);
	for (size_t f = 0; f < files; f++) {
		st_free(headers[f]);
		free(texts[f]);
	}
	for (uint32_t i = 1; i < l->layout->tensor_count; i++) {
		uint32_t of = (uint32_t)below(&l->seed, i);

		if (below(&l->seed, 4) == 0 && l->layout->tensors[of].alias == of)
			(void)!layout_alias(l->layout, i, of);
	}
}

static void make_sources(struct lab *l)
{
	const struct layout *y = l->layout;
	struct sources *s = calloc(1, sizeof(*s));

	s->refs = 1;
	s->count = y->tensor_count;
	s->v = calloc(s->count + 1, sizeof(*s->v));
	s->blobs = calloc(BLOBS, sizeof(struct blob *));
	for (int b = 0; b < BLOBS; b++)
		s->blobs[s->blob_count++] = blob_ref(l->blobs[b]);
	for (uint32_t i = 0; i < s->count; i++) {
		struct tensor_source *v = &s->v[i];
		uint64_t size = y->tensors[i].end - y->tensors[i].begin;

		v->dtype = y->tensors[i].dtype;
		v->version = below(&l->seed, 4);
		v->blob = y->tensors[i].file % BLOBS;
		v->offset = y->tensors[i].begin; /* as in the view: read in one go */
		if (y->tensors[i].dtype == ST_F32 && below(&l->seed, 2) == 0)
			v->dtype = below(&l->seed, 2) ? ST_BF16 : ST_F16;
		if (v->dtype != y->tensors[i].dtype || below(&l->seed, 4) == 0) {
			v->blob = (uint32_t)below(&l->seed, BLOBS);
			v->offset = below(&l->seed, BLOB_SIZE - size);
		}
	}
	l->sources = s;
}

static uint64_t stored_bytes(const struct lab *l, uint32_t t)
{
	return l->layout->tensors[t].numel * st_dtype_bits(l->sources->v[t].dtype) / 8;
}

/* One patch of tensor t, written and applied to what the oracle has. */
static int make_patch(struct lab *l, uint32_t t, bool counts, struct patch_file_writer *w,
		      uint64_t *out_len)
{
	unsigned width = st_dtype_width(l->sources->v[t].dtype);
	uint64_t n = stored_bytes(l, t) / width;
	enum patch_op op = (enum patch_op)(1 + below(&l->seed, 3));
	uint64_t one_in = 1 + below(&l->seed, n < 100 ? 6 : 300);
	struct patch_writer *p =
		patch_writer_new(op, width, n, patch_file_writer_sink(w), patch_file_writer_at(w));
	struct why why = {0};

	assert_non_null(p);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t value = rnd(&l->seed), old = 0;
		uint8_t *at = l->stored[t] + i * width;

		if (below(&l->seed, one_in) != 0)
			continue;
		assert_int_equal(patch_writer_add(p, &i, &value, 1, &why), 0);
		if (!counts)
			continue;
		memcpy(&old, at, width);
		value = op == PATCH_SET ? value : op == PATCH_ADD ? value + old : value ^ old;
		memcpy(at, &value, width);
	}
	int err = patch_writer_end(p, out_len, NULL, &why);

	patch_writer_free(p);
	return err;
}

static void make_link(struct lab *l, uint64_t version)
{
	const char *names[TENSORS_MAX];
	uint32_t which[TENSORS_MAX];
	struct patch_file_writer *w;
	struct mapping *mapping;
	struct why why = {0};
	struct source readback;
	uint64_t size;
	size_t n = 0;
	char name[16];
	int fd;

	for (uint32_t t = 0; t < l->layout->tensor_count; t++)
		if (below(&l->seed, 2) == 0 && l->layout->tensors[t].numel > 0 &&
		    l->layout->tensors[t].alias == t) {
			which[n] = t;
			names[n++] = l->layout->tensors[t].name;
		}
	assert_int_equal(cachedir_create(l->cache, &fd), 0);
	struct sink sink = sink_fd(&fd);

	assert_int_equal(patch_file_writer_new(names, n, NULL, 0, &sink, &w, &why), 0);
	for (size_t i = 0; i < n; i++) {
		bool counts = version > l->sources->v[which[i]].version;
		uint64_t len = 0;

		assert_int_equal(make_patch(l, which[i], counts, w, &len), 0);
		assert_int_equal(patch_file_writer_took(w, i, len), 0);
	}
	assert_int_equal(source_fd(fd, &readback), 0);
	assert_int_equal(patch_file_writer_end(w, &readback, &size, &why), 0);
	patch_file_writer_free(w);
	snprintf(name, sizeof(name), "%llu", (unsigned long long)version);
	assert_int_equal(cachedir_commit(l->cache, fd, name, size, &mapping), 0);
	if (link_new(version, version, mapping, true, name, l->layout, NULL,
		     &l->links[l->link_count], &why) < 0)
		fail_msg("link: %s", why.text);
	l->link_count++;
}

/* ---- the oracle ---- */

static void take_stored(struct lab *l)
{
	for (uint32_t t = 0; t < l->layout->tensor_count; t++) {
		uint64_t n = stored_bytes(l, t);

		l->stored[t] = malloc(n + 1);
		memcpy(l->stored[t], l->bytes[l->sources->v[t].blob] + l->sources->v[t].offset, n);
	}
}

/* By arithmetic, not by bits: what a half is worth. */
static uint32_t half_value(uint16_t h)
{
	int exponent = h >> 10 & 31;
	float f = (float)(h & 0x3ff);
	uint32_t bits;

	if (exponent == 31) /* infinity, or a NaN with its payload at the top */
		return (uint32_t)(h >> 15) << 31 | 0x7f800000 | (uint32_t)(h & 0x3ff) << 13;
	f = exponent == 0 ? f : f + 1024;
	for (int e = MAX(exponent, 1); e < 25; e++)
		f /= 2;
	for (int e = 25; e < exponent; e++)
		f *= 2;
	memcpy(&bits, &f, 4);
	return bits | (uint32_t)(h >> 15) << 31;
}

static uint8_t *whole_file(struct lab *l, uint32_t file)
{
	const struct layout_file *f = &l->layout->files[file];
	uint8_t *out = malloc(f->size + 1);

	memcpy(out, f->head, f->head_len);
	for (uint32_t i = f->first; i < f->first + f->count; i++) {
		const struct layout_tensor *t = &l->layout->tensors[i];
		const uint8_t *from = l->stored[t->alias];
		uint8_t dtype = l->sources->v[t->alias].dtype;

		if (dtype == t->dtype) {
			memcpy(out + t->begin, from, t->end - t->begin);
			continue;
		}
		for (uint64_t k = 0; k < t->numel; k++) {
			uint16_t v = load_le16(from + 2 * k);

			store_le32(out + t->begin + 4 * k,
				   dtype == ST_BF16 ? (uint32_t)v << 16 : half_value(v));
		}
	}
	return out;
}

static void check_file(struct lab *l, const struct state *s, uint32_t file)
{
	const uint64_t size = l->layout->files[file].size;
	uint8_t *want = whole_file(l, file), *have = malloc(size + 2);

	for (int i = 0; i < 60; i++) {
		uint64_t off = i == 0 ? 0 : below(&l->seed, size + 1);
		uint64_t len = i == 0 ? size : below(&l->seed, size - off + 1);

		if (i > 30)
			len = below(&l->seed, MIN(len, UINT64_C(20)) + 1);
		have[len] = 0xa5;
		assert_int_equal(state_read(s, file, off, have, len), 0);
		assert_memory_equal(have, want + off, len);
		assert_int_equal(have[len], 0xa5);
	}
	assert_int_equal(state_read(s, file, size, have, 0), 0);
	assert_int_equal(state_read(s, file, size, have, 1), -EINVAL);
	assert_int_equal(state_read(s, file, size + 1, have, 0), -EINVAL);
	assert_int_equal(state_read(s, file, 0, have, size + 1), -EINVAL);
	free(want);
	free(have);
}

static void one_state(struct lab *l)
{
	struct identity id = {0};
	struct state *s;

	make_layout(l);
	make_sources(l);
	take_stored(l);
	l->link_count = 0;
	for (uint64_t v = 1, n = below(&l->seed, LINKS_MAX + 1); v <= n; v++)
		make_link(l, v);
	assert_int_equal(state_new(9, 1, l->link_count, l->layout, l->sources, l->links,
				   l->link_count, &id, &s),
			 0);
	/* The state keeps what it needs. */
	for (uint32_t i = 0; i < l->link_count; i++)
		link_unref(l->links[i]);
	sources_unref(l->sources);
	for (uint32_t f = 0; f < l->layout->file_count; f++)
		check_file(l, s, f);
	for (uint32_t t = 0; t < l->layout->tensor_count; t++)
		free(l->stored[t]);
	layout_unref(l->layout);
	state_unref(s);
}

static void random_states(void **state)
{
	struct lab *l = *state;

	for (int i = 0; i < 60 / SLOWER; i++)
		one_state(l);
}

/* All 65,536 patterns of both 16-bit types, NaNs and subnormals among them. */
static void widening(void **state)
{
	static const uint8_t stored[] = {ST_BF16, ST_F16};
	struct lab *l = *state;
	uint8_t *all = malloc(2 * 65536);
	struct identity id = {0};
	struct state *s;

	for (uint32_t i = 0; i < 65536; i++)
		store_le16(all + 2 * i, (uint16_t)i);
	for (size_t k = 0; k < ARRAY_LEN(stored); k++) {
		struct obj o = {0};
		struct st_header *h;
		struct layout_input in = {.name = "x"};
		struct why why = {0};
		size_t len;
		char *text;
		uint8_t have[4 * 65536];

		obj_tensor(&o, "t", ST_F32, 0, 65536, l->bytes[0]);
		text = obj_bytes(&o, &len);
		assert_int_equal(st_parse(text + 8, load_le64(text), len, &h, &why), 0);
		in.header = h;
		in.json = text + 8;
		assert_int_equal(layout_keep(&in, 1, &l->layout, &why), 0);
		make_sources(l);
		l->sources->v[0] = (struct tensor_source){.blob = 0, .dtype = stored[k]};
		/* The values come by a patch: the object holds something else. */
		struct patch_file_writer *w;
		const char *name = "t";
		uint64_t blob_len, size;
		struct source readback;
		struct mapping *mapping;
		int fd;

		assert_int_equal(cachedir_create(l->cache, &fd), 0);
		struct sink sink = sink_fd(&fd);

		assert_int_equal(patch_file_writer_new(&name, 1, NULL, 0, &sink, &w, &why), 0);
		struct patch_writer *p = patch_writer_new(
			PATCH_SET, 2, 65536, patch_file_writer_sink(w), patch_file_writer_at(w));
		for (uint64_t i = 0; i < 65536; i++)
			assert_int_equal(patch_writer_add(p, &i, all + 2 * i, 1, &why), 0);
		assert_int_equal(patch_writer_end(p, &blob_len, NULL, &why), 0);
		patch_writer_free(p);
		assert_int_equal(patch_file_writer_took(w, 0, blob_len), 0);
		assert_int_equal(source_fd(fd, &readback), 0);
		assert_int_equal(patch_file_writer_end(w, &readback, &size, &why), 0);
		patch_file_writer_free(w);
		assert_int_equal(cachedir_commit(l->cache, fd, "w", size, &mapping), 0);
		assert_int_equal(
			link_new(1, 1, mapping, true, "w", l->layout, NULL, &l->links[0], &why), 0);
		assert_int_equal(state_new(1, 0, 1, l->layout, l->sources, l->links, 1, &id, &s),
				 0);
		assert_int_equal(state_read(s, 0, l->layout->tensors[0].begin, have, sizeof(have)),
				 0);
		for (uint32_t i = 0; i < 65536; i++)
			assert_int_equal(load_le32(have + 4 * i),
					 stored[k] == ST_BF16 ? i << 16 : half_value((uint16_t)i));
		link_unref(l->links[0]);
		sources_unref(l->sources);
		layout_unref(l->layout);
		state_unref(s);
		st_free(h);
		free(text);
	}
	free(all);
}

/* What an object can no longer give is an error, and nothing else. */
static void stale_object(void **state)
{
	struct lab *l = *state;
	struct identity id = {0};
	struct state *s;
	char path[100];
	uint8_t *have;

	do {
		make_layout(l);
		if (l->layout->files[0].size == l->layout->files[0].head_len) {
			layout_unref(l->layout);
			l->layout = NULL;
		}
	} while (l->layout == NULL);
	make_sources(l);
	for (uint32_t i = 0; i < l->sources->count; i++)
		l->sources->v[i].blob = 0;
	assert_int_equal(state_new(1, 1, 0, l->layout, l->sources, NULL, 0, &id, &s), 0);
	snprintf(path, sizeof(path), "%s/blob0", l->dir);
	set_time(path, 1);
	have = malloc(l->layout->files[0].size);
	assert_int_equal(state_read(s, 0, 0, have, l->layout->files[0].head_len), 0);
	assert_int_equal(state_read(s, 0, 0, have, l->layout->files[0].size), -ESTALE);
	free(have);
	sources_unref(l->sources);
	layout_unref(l->layout);
	state_unref(s);
}

/* Comparing ends when it is told to, and then nothing is right or wrong. */
static void compared(void **state)
{
	struct lab *l = *state;
	struct identity id = {0};
	struct check_miss miss = {0};
	struct checks checks;
	struct why why = {0};
	struct state *s;
	bool stop = true;

	do {
		make_layout(l);
		if (l->layout->tensor_count == 0) {
			layout_unref(l->layout);
			l->layout = NULL;
		}
	} while (l->layout == NULL);
	make_sources(l);
	assert_int_equal(state_new(1, 1, 0, l->layout, l->sources, NULL, 0, &id, &s), 0);
	assert_int_equal(checks_new(l->layout, &checks), 0);
	checks.v[0].kind = CHECKSUM_SHA256;
	memset(checks.v[0].hex, '0', 64);
	for (unsigned jobs = 1; jobs <= 2; jobs++) {
		assert_int_equal(checks_compare(s, &checks, jobs, &stop, &miss, &why), -ECANCELED);
		assert_false(checks.v[0].done);
	}
	assert_int_equal(why.err, 0);
	stop = false;
	assert_int_equal(checks_compare(s, &checks, 2, &stop, &miss, &why), -EBADMSG);
	assert_int_equal(miss.tensor, 0);
	assert_false(checks.v[0].done);
	memcpy(checks.v[0].hex, miss.have, sizeof(miss.have));
	assert_int_equal(checks_compare(s, &checks, 2, &stop, &miss, &why), 0);
	assert_true(checks.v[0].done);
	checks_release(&checks);
	sources_unref(l->sources);
	layout_unref(l->layout);
	state_unref(s);
}

/* A patch file for another model is refused, whatever is wrong. */
static void foreign_link(void **state)
{
	struct lab *l = *state;
	struct layout *right, *wrong;
	struct link *link = NULL;
	struct mapping *mapping;
	struct why why = {0};

	do {
		make_layout(l);
		make_sources(l);
		take_stored(l);
		l->link_count = 0;
		make_link(l, 1);
		for (uint32_t t = 0; t < l->layout->tensor_count; t++)
			free(l->stored[t]);
		right = l->layout;
		sources_unref(l->sources);
		if (l->links[0]->file->count == 0) {
			link_unref(l->links[0]);
			layout_unref(right);
			right = NULL;
		}
	} while (right == NULL);
	assert_int_equal(cachedir_map(l->cache, "1", &mapping), 0);
	assert_int_equal(link_new(1, 1, mapping, true, "1", right, NULL, &link, &why), 0);
	link_unref(link);
	/* A layout without tensors knows none of them. */
	struct st_header none = {.length = 2, .data = 10, .file_size = 10};
	struct layout_input in = {"x", &none, "{}"};

	assert_int_equal(layout_keep(&in, 1, &wrong, &why), 0);
	assert_int_equal(cachedir_map(l->cache, "1", &mapping), 0);
	assert_int_equal(link_new(1, 1, mapping, true, "1", wrong, NULL, &link, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "unknown tensor"));
	/* One with another number of elements. */
	for (uint32_t t = 0; t < right->tensor_count; t++) {
		right->tensors[t].numel += 2;
		right->tensors[t].end += 2;
	}
	assert_int_equal(cachedir_map(l->cache, "1", &mapping), 0);
	assert_int_equal(link_new(1, 1, mapping, true, "1", right, NULL, &link, &why), -EBADMSG);
	assert_non_null(strstr(why.text, "elements"));
	layout_unref(wrong);
	link_unref(l->links[0]);
	layout_unref(right);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(random_states, setup, teardown),
		cmocka_unit_test_setup_teardown(widening, setup, teardown),
		cmocka_unit_test_setup_teardown(stale_object, setup, teardown),
		cmocka_unit_test_setup_teardown(compared, setup, teardown),
		cmocka_unit_test_setup_teardown(foreign_link, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
