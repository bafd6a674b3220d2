/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Services that give credentials: STS for a web identity, a container's, an instance's (IMDSv2).
 *
 * Files with tokens are read for each request: whoever mounts them renews them.  The session token
 * of the metadata service is asked for each time, which is twice in six hours.  Answers never
 * appear in sentences.
 *
 * Run in the credentials' thread, over the network client; each request has a deadline of its own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/remote/aws_config.h"
#include "cache/remote/credentials_private.h"
#include "cache/remote/xml.h"

enum { ANSWER_MAX = 256 << 10, TOKEN_MAX = 256 << 10 };

#define CALL_NS	    (20 * NSEC_PER_SEC)
#define INSTANCE_NS (5 * NSEC_PER_SEC)

/* One request to a credentials service. */
struct ask {
	struct http_call call; /* first */
	enum method method;
	const char *url;
	const char *header, *value; /* NULL: none */
	const char *body;	    /* of a POST; NULL: none */
	struct buf answer;
};

static int build(struct http_call *call, const struct http_hop *hop, struct request *out,
		 struct why *why)
{
	const struct ask *a = (struct ask *)call;

	out->method = hop->number > 0 ? hop->method : a->method;
	request_set_url(out, hop->number > 0 ? hop->url : a->url);
	request_set_header(out, "Accept", a->body != NULL ? "*/*" : "application/json");
	if (a->header != NULL && (hop->number == 0 || hop->trusted))
		request_set_header(out, a->header, a->value);
	if (a->body != NULL) {
		request_set_header(out, "Content-Type", "application/x-www-form-urlencoded");
		request_set_body(out, a->body, strlen(a->body));
	}
	return 0;
}

static void ask_release(struct ask *a)
{
	http_call_release(&a->call);
	if (a->answer.data != NULL)
		explicit_bzero(a->answer.data, a->answer.cap);
	buf_release(&a->answer);
}

/* Sends it; 0 with a->answer, or -errno with a sentence. */
static int run(struct credentials *c, struct ask *a, int64_t patience_ns, struct why *why)
{
	int rc;

	a->call.build = build;
	a->call.origin = a->url;
	a->call.delivery = HTTP_BUFFER;
	a->call.buffer = &a->answer;
	a->call.buffer_max = ANSWER_MAX;
	a->call.repeatable = true;
	a->call.no_follow = a->body != NULL;
	a->call.deadline_mono_ns = clock_mono_ns() + patience_ns;
	rc = credentials_call(c, &a->call);
	if (rc == 0 && a->call.answer.status / 100 != 2)
		rc = why_set(why, EPROTO, "%s answered %d", c->source.from, a->call.answer.status);
	else if (rc < 0)
		rc = why_set(why, -rc, "no credentials from %s: %s", c->source.from,
			     a->call.why.err != 0 ? a->call.why.text : strerrordesc_np(-rc));
	return rc;
}

/* ---- JSON ---- */

static const char *text_of(const json_t *root, const char *name)
{
	const char *s = json_string_value(json_object_get(root, name));

	return s != NULL && *s != '\0' ? s : NULL;
}

int credentials_parse_json(const char *text, size_t len, const char *token, const char *who,
			   struct credential_set *out, struct why *why)
{
	json_t *root = json_loadb(text, len, 0, NULL);
	const char *access = text_of(root, "AccessKeyId");
	const char *secret = text_of(root, "SecretAccessKey");
	const char *expires = text_of(root, "Expiration"), *code = text_of(root, "Code");
	char shown[60];
	int rc;

	if (code != NULL && strcmp(code, "Success") != 0)
		rc = why_set(why, EACCES, "%s gives no credentials: %s", who,
			     printable(shown, sizeof(shown), code, strlen(code)));
	else if (access == NULL || secret == NULL)
		rc = why_set(why, EPROTO, "the answer of %s has no credentials in it", who);
	else
		rc = credential_set_fill(out, access, secret, text_of(root, token), why);
	if (rc == 0 && expires != NULL && field_iso_time(expires, &out->expires_ns) < 0)
		rc = why_set(why, EPROTO, "%s gives an expiration that is no time", who);
	json_decref(root);
	return rc;
}

