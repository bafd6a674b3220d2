/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said about a published version: one line for people, or one JSON object for scripts.
 *
 * To stdout: it is what the verb is asked for.  Numbers in JSON are plain (bytes, seconds).
 */
#include "cache/clock.h"
#include "fs/human.h"
#include "tools/publisher.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static double seconds(int64_t ns)
{
	return (double)ns / NSEC_PER_SEC;
}

static double bits(const struct pub_report *r)
{
	return r->changed > 0 ? 8.0 * (double)r->delta_bytes / (double)r->changed : 0;
}

static void add_changes(struct buf *b, const struct pub_report *r)
{
	if (!r->compared) {
		human_count(b, r->elements);
		buf_addstr(b, " elements");
		return;
	}
	human_count(b, r->changed);
	buf_addstr(b, " of ");
	human_count(b, r->elements);
	buf_addf(b, " elements changed (%.3g %%)",
		 r->elements > 0 ? 100.0 * (double)r->changed / (double)r->elements : 0.0);
}

void pub_report_print(const struct pub_report *r, const char *dest)
{
	struct buf b = {0};

	buf_addf(&b, "version %" PRIu64 ": %s%s, ", r->version, r->kind,
		 r->with_anchor && r->compared ? " and anchor" : "");
	add_changes(&b, r);
	buf_addstr(&b, ", ");
	human_bytes(&b, r->bytes);
	if (r->changed > 0 && r->delta_bytes > 0)
		buf_addf(&b, ", %.1f bits per change", bits(r));
	if (r->companions > 0)
		buf_addf(&b, ", %" PRIu64 " companion file%s", r->companions,
			 r->companions == 1 ? "" : "s");
	buf_addf(&b, "; diff %.2f s, encode %.2f s, upload %.2f s", seconds(r->diff_ns),
		 seconds(r->encode_ns), seconds(r->upload_ns));
	printf("%s -> %s%s%s%s\n", buf_str(&b), dest, r->reason[0] != '\0' ? " (anchor: " : "",
	       r->reason, r->reason[0] != '\0' ? ")" : "");
	buf_release(&b);
}

void pub_report_json(const struct pub_report *r, const char *dest)
{
	json_t *root = json_pack(
		"{ss, sI, ss, sb, ss*, ss, ss, sI, sI, sI, sI, sI, sI}", "destination", dest,
		"version", (json_int_t)r->version, "kind", r->kind, "anchor", r->with_anchor,
		"reason", r->reason[0] != '\0' ? r->reason : NULL, "encoding", r->encoding, "state",
		r->state, "tensors", (json_int_t)r->tensors, "elements", (json_int_t)r->elements,
		"weights_bytes", (json_int_t)r->weights, "objects", (json_int_t)r->objects, "bytes",
		(json_int_t)r->bytes, "companions", (json_int_t)r->companions);
	char *text;

	if (root != NULL && r->compared) {
		json_object_set_new(root, "changed", json_integer((json_int_t)r->changed));
		json_object_set_new(root, "delta_bytes", json_integer((json_int_t)r->delta_bytes));
		json_object_set_new(root, "bits_per_change", json_real(bits(r)));
	}
	if (root != NULL && r->note[0] != '\0')
		json_object_set_new(root, "note", json_string(r->note));
	if (root != NULL)
		json_object_set_new(root, "seconds",
				    json_pack("{sf, sf, sf, sf}", "diff", seconds(r->diff_ns),
					      "encode", seconds(r->encode_ns), "upload",
					      seconds(r->upload_ns), "total",
					      seconds(r->total_ns)));
	text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	if (text != NULL)
		printf("%s\n", text);
	free(text);
	json_decref(root);
}
