/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs verify SOURCE|MOUNTPOINT: is everything in this run as it should be?
 *
 * Looks at every object, not only at what the newest version needs: each is read to its last byte,
 * each header is validated, each version is built, which validates every changed element of its
 * chain, and where the format has a hash of the whole state (TRL v1.0), it is computed and
 * compared; so are the checksums that deltas have of tensors, and those that an index has of whole
 * objects (grail's file_manifest).  Problems go to standard
 * output, one line each; the summary goes to standard error.
 *
 * A run that is in use changes meanwhile.  So what cannot be read is looked for again: an object
 * that was replaced or deleted since the listing, and a version that was pruned, are no problem,
 * unless the run as it is at the end says so.
 *
 * One thread.
 */
#include "cache/clock.h"
#include "cache/log.h"
#include "fs/manifest.h"
#include "fs/stack.h"
#include "fs/state_hash.h"
#include "tools/cli.h"
#include "tools/looks.h"
#include "tools/place.h"
#include "tools/progress.h"
#include "codec/sha256.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 4 << 20 };

enum { OPT_JSON, OPT_QUIET };

static const struct cli_opt own[] = {
	[OPT_JSON] = {"json", 0, NULL, "the result as one JSON object"},
	[OPT_QUIET] = {"quiet", 'q', NULL, "no progress and no summary"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "verify",
	.args = "[options] SOURCE|MOUNTPOINT",
	.about = "Checks a whole run: every object is readable and well-formed, every version can "
		 "be\n"
		 "built from a complete anchor, every changed element is valid, and the state has "
		 "the\n"
		 "hash that the trainer recorded, where the format has one.  Prints a line for "
		 "each\n"
		 "problem.\n",
	.own = own,
	.with = CLI_SOURCE,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs verify ./bucket\n"
		    "  weightfs verify --json s3://models/run-7 --base ./Qwen3-0.6B\n",
};

struct verify {
	struct stack *stack;
	struct progress progress, reading; /* of objects; of the version in hand */
	char label[40];			   /* of reading */
	uint8_t *piece;			   /* PIECE bytes */
	bool quiet;
	json_t *problems; /* of {object, error} */
	unsigned objects, versions, whole, hashes;
	unsigned sums;	 /* of whole objects, right */
	size_t unknown;	 /* checksums of a kind that is not known here */
	uint64_t summed; /* one above the last version whose checksums were compared; 0: none */
	uint64_t hashed; /* the last version whose state was compared */
	uint64_t last;	 /* the last version looked at */
	struct looks looks;
};

static void problem(struct verify *v, const char *object, const char *text)
{
	size_t i, n = strlen(object);
	json_t *known;

	if (n > 0 && strncmp(text, object, n) == 0 && strncmp(text + n, ": ", 2) == 0)
		text += n + 2;
	/* What builds on a bad object fails with that one's sentence in its own. */
	json_array_foreach (v->problems, i, known) {
		if (strstr(text, json_string_value(json_object_get(known, "error"))) != NULL)
			return;
	}
	json_array_append_new(v->problems,
			      json_pack("{s:s, s:s}", "object", object, "error", text));
}

/* Is what was read what the run's index says? */
static void check_object(struct verify *v, const char *shown, struct checksum *sum,
			 enum checksum_kind kind, const char *want)
{
	struct buf text = {0};
	char have[CHECKSUM_HEX];

	checksum_hex(sum, have);
	if (checksum_equal(have, want)) {
		v->sums++;
		return;
	}
	buf_addf(&text,
		 "has the %s %s, and its index says %s: it is damaged, or not what the trainer "
		 "wrote",
		 checksum_name(kind), have, want);
	problem(v, shown, buf_str(&text));
	buf_release(&text);
}

/* Reads an object to its end. */
static void read_object(struct verify *v, const struct object *o)
{
	enum checksum_kind kind = CHECKSUM_NONE;
	struct checksum *sum = NULL;
	char want[CHECKSUM_HEX];
	struct blob *blob = NULL;
	struct why why = {0};
	char shown[600];
	int ret;

	printable(shown, sizeof(shown), o->key, strlen(o->key));
	v->objects++;
	if (o->err != 0)
		return; /* the scan has said why */
	ret = blob_open(run_store(v->stack->run), o, false, &blob, &why);
	if (ret == 0 && run_object_sum(v->stack->run, o->key, &kind, want) &&
	    checksum_known(kind) && checksum_new(kind, &sum) < 0)
		ret = why_set(&why, ENOMEM, "out of memory");
	for (uint64_t at = 0; ret == 0 && at < o->size;) {
		size_t len = (size_t)MIN(o->size - at, (uint64_t)PIECE);

		ret = blob_read(blob, at, v->piece, len);
		if (ret == 0 && sum != NULL)
			checksum_feed(sum, v->piece, len);
		if (ret < 0)
			why_set(&why, -ret, "cannot be read at byte %" PRIu64 ": %s", at,
				errno_text(ret));
		at += len;
		if (!v->quiet)
			progress_add(&v->progress, len);
	}
	if (ret < 0 && !looks_object_moved(&v->looks, o))
		problem(v, shown, why.text);
	else if (ret == 0 && sum != NULL)
		check_object(v, shown, sum, kind, want);
	checksum_free(sum);
	blob_unref(blob);
}

/* The bar while a version is read; cleared after it. */
static void show_version(struct verify *v, uint64_t number, const struct layout *l)
{
	uint64_t bytes = 0;

	if (v->quiet)
		return;
	for (uint32_t f = 0; f < l->file_count; f++)
		bytes += l->files[f].size;
	snprintf(v->label, sizeof(v->label), "version %" PRIu64, number);
	progress_hide(&v->progress);
	progress_begin(&v->reading, v->label, bytes);
}

static void have_read(struct verify *v, uint64_t bytes)
{
	if (!v->quiet)
		progress_add(&v->reading, bytes);
}

static void not_read(struct verify *v, const struct version_info *info, int ret, struct buf *out)
{
	if (!looks_version_moved(&v->looks, info))
		buf_addf(out, "version %" PRIu64 " cannot be read: %s", info->number,
			 errno_text(ret));
}

/* SHA-256 over the bytes of all tensors in the order of their names. */
static int hash_state(struct verify *v, const struct state *s, char hex[65])
{
	const struct layout *l = s->layout;
	struct sha256 hash;

	sha256_init(&hash);
	for (uint32_t i = 0; i < l->tensor_count; i++) {
		const struct layout_tensor *t = &l->tensors[l->by_name[i]];

		for (uint64_t at = t->begin; at < t->end;) {
			size_t len = (size_t)MIN(t->end - at, (uint64_t)PIECE);
			int ret = state_read(s, t->file, at, v->piece, len);

			if (ret < 0)
				return ret;
			sha256_update(&hash, v->piece, len);
			have_read(v, len);
			at += len;
		}
	}
	sha256_hex(&hash, hex);
	return 0;
}

/* The hash of the state that the object records, malloc'ed, or NULL. */
static char *recorded_hash(struct verify *v, const char *key)
{
	struct listing_ref *l = run_listing(v->stack->run);
	const struct object *o = l != NULL ? listing_find(&l->listing, key) : NULL;
	struct st_header *header = NULL;
	struct blob *blob = NULL;
	char *hash = NULL;

	if (o != NULL && blob_open(run_store(v->stack->run), o, false, &blob, NULL) == 0) {
		struct source src = blob_source(blob);

		if (st_read(&src, &header, NULL, NULL) == 0 &&
		    st_meta(header, "checksum_sha256") != NULL)
			hash = strdup(st_meta(header, "checksum_sha256"));
	}
	st_free(header);
	blob_unref(blob);
	listing_unref(l);
	return hash;
}

/* Does the version have the hash that its object names?  A --base adds tensors that the trainer
 * does not have, so there it cannot be compared. */
static void check_hash(struct verify *v, const struct version_info *info, const struct state *s)
{
	char *want = v->stack->base == NULL ? recorded_hash(v, info->key) : NULL, have[65];
	struct buf text = {0};
	int ret;

	if (want == NULL)
		return;
	show_version(v, info->number, s->layout);
	ret = hash_state(v, s, have);
	progress_clear(&v->reading);
	if (ret < 0)
		not_read(v, info, ret, &text);
	else if (strcmp(want, have) != 0)
		buf_addf(&text,
			 "version %" PRIu64 " has the hash %s, and its object says %.64s: one of "
			 "the objects it is made of is not what the trainer wrote",
			 info->number, have, want);
	else
		v->hashes++;
	if (text.len > 0)
		problem(v, info->key, buf_str(&text));
	buf_release(&text);
	free(want);
}

/* Feeds all files of a state. */
static int feed_state(struct verify *v, const struct state *s, struct state_hash *h)
{
	for (uint32_t f = 0; f < s->layout->file_count; f++)
		for (uint64_t at = 0; at < s->layout->files[f].size;) {
			uint64_t left = s->layout->files[f].size - at;
			size_t len = (size_t)MIN(left, (uint64_t)PIECE);
			int ret = state_read(s, f, at, v->piece, len);

			if (ret < 0)
				return ret;
			state_hash_feed(h, f, v->piece, len);
			have_read(v, len);
			at += len;
		}
	return 0;
}

/* The first tensor that is not what the delta says of it: its name in `out`. */
static bool find_culprit(struct verify *v, const char *key, const struct state *s,
			 const struct state_hash *h, char out[200])
{
	struct listing_ref *l = run_listing(v->stack->run);
	const struct object *o = l != NULL ? listing_find(&l->listing, key) : NULL;
	struct st_header *header = NULL;
	struct blob *blob = NULL;
	const char *hashes = NULL;
	bool found = false;

	if (o != NULL && blob_open(run_store(v->stack->run), o, false, &blob, NULL) == 0) {
		struct source src = blob_source(blob);

		if (st_read(&src, &header, NULL, NULL) == 0)
			hashes = st_meta(header, "hashes");
	}
	if (hashes != NULL && strlen(hashes) != 32 * header->count)
		hashes = NULL;
	for (size_t i = 0; hashes != NULL && i < header->count && !found; i++) {
		uint32_t t = layout_find(s->layout, header->tensors[i].name);
		char hex[33];

		if (t == LAYOUT_NONE)
			continue;
		manifest_hex(state_hash_tensor(h, t), hex);
		found = memcmp(hex, hashes + 32 * i, 32) != 0;
		if (found)
			printable(out, 200, header->tensors[i].name,
				  strlen(header->tensors[i].name));
	}
	st_free(header);
	blob_unref(blob);
	listing_unref(l);
	return found;
}

/* Has the version the state that its publisher recorded?  Not with a --base, as above. */
static void check_state(struct verify *v, const struct version_info *info, const struct state *s)
{
	struct state_hash *h = NULL;
	char want[33], have[33], tensor[200];
	struct buf text = {0};
	uint8_t hash[16];
	int ret;

	if (!info->has_state || v->stack->base != NULL || v->hashed == info->number)
		return;
	v->hashed = info->number;
	ret = state_hash_new(s->layout, &h);
	if (ret == 0) {
		show_version(v, info->number, s->layout);
		ret = feed_state(v, s, h);
		progress_clear(&v->reading);
	}
	if (ret == 0)
		ret = state_hash_end(h, hash);
	if (ret < 0) {
		not_read(v, info, ret, &text);
	} else if (memcmp(hash, info->state_hash, sizeof(hash)) == 0) {
		v->hashes++;
	} else {
		manifest_hex(hash, have);
		manifest_hex(info->state_hash, want);
		buf_addf(&text, "version %" PRIu64 " has the state %s, and %s was published",
			 info->number, have, want);
		if (find_culprit(v, info->key, s, h, tensor))
			buf_addf(&text, "; tensor \"%s\" is not as published", tensor);
	}
	if (text.len > 0)
		problem(v, info->key, buf_str(&text));
	state_hash_free(h);
	buf_release(&text);
}

/* Are the tensors that the version's objects change what their checksums say? */
static void check_sums(struct verify *v, const struct version_info *info, const struct state *s)
{
	struct check_result sums;
	struct why why = {0};

	if (v->summed == info->number + 1) /* an anchor beside a delta */
		return;
	v->summed = info->number + 1;
	if (run_check(v->stack->run, s, true, NULL, &sums, &why) < 0 &&
	    !looks_version_moved(&v->looks, info))
		problem(v, info->key, why.text);
	v->unknown += sums.unknown;
	if (why.err == 0 && sums.right > 0 && sums.unknown == 0 && v->hashed != info->number)
		v->hashes++;
}

static void check_version(struct verify *v, const struct listing *first,
			  const struct version_info *info)
{
	struct state *state = NULL;
	struct why why = {0};
	bool again = v->versions > 0 && info->number == v->last; /* an anchor beside a delta */

	v->last = info->number;
	v->versions += !again;
	if (info->problem != NULL) {
		if (looks_has_passed(&v->looks, first, info->key))
			v->versions -= !again;
		else
			problem(v, info->key, info->problem);
		return;
	}
	if (run_walk(v->stack->run, info->number, &state, &why) < 0) {
		if (looks_version_moved(&v->looks, info))
			v->versions -= !again;
		else
			problem(v, info->key, why.text);
		return;
	}
	v->whole += !again;
	check_hash(v, info, state);
	check_state(v, info, state);
	check_sums(v, info, state);
	state_unref(state);
}

static uint64_t listing_bytes(const struct listing *l)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < l->count; i++)
		sum += l->v[i].err == 0 ? l->v[i].size : 0;
	return sum;
}

