/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patch files: blobs of the patch form in a safetensors file.
 *
 * Writing: which tensors get a blob is known only at the end, and the header stands at the front.
 * So its size is that of a header with every name and numbers of 15 digits; blobs follow it, and
 * the real header, padded to that very size, is written last.  A file that was abandoned has no
 * header and opens as nothing.
 *
 * The hash covers the bytes after the header, which are read back, since a blob's directory is
 * written after its payload (so it is the hash of what a reader will get); but for blobs that were
 * handed over whole, which are hashed at once.  And then the header itself with zeros for the
 * hash's digits: a damaged name would put a patch on another tensor.
 *
 * Reading: the header goes through st_parse(), so that offsets are inside the file, tile it and
 * have one owner each; then each tensor has to look like a blob.  Payloads are looked at with
 * `full` only.
 *
 * A writer belongs to one thread; an open file may be shared.
 */
#include "codec/patch_file.h"

#include <stdlib.h>
#include <xxhash.h>

#define FORMAT	   "weightfs-patch"
#define ZEROS	   "00000000000000000000000000000000" /* HASH_DIGITS of them */
#define OFFSET_MAX UINT64_C(999999999999999)	      /* what the reserved digits can say */

enum {
	HASH_WINDOW = 1024 * 1024,
	HASH_DIGITS = 32,
	OWN_META = 2, /* format and xxh3 */
};

struct patch_file_writer {
	const struct sink *sink;
	const char *const *names; /* borrowed */
	size_t count;
	struct st_meta *meta; /* owned array of owned strings; format and xxh3 first */
	size_t meta_count;
	struct st_tensor *tensors; /* owned; one for each blob so far */
	uint64_t *shapes;	   /* owned; their shapes */
	size_t taken, next;	   /* blobs so far; least index that may come */
	uint64_t header, at;	   /* size of the header; end of the last blob */
	uint64_t hashed;	   /* what is below is in the hash */
	XXH3_state_t *hash;
};

static void hash_text(XXH128_hash_t hash, char text[HASH_DIGITS + 1])
{
	static const char digits[] = "0123456789abcdef";
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, hash);
	for (size_t i = 0; i < sizeof(c.digest); i++) {
		text[2 * i] = digits[c.digest[i] >> 4];
		text[2 * i + 1] = digits[c.digest[i] & 15];
	}
	text[HASH_DIGITS] = '\0';
}

/* ---- reading ---- */

static int check_meta(const struct st_header *header, struct why *why)
{
	const char *format = st_meta(header, "format"), *hash = st_meta(header, "xxh3");
	char shown[64];

	if (format == NULL)
		return why_set(why, EBADMSG, "not a patch file: its metadata has no format");
	if (strcmp(format, FORMAT) != 0)
		return why_set(why, EBADMSG, "not a patch file: its format is \"%s\"",
			       printable(shown, sizeof(shown), format, strlen(format)));
	if (hash == NULL || strlen(hash) != HASH_DIGITS ||
	    strspn(hash, "0123456789abcdef") != HASH_DIGITS)
		return why_set(why, EBADMSG,
			       "the patch file's metadata has no xxh3 of 32 hexadecimal digits");
	return 0;
}

/* Where the digits of the hash stand in the file; NULL: not where we write them. */
static const uint8_t *hash_digits(const struct patch_file *file)
{
	static const char key[] = "\"xxh3\":\"";
	const uint8_t *begin = file->bytes + 8 + file->header->meta_begin;
	const uint8_t *end = file->bytes + 8 + file->header->meta_end;
	const uint8_t *at = memmem(begin, (size_t)(end - begin), key, sizeof(key) - 1);

	if (at == NULL || (size_t)(end - at) < sizeof(key) - 1 + HASH_DIGITS)
		return NULL;
	return at + sizeof(key) - 1;
}

