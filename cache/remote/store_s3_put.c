/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: one PUT for what is small, a multipart upload for the rest.
 *
 * A part is read into memory by the caller's thread and hashed there, so the network thread never
 * reads files, and what is sent is what was signed.  Parts go in parallel, within a bound of
 * memory. An upload that does not come to its end is aborted, so that nothing is left to pay for.
 *
 * Conditions: If-None-Match: * and If-Match, on the PUT or on the completion, after a look at the
 * object for the sake of servers that ignore them.  When an answer was
 * lost and the repeated request meets a condition that our own first one has made false, a look at
 * the object says whether it is what was just written.  Completion may answer 200 and an error; it
 * is repeated then.
 *
 * Blocks; any thread but the network's.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/clock.h"
#include "cache/remote/store_s3_private.h"
#include "cache/remote/xml.h"

#define MIB	     (UINT64_C(1) << 20)
#define PART_MIN     (8 * MIB)
#define SINGLE_MAX   (16 * MIB)
#define PARTS_MAX    10000
#define IN_FLIGHT    (256 * MIB)
#define OBJECT_MAX   (UINT64_C(5) << 40)
#define PART_TIME_NS (600 * NSEC_PER_SEC)

enum { PARALLEL = 4, ANSWER_MAX = 1 << 20, COMPLETIONS = 4 };

struct put {
	struct s3_store *s;
	const char *key; /* complete */
	const struct source *src;
	const char *if_match, *if_none_match;
};

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static int read_source(const struct put *p, uint64_t off, void *dst, size_t len, struct why *why)
{
	char shown[300];
	int rc = len > 0 ? source_read(p->src, off, dst, len) : 0;

	return rc < 0 ? why_set(why, -rc, "%s: what is to be written cannot be read: %s",
				s3_show(p->s, p->key, shown, sizeof(shown)), strerrordesc_np(-rc))
		      : 0;
}

