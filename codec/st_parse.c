/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the bytes of a safetensors header to its tensors.
 *
 * One pass over the text fills a growing array of tensors; names, shapes and metadata go to one
 * arena.  Each entry is checked by itself here (keys, numbers, dtype, size against shape); what
 * only shows when all are known (duplicates, order, tiling) is checked in st_index.c.
 *
 * Not here: reading tensor data, and any leniency.  A file that another reader would refuse or,
 * worse, read differently must not get into a mount.
 *
 * Memory: about 64 bytes per tensor besides its name and 8 per dimension, a small multiple of the
 * text whatever the text is.
 */
#include "codec/safetensors.h"
#include "codec/st_box.h"
#include "codec/st_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct parser {
	struct st_json json;
	struct st_box *box;
	struct why *why; /* not NULL */
	size_t cap, meta_cap;
};

/* The members of one entry, while it is being read. */
struct entry {
	bool has_dtype, has_shape, has_offsets;
	unsigned rank;
	uint64_t shape[ST_RANK_MAX];
};

static int no_memory(struct why *why)
{
	return why_set(why, ENOMEM, "no memory for the header's tensors");
}

/* Makes room for one more element of `size` bytes; NULL without memory. */
static void *grow(void *array, size_t count, size_t *cap, size_t size)
{
	size_t more = MAX(*cap * 2, (size_t)8);

	if (count < *cap)
		return array;
	array = reallocarray(array, more, size);
	if (array != NULL)
		*cap = more;
	return array;
}

/* Copies a string to the arena with a NUL behind it. */
static int keep_string(struct parser *p, const struct st_json_str *str, const char **out_text,
		       size_t *out_len)
{
	char *text = arena_text(&p->box->arena, str->len + 1);

	if (text == NULL)
		return no_memory(p->why);
	*out_len = st_json_unescape(str, text);
	text[*out_len] = '\0';
	*out_text = text;
	return 0;
}

static int parse_dtype(struct parser *p, struct st_tensor *t)
{
	struct st_json_str str;
	char plain[16 * 6], shown[64];
	int dtype = -1, rc;

	rc = st_json_string(&p->json, &str);
	if (rc < 0)
		return why_prefix(p->why, "dtype");
	if (str.len <= sizeof(plain))
		dtype = st_dtype_parse(plain, st_json_unescape(&str, plain));
	if (dtype < 0)
		return why_set(p->why, EBADMSG, "unknown dtype \"%s\"",
			       printable(shown, sizeof(shown), str.raw, str.len));
	t->dtype = (uint8_t)dtype;
	return 0;
}

static int parse_shape(struct parser *p, struct entry *e)
{
	int rc = st_json_punct(&p->json, '[');

	e->rank = 0;
	if (rc < 0)
		return why_prefix(p->why, "shape");
	while ((rc = st_json_next(&p->json, ']', e->rank == 0)) > 0) {
		uint64_t dim;

		rc = st_json_uint(&p->json, &dim);
		if (rc < 0)
			break;
		if (e->rank == ST_RANK_MAX)
			return why_set(p->why, EBADMSG, "shape has more than %d dimensions",
				       ST_RANK_MAX);
		e->shape[e->rank++] = dim;
	}
	return rc < 0 ? why_prefix(p->why, "shape") : 0;
}

static int parse_offsets(struct parser *p, struct st_tensor *t)
{
	int rc = st_json_punct(&p->json, '[');

	if (rc == 0)
		rc = st_json_uint(&p->json, &t->begin);
	if (rc == 0)
		rc = st_json_punct(&p->json, ',');
	if (rc == 0)
		rc = st_json_uint(&p->json, &t->end);
	if (rc == 0)
		rc = st_json_punct(&p->json, ']');
	if (rc < 0)
		return why_prefix(p->why, "data_offsets");
	if (t->begin > t->end)
		return why_set(p->why, EBADMSG,
			       "data_offsets [%" PRIu64 ", %" PRIu64 "] end before they begin",
			       t->begin, t->end);
	return 0;
}