static int check_hash(const struct patch_file *file, struct why *why)
{
	static const char zeros[HASH_DIGITS + 1] = ZEROS;
	const uint64_t data = file->header->data;
	const uint8_t *digits = hash_digits(file), *rest;
	XXH3_state_t *state = XXH3_createState();
	char text[HASH_DIGITS + 1] = "";

	if (state == NULL)
		return why_set(why, ENOMEM, "no memory to hash a patch file");
	if (digits != NULL) {
		rest = digits + HASH_DIGITS;
		XXH3_128bits_reset(state);
		XXH3_128bits_update(state, file->bytes + data, file->size - data);
		XXH3_128bits_update(state, file->bytes, (size_t)(digits - file->bytes));
		XXH3_128bits_update(state, zeros, HASH_DIGITS);
		XXH3_128bits_update(state, rest, (size_t)(file->bytes + data - rest));
		hash_text(XXH3_128bits_digest(state), text);
	}
	XXH3_freeState(state);
	if (strcmp(text, st_meta(file->header, "xxh3")) != 0)
		return why_set(why, EBADMSG,
			       "the patch file's contents do not have the hash that its header "
			       "says: it is damaged and has to be made again");
	return 0;
}

static int open_tensor(struct patch_file *file, size_t i, struct why *why)
{
	const struct st_tensor *t = &file->header->tensors[i];
	uint64_t at = file->header->data + t->begin, len = t->end - t->begin;
	char shown[128];
	int ret;

	if (t->dtype != ST_U8 || t->rank != 1)
		return why_set(why, EBADMSG,
			       "\"%s\" in a patch file has to be a U8 tensor of one dimension",
			       printable(shown, sizeof(shown), t->name, t->name_len));
	if (at % 8 != 0)
		return why_set(why, EBADMSG,
			       "\"%s\" begins at byte %llu of the patch file, not at a multiple "
			       "of 8",
			       printable(shown, sizeof(shown), t->name, t->name_len),
			       (unsigned long long)at);
	if (file->x != NULL)
		ret = patchx_open(file->bytes + at, len, &file->x[i], why);
	else
		ret = patch_open(file->bytes + at, len, &file->patches[i], why);
	if (ret == 0 && file->x == NULL && file->patches[i].version > 1 &&
	    st_meta(file->header, "encoding") != NULL)
		ret = why_set(why, EBADMSG,
			      "a patch in form version %u, which is for caches only: this version "
			      "has to be published again, in form version 1",
			      file->patches[i].version);
	if (ret < 0)
		why_prefix(why, "\"%s\"", printable(shown, sizeof(shown), t->name, t->name_len));
	return ret;
}

static int check_blobs(const struct patch_file *file, struct why *why)
{
	int ret = 0;

	for (size_t i = 0; ret == 0 && file->patches != NULL && i < file->count; i++) {
		const struct st_tensor *t = &file->header->tensors[i];
		char shown[128];

		ret = patch_check(&file->patches[i], why);
		if (ret < 0)
			why_prefix(why, "\"%s\"",
				   printable(shown, sizeof(shown), t->name, t->name_len));
	}
	return ret;
}

static int open_file(const void *bytes, uint64_t size, bool full, bool x,
		     struct patch_file **out_file, struct why *why)
{
	const struct source src = source_memory(bytes, size);
	struct patch_file *file = calloc(1, sizeof(*file));
	int ret;

	if (file == NULL)
		return why_set(why, ENOMEM, "no memory for a patch file");
	file->bytes = bytes;
	file->size = size;
	ret = st_read(&src, &file->header, NULL, why);
	if (ret == 0)
		ret = check_meta(file->header, why);
	if (ret < 0)
		goto out;
	file->count = file->header->count;
	if (x)
		file->x = calloc(MAX(file->count, (size_t)1), sizeof(*file->x));
	else
		file->patches = calloc(MAX(file->count, (size_t)1), sizeof(*file->patches));
	if (file->patches == NULL && file->x == NULL) {
		ret = why_set(why, ENOMEM, "no memory for a patch file of %zu tensors",
			      file->count);
		goto out;
	}
	/* First, since "damaged" says more than what the damage looks like. */
	if (full)
		ret = check_hash(file, why);
	for (size_t i = 0; ret == 0 && i < file->count; i++)
		ret = open_tensor(file, i, why);
	if (ret == 0 && full)
		ret = check_blobs(file, why);
out:
	if (ret < 0)
		patch_file_free(file);
	else
		*out_file = file;
	return ret;
}

