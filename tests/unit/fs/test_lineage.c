/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage: which objects of a listing are the run that is alive, and in what order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/lineage.h"

#include <stdio.h>
#include <stdlib.h>

struct entry {
	const char *key;
	int64_t mtime_ns;
	int err;
};

static int compare_objects(const void *a, const void *b)
{
	return strcmp(((const struct object *)a)->key, ((const struct object *)b)->key);
}

static void fill(struct listing *l, const struct entry *e, size_t n)
{
	l->v = calloc(n + 1, sizeof(*l->v));
	l->count = n;
	assert_non_null(l->v);
	for (size_t i = 0; i < n; i++) {
		l->v[i].key = strdup(e[i].key);
		l->v[i].mtime_ns = e[i].mtime_ns;
		l->v[i].err = e[i].err;
		for (size_t k = 0; k < sizeof(l->v[i].id.bytes); k++)
			l->v[i].id.bytes[k] = (uint8_t)(17 * (i + 1) + k);
	}
	qsort(l->v, n, sizeof(*l->v), compare_objects);
}

static int64_t newest_of(const struct step *s)
{
	int64_t newest = INT64_MIN;

	for (size_t i = 0; i < s->anchor.count; i++)
		newest = MAX(newest, s->anchor.v[i].object->mtime_ns);
	for (size_t i = 0; i < s->delta.count; i++)
		newest = MAX(newest, s->delta.v[i].object->mtime_ns);
	return newest;
}

/* Orders the entries and compares with "number:anchor key,delta key;..." in short form. */
static void expect(const struct entry *e, size_t n, bool ignore_times, const char *steps,
		   const char *strays)
{
	static const char *const kinds[] = {"old", "double", "name", "unnamed", "directory"};
	struct listing listing;
	struct lineage l;
	char text[2000] = "";

	fill(&listing, e, n);
	assert_int_equal(lineage_order(&listing, ignore_times, &l), 0);
	for (size_t i = 0; i < l.step_count; i++) {
		const struct step *s = &l.steps[i];
		size_t at = strlen(text);

		assert_true(i == 0 || l.steps[i - 1].number < s->number);
		assert_ptr_equal(lineage_find(&l, s->number), s);
		snprintf(text + at, sizeof(text) - at, "%s%llu%s%s", i ? " " : "",
			 (unsigned long long)s->number, s->anchor.present ? "a" : "",
			 s->delta.present ? "d" : "");
		assert_int_equal(s->mtime_ns, newest_of(s));
	}
	assert_string_equal(text, steps);
	text[0] = '\0';
	for (size_t i = 0; i < l.stray_count; i++) {
		const struct stray *s = &l.strays[i];
		size_t at = strlen(text);

		snprintf(text + at, sizeof(text) - at, "%s%s %s%s%s", i ? "; " : "", kinds[s->kind],
			 s->object->key, s->against ? " < " : "",
			 s->against ? s->against->key : "");
	}
	assert_string_equal(text, strays);
	lineage_release(&l);
	listing_release(&listing);
}

#define EXPECT(ignore, steps, strays, ...)                                                         \
	expect((const struct entry[]){__VA_ARGS__},                                                \
	       sizeof((const struct entry[]){__VA_ARGS__}) / sizeof(struct entry), ignore, steps,  \
	       strays)

static void numbers_as_numbers(void **state)
{
	EXPECT(false, "1a 2d 3d 10d 1000000d", "", {"deltas/step_10.safetensors", 4},
	       {"deltas/step_1000000.safetensors", 5}, {"deltas/step_000002.safetensors", 2},
	       {"deltas/step_3.safetensors", 3}, {"anchors/step_000001.safetensors", 1});
	EXPECT(false, "1d 2d", "", {"steps/step_000001.safetensors", 1},
	       {"steps/step_000002.safetensors", 2});
	EXPECT(false, "9223372036854775807d", "",
	       {"deltas/step_9223372036854775807.safetensors", 1});
	EXPECT(false, "0a 1d", "", {"anchors/step_0.safetensors", 1},
	       {"deltas/step_00000000000000000000000000001.safetensors", 1});
}