static int parse_member(struct parser *p, struct entry *e, struct st_tensor *t)
{
	struct st_json_str key;
	char shown[ST_SHOWN];
	bool *seen;
	int rc;

	rc = st_json_key(&p->json, &key);
	if (rc < 0)
		return rc;
	if (st_json_is(&key, "dtype"))
		seen = &e->has_dtype;
	else if (st_json_is(&key, "shape"))
		seen = &e->has_shape;
	else if (st_json_is(&key, "data_offsets"))
		seen = &e->has_offsets;
	else
		return why_set(p->why, EBADMSG,
			       "unknown key \"%s\" (expected dtype, shape and data_offsets)",
			       printable(shown, sizeof(shown), key.raw, key.len));
	if (*seen)
		return why_set(p->why, EBADMSG, "duplicate key \"%s\"",
			       printable(shown, sizeof(shown), key.raw, key.len));
	*seen = true;
	if (seen == &e->has_dtype)
		return parse_dtype(p, t);
	if (seen == &e->has_shape)
		return parse_shape(p, e);
	return parse_offsets(p, t);
}

/* The shape as text, cut to the size of dst. */
static const char *show_shape(char *dst, size_t cap, const struct entry *e)
{
	size_t at = 0;

	for (unsigned i = 0; i < e->rank && at < cap; i++) {
		int n = snprintf(dst + at, cap - at, "%s%" PRIu64, i > 0 ? ", " : "", e->shape[i]);

		at += n > 0 ? (size_t)n : 0;
	}
	if (e->rank == 0)
		dst[0] = '\0';
	else if (at >= cap)
		memcpy(dst + cap - 4, "...", 4);
	return dst;
}

/* Refuses the entry's size; the shape becomes text only now, as most entries are fine. */
static int bad_size(struct parser *p, const struct entry *e, const struct st_tensor *t,
		    const char *what)
{
	char shape[120];

	return why_set(p->why, EBADMSG, "shape [%s] of %s %s", show_shape(shape, sizeof(shape), e),
		       st_dtype_name(t->dtype), what);
}

/* Compares the size that shape and dtype ask for with data_offsets. */
static int check_size(struct parser *p, const struct entry *e, struct st_tensor *t)
{
	uint64_t numel = 1, bits;
	char what[120];

	for (unsigned i = 0; i < e->rank; i++)
		if (mul_overflows(numel, e->shape[i], &numel))
			return bad_size(p, e, t, "overflows 64 bits");
	if (mul_overflows(numel, st_dtype_bits(t->dtype), &bits))
		return bad_size(p, e, t, "overflows 64 bits");
	if (bits % 8 != 0)
		return bad_size(p, e, t, "does not fill whole bytes");
	if (t->end - t->begin != bits / 8) {
		snprintf(what, sizeof(what),
			 "needs %" PRIu64 " bytes but data_offsets [%" PRIu64 ", %" PRIu64
			 "] hold %" PRIu64,
			 bits / 8, t->begin, t->end, t->end - t->begin);
		return bad_size(p, e, t, what);
	}
	t->numel = numel;
	return 0;
}

static int parse_entry(struct parser *p, struct st_tensor *t)
{
	struct entry e = {0};
	uint64_t *shape;
	bool first = true;
	int rc;

	rc = st_json_punct(&p->json, '{');
	if (rc < 0)
		return rc;
	while ((rc = st_json_next(&p->json, '}', first)) > 0) {
		rc = parse_member(p, &e, t);
		if (rc < 0)
			break;
		first = false;
	}
	if (rc < 0)
		return rc;
	if (!e.has_dtype || !e.has_shape || !e.has_offsets)
		return why_set(p->why, EBADMSG, "has no %s",
			       !e.has_dtype   ? "dtype"
			       : !e.has_shape ? "shape"
					      : "data_offsets");
	rc = check_size(p, &e, t);
	if (rc < 0)
		return rc;
	shape = arena_alloc(&p->box->arena, e.rank * sizeof(*shape));
	if (shape == NULL)
		return no_memory(p->why);
	memcpy(shape, e.shape, e.rank * sizeof(*shape));
	t->shape = shape;
	t->rank = (uint8_t)e.rank;
	return 0;
}

