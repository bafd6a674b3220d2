/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The composition root: makes the layers of one mount (or of a tool that reads a source) from the
 * options, lowest first, and takes them down in reverse.
 *
 *	network, block cache, store of the source, store of --base, cache directory, nodes,
 *	history, run, watch
 *
 * The one place that names concrete stores: a new kind of source is one line in open_store().
 * A tool gets neither history nor watch and calls run_scan() and run_build() itself.
 *
 * Threads: the network's are started here, when a place is not local; the watch's by the front.  So
 * this comes after the last fork.
 */
#include "fs/stack.h"

#include "cache/block.h"
#include "cache/cachedir.h"
#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/log.h"
#include "cache/remote/aws_config.h"
#include "cache/remote/http.h"
#include "cache/remote/hub_token.h"
#include "cache/remote/hub_url.h"
#include "cache/remote/store_http.h"
#include "cache/remote/store_hub.h"
#include "cache/remote/store_s3.h"
#include "cache/remote/url.h"
#include "cache/store.h"
#include "cache/store_hf.h"
#include "fs/gate.h"
#include "fs/history.h"
#include "fs/node.h"
#include "fs/parts.h"
#include "fs/remember.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUB_GATEWAY "https://s3.hf.co" /* speaks S3 for the Hub's buckets */

static bool has_scheme(const char *place, const char *scheme)
{
	return strncasecmp(place, scheme, strlen(scheme)) == 0;
}

/* The network client, which all remote stores of the stack share. */
static int need_http(struct stack *s, const char *place, struct why *why)
{
	/* Silence must leave time for another try. */
	int64_t half_ms = s->opts->timeout_ns / 2000000;
	struct http_options options = {
		.ca_file = s->opts->ca_file,
		.connect_ms = MIN(half_ms, 10000),
		.inactivity_ms = MIN(half_ms, 30000),
	};
	char *aws = NULL;
	int ret;

	/* Credentials will be in memory, and a core file is read by more people than may have them.
	 */
	prctl(PR_SET_DUMPABLE, 0);
	if (s->http != NULL)
		return 0;
	if (options.ca_file == NULL && has_scheme(place, "s3://"))
		options.ca_file = aws = aws_ca_bundle(s->opts->profile, &options.ca_from);
	ret = http_new(&options, &s->http, why);
	free(aws);
	return ret;
}

/* Where what lasts is kept; malloc'ed.  NULL: nowhere. */
static char *cache_parent(const struct opts *opts)
{
	return opts->cache_dir != NULL ? strdup(opts->cache_dir) : cachedir_default();
}

/* The block cache, which they share as well. */
static int need_blocks(struct stack *s, struct why *why)
{
	char *dir = cache_parent(s->opts);
	struct blockcache_config config = {
		.dir = dir,
		.holder = s->opts->mountpoint != NULL ? s->opts->mountpoint : s->opts->source,
		.limit = s->opts->cache_size,
		.timeout_ns = s->opts->timeout_ns,
	};
	int ret = 0;

	if (s->blocks == NULL) {
		ret = blockcache_new(&config, &s->blocks, &s->blocks_why);
		if (ret < 0)
			why_set(why, -ret, "the block cache cannot be set up: %s",
				strerrordesc_np(-ret));
		else if (s->blocks_why.err != 0 && s->opts->mountpoint != NULL)
			log_warning("%s", s->blocks_why.text);
	}
	free(dir);
	return ret;
}

/* What tells places of one name apart: the endpoints that options and environment give. */
static const char *endpoint_salt(const struct opts *opts, const char *place)
{
	const char *v = getenv("HF_ENDPOINT");

	if (!has_scheme(place, "s3://"))
		return v;
	if (opts->endpoint_url != NULL)
		return opts->endpoint_url;
	v = getenv("AWS_ENDPOINT_URL_S3");
	return v != NULL ? v : getenv("AWS_ENDPOINT_URL");
}

/* Takes a remote store over: its bytes go through the block cache, its listing is remembered. */
static int settle(struct stack *s, const char *place, struct store **io, struct why *why)
{
	char *parent = cache_parent(s->opts), *dir = NULL;
	int ret = need_blocks(s, why);

	/* A tool asks now, and wants to be told that there is no answer. */
	if (ret == 0 && parent != NULL && s->opts->mountpoint != NULL)
		dir = path_join(parent, "listings");
	if (ret < 0)
		store_free(*io);
	else
		ret = remember_new(*io, dir, endpoint_salt(s->opts, place), io, why);
	if (ret == 0)
		(*io)->blocks = s->blocks;
	free(dir);
	free(parent);
	return ret;
}

