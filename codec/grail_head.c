/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a delta of grail (codec/read_grail.c has the format): from its JSON to the list of
 * parts and the places of their numbers.
 *
 * The text comes from the network and says where to read, so everything it says is held against
 * everything else: sizes against counts and widths, counts against shapes, and places against each
 * other.  Indices and values must tile the data: what overlaps, lies outside or belongs to nobody
 * is refused.  So are keys that are not in the format, for nobody knows what they would change.
 *
 * Memory: the text, and for each of its tensors, of which every one takes a few hundred bytes of
 * text, about as much again.  No state.
 */
#include "codec/grail.h"
#include "codec/st_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum key {
	KEY_NAME,
	KEY_SHAPE,
	KEY_COUNT,
	KEY_VALUE_DTYPE,
	KEY_ROW_DTYPE,
	KEY_COL_DTYPE,
	KEY_INDICES_OFFSET,
	KEY_INDICES_SIZE,
	KEY_ROWS_SIZE,
	KEY_COLS_SIZE,
	KEY_VALUES_OFFSET,
	KEY_VALUES_SIZE,
	KEYS
};

static const char *const key_names[KEYS] = {
	"name",	     "shape",	  "num_nonzero",    "value_dtype",
	"row_dtype", "col_dtype", "indices_offset", "indices_size",
	"rows_size", "cols_size", "values_offset",  "values_size",
};

/* One tensor as the header has it. */
struct entry {
	const char *name;
	uint64_t *shape;
	uint64_t number[KEYS]; /* of those that are numbers */
	uint64_t numel, cols;
	uint8_t rank, dtype, row_width, col_width;
	unsigned seen; /* bits of enum key */
};

struct region {
	uint64_t begin, end;
	const char *name;
};

struct parser {
	struct st_json json;
	struct why *why; /* not NULL */
	unsigned version;
	uint64_t start, size; /* of the data */
	struct entry *entries;
	size_t count, cap;
	char *names;	  /* where the next one goes; there is room for all */
	uint64_t *shapes; /* the same */
};

static int take_name(struct parser *p, struct entry *e)
{
	struct st_json_str str;
	size_t len;
	int err = st_json_string(&p->json, &str);

	if (err < 0)
		return err;
	len = st_json_unescape(&str, p->names);
	p->names[len] = '\0';
	if (len == 0 || len > ST_NAME_MAX || strlen(p->names) != len)
		return why_set(p->why, EBADMSG,
			       "a tensor's name is empty, has a NUL or is longer than %d bytes",
			       ST_NAME_MAX);
	e->name = p->names;
	p->names += len + 1;
	return 0;
}

static int take_shape(struct parser *p, struct entry *e)
{
	int err = st_json_punct(&p->json, '[');

	e->shape = p->shapes;
	for (bool first = true; err == 0; first = false) {
		err = st_json_next(&p->json, ']', first);
		if (err <= 0)
			break;
		if (e->rank == ST_RANK_MAX)
			return why_set(p->why, EBADMSG, "a shape has more than %d dimensions",
				       ST_RANK_MAX);
		err = st_json_uint(&p->json, &e->shape[e->rank]);
		e->rank++;
	}
	p->shapes += e->rank;
	return err;
}

static int unknown_dtype(struct parser *p, enum key key, const struct st_json_str *str)
{
	char shown[60];

	return why_set(p->why, ENOTSUP, "%s is \"%s\", which is not known here", key_names[key],
		       printable(shown, sizeof(shown), str->raw, str->len));
}

static int take_value_dtype(struct parser *p, struct entry *e)
{
	struct st_json_str str;
	int err = st_json_string(&p->json, &str);

	if (err < 0)
		return err;
	if (st_json_is(&str, "bfloat16"))
		e->dtype = ST_BF16;
	else if (st_json_is(&str, "float16"))
		e->dtype = ST_F16;
	else if (st_json_is(&str, "float32"))
		e->dtype = ST_F32;
	else
		return unknown_dtype(p, KEY_VALUE_DTYPE, &str);
	return 0;
}

static int take_index_dtype(struct parser *p, enum key key, uint8_t *out_width)
{
	struct st_json_str str;
	int err = st_json_string(&p->json, &str);

	if (err < 0)
		return err;
	if (st_json_is(&str, "uint8"))
		*out_width = 1;
	else if (st_json_is(&str, "uint16"))
		*out_width = 2;
	else if (st_json_is(&str, "int32"))
		*out_width = 4;
	else
		return unknown_dtype(p, key, &str);
	return 0;
}