static int parse_name(struct parser *p, const struct st_json_str *key, struct st_tensor *t)
{
	char shown[ST_SHOWN];
	size_t len = 0;
	int rc = keep_string(p, key, &t->name, &len);

	if (rc < 0)
		return rc;
	if (len == 0)
		return why_set(p->why, EBADMSG,
			       "byte %td of the header: a tensor has an empty name",
			       key->raw - p->json.begin);
	if (len > ST_NAME_MAX)
		return why_set(p->why, EBADMSG,
			       "tensor \"%s\": its name of %zu bytes passes the limit of %d",
			       printable(shown, sizeof(shown), t->name, len), len, ST_NAME_MAX);
	if (memchr(t->name, '\0', len) != NULL)
		return why_set(p->why, EBADMSG, "tensor \"%s\": its name has a NUL",
			       printable(shown, sizeof(shown), t->name, len));
	t->name_len = (uint32_t)len;
	return 0;
}

static int parse_tensor(struct parser *p, const struct st_json_str *key)
{
	struct st_header *h = &p->box->h;
	struct st_tensor t = {0}, *more;
	char shown[ST_SHOWN];
	int rc;

	rc = parse_name(p, key, &t);
	if (rc < 0)
		return rc;
	rc = parse_entry(p, &t);
	if (rc < 0)
		return why_prefix(p->why, "tensor \"%s\"",
				  printable(shown, sizeof(shown), t.name, t.name_len));
	more = grow(h->tensors, h->count, &p->cap, sizeof(*more));
	if (more == NULL)
		return no_memory(p->why);
	h->tensors = more;
	h->tensors[h->count++] = t;
	return 0;
}

static int parse_meta_string(struct parser *p, const struct st_json_str *str, const char *what,
			     const char **out_text)
{
	char shown[ST_SHOWN];
	size_t len = 0;
	int rc = keep_string(p, str, out_text, &len);

	if (rc == 0 && memchr(*out_text, '\0', len) != NULL)
		return why_set(p->why, EBADMSG, "%s \"%s\" has a NUL", what,
			       printable(shown, sizeof(shown), *out_text, len));
	return rc;
}

static int parse_pair(struct parser *p, struct st_meta *meta)
{
	struct st_json_str key, value;
	char shown[ST_SHOWN];
	int rc;

	rc = st_json_key(&p->json, &key);
	if (rc == 0)
		rc = parse_meta_string(p, &key, "key", &meta->key);
	if (rc < 0)
		return rc;
	rc = st_json_string(&p->json, &value);
	if (rc == 0)
		rc = parse_meta_string(p, &value, "value", &meta->value);
	if (rc < 0)
		why_prefix(p->why, "key \"%s\"",
			   printable(shown, sizeof(shown), meta->key, strlen(meta->key)));
	return rc;
}

static int parse_meta(struct parser *p)
{
	struct st_header *h = &p->box->h;
	struct st_meta meta, *more;
	int rc;

	if (h->meta_end != 0)
		return why_set(p->why, EBADMSG, "given twice");
	h->meta_begin = st_json_pos(&p->json);
	rc = st_json_punct(&p->json, '{');
	if (rc < 0)
		return rc;
	while ((rc = st_json_next(&p->json, '}', h->meta_count == 0)) > 0) {
		rc = parse_pair(p, &meta);
		if (rc < 0)
			return rc;
		more = grow(h->meta, h->meta_count, &p->meta_cap, sizeof(*more));
		if (more == NULL)
			return no_memory(p->why);
		h->meta = more;
		h->meta[h->meta_count++] = meta;
	}
	h->meta_end = (uint64_t)(p->json.at - p->json.begin);
	return rc;
}

