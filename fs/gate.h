/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gate: the store of a source of which it is not known yet whether it holds one run or several.
 *
 * It passes everything on to the source.  As soon as a listing has several runs it has an empty
 * listing for its reader, and tells the roster; or, for a tool, an error that names them.
 */
#ifndef FS_GATE_H
#define FS_GATE_H

#include "fs/run.h"

enum gate_state {
	GATE_UNKNOWN, /* there is no run in it so far */
	GATE_ONE,     /* and it is the source itself */
	GATE_SEVERAL,
};

struct gate_config {
	bool several; /* to begin with: the first look only says whether the source can be listed */
	bool one;     /* as long as there is no run: one, which --base makes a run already */
	bool tool;    /* it has no roster */
};

/* Takes the source over, also when it fails. */
int gate_new(struct store *source, const struct gate_config *config, struct store **out) MUST_CHECK;
/* Of a store that is a gate; another one stands for GATE_ONE. */
enum gate_state gate_state(struct store *s);
/* fn is called, once, by the thread whose listing had several runs. */
void gate_subscribe(struct store *s, void (*fn)(void *ctx), void *ctx);
/* GATE_SEVERAL: the source, borrowed; and the listing that said so, with a reference, or NULL. */
struct store *gate_source(struct store *s, struct listing_ref **out_first);

#endif