static int take_member(struct parser *p, struct entry *e)
{
	struct st_json_str str;
	char shown[60];
	unsigned key = 0;
	int err = st_json_key(&p->json, &str);

	if (err < 0)
		return err;
	while (key < KEYS && !st_json_is(&str, key_names[key]))
		key++;
	printable(shown, sizeof(shown), str.raw, str.len);
	if (key == KEYS)
		return why_set(p->why, ENOTSUP,
			       "a tensor has the key \"%s\", which is not known here", shown);
	if (e->seen & 1u << key)
		return why_set(p->why, EBADMSG, "a tensor has the key \"%s\" twice", shown);
	e->seen |= 1u << key;
	switch (key) {
	case KEY_NAME: return take_name(p, e);
	case KEY_SHAPE: return take_shape(p, e);
	case KEY_VALUE_DTYPE: return take_value_dtype(p, e);
	case KEY_ROW_DTYPE: return take_index_dtype(p, key, &e->row_width);
	case KEY_COL_DTYPE: return take_index_dtype(p, key, &e->col_width);
	default: return st_json_uint(&p->json, &e->number[key]);
	}
}

static int bad(struct parser *p, const struct entry *e, const char *what)
{
	return why_set(p->why, EBADMSG, "tensor \"%s\": %s", SHOWN(e->name), what);
}

static int check_keys(struct parser *p, const struct entry *e)
{
	unsigned need = (1u << KEYS) - 1;

	need &= ~(1u << KEY_ROW_DTYPE | 1u << KEY_COL_DTYPE);
	if (p->version == VERSION_FLAT)
		need &= ~(1u << KEY_ROWS_SIZE | 1u << KEY_COLS_SIZE);
	for (unsigned key = 0; key < KEYS; key++)
		if (need & ~e->seen & 1u << key)
			return why_set(p->why, EBADMSG, "tensor \"%s\" has no %s",
				       (e->seen & 1) ? SHOWN(e->name) : "", key_names[key]);
	/* With these a position would be another one. */
	if (p->version == VERSION_FLAT && e->seen & ~need)
		return bad(p, e, "has rows and columns, which version 2 does not know");
	if (p->version == VERSION_COO && (e->row_width != 4 || e->col_width != 4))
		return bad(p, e, "has an index that is not int32, which needs version 31");
	return 0;
}

static bool size_is(uint64_t size, uint64_t count, unsigned width)
{
	uint64_t want;

	return !mul_overflows(count, width, &want) && want == size;
}

/* The sizes follow from the count and the shape; the offsets are checked when all are known. */
static int check_entry(struct parser *p, struct entry *e)
{
	const uint64_t *n = e->number, count = n[KEY_COUNT];
	uint64_t both;

	e->numel = e->cols = 1;
	for (unsigned i = 0; i < e->rank; i++)
		if (mul_overflows(e->numel, e->shape[i], &e->numel) ||
		    (i > 0 && mul_overflows(e->cols, e->shape[i], &e->cols)))
			return bad(p, e, "its shape overflows 64 bits");
	if (count > e->numel)
		return bad(p, e, "more elements change than its shape has");
	if (!size_is(n[KEY_VALUES_SIZE], count, st_dtype_width(e->dtype)))
		return bad(p, e, "values_size is not that of num_nonzero values");
	if (p->version == VERSION_FLAT)
		return size_is(n[KEY_INDICES_SIZE], count, 4)
			       ? 0
			       : bad(p, e, "indices_size is not that of num_nonzero positions");
	if (!size_is(n[KEY_ROWS_SIZE], count, e->row_width) ||
	    !size_is(n[KEY_COLS_SIZE], count, e->col_width))
		return bad(p, e, "rows_size or cols_size is not that of num_nonzero positions");
	if (add_overflows(n[KEY_ROWS_SIZE], n[KEY_COLS_SIZE], &both) || both != n[KEY_INDICES_SIZE])
		return bad(p, e, "indices_size is not rows_size and cols_size");
	return 0;
}

static int take_tensor(struct parser *p)
{
	struct entry *e;
	int err = st_json_punct(&p->json, '{');

	if (err < 0)
		return err;
	if (p->count == p->cap) {
		const size_t cap = MAX(2 * p->cap, (size_t)64);

		e = reallocarray(p->entries, cap, sizeof(*e));
		if (e == NULL)
			return why_set(p->why, ENOMEM, "out of memory for the header's tensors");
		p->entries = e;
		p->cap = cap;
	}
	e = &p->entries[p->count++];
	*e = (struct entry){.row_width = 4, .col_width = 4};
	for (bool first = true; err == 0; first = false) {
		err = st_json_next(&p->json, '}', first);
		if (err <= 0)
			break;
		err = take_member(p, e);
	}
	if (err == 0)
		err = check_keys(p, e);
	return err == 0 ? check_entry(p, e) : err;
}