/* What is wrong with the run as it is by now. */
static void check_now(struct verify *v)
{
	struct run_report *before = looks_report(&v->looks);

	/* What only one of two looks meets was on its way. */
	for (size_t i = 0; before != NULL && i < before->problem_count; i++)
		if (looks_has_problem(&v->looks, before->problems[i].object,
				      before->problems[i].text))
			problem(v, before->problems[i].object, before->problems[i].text);
	run_report_unref(before);
}

static int check_run(struct verify *v, struct why *why)
{
	struct run_report *report;
	struct listing_ref *l;
	int ret = run_scan(v->stack->run, why);

	v->looks.run = v->stack->run;

	if (ret < 0)
		return ret;
	report = run_report(v->stack->run);
	l = run_listing(v->stack->run);
	if (report == NULL || l == NULL)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0 && !v->quiet)
		progress_begin(&v->progress, "verify", listing_bytes(&l->listing));
	for (size_t i = 0; ret == 0 && i < report->problem_count; i++)
		if (!looks_has_passed(&v->looks, &l->listing, report->problems[i].object))
			problem(v, report->problems[i].object, report->problems[i].text);
	for (size_t i = 0; ret == 0 && i < l->listing.count; i++)
		read_object(v, &l->listing.v[i]);
	for (size_t i = 0; ret == 0 && i < report->version_count; i++)
		if (report->versions[i].state != VERSION_SUPERSEDED)
			check_version(v, &l->listing, &report->versions[i]);
	if (ret == 0 && report->version_count == 0)
		problem(v, "", "there is no anchor and no delta in it");
	if (ret == 0 && v->looks.moved)
		check_now(v);
	run_report_unref(report);
	listing_unref(l);
	return ret;
}

