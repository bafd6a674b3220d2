/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashing a state tensor by tensor.
 *
 * The bytes of a file are header, then tensors that tile it, so a place in the file says which
 * tensor is in hand.  Each tensor's digest is kept until all are there; the whole is a hash of them
 * in the order of names, which need not be that of the files.
 */
#include "fs/state_hash.h"

#include <stdlib.h>
#include <xxhash.h>

struct state_hash {
	const struct layout *layout; /* borrowed */
	XXH3_state_t *state;	     /* of the tensor in hand */
	uint32_t file, tensor;	     /* in hand */
	uint64_t at;		     /* in the file */
	uint8_t (*digests)[16];	     /* one per tensor */
	bool *done;
};

int state_hash_new(const struct layout *l, struct state_hash **out)
{
	struct state_hash *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return -ENOMEM;
	h->layout = l;
	h->file = LAYOUT_NONE;
	h->state = XXH3_createState();
	h->digests = calloc(l->tensor_count + 1, sizeof(*h->digests));
	h->done = calloc(l->tensor_count + 1, sizeof(*h->done));
	if (h->state == NULL || h->digests == NULL || h->done == NULL) {
		state_hash_free(h);
		return -ENOMEM;
	}
	*out = h;
	return 0;
}

void state_hash_free(struct state_hash *h)
{
	if (h == NULL)
		return;
	XXH3_freeState(h->state);
	free(h->digests);
	free(h->done);
	free(h);
}

/* Ends every tensor that the place in the file has passed. */
static void end_tensors(struct state_hash *h)
{
	const struct layout_file *f = &h->layout->files[h->file];
	XXH128_canonical_t c;

	while (h->tensor < f->first + f->count && h->at == h->layout->tensors[h->tensor].end) {
		XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h->state));
		memcpy(h->digests[h->tensor], c.digest, sizeof(c.digest));
		h->done[h->tensor] = true;
		XXH3_128bits_reset(h->state);
		h->tensor++;
	}
}

void state_hash_feed(struct state_hash *h, uint32_t file, const void *bytes, size_t len)
{
	const struct layout_file *f = &h->layout->files[file];
	const uint8_t *p = bytes;

	if (h->file != file) {
		h->file = file;
		h->tensor = f->first;
		h->at = 0;
		XXH3_128bits_reset(h->state);
	}
	while (len > 0) {
		bool head = h->at < f->head_len;
		uint64_t end = head				 ? f->head_len
			       : h->tensor < f->first + f->count ? h->layout->tensors[h->tensor].end
								 : UINT64_MAX;
		size_t n = (size_t)MIN((uint64_t)len, end - h->at);

		if (!head)
			XXH3_128bits_update(h->state, p, n);
		h->at += n;
		p += n;
		len -= n;
		if (h->at >= f->head_len)
			end_tensors(h);
	}
}

int state_hash_end(struct state_hash *h, uint8_t out[16])
{
	const struct layout *l = h->layout;
	XXH128_canonical_t c;

	XXH3_128bits_reset(h->state);
	for (uint32_t i = 0; i < l->tensor_count; i++) {
		const uint32_t t = l->by_name[i];
		const char *dtype = st_dtype_name(l->tensors[t].dtype);

		if (!h->done[t])
			return -EINVAL;
		XXH3_128bits_update(h->state, l->tensors[t].name, strlen(l->tensors[t].name) + 1);
		XXH3_128bits_update(h->state, dtype, strlen(dtype) + 1);
		XXH3_128bits_update(h->state, h->digests[t], sizeof(h->digests[t]));
	}
	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h->state));
	memcpy(out, c.digest, sizeof(c.digest));
	return 0;
}

const uint8_t *state_hash_tensor(const struct state_hash *h, uint32_t tensor)
{
	return h->digests[tensor];
}
