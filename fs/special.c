/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of the special files: one decimal number and a newline for `version` and `newest`
 * (nothing at all while there is no version), what fs/status makes for the others.  `control` has
 * no content of its own: what is read from it is the reply to what the same handle wrote.
 *
 * No state here.
 */
#include "fs/special.h"

#include "fs/status.h"

/* Takes over the reference. */
static void add_version(struct generation *g, struct buf *out)
{
	if (g && g->state)
		buf_addf(out, "%llu\n", (unsigned long long)g->version);
	generation_unref(g);
}

void special_text(struct stack *s, uint64_t ino, struct buf *out)
{
	switch (ino) {
	case INO_VERSION: add_version(history_current(s->history), out); break;
	case INO_NEWEST: add_version(history_newest(s->history), out); break;
	case INO_STATUS: status_text(s, out); break;
	case INO_STATUS_JSON: status_json(s, out); break;
	case INO_METRICS: status_metrics(s, out); break;
	default: break;
	}
}
