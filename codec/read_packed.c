/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "packed": a checkpoint whose tensors are compressed (pack.h).
 *
 * Its parts are those of the original, whole tensors with the original's dtypes and shapes; what a
 * part's offset points to is the directory of its blocks.
 *
 * Nothing is unpacked here.  No state; any number of threads.
 */
#include "codec/pack.h"
#include "codec/readers.h"

#include <stdio.h>

static int packed_open(const struct st_header *header, const struct side *side, struct delta *delta,
		       struct why *why)
{
	size_t at = 0;
	int err = pack_header(header, &delta->original, NULL, why);

	if (err == 0)
		err = delta_reserve(delta, delta->original->count, why);
	if (err < 0)
		return err;
	for (size_t i = 0; i < delta->original->count; i++) {
		const struct st_tensor *t = &delta->original->tensors[i];
		struct part *part = &delta->parts[delta->count++];

		part_full(part, delta->original, t);
		part->offset = header->data;
		if (t->begin < t->end) /* they are in the file, in this order */
			part->offset += header->tensors[at++].begin;
	}
	snprintf(delta->generation, sizeof(delta->generation), "packed safetensors");
	return 0;
}

const struct format format_packed = {
	.name = "packed",
	.probe = pack_is,
	.open = packed_open,
};
