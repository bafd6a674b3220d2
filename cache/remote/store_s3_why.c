/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences for what S3 refuses: the object by its s3:// name, the reason, and what helps.
 *
 * The code in the error's body decides, the status where there is none (an answer to HEAD has no
 * body).  The server's own message is never repeated: it may hold keys, and signatures.  Of the
 * code, only what looks like a code is shown.
 *
 * No state; the network thread.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/remote/store_s3_private.h"
#include "cache/remote/xml.h"

void s3_error_parse(const void *bytes, size_t len, struct s3_error *out)
{
	if (len == 0)
		return;
	out->code = xml_text(bytes, len, "Error/Code");
	out->region = xml_text(bytes, len, "Error/Region");
	out->endpoint = xml_text(bytes, len, "Error/Endpoint");
}

void s3_error_release(struct s3_error *e)
{
	free(e->code);
	free(e->region);
	free(e->endpoint);
	memset(e, 0, sizeof(*e));
}

bool s3_error_is(const struct s3_error *e, const char *code)
{
	return e->code != NULL && strcmp(e->code, code) == 0;
}

const char *s3_show(const struct s3_store *s, const char *key, char *dst, size_t cap)
{
	char name[160];

	if (key == NULL)
		return printable(dst, cap, s->base.name, strlen(s->base.name));
	printable(name, sizeof(name), key, strlen(key));
	snprintf(dst, cap, "s3://%s/%s", s->place.bucket, name);
	return dst;
}

static int denied(const struct s3_call *c, const char *name, struct why *why)
{
	static const char *const rights[] = {
		[S3_LIST] = "list the bucket (s3:ListBucket)",
		[S3_READ] = "read it (s3:GetObject), or it does not exist",
		[S3_WRITE] = "write it (s3:PutObject)",
		[S3_DELETE] = "delete it (s3:DeleteObject)",
	};

	if (c->set != NULL && c->set->anonymous)
		return why_set(why, EACCES,
			       "%s: access denied: it is not public; leave out --no-sign-request "
			       "to use credentials",
			       name);
	return why_set(why, EACCES, "%s: access denied: the credentials from %s may not %s", name,
		       credentials_from(c->s3->credentials), rights[c->purpose]);
}

static int no_bucket(const struct s3_call *c, const char *name, struct why *why)
{
	char host[200];

	url_show(host, sizeof(host), c->origin);
	host[strcspn(host, "/")] = '\0';
	return why_set(why, ENOENT,
		       "%s: there is no bucket '%s' at %s: check the name, and --endpoint-url",
		       name, c->s3->place.bucket, host);
}

/* What has to do with who asks; 0: it is not that. */
static int about_keys(const struct s3_call *c, const struct s3_error *e, const char *name,
		      struct why *why)
{
	const char *from = credentials_from(c->s3->credentials);

	if (s3_error_is(e, "InvalidAccessKeyId"))
		return why_set(why, EACCES,
			       "%s: the access key from %s is not known there: check it, and that "
			       "the endpoint is the right one",
			       name, from);
	if (s3_error_is(e, "SignatureDoesNotMatch"))
		return why_set(why, EACCES,
			       "%s: the secret key from %s does not belong to its access key", name,
			       from);
	if (s3_error_is(e, "ExpiredToken") || s3_error_is(e, "InvalidToken") ||
	    s3_error_is(e, "TokenRefreshRequired"))
		return why_set(
			why, EACCES,
			"%s: the session token from %s has expired or is not accepted: renew "
			"it",
			name, from);
	if (s3_error_is(e, "RequestTimeTooSkewed"))
		return why_set(why, EACCES,
			       "%s: this machine's clock and the server's differ too much: set it",
			       name);
	return 0;
}

static const char *clean_code(const struct s3_error *e, char *dst, size_t cap)
{
	size_t n = 0;

	for (const char *p = e->code; p != NULL && isalnum((unsigned char)*p) && n + 2 < cap; p++)
		dst[++n] = *p;
	dst[0] = ' ';
	dst[n > 0 ? n + 1 : 0] = '\0';
	return dst;
}

int s3_why(const struct s3_call *c, int status, const struct s3_error *e, struct why *why)
{
	char name[300], code[60];
	int rc;

	s3_show(c->s3, c->key, name, sizeof(name));
	rc = about_keys(c, e, name, why);
	if (rc < 0)
		return rc;
	if (s3_error_is(e, "NoSuchBucket") || (status == 404 && c->key == NULL))
		return no_bucket(c, name, why);
	if (s3_error_is(e, "InvalidObjectState"))
		return why_set(why, EACCES, "%s: is archived: restore it first", name);
	switch (status) {
	case 301:
		return why_set(why, EIO, "%s: the bucket is in another region: give --region",
			       name);
	case 401:
	case 403: return denied(c, name, why);
	case 404: return why_set(why, ENOENT, "%s: does not exist", name);
	case 409: return why_set(why, EBUSY, "%s: is being changed by somebody else", name);
	case 412:
		if (c->if_none_match != NULL)
			return why_set(why, EEXIST, "%s: exists already", name);
		return why_set(why, ESTALE, "%s: has been replaced since it was listed", name);
	case 416: return why_set(why, ESTALE, "%s: is shorter than it was when listed", name);
	case 413:
	case 507: return why_set(why, ENOSPC, "%s: there is no room for it", name);
	default:
		return why_set(why, EIO, "%s: the server answered %d%s", name, status,
			       clean_code(e, code, sizeof(code)));
	}
}