static void both_of_one_number(void **state)
{
	EXPECT(false, "1a 2ad", "", {"anchors/step_000001.safetensors", 1},
	       {"anchors/step_000002.safetensors", 3}, {"deltas/step_000002.safetensors", 2});
	/* The same in deltas/ and steps/, or under two spellings: the newer one. */
	EXPECT(false, "5d", "double deltas/step_5.safetensors < deltas/step_000005.safetensors",
	       {"deltas/step_000005.safetensors", 9}, {"deltas/step_5.safetensors", 8});
	EXPECT(false, "5d", "double deltas/step_5.safetensors < steps/step_5.safetensors",
	       {"deltas/step_5.safetensors", 8}, {"steps/step_5.safetensors", 9});
}

static void superseded(void **state)
{
	/* A restart has overwritten 1 and 2; 3 and 4 are the old run's. */
	EXPECT(false, "1a 2d",
	       "old deltas/step_000003.safetensors < deltas/step_000002.safetensors; "
	       "old anchors/step_000004.safetensors < deltas/step_000002.safetensors",
	       {"anchors/step_000001.safetensors", 100}, {"deltas/step_000002.safetensors", 101},
	       {"deltas/step_000003.safetensors", 50}, {"anchors/step_000004.safetensors", 51});
	/* Equal times are in order. */
	EXPECT(false, "1a 2d 3d", "", {"anchors/step_000001.safetensors", 7},
	       {"deltas/step_000002.safetensors", 7}, {"deltas/step_000003.safetensors", 7});
	/* What is superseded does not supersede. */
	EXPECT(false, "1a 3d", "old deltas/step_2.safetensors < anchors/step_1.safetensors",
	       {"anchors/step_1.safetensors", 10}, {"deltas/step_2.safetensors", 5},
	       {"deltas/step_3.safetensors", 12});
	/* An old anchor beside the new run's delta of that number. */
	EXPECT(false, "1a 2d", "old anchors/step_2.safetensors < anchors/step_1.safetensors",
	       {"anchors/step_1.safetensors", 10}, {"anchors/step_2.safetensors", 5},
	       {"deltas/step_2.safetensors", 11});
	/* Times that are not to be trusted. */
	EXPECT(true, "1a 2d 3d", "", {"anchors/step_000001.safetensors", 100},
	       {"deltas/step_000002.safetensors", 99}, {"deltas/step_000003.safetensors", 98});
}

/* What is set aside and may yet be of this run: between which numbers it is asked for counts. */
static void unsure(void **state)
{
	const struct entry entries[] = {
		{"anchors/step_1.safetensors", 10}, {"deltas/step_2.safetensors", 30},
		{"deltas/step_3.safetensors", 9},   {"deltas/step_4.safetensors", 10},
		{"deltas/step_5.safetensors", 29},  {"deltas/step_6.safetensors", 40},
	};
	struct listing listing;
	struct lineage l;

	fill(&listing, entries, ARRAY_LEN(entries));
	assert_int_equal(lineage_order(&listing, false, &l), 0);
	assert_int_equal(l.step_count, 3);
	assert_int_equal(l.stray_count, 3);
	assert_ptr_equal(lineage_unsure(&l, 2, 6), &l.strays[1]);
	assert_ptr_equal(lineage_unsure(&l, 4, 6), &l.strays[2]);
	assert_null(lineage_unsure(&l, 2, 4));
	assert_null(lineage_unsure(&l, 5, 6));
	assert_null(lineage_unsure(&l, 6, UINT64_MAX));
	lineage_release(&l);
	listing_release(&listing);
}

/* A run that should be over goes on: told by when its next object comes. */
static void two_at_once(void **state)
{
	struct entry entries[] = {
		{"anchors/step_1.safetensors", 52}, {"deltas/step_2.safetensors", 10},
		{"deltas/step_3.safetensors", 21},  {"deltas/step_4.safetensors", 30},
		{"deltas/step_5.safetensors", 60},
	};
	struct listing listing;
	struct lineage l;

	for (int late = 0; late < 2; late++) {
		entries[4].mtime_ns = late ? 70 : 60;
		fill(&listing, entries, ARRAY_LEN(entries));
		assert_int_equal(lineage_order(&listing, false, &l), 0);
		assert_int_equal(l.step_count, 2);
		if (late)
			assert_null(lineage_unsure(&l, 1, 5));
		else
			assert_ptr_equal(lineage_unsure(&l, 1, 5), &l.strays[2]);
		lineage_release(&l);
		listing_release(&listing);
	}
}