static bool hash_md5(const void *bytes, size_t len, char out[33])
{
	unsigned char raw[EVP_MAX_MD_SIZE];
	unsigned n = 0;

	if (EVP_Digest(bytes, len, raw, &n, EVP_md5(), NULL) != 1 || n != 16)
		return false;
	for (unsigned i = 0; i < n; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", raw[i]);
	return true;
}

/* ---- one PUT ---- */

/* A condition failed that the first, lost answer's own request may have made false. */
static bool was_ours(const struct put *p, const char *etag)
{
	struct identity id;
	uint64_t size = 0;
	char *now = NULL;
	bool same;

	if (s3_head(p->s, p->key, &now, &size, &id, NULL) < 0)
		return false;
	same = now != NULL && strcmp(now, etag) == 0 && size == p->src->size;
	free(now);
	return same;
}

static int put_single(const struct put *p, struct why *why)
{
	size_t len = (size_t)p->src->size;
	char *bytes = malloc(len + 1), md5[33];
	struct s3_call c = {
		.s3 = p->s,
		.purpose = S3_WRITE,
		.method = METHOD_PUT,
		.key = p->key,
		.if_match = p->if_match,
		.if_none_match = p->if_none_match,
		.body_len = len,
		.live.call.deadline_mono_ns = clock_mono_ns() + PART_TIME_NS,
	};
	int rc;

	if (bytes == NULL)
		return out_of_memory(why);
	rc = read_source(p, 0, bytes, len, why);
	if (rc == 0) {
		c.body = bytes;
		rc = s3_call_run(&c, why);
		if ((rc == -EEXIST || rc == -ESTALE) && c.live.call.attempts > 1 &&
		    hash_md5(bytes, len, md5) && was_ours(p, md5))
			rc = 0;
		s3_call_release(&c);
	}
	free(bytes);
	return rc;
}

/* ---- multipart ---- */

struct part {
	struct s3_call call; /* first */
	struct upload *upload;
	unsigned number; /* 1, 2, ... */
	char *bytes;
	char query[2400];
	bool busy; /* under the upload's lock */
};

struct upload {
	const struct put *put;
	char *id; /* encoded for a query */
	uint64_t part_size;
	unsigned parts;
	char **etags; /* by number - 1; as they came */

	struct lock lock; /* LOCK_QUEUE; guards busy, err and why */
	struct condition changed;
	int err;
	struct why why;
};

static void on_part(struct s3_call *c)
{
	struct part *part = (struct part *)c;
	struct upload *u = part->upload;
	const char *etag = http_header(&c->live.call.answer, "ETag");
	int err = c->live.call.err;

	if (err == 0 && (s3_call_redirected(c) || etag == NULL))
		err = why_set(&c->live.call.why, EPROTO, "the answer for a part has no ETag");
	if (err == 0 && (u->etags[part->number - 1] = strdup(etag)) == NULL)
		err = why_set(&c->live.call.why, ENOMEM, "out of memory");
	lock_take(&u->lock);
	if (err < 0 && u->err == 0) {
		u->err = err;
		u->why = c->live.call.why;
	}
	part->busy = false;
	condition_broadcast(&u->changed);
	lock_release(&u->lock);
}

/* The next slot that is free; NULL: something has failed. */
static struct part *free_slot(struct upload *u, struct part *slots, unsigned count)
{
	struct part *found = NULL;

	lock_take(&u->lock);
	while (u->err == 0 && found == NULL) {
		for (unsigned i = 0; i < count && found == NULL; i++)
			if (!slots[i].busy)
				found = &slots[i];
		if (found == NULL)
			(void)condition_wait(&u->changed, &u->lock, -1);
	}
	lock_release(&u->lock);
	return found;
}

static int send_part(struct upload *u, struct part *part, unsigned number, struct why *why)
{
	uint64_t off = (uint64_t)(number - 1) * u->part_size;
	size_t len = (size_t)MIN(u->part_size, u->put->src->size - off);
	int rc = read_source(u->put, off, part->bytes, len, why);

	if (rc < 0)
		return rc;
	s3_call_release(&part->call);
	snprintf(part->query, sizeof(part->query), "partNumber=%u&uploadId=%s", number, u->id);
	part->number = number;
	part->call = (struct s3_call){
		.s3 = u->put->s,
		.purpose = S3_WRITE,
		.method = METHOD_PUT,
		.key = u->put->key,
		.query = part->query,
		.body = part->bytes,
		.body_len = len,
		.finish = on_part,
		.live.call.deadline_mono_ns = clock_mono_ns() + PART_TIME_NS,
	};
	lock_take(&u->lock);
	part->busy = true;
	lock_release(&u->lock);
	s3_call_submit(&part->call);
	return 0;
}

static void wait_all(struct upload *u, struct part *slots, unsigned count)
{
	lock_take(&u->lock);
	for (unsigned i = 0; i < count; i++)
		while (slots[i].busy)
			(void)condition_wait(&u->changed, &u->lock, -1);
	lock_release(&u->lock);
}

static int send_parts(struct upload *u, struct why *why)
{
	unsigned count = (unsigned)MIN(MAX(IN_FLIGHT / u->part_size, 1), (uint64_t)PARALLEL);
	struct part *slots = calloc(count, sizeof(*slots));
	int rc = slots != NULL ? 0 : out_of_memory(why);

	for (unsigned i = 0; rc == 0 && i < count; i++) {
		slots[i].upload = u;
		slots[i].bytes = malloc((size_t)u->part_size);
		if (slots[i].bytes == NULL)
			rc = out_of_memory(why);
	}
	for (unsigned n = 1; rc == 0 && n <= u->parts; n++) {
		struct part *slot = free_slot(u, slots, count);

		if (slot == NULL)
			break;
		rc = send_part(u, slot, n, why);
	}
	if (slots != NULL)
		wait_all(u, slots, count);
	if (rc == 0 && u->err < 0)
		rc = why_set(why, -u->err, "%s", u->why.text);
	for (unsigned i = 0; slots != NULL && i < count; i++) {
		s3_call_release(&slots[i].call);
		free(slots[i].bytes);
	}
	free(slots);
	return rc;
}

static int begin_upload(struct upload *u, struct why *why)
{
	struct buf answer = {0}, coded = {0};
	struct s3_call c = {
		.s3 = u->put->s,
		.purpose = S3_WRITE,
		.method = METHOD_POST,
		.key = u->put->key,
		.query = "uploads=",
		.live.call = {.delivery = HTTP_BUFFER, .buffer = &answer, .buffer_max = ANSWER_MAX},
	};
	char *id = NULL, shown[300];
	int rc = s3_call_run(&c, why);

	s3_call_release(&c);
	if (rc == 0) {
		id = xml_text(answer.data, answer.len, "UploadId");
		if (id != NULL)
			url_encode(&coded, id, strlen(id), false);
		buf_add(&coded, "", 1);
		if (id == NULL || coded.len > 2300)
			rc = why_set(why, EPROTO, "%s: the server gives no upload id",
				     s3_show(u->put->s, u->put->key, shown, sizeof(shown)));
		else if (coded.failed)
			rc = out_of_memory(why);
	}
	if (rc == 0)
		u->id = buf_detach(&coded, NULL);
	free(id);
	buf_release(&coded);
	buf_release(&answer);
	return rc;
}

static void abort_upload(struct upload *u)
{
	char query[2400];
	struct s3_call c = {
		.s3 = u->put->s,
		.purpose = S3_WRITE,
		.method = METHOD_DELETE,
		.key = u->put->key,
		.query = query,
		.live.call.deadline_mono_ns = clock_mono_ns() + 15 * NSEC_PER_SEC,
	};

	snprintf(query, sizeof(query), "uploadId=%s", u->id);
	/* What cannot be aborted now expires by the bucket's own rules. */
	if (s3_call_run(&c, NULL) < 0)
		c.purpose = S3_WRITE;
	s3_call_release(&c);
}

static void completion_body(const struct upload *u, struct buf *body)
{
	buf_addstr(body, "<CompleteMultipartUpload "
			 "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (unsigned i = 0; i < u->parts; i++) {
		buf_addf(body, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
		xml_escape(body, u->etags[i]);
		buf_addstr(body, "</ETag></Part>");
	}
	buf_addstr(body, "</CompleteMultipartUpload>");
}

/* The upload is unknown: an earlier completion, whose answer was lost, may have worked. */
static bool was_completed(const struct upload *u)
{
	const struct put *p = u->put;
	struct identity id;
	uint64_t size = 0;
	char *etag = NULL, end[16];
	bool same = false;

	snprintf(end, sizeof(end), "-%u", u->parts);
	if (s3_head(p->s, p->key, &etag, &size, &id, NULL) < 0)
		return false;
	if (etag != NULL && size == p->src->size && strlen(etag) > strlen(end))
		same = strcmp(etag + strlen(etag) - strlen(end), end) == 0;
	free(etag);
	return same;
}

/* 200, and then? 0, 1 for "once more", -errno. */
static int read_completion(const struct upload *u, const struct buf *answer, struct why *why)
{
	struct s3_error e = {0};
	char shown[300], code[80] = "";
	int rc = 0;

	s3_error_parse(answer->data, answer->len, &e);
	if (e.code != NULL) {
		printable(code, sizeof(code), e.code, strlen(e.code));
		rc = why_set(why, EIO, "%s: the upload could not be completed: %s",
			     s3_show(u->put->s, u->put->key, shown, sizeof(shown)), code);
		if (s3_error_is(&e, "InternalError") || s3_error_is(&e, "SlowDown") ||
		    s3_error_is(&e, "ServiceUnavailable"))
			rc = 1;
		else if (s3_error_is(&e, "PreconditionFailed"))
			rc = u->put->if_none_match != NULL ? -EEXIST : -ESTALE;
	}
	s3_error_release(&e);
	return rc;
}

static int complete_once(struct upload *u, const struct buf *body, unsigned *attempts,
			 struct why *why)
{
	char query[2400];
	struct buf answer = {0};
	struct s3_call c = {
		.s3 = u->put->s,
		.purpose = S3_WRITE,
		.method = METHOD_POST,
		.key = u->put->key,
		.query = query,
		.if_match = u->put->if_match,
		.if_none_match = u->put->if_none_match,
		.body = body->data,
		.body_len = body->len,
		.live.call = {.delivery = HTTP_BUFFER, .buffer = &answer, .buffer_max = ANSWER_MAX},
	};
	int rc;

	c.live.call.deadline_mono_ns = clock_mono_ns() + PART_TIME_NS; /* it may take minutes */
	c.live.call.inactivity_ms = 300000;
	snprintf(query, sizeof(query), "uploadId=%s", u->id);
	rc = s3_call_run(&c, why);
	*attempts += c.live.call.attempts;
	if (rc == 0)
		rc = read_completion(u, &answer, why);
	s3_call_release(&c);
	buf_release(&answer);
	return rc;
}

static int complete_upload(struct upload *u, struct why *why)
{
	struct buf body = {0};
	unsigned attempts = 0;
	int rc = 1;

	completion_body(u, &body);
	if (body.failed)
		rc = out_of_memory(why);
	for (unsigned i = 0; rc > 0 && i < COMPLETIONS; i++)
		rc = complete_once(u, &body, &attempts, why);
	if (rc > 0)
		rc = -EIO; /* the sentence is there */
	if ((rc == -ENOENT || rc == -EEXIST || rc == -ESTALE) && attempts > 1 && was_completed(u))
		rc = 0;
	buf_release(&body);
	return rc;
}

static int put_multipart(const struct put *p, struct why *why)
{
	struct upload u = {.put = p, .part_size = PART_MIN};
	int rc;

	while (u.part_size * PARTS_MAX < p->src->size)
		u.part_size += MIB;
	u.parts = (unsigned)((p->src->size + u.part_size - 1) / u.part_size);
	u.etags = calloc(u.parts, sizeof(*u.etags));
	if (u.etags == NULL)
		return out_of_memory(why);
	lock_init(&u.lock, LOCK_QUEUE);
	condition_init(&u.changed);
	rc = begin_upload(&u, why);
	if (rc == 0) {
		rc = send_parts(&u, why);
		if (rc == 0)
			rc = complete_upload(&u, why);
		if (rc < 0)
			abort_upload(&u);
	}
	for (unsigned i = 0; i < u.parts; i++)
		free(u.etags[i]);
	free(u.etags);
	free(u.id);
	condition_destroy(&u.changed);
	lock_destroy(&u.lock);
	return rc;
}

/* ---- doors ---- */

/*
 * A condition is looked at before it is sent, since there are servers that take no notice of it:
 * so two writers have to meet within two requests, and not within what each did since it read.
 * *out is the ETag to send for the identity.
 */
static int check_first(struct s3_store *s, const char *key, const struct put_condition *condition,
		       char **out, struct why *why)
{
	struct identity now;
	char shown[300];
	uint64_t size;
	int rc = s3_head(s, key, out, &size, &now, condition->absent ? NULL : why);

	s3_show(s, key, shown, sizeof(shown));
	if (condition->absent)
		return rc == 0 ? why_set(why, EEXIST, "%s: exists already", shown) : 0;
	if (rc == -ENOENT)
		return why_set(why, ESTALE, "%s: has been deleted since it was listed", shown);
	if (rc == 0 && !identity_equal(&now, condition->replace))
		return why_set(why, ESTALE, "%s: has been replaced since it was listed", shown);
	if (rc == 0 && *out == NULL)
		return why_set(why, ENOTSUP, "%s: the server gives no ETag to compare with", shown);
	return rc;
}

int s3_put_if(struct store *store, const char *key, const struct source *src,
	      const struct put_condition *condition, struct why *why)
{
	struct s3_store *s = (struct s3_store *)store;
	struct put p = {.s = s, .src = src};
	char *full = s3_full_key(s, key), *etag = NULL, shown[300];
	int rc = 0;

	if (full == NULL)
		return out_of_memory(why);
	p.key = full;
	if (src->size > OBJECT_MAX)
		rc = why_set(why, EFBIG, "%s: objects beyond 5 TiB cannot be written",
			     s3_show(s, full, shown, sizeof(shown)));
	if (rc == 0 && condition != NULL && (condition->absent || condition->replace != NULL))
		rc = check_first(s, full, condition, &etag, why);
	p.if_none_match = condition != NULL && condition->absent ? "*" : NULL;
	p.if_match = p.if_none_match == NULL ? etag : NULL;
	if (rc == 0)
		rc = src->size <= SINGLE_MAX ? put_single(&p, why) : put_multipart(&p, why);
	/* If-Match of what is not there. */
	if (rc == -ENOENT && p.if_match != NULL)
		rc = why_set(why, ESTALE, "%s: has been deleted since it was listed",
			     s3_show(s, full, shown, sizeof(shown)));
	free(etag);
	free(full);
	return rc;
}

int s3_put(struct store *store, const char *key, const struct source *src, struct why *why)
{
	return s3_put_if(store, key, src, NULL, why);
}