int patch_file_open(const void *bytes, uint64_t size, bool full, struct patch_file **out_file,
		    struct why *why)
{
	return open_file(bytes, size, full, false, out_file, why);
}

int patch_file_open_x(const void *bytes, uint64_t size, struct patch_file **out_file,
		      struct why *why)
{
	return open_file(bytes, size, true, true, out_file, why);
}

int patch_file_check(const struct patch_file *file, struct why *why)
{
	int ret = check_hash(file, why);

	return ret == 0 ? check_blobs(file, why) : ret;
}

void patch_file_use(struct patch_file *file, const struct rice_kernel *kernel)
{
	for (size_t i = 0; file->patches != NULL && i < file->count; i++)
		file->patches[i].kernel = kernel;
}

void patch_file_free(struct patch_file *file)
{
	if (file == NULL)
		return;
	st_free(file->header);
	free(file->patches);
	free(file->x);
	free(file);
}

/* ---- writing ---- */

static bool add_meta(struct patch_file_writer *w, const char *key, const char *value)
{
	struct st_meta *m = &w->meta[w->meta_count++];

	m->key = strdup(key);
	m->value = strdup(value);
	return m->key != NULL && m->value != NULL;
}

static int copy_meta(struct patch_file_writer *w, const struct st_meta *meta, size_t count,
		     struct why *why)
{
	bool ok = add_meta(w, "format", FORMAT) && add_meta(w, "xxh3", ZEROS);

	for (size_t i = 0; ok && i < count; i++) {
		if (strcmp(meta[i].key, "format") == 0 || strcmp(meta[i].key, "xxh3") == 0)
			return why_set(why, EINVAL, "a patch file's metadata key \"%s\" is its own",
				       meta[i].key);
		ok = add_meta(w, meta[i].key, meta[i].value);
	}
	return ok ? 0 : why_set(why, ENOMEM, "no memory for a patch file's metadata");
}

/* The size of a header that has them all, with the longest numbers. */
static int reserve(struct patch_file_writer *w, struct why *why)
{
	struct buf text = {0};
	int ret;

	for (size_t i = 0; i < w->count; i++) {
		w->shapes[i] = OFFSET_MAX;
		w->tensors[i] = (struct st_tensor){
			.name = w->names[i],
			.shape = &w->shapes[i],
			.begin = OFFSET_MAX,
			.end = OFFSET_MAX,
			.dtype = ST_U8,
			.rank = 1,
		};
	}
	ret = st_compose(w->tensors, w->count, w->meta, w->meta_count, 8, 0, &text, why);
	w->header = w->at = w->hashed = text.len;
	XXH3_128bits_reset(w->hash);
	buf_release(&text);
	return ret;
}

int patch_file_writer_new(const char *const *names, size_t count, const struct st_meta *meta,
			  size_t meta_count, const struct sink *sink,
			  struct patch_file_writer **out_writer, struct why *why)
{
	struct patch_file_writer *w = calloc(1, sizeof(*w));
	int ret;

	if (w == NULL)
		return why_set(why, ENOMEM, "no memory for a patch file");
	w->sink = sink;
	w->names = names;
	w->count = count;
	w->meta = calloc(OWN_META + meta_count, sizeof(*w->meta));
	w->tensors = calloc(MAX(count, (size_t)1), sizeof(*w->tensors));
	w->shapes = calloc(MAX(count, (size_t)1), sizeof(*w->shapes));
	w->hash = XXH3_createState();
	if (w->meta == NULL || w->tensors == NULL || w->shapes == NULL || w->hash == NULL)
		ret = why_set(why, ENOMEM, "no memory for a patch file of %zu tensors", count);
	else
		ret = copy_meta(w, meta, meta_count, why);
	if (ret == 0)
		ret = reserve(w, why);
	if (ret < 0)
		patch_file_writer_free(w);
	else
		*out_writer = w;
	return ret;
}

