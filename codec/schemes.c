/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of schemes.
 *
 * A run is of the first of them whose signs are there; so those with signs of their own come first,
 * and last the one that takes any directory with weights.
 *
 * No state; any number of threads.
 */
#include "codec/schemes.h"

const struct scheme *const schemes[] = {
	&scheme_grail,
	&scheme_skyrl,
	&scheme_primerl,
	&scheme_arc,
	&scheme_hfdir,	     /* takes any directory with weights */
	&scheme_checkpoints, /* the same, so it is for --format */
	NULL,
};

const struct scheme *scheme_find(const char *name)
{
	for (size_t i = 0; schemes[i] != NULL; i++)
		if (strcmp(schemes[i]->name, name) == 0)
			return schemes[i];
	return NULL;
}