static int open_remote(struct stack *s, const char *place, struct store **out, struct why *why)
{
	const struct store_hub_options hub = {.token_file = s->opts->token_file};
	const struct s3_options s3 = {
		.endpoint_url = s->opts->endpoint_url,
		.region = s->opts->region,
		.profile = s->opts->profile,
		.no_sign_request = s->opts->no_sign_request,
		.request_payer = s->opts->request_payer,
	};
	char shown[200];
	int ret = need_http(s, place, why);

	if (ret < 0)
		return ret;
	if (store_hub_is(place))
		return store_hub_new(place, &hub, s->http, out, why);
	if (has_scheme(place, "s3://"))
		return store_s3_new(place, &s3, s->http, out, why);
	if (has_scheme(place, "http://") || has_scheme(place, "https://"))
		return store_http_new(place, s->http, out, why);
	/* Not as it was given: it may have a password in it. */
	return why_set(why, ENOTSUP,
		       "%.*s://%s: a source is a directory, hf://..., s3://... or https://...",
		       (int)MIN(strcspn(place, ":"), (size_t)20), place,
		       url_show(shown, sizeof(shown), place));
}

static int open_store(struct stack *s, const char *place, bool follow, struct store **out,
		      struct why *why)
{
	const char *colon = strstr(place, "://");
	struct store *store = NULL;
	int ret;

	if (colon == NULL || colon == place || memchr(place, '/', (size_t)(colon - place)) != NULL)
		return store_dir_new(place, follow, out, why);
	ret = open_remote(s, place, &store, why);
	if (ret == 0)
		ret = settle(s, place, &store, why);
	if (ret == 0)
		*out = store;
	return ret;
}

/* What names the run among all that share a cache directory; NULL: out of memory. */
static char *run_key(const struct opts *opts)
{
	char *source = realpath(opts->source, NULL), *base = NULL, *key = NULL;
	struct buf b = {0};

	if (opts->base != NULL)
		base = realpath(opts->base, NULL);
	buf_addstr(&b, source != NULL ? source : opts->source);
	buf_add(&b, "\n", 1);
	if (opts->base != NULL)
		buf_addstr(&b, base != NULL ? base : opts->base);
	buf_add(&b, "", 1);
	if (!b.failed)
		key = buf_detach(&b, NULL);
	buf_release(&b);
	free(source);
	free(base);
	return key;
}

static int open_cache(struct stack *s, struct why *why)
{
	char *key = run_key(s->opts);
	int ret = -ENOMEM;

	if (key != NULL)
		ret = cachedir_open(s->opts->cache_dir, key, &s->cache, &s->cache_in_memory,
				    &s->cache_why);
	free(key);
	if (ret < 0)
		return why_set(why, -ret, "out of memory");
	/* The default may fail quietly; a directory that somebody named must work. */
	if (s->cache_in_memory && s->opts->cache_dir != NULL) {
		ret = why_set(why, s->cache_why.err != 0 ? s->cache_why.err : EIO, "%s",
			      s->cache_why.text);
		why_prefix(why, "--cache-dir %s", s->opts->cache_dir);
	}
	return ret;
}

static int open_run(struct stack *s, struct why *why)
{
	struct run_config config = {
		.store = s->store,
		.base = s->base,
		.cache = s->cache,
		.nodes = s->nodes,
		.history = s->history,
		.shard_size = s->opts->shard_size,
		.hole_grace_ns = s->opts->hole_grace_ns,
		.keep = s->opts->keep,
		.deep = s->opts->deep,
		.pull = s->opts->prefetch_all,
		.ignore_times = s->opts->ignore_times,
		.format = s->opts->format,
		.verify = s->opts->verify,
	};

	return run_new(&config, &s->run, why);
}

/* From the cache directory upwards; the stores are there. */
static int open_upper(struct stack *s, uint64_t run, bool with_history, struct why *why)
{
	const struct opts *opts = s->opts;
	int ret = open_cache(s, why);

	if (ret < 0)
		return ret;
	s->nodes = nodes_new_in(run);
	if (with_history)
		s->history = history_new(opts->keep);
	if (s->history != NULL)
		history_set_guard(s->history, opts->settle_ns, opts->max_hold_ns);
	if (s->nodes == NULL || (with_history && s->history == NULL))
		return why_set(why, ENOMEM, "out of memory");
	ret = open_run(s, why);
	if (ret < 0 || !with_history)
		return ret;
	ret = watch_new(s->run, s->history, opts->poll_ns, &s->watch);
	return ret < 0 ? why_set(why, -ret, "the watch on %s cannot be set up", s->store->name) : 0;
}

/* Where it has to be seen first whether the source is a run. */
static int open_gate(struct stack *s, bool tool, struct why *why)
{
	const struct gate_config config = {
		.several = s->opts->runs == RUNS_SEVERAL,
		.one = s->opts->base != NULL,
		.tool = tool,
	};
	struct store *source = s->store;
	int ret;

	if (s->opts->runs == RUNS_ONE || s->source != NULL)
		return 0;
	s->store = NULL;
	ret = gate_new(source, &config, &s->store);
	return ret < 0 ? why_set(why, -ret, "out of memory") : 0;
}

