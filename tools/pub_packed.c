/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed anchors: the checkpoint's files as packed files (codec/pack.h), for mounts of this
 * program.
 *
 * A file is gone through in the order of its tensors, some blocks at a time, which several threads
 * compress into buffers; they are written in order.  How long the blocks are is known only then, so
 * the header, for which room was left, comes last.
 *
 * Nothing is kept of a file but a tensor's directory and the blocks of a round.
 */
#include "tools/pub_encode.h"

#include "cache/fileio.h"
#include "codec/pack.h"
#include "fs/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUND = 16 /* blocks of a round for each thread */ };

struct job { /* a block */
	const uint8_t *bytes;
	uint32_t len;
	uint8_t *out; /* owned: room for any */
	size_t out_len;
	uint64_t hash;
	struct packer *packer; /* owned */
};

struct packing { /* of one file */
	const char *name;
	const uint8_t *bytes; /* of the original, mapped */
	struct st_header *header;
	char *json;
	uint64_t *sizes; /* as packed, of header->tensors */
	struct job *jobs;
	size_t job_count;
	unsigned threads, width;
	struct sink sink;
	uint64_t at; /* where the next byte goes */
};

static void pack_one(void *ctx, size_t i)
{
	struct packing *p = ctx;
	struct job *j = &p->jobs[i];

	j->out_len = packer_block(j->packer, j->bytes, j->len, p->width, j->out, &j->hash);
}

static int put(struct packing *p, uint64_t at, const void *bytes, size_t len, struct why *why)
{
	int ret = p->sink.write(p->sink.ctx, at, bytes, len);

	return ret < 0 ? why_set(why, -ret, "the compressed %s cannot be written: %s",
				 SHOWN(p->name), strerrordesc_np(-ret))
		       : 0;
}

/* The next blocks of a tensor, from block `first` on; *offset is where they go behind the
 * directory. */
static int pack_round(struct packing *p, const struct st_tensor *t, uint64_t first, size_t n,
		      uint8_t *directory, uint64_t *offset, struct why *why)
{
	const uint64_t bytes = t->end - t->begin;
	int ret = 0;

	for (size_t i = 0; i < n; i++) {
		struct job *j = &p->jobs[i];

		j->bytes =
			p->bytes + p->header->data + t->begin + (first + i) * PACK_BLOCK * p->width;
		j->len = pack_block_bytes(bytes, p->width, first + i);
	}
	parallel_for(p->threads, n, pack_one, p);
	for (size_t i = 0; ret == 0 && i < n; i++) {
		const struct job *j = &p->jobs[i];
		uint8_t *entry = directory + PACK_ENTRY * (first + i);

		store_le64(entry, j->hash);
		store_le64(entry + 8, *offset);
		ret = put(p, p->at + *offset, j->out, j->out_len, why);
		*offset += j->out_len;
	}
	return ret;
}

static int pack_tensor(struct packing *p, size_t index, struct why *why)
{
	const struct st_tensor *t = &p->header->tensors[index];
	const unsigned width = st_dtype_width(t->dtype);
	const uint64_t blocks = pack_blocks(t->end - t->begin, width);
	const size_t dir_len = PACK_ENTRY * (size_t)(blocks + 1);
	uint8_t *directory = calloc(1, dir_len);
	uint64_t offset = 0;
	int ret = 0;

	if (directory == NULL)
		return why_set(why, ENOMEM, "out of memory");
	p->width = width;
	p->at += dir_len;
	for (uint64_t b = 0; ret == 0 && b < blocks; b += p->job_count)
		ret = pack_round(p, t, b, (size_t)MIN(blocks - b, (uint64_t)p->job_count),
				 directory, &offset, why);
	store_le64(directory + PACK_ENTRY * blocks + 8, offset);
	if (ret == 0)
		ret = put(p, p->at - dir_len, directory, dir_len, why);
	p->at += offset;
	p->sizes[index] = dir_len + offset;
	free(directory);
	return ret;
}

