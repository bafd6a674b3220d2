/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places on the Hub.
 *
 * Both spellings are cut into the same words: kind, id, revision, prefix.  A bucket's id always has
 * two parts, and a bucket has no revisions.  The host of a pasted URL only says that the Hub is
 * meant; requests go to the endpoint, which is a mirror's where HF_ENDPOINT names one.
 *
 * Names are checked here once, so that they can be put into URLs and sentences as they are; prefix
 * and revision are percent-encoded where they go into a URL.
 *
 * Pure, no state.
 */
#include "cache/remote/hub_url.h"

#include <stdlib.h>
#include <strings.h>

#include "cache/fileio.h"
#include "cache/remote/url.h"

static const char default_endpoint[] = "https://huggingface.co";

static const struct {
	const char *word;   /* in names and API paths */
	const char *prefix; /* before the id in web and resolve paths */
	const char *name;   /* for people */
} kinds[HUB_KINDS] = {
	[HUB_BUCKET] = {"buckets", "buckets/", "bucket"},
	[HUB_MODEL] = {"models", "", "model"},
	[HUB_DATASET] = {"datasets", "datasets/", "dataset"},
	[HUB_SPACE] = {"spaces", "spaces/", "Space"},
};

const char *hub_kind_name(enum hub_kind kind)
{
	return kinds[kind].name;
}

void hub_place_release(struct hub_place *p)
{
	free(p->endpoint);
	free(p->id);
	free(p->revision);
	free(p->prefix);
	memset(p, 0, sizeof(*p));
}

/* ---- which host ---- */

/* What follows "scheme://host[:port]" of a URL of the Hub, without '/' in front; NULL: another
 * host. */
static const char *after_host(const char *text, const char *endpoint)
{
	static const char *const hosts[] = {
		"huggingface.co",
		"www.huggingface.co",
		"hf.co",
		"hub-ci.huggingface.co",
	};
	const char *host = strncasecmp(text, "https://", 8) == 0  ? text + 8
			   : strncasecmp(text, "http://", 7) == 0 ? text + 7
								  : NULL;
	size_t len;

	if (host == NULL)
		return NULL;
	if (endpoint != NULL) {
		len = strlen(endpoint);
		while (len > 0 && endpoint[len - 1] == '/')
			len--;
		if (len > 0 && strncasecmp(text, endpoint, len) == 0 &&
		    (text[len] == '/' || text[len] == '\0'))
			return text + len + (text[len] == '/');
	}
	len = strcspn(host, "/?#");
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		if (strlen(hosts[i]) == len && strncasecmp(host, hosts[i], len) == 0)
			return host + len + (host[len] == '/');
	return NULL;
}

bool hub_place_is(const char *text, const char *endpoint)
{
	return strncmp(text, "hf://", 5) == 0 || after_host(text, endpoint) != NULL;
}

/* ---- words ---- */

struct words {
	char *text; /* cut into pieces */
	char *v[64];
	size_t count;
	char *rest[64]; /* rest[i]: the text from word i on, not cut */
	char *uncut;
};

static void words_release(struct words *w)
{
	free(w->text);
	free(w->uncut);
}

static int split(const char *text, size_t len, struct words *w)
{
	char *p;

	*w = (struct words){.text = strndup(text, len), .uncut = strndup(text, len)};
	if (w->text == NULL || w->uncut == NULL)
		return -ENOMEM;
	for (; len > 0 && w->text[len - 1] == '/'; len--)
		w->text[len - 1] = w->uncut[len - 1] = '\0';
	for (p = w->text; *p != '\0' && w->count < ARRAY_LEN(w->v);) {
		size_t n = strcspn(p, "/");

		w->v[w->count] = p;
		w->rest[w->count++] = w->uncut + (p - w->text);
		if (p[n] == '\0')
			break;
		p[n] = '\0';
		p += n + 1;
	}
	return 0;
}