/* A token in a file, without what follows its last character.  malloc'ed. */
static int read_token(const char *path, char **out, struct why *why)
{
	char shown[200];
	size_t len;
	int rc = file_slurp(AT_FDCWD, path, TOKEN_MAX, out, &len);

	if (rc < 0)
		return why_set(why, -rc, "the token file %s cannot be read: %s",
			       printable(shown, sizeof(shown), path, strlen(path)),
			       strerrordesc_np(-rc));
	while (len > 0 && strchr(" \t\r\n", (*out)[len - 1]) != NULL)
		(*out)[--len] = '\0';
	return 0;
}

static void wipe(char *s)
{
	if (s != NULL)
		explicit_bzero(s, strlen(s));
	free(s);
}

/* ---- web identity ---- */

static int parse_sts(struct ask *a, const char *who, struct credential_set *out, struct why *why)
{
	const void *xml = a->answer.data;
	size_t len = a->answer.len;
	char *access = xml_text(xml, len, "Credentials/AccessKeyId");
	char *secret = xml_text(xml, len, "Credentials/SecretAccessKey");
	char *token = xml_text(xml, len, "Credentials/SessionToken");
	char *expires = xml_text(xml, len, "Credentials/Expiration");
	int rc;

	if (access == NULL || secret == NULL || token == NULL)
		rc = why_set(why, EPROTO, "the answer for %s has no credentials in it", who);
	else
		rc = credential_set_fill(out, access, secret, token, why);
	if (rc == 0 && expires != NULL && field_iso_time(expires, &out->expires_ns) < 0)
		rc = why_set(why, EPROTO, "%s gives an expiration that is no time", who);
	wipe(access);
	wipe(secret);
	wipe(token);
	free(expires);
	return rc;
}

/* What STS says of a refusal: a code in the error's body. */
static int sts_judge(struct http_call *call, const struct http_answer *a, struct why *why)
{
	char *code = xml_text(a->error_body.data, a->error_body.len, "Error/Code");
	char shown[80], where[200];
	int rc = HTTP_JUDGE_POLICY;

	if (code != NULL && a->status >= 400 && a->status < 500 && a->status != 429 &&
	    strcmp(code, "Throttling") != 0 && strcmp(code, "IDPCommunicationError") != 0)
		rc = why_set(why, EACCES, "%s refuses the web identity: %s",
			     url_show(where, sizeof(where), ((struct ask *)call)->url),
			     printable(shown, sizeof(shown), code, strlen(code)));
	free(code);
	return rc;
}

int credentials_ask_sts(struct credentials *c, struct credential_set *out, struct why *why)
{
	const struct credential_source *s = &c->source;
	struct ask a = {.method = METHOD_POST, .url = s->url};
	struct buf form = {0};
	char *token = NULL;
	int rc = read_token(s->token_file, &token, why);

	if (rc < 0)
		return rc;
	url_query_add(&form, "Action", "AssumeRoleWithWebIdentity");
	url_query_add(&form, "Version", "2011-06-15");
	url_query_add(&form, "RoleArn", s->role_arn);
	url_query_add(&form, "RoleSessionName", s->session_name);
	url_query_add(&form, "WebIdentityToken", token);
	a.body = buf_str(&form);
	a.call.judge = sts_judge;
	rc = form.failed ? why_set(why, ENOMEM, "out of memory") : run(c, &a, CALL_NS, why);
	if (rc == 0)
		rc = parse_sts(&a, s->from, out, why);
	if (form.data != NULL)
		explicit_bzero(form.data, form.cap);
	buf_release(&form);
	wipe(token);
	ask_release(&a);
	return rc;
}

/* ---- container ---- */