static int pack_tensors(struct packing *p, struct why *why)
{
	struct buf head = {0};
	size_t room;
	int ret = pack_compose(p->header, p->json, NULL, 0, &head, why);

	room = head.len;
	p->at = room;
	buf_release(&head);
	for (size_t i = 0; ret == 0 && i < p->header->count; i++)
		if (p->header->tensors[i].begin < p->header->tensors[i].end)
			ret = pack_tensor(p, i, why);
	if (ret == 0)
		ret = pack_compose(p->header, p->json, p->sizes, room, &head, why);
	if (ret == 0 && head.len != room)
		ret = why_set(why, EFBIG, "%s is too large to be compressed", SHOWN(p->name));
	if (ret == 0)
		ret = put(p, 0, head.data, head.len, why);
	buf_release(&head);
	return ret;
}

/* Jobs with buffers for the widest blocks. */
static int make_jobs(struct packing *p)
{
	p->job_count = (size_t)p->threads * ROUND;
	p->jobs = calloc(p->job_count, sizeof(*p->jobs));
	for (size_t i = 0; p->jobs != NULL && i < p->job_count; i++) {
		p->jobs[i].out = malloc(pack_bound(PACK_BLOCK * 8, 8));
		p->jobs[i].packer = packer_new();
		if (p->jobs[i].out == NULL || p->jobs[i].packer == NULL)
			return -ENOMEM;
	}
	return p->jobs != NULL ? 0 : -ENOMEM;
}

static void free_jobs(struct packing *p)
{
	for (size_t i = 0; p->jobs != NULL && i < p->job_count; i++) {
		free(p->jobs[i].out);
		packer_free(p->jobs[i].packer);
	}
	free(p->jobs);
}

static int pack_file(const struct pub_file *f, unsigned threads, int fd, struct why *why)
{
	struct packing p = {
		.name = f->name,
		.threads = MIN(MAX(threads, 1U), 32U),
		.sink = sink_fd(&fd),
	};
	void *map = mmap(NULL, f->size, PROT_READ, MAP_SHARED, f->fd, 0);
	struct source src;
	int ret;

	if (map == MAP_FAILED)
		return why_set(why, errno, "%s cannot be mapped: %s", SHOWN(f->name),
			       strerrordesc_np(errno));
	madvise(map, f->size, MADV_SEQUENTIAL);
	p.bytes = map;
	src = source_memory(map, f->size);
	ret = st_read(&src, &p.header, &p.json, why);
	if (ret < 0) {
		why_prefix(why, "%s", SHOWN(f->name));
		goto out;
	}
	p.sizes = calloc(p.header->count + 1, sizeof(*p.sizes));
	ret = p.sizes == NULL ? -ENOMEM : make_jobs(&p);
	if (ret < 0)
		why_set(why, ENOMEM, "out of memory");
	if (ret == 0)
		ret = pack_tensors(&p, why);
out:
	free_jobs(&p);
	free(p.sizes);
	free(p.json);
	st_free(p.header);
	munmap(map, f->size);
	return ret;
}

static int packed_anchor(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	int ret = 0;

	snprintf(out->encoding, sizeof(out->encoding), "packed");
	for (size_t i = 0; ret == 0 && i < in->file_count; i++) {
		const struct pub_file *f = &in->files[i];
		char *key = NULL, *path = NULL, name[32];
		int fd = -1, len;

		snprintf(name, sizeof(name), "packed-%zu", i);
		len = in->file_count == 1
			      ? asprintf(&key, "anchors/step_%06" PRIu64 "-%s.safetensors",
					 in->version, in->attempt)
			      : asprintf(&key, "anchors/step_%06" PRIu64 "-%s/%s", in->version,
					 in->attempt, f->name);
		if (len < 0)
			return why_set(why, ENOMEM, "out of memory");
		ret = pub_work_file(in, name, &path, &fd, why);
		if (ret == 0) {
			ret = pack_file(f, in->jobs, fd, why);
			if (ret == 0) {
				ret = pub_objects_add(out, key, f->name, path, fd, why);
			} else {
				free(path);
				close(fd);
			}
		}
		free(key);
	}
	return ret;
}

const struct pub_encoding pub_packed = {
	.name = "packed",
	.help = "anchors compressed by blocks, about a third smaller; deltas as wfp1",
	.anchor = packed_anchor,
};
