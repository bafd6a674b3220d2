/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two files of an object in the block cache.
 *
 *	index: 4096 bytes of header, then records
 *	  0 magic  8 version  12 piece size  16 identity  32 object size  40 length of key  44 key
 *	  4088 xxh3-64 of what is before it; numbers little-endian
 *
 * Order matters in two places.  Storing: data, then records, so that a record without its data can
 * only be left by a power cut, and the hash finds that.  Dropping: records, then the hole.  Neither
 * is synced.  A failed store leaves no record, but perhaps bytes: the caller drops the pieces once
 * nobody can be reading there.
 *
 * Who may call what when (a hole must not be punched under a reader, pieces are filled by one at a
 * time) is for the block cache to see to; there is no lock here.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/disk_internal.h"
#include "cache/fileio.h"

enum {
	HEADER_SIZE = 4096,
	HEADER_HASH = HEADER_SIZE - 8,
	HEADER_KEY = 44,
	VERSION = 1,
	BATCH = 64, /* records at a time */
};
static const char magic[8] = {'w', 'f', 's', 'b', 'l', 'k', '\r', '\n'};

struct disk_file {
	int refs; /* atomic */
	int data_fd, index_fd;
	bool writable;
	struct identity id;
	uint64_t size;
	uint32_t pieces;
};