int credentials_ask_container(struct credentials *c, struct credential_set *out, struct why *why)
{
	const struct credential_source *s = &c->source;
	const char *given = aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	struct ask a = {.method = METHOD_GET, .url = s->url};
	char *token = NULL;
	int rc = 0;

	if (s->token_file != NULL)
		rc = read_token(s->token_file, &token, why);
	else if (given != NULL && (token = strdup(given)) == NULL)
		rc = why_set(why, ENOMEM, "out of memory");
	if (rc == 0 && token != NULL && strpbrk(token, "\r\n") != NULL)
		rc = why_set(why, EINVAL, "the container's authorization token has several lines");
	if (rc == 0 && token != NULL) {
		a.header = "Authorization";
		a.value = token;
	}
	if (rc == 0)
		rc = run(c, &a, CALL_NS, why);
	if (rc == 0)
		rc = credentials_parse_json(a.answer.data, a.answer.len, "Token", s->from, out,
					    why);
	ask_release(&a);
	wipe(token);
	return rc;
}

/* ---- instance ---- */

static int none_found(struct why *why)
{
	char text[200];

	snprintf(text, sizeof(text), "%.199s", why != NULL ? why->text : "");
	return why_set(why, EACCES,
		       "there are no credentials, and %s; set AWS_ACCESS_KEY_ID and "
		       "AWS_SECRET_ACCESS_KEY, give --profile, or --no-sign-request for a public "
		       "bucket",
		       text);
}

/* The variable that AWS's own libraries have for it, in seconds. */
static int64_t instance_ns(void)
{
	const char *text = aws_env("AWS_METADATA_SERVICE_TIMEOUT");
	unsigned long s = text != NULL ? strtoul(text, NULL, 10) : 0;

	return s >= 1 && s <= 3600 ? (int64_t)s * NSEC_PER_SEC : INSTANCE_NS;
}

/* One GET below the endpoint with the session's token. */
static int instance_get(struct credentials *c, const char *token, const char *path, struct ask *a,
			struct why *why)
{
	char *url = NULL;
	int rc;

	if (asprintf(&url, "%s%s", c->source.url, path) < 0)
		return why_set(why, ENOMEM, "out of memory");
	*a = (struct ask){.method = METHOD_GET, .url = url};
	a->header = "X-aws-ec2-metadata-token";
	a->value = token;
	a->call.connect_ms = 1000;
	rc = run(c, a, instance_ns(), why);
	a->url = NULL;
	free(url);
	return rc;
}

static int instance_token(struct credentials *c, char **out, struct why *why)
{
	char *url = NULL;
	struct ask a = {.method = METHOD_PUT};
	int rc;

	if (asprintf(&url, "%s/latest/api/token", c->source.url) < 0)
		return why_set(why, ENOMEM, "out of memory");
	a.url = url;
	a.header = "X-aws-ec2-metadata-token-ttl-seconds";
	a.value = "21600";
	a.call.connect_ms = 1000;
	a.call.once = true;
	rc = run(c, &a, instance_ns(), why);
	if (rc == 0 && (*out = strdup(buf_str(&a.answer))) == NULL)
		rc = why_set(why, ENOMEM, "out of memory");
	ask_release(&a);
	free(url);
	return rc;
}

#define ROLES "/latest/meta-data/iam/security-credentials/"

/* The path of the first role's credentials. */
static int instance_role(struct credentials *c, const char *token, struct buf *path,
			 struct why *why)
{
	struct ask a;
	int rc = instance_get(c, token, ROLES, &a, why);

	if (rc == 0) {
		const char *role = buf_str(&a.answer);
		size_t len = strcspn(role, "\r\n");

		buf_addstr(path, ROLES);
		url_encode(path, role, len, false);
		buf_add(path, "", 1);
		if (path->failed)
			rc = why_set(why, ENOMEM, "out of memory");
		else if (len == 0)
			rc = why_set(why, EACCES, "this instance has no role");
	}
	ask_release(&a);
	return rc;
}

int credentials_ask_instance(struct credentials *c, struct credential_set *out, struct why *why)
{
	struct buf path = {0};
	char *token = NULL;
	struct ask a;
	int rc = instance_token(c, &token, why);

	if (rc < 0)
		return rc == -ECANCELED || rc == -ENOMEM ? rc : none_found(why);
	rc = instance_role(c, token, &path, why);
	if (rc == 0) {
		rc = instance_get(c, token, path.data, &a, why);
		if (rc == 0)
			rc = credentials_parse_json(a.answer.data, a.answer.len, "Token",
						    c->source.from, out, why);
		ask_release(&a);
	}
	buf_release(&path);
	wipe(token);
	return rc;
}