static void print_result(struct verify *v, bool json)
{
	char sums[48] = "";
	json_t *p, *all;
	size_t i;

	if (json) {
		all = json_pack("{s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:O}", "source",
				v->stack->store->name, "ok", json_array_size(v->problems) == 0,
				"objects", (int)v->objects, "sums", (int)v->sums, "versions",
				(int)v->versions, "whole", (int)v->whole, "hashes", (int)v->hashes,
				"problems", v->problems);
		json_dumpf(all, stdout, JSON_INDENT(2));
		printf("\n");
		json_decref(all);
	} else {
		json_array_foreach (v->problems, i, p) {
			const char *object = json_string_value(json_object_get(p, "object"));

			printf("%s%s%s\n", object, object[0] != '\0' ? ": " : "",
			       json_string_value(json_object_get(p, "error")));
		}
	}
	if (v->quiet)
		return;
	if (v->sums > 0)
		snprintf(sums, sizeof(sums), ", %u as their checksums say", v->sums);
	progress_end(&v->progress,
		     "%u objects%s, %u of %u versions whole, %u hashes right%s, %zu problem%s",
		     v->objects, sums, v->whole, v->versions, v->hashes,
		     v->unknown > 0 ? " (some are BLAKE3, which is not compared)" : "",
		     json_array_size(v->problems), json_array_size(v->problems) == 1 ? "" : "s");
}

static int run_verify(struct opts *o, const struct cli_line *line)
{
	struct verify v = {
		.piece = malloc(PIECE),
		.problems = json_array(),
		.quiet = line->value[OPT_QUIET] != NULL,
	};
	struct why why = {0};
	int ret;

	if (v.piece == NULL || v.problems == NULL)
		ret = cli_error("out of memory");
	else if (place_source(line->args[0], o, &why) < 0 ||
		 stack_new(o, false, &v.stack, &why) < 0 || check_run(&v, &why) < 0)
		ret = cli_fail(&why);
	else {
		print_result(&v, line->value[OPT_JSON] != NULL);
		ret = cli_done();
		if (json_array_size(v.problems) > 0)
			ret = EXIT_CODE_FAILURE;
	}
	looks_release(&v.looks);
	stack_free(v.stack);
	json_decref(v.problems);
	free(v.piece);
	return ret;
}

int verb_verify(int argc, char **argv)
{
	struct cli_line line;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_ERROR;
	o.hole_grace_ns = 0;
	o.deep = true;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0) {
		log_set_level(o.log_level);
		ret = run_verify(&o, &line);
	}
	opts_release(&o);
	return ret;
}
