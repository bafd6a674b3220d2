/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status of how the kernel serves the mount: its settings as read back, which features it gives
 * and why not, and what the newest version's preparation does.
 *
 * A person who wonders why loading is slow finds the reason here, in words.
 *
 * Any thread; snapshots only.
 */
#include "fs/status_private.h"

#include "fs/human.h"

typedef unsigned long long ull;

static const char *const names[FEATURES] = {
	[FEATURE_PASSTHROUGH] = "passthrough",
	[FEATURE_INOTIFY] = "inotify",
};

void status_serving_text(struct stack *s, struct buf *out)
{
	struct serving_view v;

	serving_get(&s->serving, &v);
	if (v.read_ahead_kb > 0)
		buf_addf(out, "kernel: reads %u KiB ahead", v.read_ahead_kb);
	else
		buf_addstr(out, "kernel: reads ahead as it likes");
	if (v.max_background > 0)
		buf_addf(out, ", %u requests in the background", v.max_background);
	for (unsigned i = 0; i < FEATURES; i++) {
		const struct serving_feature *f = &v.features[i];

		buf_addf(out, "\n%s: %s%s", names[i], f->on ? "on" : "off",
			 f->why[0] != '\0' ? ": " : "");
		buf_addstr(out, f->why);
	}
	if (v.whole_files > 0) {
		buf_addf(out, "\nwritten out: %llu files, ", (ull)v.whole_files);
		human_bytes(out, v.whole_bytes);
	}
	if (v.prepared[0] != '\0' || v.preparing[0] != '\0')
		buf_addf(out, "\nprepared: %s%s%s", v.prepared,
			 v.prepared[0] != '\0' && v.preparing[0] != '\0' ? "; " : "", v.preparing);
	buf_addstr(out, "\n");
}

static json_t *feature_json(const struct serving_feature *f)
{
	json_t *o = json_object();

	json_object_set_new(o, "on", json_boolean(f->on));
	json_object_set_new(o, "why", f->why[0] != '\0' ? json_string(f->why) : json_null());
	return o;
}

static json_t *number_or_null(unsigned n)
{
	return n > 0 ? json_integer(n) : json_null();
}

json_t *status_serving_json(struct stack *s)
{
	json_t *o = json_object();
	struct serving_view v;

	serving_get(&s->serving, &v);
	json_object_set_new(o, "read_ahead_kb", number_or_null(v.read_ahead_kb));
	json_object_set_new(o, "max_background", number_or_null(v.max_background));
	for (unsigned i = 0; i < FEATURES; i++)
		json_object_set_new(o, names[i], feature_json(&v.features[i]));
	json_object_set_new(o, "whole_files", json_integer((json_int_t)v.whole_files));
	json_object_set_new(o, "whole_bytes", json_integer((json_int_t)v.whole_bytes));
	json_object_set_new(o, "warmed_bytes", json_integer((json_int_t)v.warm_bytes));
	json_object_set_new(o, "preparing",
			    v.preparing[0] != '\0' ? json_string(v.preparing) : json_null());
	json_object_set_new(o, "prepared",
			    v.prepared[0] != '\0' ? json_string(v.prepared) : json_null());
	return o;
}

void status_serving_metrics(struct stack *s, struct buf *out)
{
	struct serving_view v;

	serving_get(&s->serving, &v);
	status_metric(out, "weightfs_passthrough", "gauge", "1 when files can be passed through.",
		      v.features[FEATURE_PASSTHROUGH].on);
	status_metric(out, "weightfs_whole_bytes", "gauge", "Bytes of files written out whole.",
		      v.whole_bytes);
	status_metric(out, "weightfs_warmed_bytes_total", "counter",
		      "Bytes put into the page cache before a version became current.",
		      v.warm_bytes);
}