/* The time of what cannot be used says nothing, about others or itself. */
static void unusable(void **state)
{
	EXPECT(false, "1a 2d 3d 4d", "", {"anchors/step_1.safetensors", 10},
	       {"deltas/step_2.safetensors", 1000, ELOOP}, {"deltas/step_3.safetensors", 0, EACCES},
	       {"deltas/step_4.safetensors", 11});
}

static void strange_names(void **state)
{
	EXPECT(false, "",
	       "name deltas/STEP_1.safetensors; name deltas/model.safetensors; "
	       "name deltas/step_-1.safetensors; name deltas/step_.safetensors; "
	       "name deltas/step_1x.safetensors; "
	       "name deltas/step_9223372036854775808.safetensors; "
	       "name deltas/step_99999999999999999999999.safetensors",
	       {"deltas/STEP_1.safetensors", 1}, {"deltas/model.safetensors", 1},
	       {"deltas/step_-1.safetensors", 1}, {"deltas/step_.safetensors", 1},
	       {"deltas/step_1x.safetensors", 1},
	       {"deltas/step_9223372036854775808.safetensors", 1},
	       {"deltas/step_99999999999999999999999.safetensors", 1});
	/* Others' files. */
	EXPECT(false, "", "", {"config.json", 1}, {"deltas/step_1.safetensors.tmp", 1},
	       {"deltas/note.txt", 1}, {"deltas/sub/step_1.safetensors", 1},
	       {"model.safetensors", 1}, {"step_1.safetensors", 1},
	       {"anchors_old/step_1.safetensors", 1});
	/* Directories, each told of once, whether there is something in them or not. */
	EXPECT(false, "2d",
	       "directory anchors/step_1.safetensors/a; directory deltas/step_1.safetensors; "
	       "directory deltas/step_3.safetensors/step_3.safetensors",
	       {"anchors/step_1.safetensors/a", 1}, {"anchors/step_1.safetensors/b/c", 1},
	       {"deltas/step_1.safetensors", 0, EISDIR}, {"deltas/step_2.safetensors", 1},
	       {"deltas/step_3.safetensors/step_3.safetensors", 1},
	       {"deltas/step_3.safetensors/x", 1}, {"deltas/step_x.safetensors/y", 1});
	assert_true(lineage_owns("anchors/x"));
	assert_true(lineage_owns("deltas/x"));
	assert_true(lineage_owns("steps/x"));
	assert_true(lineage_owns("compact/x"));
	assert_true(lineage_owns("leases/x.json"));
	assert_true(lineage_owns("weightfs.json"));
	assert_false(lineage_owns("step/x"));
	assert_false(lineage_owns("config.json"));
}

/* With ' for ". */
static const char declaration[] =
	"{'format': 'weightfs-run', 'version': 1, 'lineage': '9f86d081', 'newest': 6, 'steps': ["
	" {'version': 4, 'kind': 'anchor', 'state': '000102030405060708090a0b0c0d0e0f',"
	"  'encoding': 'safetensors', 'objects': ["
	"   {'key': 'anchors/step_000004-aa/b', 'size': 0, 'file': 'b'},"
	"   {'key': 'anchors/step_000004-aa/a', 'size': 0, 'file': 'a'}]},"
	" {'version': 5, 'kind': 'delta', 'base': 4, 'state': '000102030405060708090a0b0c0d0e0f',"
	"  'encoding': 'wfp1', 'objects': []},"
	" {'version': 6, 'kind': 'anchor', 'state': '000102030405060708090a0b0c0d0e0f',"
	"  'encoding': 'safetensors', 'objects': [{'key': 'anchors/x', 'size': 7}]},"
	" {'version': 6, 'kind': 'delta', 'base': 5, 'state': '000102030405060708090a0b0c0d0e0f',"
	"  'time': '1970-01-01T00:00:01Z', 'encoding': 'wfp1',"
	"  'objects': [{'key': 'deltas/y', 'size': 8}]}],"
	"'spans': [{'base': 4, 'version': 6, 'state': '000102030405060708090a0b0c0d0e0f',"
	"  'encoding': 'wfp1', 'objects': [{'key': 'compact/z', 'size': 9}]}]}";