static bool good_name(const char *s)
{
	if (*s == '\0' || *s == '.' || strlen(s) > 128)
		return false;
	for (; *s != '\0'; s++)
		if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
		      (*s >= '0' && *s <= '9') || *s == '.' || *s == '_' || *s == '-'))
			return false;
	return true;
}

static bool is_commit(const char *s)
{
	return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

bool hub_place_pinned(const struct hub_place *p)
{
	return p->revision != NULL && is_commit(p->revision);
}

static int bad(const char *text, struct why *why, const char *what)
{
	const char *begin = strstr(text, "://"), *name, *at, *colon;
	char shown[200], rest[200];
	size_t len;

	/* A password, as other URLs may have one, is not repeated; an '@' alone is a revision's. */
	begin = begin != NULL ? begin + 3 : text;
	len = strcspn(begin, "/?#");
	at = memrchr(begin, '@', len);
	colon = memchr(begin, ':', len);
	name = at != NULL && colon != NULL && colon < at ? at + 1 : begin;
	printable(shown, sizeof(shown), text, (size_t)(begin - text));
	printable(rest, sizeof(rest), name, strcspn(name, "?#"));
	return why_set(why, EINVAL, "%s%s: %s", shown, rest, what);
}

/* Takes the text of a revision, decoded. */
static int set_revision(struct hub_place *p, const char *text, const char *s, size_t len,
			struct why *why)
{
	struct buf b = {0};
	bool good = len > 0 && url_decode(&b, s, len, false) == 0 && !b.failed;

	good = good && path_is_safe(buf_str(&b));
	for (const char *c = buf_str(&b); good && *c != '\0'; c++)
		good = (unsigned char)*c > 0x20 && *c != 0x7f;
	if (good)
		p->revision = strdup(buf_str(&b));
	buf_release(&b);
	if (good && p->revision == NULL)
		return why_set(why, ENOMEM, "out of memory");
	return good ? 0 : bad(text, why, "that is not the name of a revision");
}

/* Length of the revision at s: up to the next '/', but refs/pr/N is three words. */
static size_t revision_len(const char *s)
{
	size_t len = 0;

	for (int words = strncmp(s, "refs/", 5) == 0 ? 3 : 1; words > 0; words--) {
		len += strcspn(s + len, "/");
		if (s[len] == '\0')
			break;
		if (words > 1)
			len++;
	}
	return len;
}

static int set_prefix(struct hub_place *p, const char *text, const char *rest, bool encoded,
		      struct why *why)
{
	struct buf b = {0};
	int rc = 0;

	if (rest == NULL)
		rest = "";
	if (encoded)
		rc = url_decode(&b, rest, strlen(rest), false);
	else
		buf_addstr(&b, rest);
	if (rc == 0 && b.failed)
		rc = -ENOMEM;
	if (rc == 0 && b.len > 0 && !path_is_safe(buf_str(&b)))
		rc = -EINVAL;
	if (rc == 0)
		p->prefix = strdup(buf_str(&b));
	buf_release(&b);
	if (rc == -ENOMEM || (rc == 0 && p->prefix == NULL))
		return why_set(why, ENOMEM, "out of memory");
	return rc < 0 ? bad(text, why, "the part behind the name is not a path") : 0;
}

static int set_id(struct hub_place *p, const char *text, const char *ns, const char *name,
		  struct why *why)
{
	struct buf b = {0};

	if ((ns != NULL && !good_name(ns)) || !good_name(name))
		return bad(text, why, "names on the Hub have letters, digits, '-', '_' and '.'");
	if (ns != NULL)
		buf_addf(&b, "%s/", ns);
	buf_addstr(&b, name);
	buf_add(&b, "", 1);
	p->id = b.failed ? NULL : buf_detach(&b, NULL);
	buf_release(&b);
	return p->id != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
}

static enum hub_kind take_kind(const struct words *w, size_t *at)
{
	*at = 0;
	for (int k = 0; k < HUB_KINDS && w->count > 0; k++) {
		if (strcmp(w->v[0], kinds[k].word) == 0) {
			*at = 1;
			return (enum hub_kind)k;
		}
	}
	return HUB_MODEL;
}

static const char usage[] =
	"on the Hub a place is hf://buckets/NAMESPACE/NAME[/PREFIX], hf://ORG/MODEL[@REVISION], "
	"hf://datasets/ORG/NAME or hf://spaces/ORG/NAME";

/* hf://... */
static int parse_uri(struct hub_place *p, const char *text, struct why *why)
{
	struct words w;
	char *marked = NULL;
	size_t at, len;
	int rc = split(text + 5, strlen(text + 5), &w);

	if (rc < 0) {
		words_release(&w);
		return why_set(why, ENOMEM, "out of memory");
	}
	p->kind = take_kind(&w, &at);
	/* The revision stands behind the name and may have '/' in it. */
	for (size_t i = at; i < w.count && i < at + 2 && marked == NULL; i++)
		marked = strchr(w.v[i], '@');
	if (w.count <= at || (p->kind == HUB_BUCKET && w.count < at + 2)) {
		rc = bad(text, why, usage);
	} else if (marked != NULL && p->kind == HUB_BUCKET) {
		rc = bad(text, why, "a bucket has no revisions: leave out what begins with '@'");
	} else if (marked != NULL) {
		const char *revision = w.uncut + (marked + 1 - w.text);

		*marked = '\0';
		len = revision_len(revision);
		rc = set_revision(p, text, revision, len, why);
		if (rc == 0)
			rc = marked > w.v[at] + strlen(w.v[at])
				     ? set_id(p, text, w.v[at], w.v[at + 1], why)
				     : set_id(p, text, NULL, w.v[at], why);
		if (rc == 0)
			rc = set_prefix(p, text, revision[len] == '/' ? revision + len + 1 : NULL,
					false, why);
	} else if (w.count == at + 1) {
		rc = set_id(p, text, NULL, w.v[at], why);
		if (rc == 0)
			rc = set_prefix(p, text, NULL, false, why);
	} else {
		rc = set_id(p, text, w.v[at], w.v[at + 1], why);
		if (rc == 0)
			rc = set_prefix(p, text, w.count > at + 2 ? w.rest[at + 2] : NULL, false,
					why);
	}
	words_release(&w);
	return rc;
}

static bool is_view(const char *word)
{
	static const char *const views[] = {"tree", "blob", "resolve", "raw"};

	for (size_t i = 0; i < ARRAY_LEN(views); i++)
		if (strcmp(word, views[i]) == 0)
			return true;
	return false;
}

/* What a browser shows. */
static int parse_web(struct hub_place *p, const char *text, const char *path, struct why *why)
{
	struct words w;
	size_t at, view, len;
	const char *rest;
	int rc = split(path, strcspn(path, "?#"), &w);

	if (rc < 0) {
		words_release(&w);
		return why_set(why, ENOMEM, "out of memory");
	}
	p->kind = take_kind(&w, &at);
	view = at + 2;
	if (w.count == at + 1 && p->kind != HUB_BUCKET)
		rc = set_id(p, text, NULL, w.v[at], why);
	else if (w.count < at + 2)
		rc = bad(text, why, usage);
	else if (w.count > view && !is_view(w.v[view]))
		rc = bad(text, why, usage);
	else
		rc = set_id(p, text, w.v[at], w.v[at + 1], why);
	rest = w.count > view + 1 ? w.rest[view + 1] : NULL;
	if (rc == 0 && p->kind != HUB_BUCKET && rest != NULL) {
		len = revision_len(rest);
		rc = set_revision(p, text, rest, len, why);
		rest = rest[len] == '/' ? rest + len + 1 : NULL;
	}
	if (rc == 0)
		rc = set_prefix(p, text, rest, true, why);
	words_release(&w);
	return rc;
}

static int set_endpoint(struct hub_place *p, const char *endpoint, struct why *why)
{
	struct url u = {0};
	size_t len;
	int rc;

	if (endpoint == NULL || *endpoint == '\0')
		endpoint = default_endpoint;
	rc = url_parse(endpoint, &u, why);
	if (rc == 0 && u.query != NULL)
		rc = why_set(why, EINVAL, "an endpoint has no query");
	url_release(&u);
	if (rc < 0) {
		why_prefix(why, "HF_ENDPOINT");
		return rc;
	}
	for (len = strlen(endpoint); endpoint[len - 1] == '/';)
		len--;
	p->endpoint = strndup(endpoint, len);
	return p->endpoint != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
}

int hub_place_parse(const char *text, const char *endpoint, struct hub_place *out, struct why *why)
{
	struct hub_place p = {0};
	const char *path = after_host(text, endpoint);
	int rc = set_endpoint(&p, endpoint, why);

	if (rc == 0 && !hub_place_is(text, endpoint))
		rc = bad(text, why, usage);
	if (rc == 0)
		rc = path != NULL ? parse_web(&p, text, path, why) : parse_uri(&p, text, why);
	if (rc == 0 && p.kind != HUB_BUCKET && p.revision == NULL) {
		p.revision = strdup("main");
		rc = p.revision != NULL ? 0 : why_set(why, ENOMEM, "out of memory");
	}
	if (rc < 0)
		hub_place_release(&p);
	else
		*out = p;
	return rc;
}

/* ---- URLs ---- */

void hub_place_uri(enum hub_kind kind, const char *id, struct buf *out)
{
	buf_addf(out, "hf://%s%s", kinds[kind].prefix, id);
}

void hub_url_web(const struct hub_place *p, struct buf *out)
{
	buf_addf(out, "%s/%s%s", p->endpoint, kinds[p->kind].prefix, p->id);
}

static void add_segment(struct buf *out, const char *s)
{
	buf_add(out, "/", 1);
	url_encode(out, s, strlen(s), false);
}

void hub_url_other(const struct hub_place *p, enum hub_kind kind, struct buf *out)
{
	buf_addf(out, "%s/api/%s/%s", p->endpoint, kinds[kind].word, p->id);
}

void hub_url_info(const struct hub_place *p, struct buf *out)
{
	hub_url_other(p, p->kind, out);
	if (p->revision != NULL) {
		buf_addstr(out, "/revision");
		add_segment(out, p->revision);
	}
}

void hub_url_tree(const struct hub_place *p, const char *commit, struct buf *out)
{
	hub_url_other(p, p->kind, out);
	buf_addstr(out, "/tree");
	if (commit != NULL)
		add_segment(out, commit);
	if (p->prefix[0] != '\0') {
		buf_add(out, "/", 1);
		url_encode(out, p->prefix, strlen(p->prefix), true);
	}
	/* Buckets and repositories have opposite defaults. */
	buf_addstr(out, "?recursive=true&limit=1000");
	if (p->kind != HUB_BUCKET)
		buf_addstr(out, "&expand=false");
}

void hub_url_resolve(const struct hub_place *p, const char *commit, const char *path,
		     struct buf *out)
{
	hub_url_web(p, out);
	buf_addstr(out, "/resolve");
	if (commit != NULL)
		add_segment(out, commit);
	buf_add(out, "/", 1);
	if (p->prefix[0] != '\0') {
		url_encode(out, p->prefix, strlen(p->prefix), true);
		buf_add(out, "/", 1);
	}
	url_encode(out, path, strlen(path), true);
}

void hub_url_events(const struct hub_place *p, const char *key, const char *value, struct buf *out)
{
	struct buf query = {0};

	hub_url_other(p, p->kind, out);
	buf_addstr(out, "/events");
	if (key == NULL)
		return;
	url_query_add(&query, key, value);
	buf_add(out, "?", 1);
	buf_addstr(out, buf_str(&query));
	out->failed |= query.failed;
	buf_release(&query);
}