/* The store becomes that of a part of it. */
static int open_part(struct stack *s, const char *path, struct why *why)
{
	char *name = parts_name(s->store->name, path), *source = parts_name(s->opts->source, path);
	int ret = name != NULL && source != NULL ? 0 : -ENOMEM;

	s->source = s->store;
	s->part_of = s->source->name;
	s->store = NULL;
	if (ret == 0)
		ret = parts_new(s->source, 0, NULL, &s->parts);
	if (ret == 0)
		ret = parts_open(s->parts, path, name, &s->store);
	if (ret == 0) {
		free(s->opts->source);
		s->opts->source = source;
		source = NULL;
	}
	free(name);
	free(source);
	return ret < 0 ? why_set(why, -ret, "out of memory") : 0;
}

int stack_new(struct opts *opts, bool with_history, struct stack **out, struct why *why)
{
	struct stack *s = calloc(1, sizeof(*s));
	int ret;

	if (s == NULL)
		return why_set(why, ENOMEM, "out of memory");
	s->opts = opts;
	serving_init(&s->serving);
	s->started_real_ns = clock_real_ns();
	ret = open_store(s, opts->source, false, &s->store, why);
	if (ret == 0 && opts->part != NULL)
		ret = open_part(s, opts->part, why);
	if (ret == 0 && opts->base != NULL) {
		ret = open_store(s, opts->base, true, &s->base, why);
		if (ret < 0)
			why_prefix(why, "--base");
	}
	if (ret == 0)
		ret = open_gate(s, !with_history, why);
	if (ret == 0)
		ret = open_upper(s, 0, with_history, why);
	if (ret < 0) {
		stack_free(s);
		return ret;
	}
	*out = s;
	return 0;
}

int stack_new_part(struct stack *top, struct opts *opts, struct store *store, uint64_t run,
		   const char *subject, struct stack **out, struct why *why)
{
	struct stack *s = calloc(1, sizeof(*s));
	int ret;

	if (s == NULL) {
		store_free(store);
		return why_set(why, ENOMEM, "out of memory");
	}
	s->opts = opts;
	s->part = true;
	s->subject = subject;
	s->part_of = top->store->name;
	s->http = top->http;
	s->blocks = top->blocks;
	s->blocks_why = top->blocks_why;
	s->store = store;
	s->base = top->base;
	serving_init(&s->serving);
	s->started_real_ns = clock_real_ns();
	ret = open_upper(s, run, true, why);
	if (ret < 0)
		stack_free(s);
	else
		*out = s;
	return ret;
}

static int only_buckets(const char *place, struct why *why)
{
	return why_set(why, ENOTSUP,
		       "%s: on the Hub only buckets (hf://buckets/...) can be written to",
		       SHOWN(place));
}

/* With nothing but the Hub's token: `hf` uploads, the Hub's API is what is read. */
static int open_uploader(struct stack *s, const char *place, struct store **out, struct why *why)
{
	const struct store_hub_options hub = {.token_file = s->opts->token_file};
	struct store_hf_options options = {.token_file = s->opts->token_file};
	struct hub_place p = {0};
	struct store *reader;
	char *uri = NULL;
	int ret = hub_place_parse(place, getenv("HF_ENDPOINT"), &p, why);

	if (ret == 0 && p.kind != HUB_BUCKET)
		ret = only_buckets(place, why);
	if (ret == 0 && asprintf(&uri, "hf://buckets/%s%s%s", p.id, p.prefix[0] != '\0' ? "/" : "",
				 p.prefix) < 0) {
		uri = NULL;
		ret = why_set(why, ENOMEM, "out of memory");
	}
	if (ret == 0)
		ret = store_hub_new(place, &hub, s->http, &reader, why);
	options.place = uri;
	if (ret == 0)
		ret = store_hf_new(&options, reader, out, why);
	free(uri);
	hub_place_release(&p);
	return ret;
}

/* Which of the two ways into a bucket: that of --uploader; otherwise the gateway where there are
 * keys of the Hub's own ("HFAK...") or somebody has named a profile or the gateway; else `hf` where
 * there is a token. */
static bool wants_uploader(const struct opts *opts)
{
	const char *key = getenv("AWS_ACCESS_KEY_ID");
	struct hub_token *token = NULL;
	bool found;

	if (opts->uploader != NULL)
		return strcmp(opts->uploader, "hf") == 0;
	if ((key != NULL && strncmp(key, "HFAK", 4) == 0) || opts->profile != NULL ||
	    getenv("AWS_PROFILE") != NULL || getenv("WEIGHTFS_HF_S3_ENDPOINT") != NULL)
		return false;
	if (hub_token_new(opts->token_file, &token, NULL) < 0)
		return true; /* it will say what is wrong with the file */
	found = hub_token_origin(token) != NULL;
	hub_token_free(token);
	return found;
}

