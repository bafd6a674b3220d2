/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks into one file and describes it, with every check that a mount makes before it shows the
 * file.
 *
 * A sparse part does not say how large its tensor is.  So its index is read twice: here for the
 * gaps and the last position, then by delta_encode() into nowhere, for a tensor that just holds the
 * last position, so that the sentence for a bad index is the one a mount has.
 *
 * A file that is one zstd frame is unpacked first, into a file without a name.  Where the format
 * says the shapes, a sparse part is checked against its own.
 *
 * A patch file is mapped and checked whole, hash included.
 *
 * One thread; blocks on the file.
 */
#include "tools/facts.h"

#include "cache/fileio.h"
#include "codec/frame.h"
#include "fs/kernel.h"
#include "tools/cli.h"
#include "tools/scratch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW = 256 << 10 };

/* More elements than any tensor has; keeps what a wrong gap can make us allocate in bounds. */
static const uint64_t NUMEL_MAX = UINT64_C(1) << 40;

void facts_free(struct facts *f)
{
	if (f == NULL)
		return;
	patch_file_free(f->patch);
	delta_free(f->delta);
	if (f->map != NULL)
		munmap(f->map, f->size);
	if (f->scratch >= 0)
		close(f->scratch);
	free(f->tensors);
	free(f);
}

/* ---- sparse parts ---- */

static int sink_nowhere(void *ctx, uint64_t off, const void *src, size_t len)
{
	(void)ctx;
	(void)off;
	(void)src;
	(void)len;
	return 0;
}

/* One entry of the index.  Positions that do not ascend are left for delta_encode() to name. */
static void scan_entry(struct tensor_facts *t, bool gaps, uint64_t value, uint64_t *next,
		       uint64_t *end)
{
	uint64_t position = gaps ? *next + value : value;
	uint64_t gap = position >= *next ? position - *next : 0;

	if (!t->any) {
		t->first = position;
		t->min_gap = t->max_gap = gap;
		t->any = true;
	}
	t->min_gap = MIN(t->min_gap, gap);
	t->max_gap = MAX(t->max_gap, gap);
	t->last = position;
	*next = position + 1;
	*end = MAX(*end, *next);
}

/* Fills the gaps and positions of t; *end: one above the highest position. */
static int scan_index(const struct delta *delta, const struct part *part, const struct source *src,
		      struct tensor_facts *t, uint64_t *end, struct why *why)
{
	const struct st_tensor *index = part->index;
	unsigned width = st_dtype_width(index->dtype);
	bool gaps = index->dtype != ST_I32;
	uint64_t next = 0, at = delta->header->data + index->begin,
		 left = index->end - index->begin;
	uint8_t *window = malloc(WINDOW);
	int ret = 0;

	*end = 0;
	if (window == NULL)
		return why_set(why, ENOMEM, "out of memory");
	while (left > 0 && ret == 0) {
		size_t len = (size_t)MIN(left, (uint64_t)WINDOW);

		ret = source_read(src, at, window, len);
		if (ret < 0) {
			why_set(why, -ret, "cannot be read at byte %" PRIu64 ": %s", at,
				errno_text(ret));
			break;
		}
		for (size_t i = 0; i + width <= len; i += width)
			scan_entry(t, gaps,
				   width == 2 ? load_le16(window + i) : load_le32(window + i),
				   &next, end);
		at += len;
		left -= len;
	}
	free(window);
	return ret;
}

static int check_sparse(const struct delta *delta, const struct part *part,
			const struct source *src, struct tensor_facts *t, struct why *why)
{
	struct sink nowhere = {.write = sink_nowhere};
	char shown[160];
	uint64_t end = part->numel, len;
	int ret = part->index != NULL ? scan_index(delta, part, src, t, &end, why) : 0;

	if (ret < 0)
		return ret;
	if (end > NUMEL_MAX)
		return why_set(why, EBADMSG,
			       "tensor \"%s\": it goes up to element %" PRIu64
			       ", which no tensor is large enough for",
			       printable(shown, sizeof(shown), part->name, strlen(part->name)),
			       end - 1);
	return delta_encode(delta, part, src, part->dtype, MAX(end, 1), &nowhere, 0, &len, why);
}

