/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format "safetensors": a plain checkpoint file.
 *
 * Every key is a whole tensor of that name; of the metadata only ModelExpress's checksums count.
 * This is what a base model's shards are, and what an anchor is that some other trainer wrote.
 * Takes any file that the readers before it in the registry did not recognise, and never has a
 * sparse part, so there is nothing to encode.
 */
#include "codec/readers.h"

#include <stdio.h>

static bool full_probe(const struct st_header *header)
{
	return true;
}

static int full_open(const struct st_header *header, const struct side *side, struct delta *delta,
		     struct why *why)
{
	int err = delta_reserve(delta, header->count, why);

	if (err != 0)
		return err;
	for (size_t i = 0; i < header->count; i++)
		part_full(&delta->parts[i], header, &header->tensors[header->by_name[i]]);
	delta->count = header->count;
	hfdir_adler(header, delta);
	snprintf(delta->generation, sizeof(delta->generation), "safetensors");
	return 0;
}

static int full_encode(const struct delta *delta, const struct part *part, const struct source *src,
		       struct patch_writer *writer, uint64_t numel, struct why *why)
{
	return why_set(why, EINVAL, "a plain checkpoint has no sparse tensors");
}

const struct format format_full = {
	.name = "safetensors",
	.probe = full_probe,
	.open = full_open,
	.encode = full_encode,
	.op = PATCH_SET,
};