uint64_t patch_file_writer_at(const struct patch_file_writer *w)
{
	return w->at;
}

const struct sink *patch_file_writer_sink(struct patch_file_writer *w)
{
	return w->sink;
}

int patch_file_writer_took(struct patch_file_writer *w, size_t index, uint64_t len)
{
	struct st_tensor *t;

	if (index >= w->count || len % 8 != 0)
		return -EINVAL;
	if (len == 0)
		return 0;
	if (index < w->next)
		return -EINVAL;
	if (len > OFFSET_MAX - w->at)
		return -EFBIG;
	t = &w->tensors[w->taken];
	w->shapes[w->taken] = len;
	t->name = w->names[index];
	t->begin = w->at - w->header;
	t->end = t->begin + len;
	w->taken++;
	w->next = index + 1;
	w->at += len;
	return 0;
}

int patch_file_writer_add(struct patch_file_writer *w, size_t index, const void *bytes, size_t len)
{
	const uint64_t at = w->at;
	int ret = patch_file_writer_took(w, index, len);

	if (ret == 0 && len > 0)
		ret = w->sink->write(w->sink->ctx, at, bytes, len);
	if (ret == 0 && w->hashed == at) {
		XXH3_128bits_update(w->hash, bytes, len);
		w->hashed = w->at;
	}
	return ret;
}

/* `head`: the header with zeros for the hash. */
static int hash_back(const struct patch_file_writer *w, const struct source *readback,
		     const struct buf *head, char text[HASH_DIGITS + 1], struct why *why)
{
	uint8_t *window = w->hashed < w->at ? malloc(HASH_WINDOW) : NULL;
	int ret = 0;

	if (window == NULL && w->hashed < w->at)
		return why_set(why, ENOMEM, "no memory to hash a patch file");
	for (uint64_t off = w->hashed; ret == 0 && off < w->at; off += HASH_WINDOW) {
		size_t len = (size_t)MIN(w->at - off, (uint64_t)HASH_WINDOW);

		ret = source_read(readback, off, window, len);
		if (ret == 0)
			XXH3_128bits_update(w->hash, window, len);
		else
			why_set(why, -ret, "the patch file cannot be read back");
	}
	if (ret == 0) {
		XXH3_128bits_update(w->hash, head->data, head->len);
		hash_text(XXH3_128bits_digest(w->hash), text);
	}
	free(window);
	return ret;
}

int patch_file_writer_end(struct patch_file_writer *w, const struct source *readback,
			  uint64_t *out_size, struct why *why)
{
	char hash[HASH_DIGITS + 1];
	struct buf head = {0}, text = {0};
	struct st_meta *meta = w->meta;
	const char *placeholder = meta[1].value;
	int ret;

	ret = st_compose(w->tensors, w->taken, meta, w->meta_count, 8, w->header, &head, why);
	if (ret == 0)
		ret = hash_back(w, readback, &head, hash, why);
	if (ret < 0)
		goto out;
	meta[1].value = hash;
	ret = st_compose(w->tensors, w->taken, meta, w->meta_count, 8, w->header, &text, why);
	meta[1].value = placeholder;
	if (ret < 0)
		goto out;
	ret = w->sink->write(w->sink->ctx, 0, text.data, text.len);
	if (ret < 0)
		ret = why_set(why, -ret, "the patch file's header cannot be written");
	else
		*out_size = w->at;
out:
	buf_release(&head);
	buf_release(&text);
	return ret;
}

void patch_file_writer_free(struct patch_file_writer *w)
{
	if (w == NULL)
		return;
	for (size_t i = 0; i < w->meta_count; i++) {
		free((void *)(uintptr_t)w->meta[i].key);
		free((void *)(uintptr_t)w->meta[i].value);
	}
	free(w->meta);
	free(w->tensors);
	free(w->shapes);
	XXH3_freeState(w->hash);
	free(w);
}