/* "hf://buckets/ns/name/prefix" is "s3://name/prefix" of the gateway's namespace. */
static int open_gateway(struct stack *s, const char *place, struct store **out, struct why *why)
{
	const char *set = getenv("WEIGHTFS_HF_S3_ENDPOINT");
	struct s3_options options = {.profile = s->opts->profile, .region = s->opts->region};
	char *url = NULL, *endpoint = NULL;
	struct hub_place hub = {0};
	const char *name;
	int ret = hub_place_parse(place, getenv("HF_ENDPOINT"), &hub, why);

	if (ret < 0)
		return ret;
	name = strchr(hub.id, '/');
	if (hub.kind != HUB_BUCKET || name == NULL)
		ret = only_buckets(place, why);
	else if (asprintf(&url, "s3://%s%s%s", name + 1, hub.prefix[0] != '\0' ? "/" : "",
			  hub.prefix) < 0 ||
		 asprintf(&endpoint, "%s/%.*s", set != NULL ? set : HUB_GATEWAY,
			  (int)(name - hub.id), hub.id) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	if (ret == 0) {
		options.endpoint_url = endpoint;
		ret = store_s3_new(url, &options, s->http, out, why);
	}
	free(url);
	free(endpoint);
	hub_place_release(&hub);
	return ret;
}

/* A slash too few, or a variable that was not set, would make a directory that nobody looks into.
 */
static int check_directory(const char *place, struct why *why)
{
	static const char *const words[] = {"s3:", "hf:", "http:", "https:", "file:"};

	if (place[0] == '\0')
		return why_set(why, EINVAL, "the destination has no name");
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strncasecmp(place, words[i], strlen(words[i])) == 0 && access(place, F_OK) < 0)
			return why_set(why, EINVAL,
				       "%s is no place: a store is written %s//..., and a "
				       "directory of that name ./%s",
				       SHOWN(place), words[i], SHOWN(place));
	return 0;
}

static int open_writable(struct stack *s, const char *place, bool make, struct store **out,
			 struct why *why)
{
	const char *colon = strstr(place, "://");
	int ret = 0;

	if (colon == NULL || colon == place ||
	    memchr(place, '/', (size_t)(colon - place)) != NULL) {
		ret = check_directory(place, why);
		if (ret < 0)
			return ret;
		if (make)
			ret = mkdir(place, 0777) == 0 || errno == EEXIST ? 0 : file_mkdirs(place);
		if (ret < 0)
			return why_set(why, -ret, "the directory %s cannot be made: %s",
				       SHOWN(place), strerrordesc_np(-ret));
		return store_dir_new(place, false, out, why);
	}
	if (!store_hub_is(place) && !has_scheme(place, "s3://"))
		return why_set(why, ENOTSUP,
			       "%.*s://...: only a directory, s3://... and hf://buckets/... can be "
			       "written to",
			       (int)MIN((size_t)(colon - place), (size_t)20), place);
	if (!store_hub_is(place))
		return open_remote(s, place, out, why);
	ret = need_http(s, place, why);
	if (ret < 0)
		return ret;
	return wants_uploader(s->opts) ? open_uploader(s, place, out, why)
				       : open_gateway(s, place, out, why);
}

int stack_new_writable(struct opts *opts, const char *place, bool make, struct stack **out,
		       struct why *why)
{
	struct stack *s = calloc(1, sizeof(*s));
	int ret;

	if (s == NULL)
		return why_set(why, ENOMEM, "out of memory");
	s->opts = opts;
	serving_init(&s->serving);
	ret = open_writable(s, place, make, &s->store, why);
	if (ret < 0)
		stack_free(s);
	else
		*out = s;
	return ret;
}

void stack_stop(struct stack *s)
{
	/* First, because the watch may wait for it. */
	if (!s->part)
		store_stop(s->base);
	if (s->watch != NULL)
		watch_stop(s->watch);
	store_stop(s->store);
	store_stop(s->source);
}

void stack_free(struct stack *s)
{
	if (s == NULL)
		return;
	stack_stop(s);
	watch_free(s->watch);
	if (!s->part)
		http_shutdown(s->http);
	/* Generations hold nodes, mappings and blobs, so the history goes before what they lie in.
	 */
	history_free(s->history);
	run_free(s->run);
	nodes_free(s->nodes);
	cachedir_close(s->cache);
	if (!s->part) {
		blockcache_free(s->blocks);
		store_free(s->base);
	}
	store_free(s->store);
	parts_free(s->parts);
	store_free(s->source);
	if (!s->part)
		http_free(s->http);
	serving_destroy(&s->serving);
	free(s);
}
