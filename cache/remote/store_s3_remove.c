/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing an object from S3.
 *
 * DELETE says nothing of what was there and succeeds when nothing was.  So a HEAD comes first and
 * tells "absent" and "another one" from "this one"; the DELETE carries If-Match with what it found,
 * which closes the gap where the server knows conditional deletes and is ignored, or refused as
 * unknown, elsewhere: then it is asked without.
 *
 * With versioning the bucket keeps what was deleted; that is its own business.
 */
#include "cache/clock.h"
#include "cache/remote/store_s3_private.h"

#include <stdlib.h>

enum { REMOVE_TIME_S = 60 };

static int ask(struct s3_store *s, const char *key, const char *etag, int *out_status,
	       struct why *why)
{
	struct s3_call c = {
		.s3 = s,
		.purpose = S3_DELETE,
		.method = METHOD_DELETE,
		.key = key,
		.if_match = etag,
		.live.call.deadline_mono_ns = clock_mono_ns() + REMOVE_TIME_S * NSEC_PER_SEC,
	};
	int rc = s3_call_run(&c, why);

	*out_status = c.live.call.answer.status;
	s3_call_release(&c);
	return rc;
}

int s3_remove(struct store *store, const char *key, const struct identity *id, struct why *why)
{
	struct s3_store *s = (struct s3_store *)store;
	char *full = s3_full_key(s, key), *etag = NULL, shown[300];
	struct identity now;
	uint64_t size;
	int rc, status = 0;

	if (full == NULL)
		return why_set(why, ENOMEM, "out of memory");
	rc = s3_head(s, full, &etag, &size, &now, why);
	if (rc == 0 && id != NULL && !identity_equal(&now, id))
		rc = why_set(why, ESTALE, "%s: has been replaced since it was listed",
			     s3_show(s, full, shown, sizeof(shown)));
	if (rc == 0) {
		rc = ask(s, full, id != NULL ? etag : NULL, &status, why);
		if (rc < 0 && id != NULL && (status == 400 || status == 501))
			rc = ask(s, full, NULL, &status, why);
	}
	free(etag);
	free(full);
	return rc;
}