static uint64_t hash_piece(const struct identity *id, uint32_t piece, const void *bytes, size_t len)
{
	uint64_t seed = load_le64(id->bytes) ^ load_le64(id->bytes + 8) ^
			(piece + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
	uint64_t h = XXH3_64bits_withSeed(bytes, len, seed);

	return h != 0 ? h : 1;
}

/* ---- the header ---- */

static void make_header(const struct identity *id, uint64_t size, const char *key,
			uint8_t h[HEADER_SIZE])
{
	size_t len = MIN(strlen(key), (size_t)DISK_KEY_MAX);

	memset(h, 0, HEADER_SIZE);
	memcpy(h, magic, sizeof(magic));
	store_le32(h + 8, VERSION);
	store_le32(h + 12, PIECE_SIZE);
	memcpy(h + 16, id->bytes, sizeof(id->bytes));
	store_le64(h + 32, size);
	store_le32(h + 40, (uint32_t)len);
	memcpy(h + HEADER_KEY, key, len);
	store_le64(h + HEADER_HASH, XXH3_64bits(h, HEADER_HASH));
}

/* -ENODATA: empty; -EBADMSG: not a header of this object. */
static int read_header(int fd, const struct identity *id, uint8_t h[HEADER_SIZE])
{
	int rc = file_pread(fd, h, HEADER_SIZE, 0);

	if (rc < 0)
		return rc;
	if (memcmp(h, magic, sizeof(magic)) != 0 || load_le32(h + 8) != VERSION ||
	    load_le32(h + 12) != PIECE_SIZE || memcmp(h + 16, id->bytes, sizeof(id->bytes)) != 0 ||
	    load_le32(h + 40) > DISK_KEY_MAX ||
	    load_le64(h + HEADER_HASH) != XXH3_64bits(h, HEADER_HASH))
		return -EBADMSG;
	return 0;
}

int disk_inspect(struct disk *d, const struct identity *id, uint64_t *out_size, char **out_key)
{
	char name[DISK_NAME_SIZE];
	uint8_t h[HEADER_SIZE];
	int fd, rc;

	disk_name(id, "index", name);
	fd = openat(d->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = read_header(fd, id, h);
	close(fd);
	if (rc < 0)
		return rc == -ENODATA ? -EBADMSG : rc;
	if (load_le64(h + 32) > DISK_OBJECT_MAX)
		return -EBADMSG;
	*out_key = strndup((const char *)h + HEADER_KEY, load_le32(h + 40));
	if (*out_key == NULL)
		return -ENOMEM;
	*out_size = load_le64(h + 32);
	return 0;
}

/* ---- opening ---- */

static int open_one(struct disk *d, const struct identity *id, const char *suffix, bool write)
{
	int flags = write ? O_RDWR | O_CREAT : O_RDONLY;
	char name[DISK_NAME_SIZE];
	struct stat st;
	int fd;

	disk_name(id, suffix, name);
	fd = openat(d->dir_fd, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -EINVAL;
}

/* Checks the header, or begins the files anew. */
static int settle_header(struct disk_file *f, const char *key, bool *out_foreign)
{
	uint8_t h[HEADER_SIZE];
	int rc = read_header(f->index_fd, &f->id, h);
	struct stat st;

	if (rc == 0 && load_le64(h + 32) != f->size)
		rc = -EBADMSG;
	if (rc == 0 || !f->writable || (rc != -ENODATA && rc != -EBADMSG))
		return rc == -ENODATA ? -EBADMSG : rc;
	if (fstat(f->index_fd, &st) < 0)
		return -errno;
	*out_foreign = st.st_size > 0;
	if (ftruncate(f->index_fd, 0) < 0 || ftruncate(f->data_fd, 0) < 0)
		return -errno;
	make_header(&f->id, f->size, key, h);
	return file_pwrite(f->index_fd, h, sizeof(h), 0);
}

int disk_file_open(struct disk *d, const struct identity *id, uint64_t size, const char *key,
		   struct disk_file **out, bool *out_foreign)
{
	struct disk_file *f;
	int rc;

	*out_foreign = false;
	if (size > DISK_OBJECT_MAX)
		return -EFBIG;
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return -ENOMEM;
	f->refs = 1;
	f->data_fd = -1;
	f->id = *id;
	f->size = size;
	f->pieces = piece_count(size);
	f->writable = disk_owned(d);
	f->index_fd = open_one(d, id, "index", f->writable);
	rc = f->index_fd < 0 ? f->index_fd : 0;
	if (rc == 0) {
		f->data_fd = open_one(d, id, "data", f->writable);
		rc = f->data_fd < 0 ? f->data_fd : 0;
	}
	if (rc == 0)
		rc = settle_header(f, key, out_foreign);
	if (rc < 0) {
		disk_file_unref(f);
		return rc;
	}
	*out = f;
	return 0;
}

struct disk_file *disk_file_ref(struct disk_file *f)
{
	__atomic_add_fetch(&f->refs, 1, __ATOMIC_RELAXED);
	return f;
}

void disk_file_unref(struct disk_file *f)
{
	if (f == NULL || __atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (f->data_fd >= 0)
		close(f->data_fd);
	if (f->index_fd >= 0)
		close(f->index_fd);
	free(f);
}

bool disk_file_writable(const struct disk_file *f)
{
	return f->writable;
}

uint64_t disk_file_allocated(const struct disk_file *f)
{
	struct stat st;

	return fstat(f->data_fd, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;
}

uint64_t disk_file_length(const struct disk_file *f)
{
	struct stat st;

	return fstat(f->data_fd, &st) < 0 ? 0 : (uint64_t)st.st_size;
}

void disk_file_touch(struct disk_file *f)
{
	if (f->writable)
		(void)futimens(f->index_fd, NULL);
}

/* ---- reading ---- */

static uint64_t record_at(uint32_t piece)
{
	return HEADER_SIZE + (uint64_t)piece * 8;
}

int disk_file_records(struct disk_file *f, uint32_t first, uint32_t count, uint64_t *out)
{
	uint8_t *raw = (uint8_t *)out;
	uint64_t at = record_at(first);
	size_t len = (size_t)count * 8;

	while (len > 0) {
		ssize_t n = pread(f->index_fd, raw, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		raw += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	memset(raw, 0, len); /* records never written */
	for (uint32_t i = 0; i < count; i++)
		out[i] = load_le64(&out[i]);
	return 0;
}

int disk_file_read(struct disk_file *f, uint64_t off, void *dst, size_t len)
{
	return file_pread(f->data_fd, dst, len, off);
}

int disk_file_lend(struct disk_file *f, uint64_t off, size_t len, struct loan *out)
{
	return loan_map(f->data_fd, off, len, out);
}

int disk_file_check(struct disk_file *f, uint32_t piece, void *dst)
{
	size_t len = piece_len(f->size, piece);
	uint64_t record;
	int rc = disk_file_records(f, piece, 1, &record);

	if (rc < 0)
		return rc;
	if (record == 0)
		return -ENOENT;
	rc = file_pread(f->data_fd, dst, len, (uint64_t)piece * PIECE_SIZE);
	if (rc < 0)
		return rc == -ENODATA ? -EBADMSG : rc;
	return hash_piece(&f->id, piece, dst, len) == record ? 0 : -EBADMSG;
}

/* ---- writing ---- */

/* Data first, then the records.  Piece by piece, so that each is hashed while it is still in the
 * processor's cache from being copied. */
static int store_batch(struct disk_file *f, uint32_t first, uint32_t count, const uint8_t *bytes)
{
	uint8_t records[BATCH * 8];
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++) {
		size_t len = piece_len(f->size, first + i);

		rc = file_pwrite(f->data_fd, bytes, len, (uint64_t)(first + i) * PIECE_SIZE);
		store_le64(records + 8 * (size_t)i, hash_piece(&f->id, first + i, bytes, len));
		bytes += len;
	}
	return rc == 0 ? file_pwrite(f->index_fd, records, (size_t)count * 8, record_at(first))
		       : rc;
}

static int clear_records(struct disk_file *f, uint32_t first, uint32_t count)
{
	static const uint8_t none[BATCH * 8];
	struct stat st;
	int rc = 0;

	/* Beyond the end of the index there are none: on a full disk it must not grow for that. */
	if (fstat(f->index_fd, &st) == 0 && (uint64_t)st.st_size <= record_at(first))
		return 0;
	while (count > 0 && rc == 0) {
		uint32_t n = MIN(count, (uint32_t)BATCH);

		rc = file_pwrite(f->index_fd, none, (size_t)n * 8, record_at(first));
		first += n;
		count -= n;
	}
	return rc;
}

static int punch(struct disk_file *f, uint32_t first, uint32_t count)
{
	/* The whole of the last piece, too: the hole ends where the file system's block does. */
	return fallocate(f->data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 (off_t)first * PIECE_SIZE, (off_t)count * PIECE_SIZE) < 0
		       ? -errno
		       : 0;
}

int disk_file_store(struct disk_file *f, uint32_t first, const void *bytes, size_t len)
{
	const uint32_t count = piece_count(len);
	int rc = 0;

	for (uint32_t done = 0; done < count && rc == 0; done += BATCH)
		rc = store_batch(f, first + done, MIN(count - done, (uint32_t)BATCH),
				 (const uint8_t *)bytes + (size_t)done * PIECE_SIZE);
	if (rc < 0)
		(void)clear_records(f, first, count);
	return rc;
}

int disk_file_drop(struct disk_file *f, uint32_t first, uint32_t count)
{
	int rc = clear_records(f, first, count), rc2 = punch(f, first, count);

	return rc < 0 ? rc : rc2;
}
