/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats "wfp1" and "wfp1x": a patch file (patch_file.h) published as a delta.
 *
 * Besides the file's own keys its metadata says which state it leads from and to:
 *
 *	encoding	"wfp1"; "wfp1x": blobs as in patchx.h, whose reference is the base_version
 *	lineage		8 hex digits of the run
 *	model_version	base_version
 *	state		base_state, 32 hex digits each, as in weightfs.json
 *	hashes		optional: 32 hex digits of each tensor's new bytes, in the file's order
 *
 * Nothing is decoded here: who has the whole file maps it and applies it as it is (`native`).  So a
 * part has neither dtype nor count; the blobs say both.  Without `encoding` it is a cache's own
 * file, which says nothing of versions and is refused.
 */
#include "codec/readers.h"

#include <stdio.h>

static bool wfp1_probe(const struct st_header *header)
{
	const char *format = st_meta(header, "format");

	return format != NULL && strcmp(format, "weightfs-patch") == 0;
}

static int wfp1_open(const struct st_header *header, const struct side *side, struct delta *delta,
		     struct why *why)
{
	const char *encoding = st_meta(header, "encoding");
	int err;

	if (encoding == NULL)
		return why_set(why, EBADMSG,
			       "is a patch file of a cache and no delta: it does not say which "
			       "version it is");
	if (strcmp(encoding, "wfp1") != 0 && strcmp(encoding, "wfp1x") != 0)
		return why_set(
			why, ENOTSUP,
			"has the encoding \"%s\", which this weightfs does not know: a newer "
			"one reads it, or publish with --encoding wfp1",
			SHOWN(encoding));
	err = delta_reserve(delta, header->count, why);
	if (err < 0)
		return err;
	for (size_t i = 0; i < header->count; i++) {
		const struct st_tensor *t = &header->tensors[i];

		if (t->dtype != ST_U8 || t->rank != 1)
			return why_set(why, EBADMSG,
				       "\"%s\" is no patch: it has to be U8 with one dimension",
				       SHOWN(t->name));
		delta->parts[delta->count++] = (struct part){
			.name = t->name,
			.kind = PART_SPARSE,
			.dtype = t->dtype,
			.offset = header->data + t->begin,
			.bytes = t->end - t->begin,
		};
	}
	delta->encoding = strcmp(encoding, "wfp1x") == 0 ? WFP1_GIVEN_BASE : WFP1_PLAIN;
	delta->holes_legal = true;
	delta->model_version = meta_number(header, "model_version");
	delta->base_version = meta_number(header, "base_version");
	snprintf(delta->generation, sizeof(delta->generation), "%s", encoding);
	return 0;
}

const struct format format_wfp1 = {
	.name = "wfp1",
	.probe = wfp1_probe,
	.open = wfp1_open,
	.op = PATCH_ADD,
	.native = true,
};