static const char *index_name(const struct part *part)
{
	if (part->index == NULL)
		return part->coding;
	switch (part->index->dtype) {
	case ST_U16: return "U16 gaps";
	case ST_U32: return "U32 gaps";
	default: return "I32 positions";
	}
}

static int gather_part(struct facts *f, const struct part *part, const struct source *src,
		       struct why *why)
{
	struct tensor_facts *t = &f->tensors[f->count++];

	*t = (struct tensor_facts){
		.name = part->name,
		.dtype = part->dtype,
		.shape = part->shape,
		.rank = part->rank,
		.sparse = part->kind == PART_SPARSE,
		.numel = part->numel,
		.bytes = part->bytes,
		.changed = part->changed,
		.index = part->kind == PART_SPARSE ? index_name(part) : NULL,
	};
	return t->sparse ? check_sparse(f->delta, part, src, t, why) : 0;
}

/* ---- the two kinds of files ---- */

/* What the shapes or the metadata say of the tensors in the file; 0 when they say nothing. */
static uint64_t total_elements(const struct facts *f)
{
	const char *text = f->header != NULL ? st_meta(f->header, "total_elements") : NULL;
	uint64_t n = 0;

	for (size_t i = 0; i < f->count && f->header == NULL; i++)
		n += f->tensors[i].numel;
	if (f->header == NULL)
		return n;
	return text != NULL && parse_u64(text, &n) == 0 && n >= f->changed ? n : 0;
}

/* A shard of an HF-directory delta or the like, without its index: its frames are shown as they
 * are. */
static bool is_shard(const struct source *src)
{
	struct st_header *header;
	bool is;

	if (st_read(src, &header, NULL, NULL) < 0)
		return false;
	is = delta_only_changes(header);
	st_free(header);
	return is;
}

static int gather_delta(struct facts *f, const struct source *src, struct why *why)
{
	const bool shard = is_shard(src);
	const struct delta *d;
	int ret = shard ? delta_open_as(src, "safetensors", NULL, &f->delta, why)
			: delta_open_found(src, &f->delta, why);

	if (ret < 0)
		return ret;
	d = f->delta;
	f->header = d->header;
	f->header_bytes = d->data;
	f->data_bytes = src->size - d->data;
	f->whole = d->full;
	f->sparse = d->sparse;
	f->changed = d->changed;
	f->kind = d->count == 0	   ? "empty"
		  : d->sparse == 0 ? "full"
		  : d->full == 0   ? "sparse"
				   : "mixed";
	snprintf(f->generation, sizeof(f->generation), "%s", d->generation);
	if (shard) {
		f->kind = "changes";
		snprintf(f->generation, sizeof(f->generation), "compressed changes");
	}
	f->tensors = calloc(d->count + 1, sizeof(*f->tensors));
	if (f->tensors == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < d->count && ret == 0; i++)
		ret = gather_part(f, &d->parts[i], src, why);
	f->elements = f->sparse == 0 ? f->changed : total_elements(f);
	return ret;
}

static const char *op_name(uint8_t op)
{
	return op == PATCH_SET ? "set" : op == PATCH_ADD ? "add" : "xor";
}

/* Checked whole; of wfp1x all but what needs its base. */
static int open_patches(struct facts *f, struct why *why)
{
	const struct source src = source_memory(f->map, f->size);
	struct st_header *header = NULL;
	const char *encoding;
	bool x;
	int ret = st_read(&src, &header, NULL, why);

	if (ret < 0)
		return ret;
	encoding = st_meta(header, "encoding");
	x = encoding != NULL && strcmp(encoding, "wfp1x") == 0;
	st_free(header);
	if (x)
		return patch_file_open_x(f->map, f->size, &f->patch, why);
	ret = patch_file_open(f->map, f->size, false, &f->patch, why);
	if (ret < 0)
		return ret;
	patch_file_use(f->patch, kernel_chosen());
	return patch_file_check(f->patch, why);
}