/* Steps and spans as weightfs.json has them, whatever the listing looks like. */
static void declared(void **state)
{
	static const struct entry entries[] = {{"anchors/step_000004-aa/a", 90},
					       {"anchors/step_000004-aa/b", 40},
					       {"deltas/y", 30},
					       {"compact/z", 20},
					       {"anchors/step_000009.safetensors", 99},
					       {"config.json", 5},
					       {"weightfs.json", 100},
					       {"leases/l.json", 3}};
	struct listing listing;
	struct manifest *m = NULL;
	struct lineage l;
	char label[9], text[sizeof(declaration)];

	memcpy(text, declaration, sizeof(text));
	for (char *p = text; *p != '\0'; p++)
		*p = *p == '\'' ? '"' : *p;
	assert_int_equal(manifest_parse(text, strlen(text), &m, NULL), 0);
	fill(&listing, entries, ARRAY_LEN(entries));
	assert_int_equal(lineage_declare(&listing, m, &l), 0);
	assert_int_equal(l.step_count, 3);
	assert_int_equal(l.steps[0].anchor.count, 2);
	assert_string_equal(l.steps[0].anchor.v[0].file, "b");
	assert_int_equal(l.steps[0].mtime_ns, 90);
	assert_true(l.steps[1].delta.present && l.steps[1].delta.count == 0);
	assert_int_equal(l.steps[2].anchor.v[0].object->err, LINEAGE_MISSING);
	assert_int_equal(l.steps[2].delta.v[0].object->err, 0);
	assert_int_equal(l.steps[2].mtime_ns, 1000000000);
	assert_int_equal(l.span_count, 1);
	assert_string_equal(l.spans[0].pieces.v[0].object->key, "compact/z");
	assert_int_equal(l.stray_count, 1);
	assert_string_equal(l.strays[0].object->key, "anchors/step_000009.safetensors");
	assert_int_equal(lineage_named(&l, "deltas/y")->size, 8);
	assert_int_equal(lineage_named(&l, "deltas/y")->entry->version, 6);
	assert_null(lineage_named(&l, "config.json"));
	lineage_label(&l, label);
	assert_string_equal(label, "9f86d081");
	lineage_release(&l);
	listing_release(&listing);
	manifest_free(m);
}

static void nothing(void **state)
{
	struct listing listing = {0};
	struct lineage l;
	char label[9] = "x";

	assert_int_equal(lineage_order(&listing, false, &l), 0);
	assert_int_equal(l.step_count, 0);
	assert_null(lineage_find(&l, 1));
	lineage_label(&l, label);
	assert_string_equal(label, "");
	lineage_release(&l);
}

/* The label is the first object's identity. */
static void labels(void **state)
{
	static const struct entry e[] = {{"anchors/step_1.safetensors", 1},
					 {"deltas/step_2.safetensors", 2}};
	struct listing listing;
	struct lineage l;
	char a[9], b[9];

	fill(&listing, e, 2);
	assert_int_equal(lineage_order(&listing, false, &l), 0);
	lineage_label(&l, a);
	assert_string_equal(a, "11121314");
	lineage_release(&l);
	listing.v[1].id.bytes[0] ^= 1;
	assert_int_equal(lineage_order(&listing, false, &l), 0);
	lineage_label(&l, b);
	assert_string_equal(b, a);
	lineage_release(&l);
	listing.v[0].id.bytes[3] ^= 0xf0;
	assert_int_equal(lineage_order(&listing, false, &l), 0);
	lineage_label(&l, b);
	assert_string_equal(b, "111213e4");
	lineage_release(&l);
	listing_release(&listing);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_as_numbers),
		cmocka_unit_test(both_of_one_number),
		cmocka_unit_test(superseded),
		cmocka_unit_test(unsure),
		cmocka_unit_test(two_at_once),
		cmocka_unit_test(unusable),
		cmocka_unit_test(strange_names),
		cmocka_unit_test(declared),
		cmocka_unit_test(nothing),
		cmocka_unit_test(labels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