static int parse_header(struct parser *p)
{
	struct st_json *json = &p->json;
	struct st_json_str key;
	bool first = true;
	int rc;

	if (*json->at != '{')
		return why_set(p->why, EBADMSG,
			       "the header does not start with '{' but with byte 0x%02x",
			       (unsigned char)*json->at);
	json->at++;
	while ((rc = st_json_next(json, '}', first)) > 0) {
		rc = st_json_key(json, &key);
		if (rc < 0)
			return rc;
		if (!st_json_is(&key, "__metadata__"))
			rc = parse_tensor(p, &key);
		else if ((rc = parse_meta(p)) < 0)
			why_prefix(p->why, "__metadata__");
		if (rc < 0)
			return rc;
		first = false;
	}
	if (rc < 0)
		return rc;
	for (; json->at < json->end; json->at++)
		if (*json->at != ' ')
			return why_set(
				p->why, EBADMSG,
				"byte %td of the header: only spaces may follow its closing '}', "
				"found byte 0x%02x",
				json->at - json->begin, (unsigned char)*json->at);
	return 0;
}

static int check_length(uint64_t length, uint64_t file_size, struct why *why)
{
	if (file_size < 8)
		return why_set(why, EBADMSG,
			       "file of %" PRIu64 " bytes is too short: a safetensors file has at "
			       "least 8 bytes before its header",
			       file_size);
	if (length < 2)
		return why_set(why, EBADMSG,
			       "header of %" PRIu64
			       " bytes is too short: it has at least the 2 of {}",
			       length);
	if (length > ST_HEADER_MAX)
		return why_set(why, EBADMSG,
			       "header of %" PRIu64 " bytes passes the limit of 100,000,000",
			       length);
	if (length > file_size - 8)
		return why_set(why, EBADMSG,
			       "header of %" PRIu64 " bytes passes the end of the file of %" PRIu64
			       " bytes",
			       length, file_size);
	return 0;
}

int st_parse(const char *json, uint64_t length, uint64_t file_size, struct st_header **out_header,
	     struct why *why)
{
	struct parser p = {0};
	struct why local;
	int rc;

	p.why = why != NULL ? why : &local;
	rc = check_length(length, file_size, p.why);
	if (rc < 0)
		return rc;
	p.box = calloc(1, sizeof(*p.box));
	if (p.box == NULL)
		return no_memory(p.why);
	p.box->h.length = length;
	p.box->h.data = 8 + length;
	p.box->h.file_size = file_size;
	st_json_init(&p.json, json, length, p.why);
	rc = parse_header(&p);
	if (rc == 0)
		rc = st_box_index(p.box, p.why);
	if (rc < 0) {
		st_free(&p.box->h);
		return rc;
	}
	*out_header = &p.box->h;
	return 0;
}

int st_read(const struct source *src, struct st_header **out_header, char **out_json,
	    struct why *why)
{
	uint64_t length = 0;
	uint8_t prefix[8];
	char *json;
	int rc;

	if (src->size >= sizeof(prefix)) {
		rc = source_read(src, 0, prefix, sizeof(prefix));
		if (rc < 0)
			return why_set(why, -rc, "cannot read the header's length");
		length = load_le64(prefix);
	}
	rc = check_length(length, src->size, why);
	if (rc < 0)
		return rc;
	json = malloc(length);
	if (json == NULL)
		return no_memory(why);
	rc = source_read(src, sizeof(prefix), json, length);
	if (rc < 0)
		why_set(why, -rc, "cannot read the header of %" PRIu64 " bytes", length);
	else
		rc = st_parse(json, length, src->size, out_header, why);
	if (rc == 0 && out_json != NULL)
		*out_json = json;
	else
		free(json);
	return rc;
}

void st_free(struct st_header *header)
{
	struct st_box *box = (struct st_box *)header;

	if (box == NULL)
		return;
	arena_release(&box->arena);
	free(box->h.tensors);
	free(box->h.meta);
	free(box->by_name);
	free(box->meta_by_key);
	free(box);
}