static int gather_patch(struct facts *f, int fd, struct why *why)
{
	const struct patch_file *p;
	const char *encoding;
	int ret;

	f->map = mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0);
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return why_set(why, errno, "cannot be mapped: %s", errno_text(errno));
	}
	ret = open_patches(f, why);
	if (ret < 0)
		return ret;
	p = f->patch;
	f->header = p->header;
	f->header_bytes = p->header->data;
	f->data_bytes = f->size - p->header->data;
	f->kind = "patch";
	encoding = st_meta(p->header, "encoding");
	/* A published one says how it is encoded. */
	if (encoding != NULL)
		printable(f->generation, sizeof(f->generation), encoding, strlen(encoding));
	else
		snprintf(f->generation, sizeof(f->generation), "weightfs patch");
	f->tensors = calloc(p->count + 1, sizeof(*f->tensors));
	if (f->tensors == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t k = 0; k < p->count; k++) {
		size_t i = p->header->by_name[k];
		const struct st_tensor *t = &p->header->tensors[i];

		f->tensors[f->count++] = (struct tensor_facts){
			.name = t->name,
			.dtype = t->dtype,
			.sparse = true,
			.numel = p->x != NULL ? p->x[i].numel : p->patches[i].numel,
			.bytes = t->end - t->begin,
			.changed = p->x != NULL ? p->x[i].changed : p->patches[i].changed,
			.index = op_name(p->x != NULL ? PATCH_ADD : p->patches[i].op),
		};
		f->sparse++;
		f->changed += f->tensors[k].changed;
		f->elements += f->tensors[k].numel;
	}
	return 0;
}

/* Is it one of ours?  An unreadable header is for delta_open() to explain. */
static bool is_patch(const struct source *src)
{
	struct st_header *header;
	const char *format;
	bool is;

	if (st_read(src, &header, NULL, NULL) < 0)
		return false;
	format = st_meta(header, "format");
	is = format != NULL && strcmp(format, "weightfs-patch") == 0;
	st_free(header);
	return is;
}

/* *src is the frame, and then what comes out of it. */
static int unpack(struct facts *f, struct source *src, struct why *why)
{
	const struct source packed = *src;
	const struct sink sink = sink_fd(&f->scratch);
	int ret = scratch_file(&f->scratch, why);

	if (ret == 0)
		ret = frame_unpack(&packed, frame_most(packed.size), &sink, &f->unpacked, why);
	if (ret == 0) {
		ret = source_fd(f->scratch, src);
		if (ret < 0)
			why_set(why, -ret, "%s", errno_text(ret));
	}
	return ret;
}

/* An index, a manifest or a configuration: a safetensors file begins with the length of its header,
 * which no text could be. */
static bool is_json(const struct source *src)
{
	uint8_t head[8];

	return src->size >= sizeof(head) && src->read(src->ctx, 0, head, sizeof(head)) == 0 &&
	       head[0] == '{' && load_le64(head) > ST_HEADER_MAX;
}

static int gather(struct facts *f, int fd, struct source *src, struct why *why)
{
	bool framed;
	int ret = frame_probe(src, &framed);

	if (ret == 0 && is_json(src))
		return why_set(why, EBADMSG,
			       "is JSON, and no file of weights; what an index or a manifest says "
			       "is judged by weightfs log and weightfs verify of the run");

	if (ret < 0)
		return why_set(why, -ret, "cannot be read: %s", errno_text(ret));
	if (framed)
		ret = unpack(f, src, why);
	if (ret < 0)
		return ret;
	return !framed && is_patch(src) ? gather_patch(f, fd, why) : gather_delta(f, src, why);
}

int facts_gather(int fd, struct facts **out, struct why *why)
{
	struct facts *f;
	struct source src;
	struct stat st;
	int ret;

	if (fstat(fd, &st) < 0)
		return why_set(why, errno, "%s", errno_text(errno));
	if (S_ISDIR(st.st_mode))
		return why_set(why, EISDIR,
			       "is a directory; weightfs log lists the versions of a "
			       "run");
	if (!S_ISREG(st.st_mode))
		return why_set(why, EINVAL, "is not a regular file");
	ret = source_fd(fd, &src);
	if (ret < 0)
		return why_set(why, -ret, "%s", errno_text(ret));
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return why_set(why, ENOMEM, "out of memory");
	f->size = src.size;
	f->scratch = -1;
	ret = gather(f, fd, &src, why);
	if (ret < 0) {
		facts_free(f);
		return ret;
	}
	*out = f;
	return 0;
}