static int take_tensors(struct parser *p)
{
	int err = st_json_punct(&p->json, '[');

	for (bool first = true; err == 0; first = false) {
		err = st_json_next(&p->json, ']', first);
		if (err <= 0)
			break;
		err = take_tensor(p);
	}
	return err;
}

static int take_version(struct parser *p)
{
	uint64_t version;
	int err = st_json_uint(&p->json, &version);

	if (err < 0)
		return err;
	if (version != VERSION_FLAT && version != VERSION_COO && version != VERSION_NARROW)
		return why_set(p->why, ENOTSUP,
			       "is of version %" PRIu64
			       " of grail's sparse codec; 2, 3 and 31 (3.1) are known here: set "
			       "GRAIL_DELTA_FORMAT to one of them on the trainer",
			       version);
	p->version = (unsigned)version;
	return 0;
}

/* The version comes first, as the writer has it: it says how to read the rest. */
static int parse_header(struct parser *p)
{
	struct st_json_str key;
	int err = st_json_punct(&p->json, '{');

	if (err == 0)
		err = st_json_key(&p->json, &key);
	if (err == 0 && !st_json_is(&key, "version"))
		err = why_set(p->why, EBADMSG, "its header does not begin with \"version\"");
	if (err == 0)
		err = take_version(p);
	if (err == 0)
		err = st_json_punct(&p->json, ',');
	if (err == 0)
		err = st_json_key(&p->json, &key);
	if (err == 0 && !st_json_is(&key, "tensors"))
		err = why_set(p->why, EBADMSG, "its header has no \"tensors\" after \"version\"");
	if (err == 0)
		err = take_tensors(p);
	if (err == 0)
		err = st_json_punct(&p->json, '}');
	if (err == 0 && p->json.begin + st_json_pos(&p->json) != p->json.end)
		err = why_set(p->why, EBADMSG, "its header has something behind its end");
	return err;
}

