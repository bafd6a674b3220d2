/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native encoding: the tensors' patches as they are, in a patch file (codec/patch_file.h),
 * which is what a mount keeps of a delta, too.
 *
 * Besides what every patch file has, "__metadata__" says which state the patches turn into which
 * (versions, lineage, both state hashes), and the XXH3-128 of each patched tensor's new bytes, in
 * the file's order.
 *
 * The blobs are in memory maps; nothing is kept here.  One thread: it copies what is a hundredth of
 * the model.
 */
#include "tools/pub_encode.h"

#include "cache/fileio.h"
#include "codec/patch_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static size_t patched(const struct pub_input *in, const char **names)
{
	size_t count = 0;

	for (size_t i = 0; i < in->count; i++) {
		if (in->tensors[i].patch == NULL)
			continue;
		if (names != NULL)
			names[count] = in->tensors[i].name;
		count++;
	}
	return count;
}

static void add_hashes(const struct pub_input *in, struct buf *out)
{
	for (size_t i = 0; i < in->count; i++)
		for (size_t j = 0; in->tensors[i].patch != NULL && j < 16; j++)
			buf_addf(out, "%02x", in->tensors[i].hash.bytes[j]);
}

/* The patches as they are. */
static int copy_blobs(const struct pub_input *in, struct patch_file_writer *w, struct why *why)
{
	size_t index = 0;
	int ret = 0;

	for (size_t i = 0; ret == 0 && i < in->count; i++) {
		const struct pub_tensor *t = &in->tensors[i];

		if (t->patch != NULL)
			ret = pub_patch_put(in, w, index++, t->blob, t->blob_len, why);
	}
	return ret;
}

int pub_patch_put(const struct pub_input *in, struct patch_file_writer *w, size_t index,
		  const void *blob, uint64_t len, struct why *why)
{
	const struct sink *sink = patch_file_writer_sink(w);
	int ret = sink->write(sink->ctx, patch_file_writer_at(w), blob, len);

	if (ret < 0)
		return why_set(why, -ret, "the delta cannot be written in %s: %s",
			       SHOWN(in->work_dir), strerrordesc_np(-ret));
	ret = patch_file_writer_took(w, index, len);
	return ret < 0 ? why_set(why, -ret, "the delta is too large") : 0;
}

static int write_file(const struct pub_input *in, const char *encoding, pub_patch_blobs *blobs,
		      int fd, struct why *why)
{
	const char **names = calloc(in->count + 1, sizeof(*names));
	struct sink sink = sink_fd(&fd);
	struct patch_file_writer *w = NULL;
	char version[24], base_version[24];
	struct buf hashes = {0};
	uint64_t size = 0;
	size_t count;
	int ret = 0;

	snprintf(version, sizeof(version), "%" PRIu64, in->version);
	snprintf(base_version, sizeof(base_version), "%" PRIu64, in->base_version);
	add_hashes(in, &hashes);
	if (names == NULL || hashes.failed) {
		ret = why_set(why, ENOMEM, "out of memory");
		goto out;
	}
	count = patched(in, names);
	ret = patch_file_writer_new(names, count,
				    (const struct st_meta[]){
					    {"encoding", encoding},
					    {"model_version", version},
					    {"base_version", base_version},
					    {"lineage", in->lineage},
					    {"state", in->state},
					    {"base_state", in->base_state},
					    {"hashes", buf_str(&hashes)},
				    },
				    7, &sink, &w, why);
	if (ret == 0)
		ret = blobs(in, w, why);
	if (ret == 0)
		ret = patch_file_end(w, fd, &size, why);
	if (ret == 0 && ftruncate(fd, (off_t)size) < 0)
		ret = why_set(why, errno, "the delta cannot be written: %s",
			      strerrordesc_np(errno));
out:
	patch_file_writer_free(w);
	buf_release(&hashes);
	free(names);
	return ret;
}

int pub_patch_delta(const struct pub_input *in, const char *encoding, pub_patch_blobs *blobs,
		    struct pub_objects *out, struct why *why)
{
	char key[64], *path = NULL;
	int fd = -1, ret;

	snprintf(out->encoding, sizeof(out->encoding), "%s", encoding);
	snprintf(key, sizeof(key), "deltas/step_%06" PRIu64 "-%s.safetensors", in->version,
		 in->attempt);
	ret = pub_work_file(in, "delta", &path, &fd, why);
	if (ret < 0)
		return ret;
	ret = write_file(in, encoding, blobs, fd, why);
	if (ret == 0)
		return pub_objects_add(out, key, NULL, path, fd, why);
	free(path);
	close(fd);
	return ret;
}

int pub_wfp1_delta(const struct pub_input *in, struct pub_objects *out, struct why *why)
{
	return pub_patch_delta(in, "wfp1", copy_blobs, out, why);
}

const struct pub_encoding pub_wfp1 = {
	.name = "wfp1",
	.help = "about ten bits per changed element; the default",
	.delta = pub_wfp1_delta,
	.anchor = pub_anchor_plain,
};
