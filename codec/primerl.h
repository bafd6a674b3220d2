/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifests of prime-rl's sparse broadcasts, newer and older, as one struct.  For
 * codec/scheme_primerl.c, which reads them (its opening comment has the layout), and
 * codec/read_primerl.c.
 */
#ifndef CODEC_PRIMERL_H
#define CODEC_PRIMERL_H

#include "codec/json_fields.h"
#include "codec/safetensors.h"

struct primerl_entry {
	const char *name, *dtype, *indices, *values, *file;
	struct json_shape shape;
	uint64_t numel, changed, hash; /* hash: if `hashed` */
	enum st_dtype type;
	bool hashed;
};

struct primerl_manifest {
	const char *format, *type, *patch_file; /* type: of the older one */
	uint64_t version, step, base;
	bool full;		       /* beside a whole checkpoint: nothing else is said */
	struct primerl_entry *entries; /* by name, none twice */
	size_t count;
	const char **files;
	size_t file_count;
	const char *file; /* while it is read */
	struct arena arena;
};

/* Zero-initialise *m; primerl_release() also after a failure.  -EBADMSG, -ENOTSUP, -ENOMEM. */
int primerl_read(const char *text, size_t len, bool old, struct primerl_manifest *m,
		 struct why *why) MUST_CHECK;
void primerl_release(struct primerl_manifest *m);

#endif