static int compare_region(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

/* Everything in the data belongs to one tensor. */
static int check_tiling(struct parser *p)
{
	struct region *r = calloc(2 * p->count + 1, sizeof(*r));
	uint64_t end = 0;
	int err = 0;

	if (r == NULL)
		return why_set(p->why, ENOMEM, "out of memory for the header's tensors");
	for (size_t i = 0; i < p->count && err == 0; i++) {
		const struct entry *e = &p->entries[i];

		for (unsigned k = 0; k < 2 && err == 0; k++) {
			struct region *q = &r[2 * i + k];

			q->name = e->name;
			q->begin = e->number[k > 0 ? KEY_VALUES_OFFSET : KEY_INDICES_OFFSET];
			if (add_overflows(q->begin,
					  e->number[k > 0 ? KEY_VALUES_SIZE : KEY_INDICES_SIZE],
					  &q->end) ||
			    q->end > p->size)
				err = bad(p, e, "lies beyond the end of the data");
		}
	}
	if (err == 0 && p->count > 0)
		qsort(r, 2 * p->count, sizeof(*r), compare_region);
	for (size_t i = 0; err == 0 && i < 2 * p->count; i++) {
		if (r[i].begin != end && r[i].begin != r[i].end)
			err = why_set(p->why, EBADMSG,
				      "tensor \"%s\": its bytes from %" PRIu64
				      " on of the data %s what lies before them",
				      SHOWN(r[i].name), r[i].begin,
				      r[i].begin < end ? "overlap" : "leave a hole after");
		end = MAX(end, r[i].end);
	}
	if (err == 0 && end != p->size)
		err = why_set(p->why, EBADMSG,
			      "has %" PRIu64 " bytes of data, of which its tensors use %" PRIu64,
			      p->size, end);
	free(r);
	return err;
}

/* ---- opening ---- */

static int compare_entry(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static const char *coding(unsigned version, const struct entry *e)
{
	static const char *const texts[3][3] = {
		{"u8 rows, u8 columns", "u8 rows, u16 columns", "u8 rows, i32 columns"},
		{"u16 rows, u8 columns", "u16 rows, u16 columns", "u16 rows, i32 columns"},
		{"i32 rows, u8 columns", "i32 rows, u16 columns", "i32 rows, i32 columns"},
	};

	if (version == VERSION_FLAT)
		return "i32 differences";
	return texts[e->row_width / 2][e->col_width / 2];
}

/* Parts and places, by name. */
static int describe(struct parser *p, struct delta *delta)
{
	struct grail *g = calloc(1, sizeof(*g) + p->count * sizeof(g->places[0]));
	int err = delta_reserve(delta, p->count, p->why);

	delta->extra = g;
	if (g == NULL)
		return why_set(p->why, ENOMEM, "out of memory for the header's tensors");
	if (err < 0)
		return err;
	g->version = p->version;
	delta->data = p->start;
	if (p->count > 0)
		qsort(p->entries, p->count, sizeof(*p->entries), compare_entry);
	for (size_t i = 0; i < p->count; i++) {
		const struct entry *e = &p->entries[i];
		const uint64_t *n = e->number, at = p->start + n[KEY_INDICES_OFFSET];
		const bool flat = p->version == VERSION_FLAT;

		g->places[i] = (struct place){
			.rows = at,
			.cols = at + n[KEY_ROWS_SIZE],
			.values = p->start + n[KEY_VALUES_OFFSET],
			.row_count = flat || e->rank == 0 ? 1 : e->shape[0],
			.col_count = e->cols,
			.row_width = e->row_width,
			.col_width = e->col_width,
		};
		delta->parts[delta->count++] = (struct part){
			.name = e->name,
			.kind = PART_SPARSE,
			.dtype = e->dtype,
			.rank = e->rank,
			.shape = e->shape,
			.numel = e->numel,
			.bytes = n[KEY_INDICES_SIZE] + n[KEY_VALUES_SIZE],
			.changed = n[KEY_COUNT],
			.coding = coding(p->version, e),
		};
	}
	snprintf(delta->generation, sizeof(delta->generation), "grail sparse codec %s",
		 p->version == VERSION_FLAT  ? "2"
		 : p->version == VERSION_COO ? "3"
					     : "3.1");
	return 0;
}

static int read_head(const struct source *src, char **out_json, size_t *out_len, struct why *why)
{
	uint8_t length[4];
	uint64_t len;
	char *json;
	int err;

	if (src->size < sizeof(length))
		return why_set(why, EBADMSG,
			       "unpacks to %" PRIu64 " bytes, which is too short for a delta of "
			       "grail",
			       src->size);
	err = source_read(src, 0, length, sizeof(length));
	if (err < 0)
		return why_set(why, -err, "cannot be read");
	len = load_le32(length);
	if (len > ST_HEADER_MAX || len > src->size - sizeof(length))
		return why_set(why, EBADMSG, "its header of %" PRIu64 " bytes %s", len,
			       len > ST_HEADER_MAX ? "passes the limit of 100,000,000"
						   : "passes the end of the object; is this a "
						     "delta of grail?");
	json = malloc(len + 1);
	if (json == NULL)
		return why_set(why, ENOMEM, "out of memory for the header");
	err = source_read(src, sizeof(length), json, len);
	if (err < 0) {
		free(json);
		return why_set(why, -err, "cannot read the header of %" PRIu64 " bytes", len);
	}
	*out_json = json;
	*out_len = len;
	return 0;
}

int grail_open(const struct source *src, const struct side *side, struct delta *delta,
	       struct why *why)
{
	struct why local = {0};
	struct parser p = {.why = why != NULL ? why : &local};
	char *json = NULL;
	size_t len = 0;
	int err = read_head(src, &json, &len, p.why);

	if (err < 0)
		return err;
	p.start = 4 + len;
	p.size = src->size - p.start;
	/* A dimension takes two bytes of the text, a name its own length and two quotes.  One
	 * block, since a delta owns one: shapes, which are aligned, then names. */
	delta->names = malloc((len / 2 + 1) * sizeof(*p.shapes) + len + 1);
	if (delta->names == NULL) {
		err = why_set(p.why, ENOMEM, "out of memory for the header's tensors");
	} else {
		p.shapes = (void *)delta->names;
		p.names = delta->names + (len / 2 + 1) * sizeof(*p.shapes);
		st_json_init(&p.json, json, len, p.why);
		err = parse_header(&p);
	}
	if (err == 0)
		err = check_tiling(&p);
	if (err == 0)
		err = describe(&p, delta);
	free(p.entries);
	free(json);
	return err;
}
