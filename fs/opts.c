/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a mount and of the tools that read a source: one table, opt_defs[] (opts_table.c),
 * from which the command line, -o lists, fstab and the help texts are all served.
 *
 * How an option is stored is in the second table, setters[], by the same names; a name that is in
 * one of them only is a programmer's error that opts_set() reports as unknown.
 *
 * No I/O: whether a directory exists is for the layer that opens it to say.  Relative paths stay
 * relative; the verb that goes into the background makes them absolute first.
 *
 * Threads: a struct opts belongs to one thread until the start is over, and is constant from then
 * on.
 */
#include "fs/opts.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "codec/scheme.h"

#include <limits.h>
#include <stdlib.h>

enum { KEEP_MAX = 1000000, THREADS_MAX = 1024, SHOWN = 120, CACHE_MIN = 16 << 20 };
static const int64_t TIMEOUT_MAX_NS = 86400 * NSEC_PER_SEC;

void opts_init(struct opts *o)
{
	*o = (struct opts){
		.poll_ns = NSEC_PER_SEC,
		.hole_grace_ns = 5 * NSEC_PER_SEC,
		.timeout_ns = 60 * NSEC_PER_SEC,
		.settle_ns = 5 * NSEC_PER_SEC,
		.max_hold_ns = 600 * NSEC_PER_SEC,
		.keep = 16,
		.inotify = true,
		.materialize_after_ns = 300 * NSEC_PER_SEC,
		.threads = 16,
		.log_level = LOG_LEVEL_INFO,
		.ready_fd = -1,
	};
}

void opts_release(struct opts *o)
{
	free(o->source);
	free(o->part);
	free(o->mountpoint);
	free(o->base);
	free(o->cache_dir);
	free(o->log_file);
	free(o->token_file);
	free(o->ca_file);
	free(o->endpoint_url);
	free(o->region);
	free(o->profile);
	free(o->format);
	buf_release(&o->fuse);
	opts_init(o);
}

/* ---- setting one ---- */

static int bad_value(struct why *why, const char *name, const char *value, const char *expected)
{
	char shown[SHOWN];

	return why_set(why, EINVAL, "--%s: \"%s\" is not %s", name,
		       printable(shown, sizeof(shown), value, strlen(value)), expected);
}

static int set_text(char **field, const char *name, const char *value, struct why *why)
{
	char *copy;

	if (value[0] == '\0')
		return why_set(why, EINVAL, "--%s needs a name that is not empty", name);
	copy = strdup(value);
	if (copy == NULL)
		return why_set(why, ENOMEM, "out of memory");
	free(*field);
	*field = copy;
	return 0;
}

static int set_shard_size(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t size;

	if (parse_size(v, &size) < 0 || size == 0)
		return bad_value(why, name, v, "a size (such as 5GB, 512M or 1.5GiB)");
	o->shard_size = size;
	return 0;
}

static int set_cache_size(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t size;

	/* Less than a few requests' worth would only go round in circles. */
	if (parse_size(v, &size) < 0 || size < CACHE_MIN)
		return bad_value(why, name, v, "a size of at least 16M (such as 200GB)");
	o->cache_size = size;
	return 0;
}

static int set_budget(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t size;

	if (parse_size(v, &size) < 0 || size == 0)
		return bad_value(why, name, v, "a size above 0 (such as 200GB or 512M)");
	*(name[0] == 'w' ? &o->warm_budget : &o->materialize_size) = size;
	return 0;
}

/* Index of a word; -1: it is none of them. */
static int word_index(const char *v, const char *const *words, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(v, words[i]) == 0)
			return (int)i;
	return -1;
}

static int set_materialize(struct opts *o, const char *name, const char *v, struct why *why)
{
	static const char *const words[] = {"auto", "always", "never"};
	int i = word_index(v, words, ARRAY_LEN(words));

	if (i < 0)
		return bad_value(why, name, v, "\"auto\", \"always\" or \"never\"");
	o->materialize = (enum materialize)i;
	return 0;
}

static int set_runs(struct opts *o, const char *name, const char *v, struct why *why)
{
	static const char *const words[] = {"auto", "one", "several"};
	int i = word_index(v, words, ARRAY_LEN(words));

	if (i < 0)
		return bad_value(why, name, v, "\"auto\", \"one\" or \"several\"");
	o->runs = (enum runs_choice)i;
	return 0;
}

static int set_materialize_after(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (parse_duration_ns(v, &o->materialize_after_ns) < 0)
		return bad_value(why, name, v, "a time (such as 300, 500ms or 10m)");
	return 0;
}

static int set_inotify(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (strcmp(v, "on") != 0 && strcmp(v, "off") != 0)
		return bad_value(why, name, v, "\"on\" or \"off\"");
	o->inotify = v[1] == 'n';
	return 0;
}

static int set_poll(struct opts *o, const char *name, const char *v, struct why *why)
{
	int64_t ns;

	if (parse_duration_ns(v, &ns) < 0 || ns == 0)
		return bad_value(why, name, v, "a time above 0 (such as 1, 0.25, 500ms or 2m)");
	o->poll_ns = ns;
	return 0;
}

static int set_hole_grace(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (parse_duration_ns(v, &o->hole_grace_ns) < 0)
		return bad_value(why, name, v, "a time (such as 5, 0.25, 500ms or 2m)");
	return 0;
}

static int set_settle(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (parse_duration_ns(v, &o->settle_ns) < 0)
		return bad_value(why, name, v, "a time (such as 5, 0.5, 500ms or 2m)");
	return 0;
}

static int set_max_hold(struct opts *o, const char *name, const char *v, struct why *why)
{
	int64_t ns;

	if (parse_duration_ns(v, &ns) < 0 || ns == 0)
		return bad_value(why, name, v,
				 "a time above 0 (such as 600 or 10m); --settle 0 turns the "
				 "guard off");
	o->max_hold_ns = ns;
	return 0;
}

static int set_timeout(struct opts *o, const char *name, const char *v, struct why *why)
{
	int64_t ns;

	if (parse_duration_ns(v, &ns) < 0 || ns < NSEC_PER_SEC || ns > TIMEOUT_MAX_NS)
		return bad_value(why, name, v, "a time from 1 second to 1 day (such as 60 or 5m)");
	o->timeout_ns = ns;
	return 0;
}

static int set_keep(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t n;

	if (parse_count(v, 1, KEEP_MAX, &n) < 0)
		return bad_value(why, name, v, "a number of versions from 1 to 1000000");
	o->keep = (unsigned)n;
	return 0;
}

static int set_threads(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t n;

	if (parse_count(v, 1, THREADS_MAX, &n) < 0)
		return bad_value(why, name, v, "a number of threads from 1 to 1024");
	o->threads = (unsigned)n;
	return 0;
}

static int set_ready_fd(struct opts *o, const char *name, const char *v, struct why *why)
{
	uint64_t n;

	if (parse_count(v, 0, INT_MAX, &n) < 0)
		return bad_value(why, name, v, "the number of a file descriptor");
	o->ready_fd = (int)n;
	return 0;
}

static int set_times(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (strcmp(v, "trust") != 0 && strcmp(v, "ignore") != 0)
		return bad_value(why, name, v, "\"trust\" or \"ignore\"");
	o->ignore_times = v[0] == 'i';
	return 0;
}

static int set_verify(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (strcmp(v, "lazy") == 0)
		o->verify = VERIFY_LAZY;
	else if (strcmp(v, "eager") == 0)
		o->verify = VERIFY_EAGER;
	else if (strcmp(v, "off") == 0)
		o->verify = VERIFY_OFF;
	else
		return bad_value(why, name, v, "\"lazy\", \"eager\" or \"off\"");
	return 0;
}

static int set_format(struct opts *o, const char *name, const char *v, struct why *why)
{
	struct buf names = {0};
	int err = 0;

	if (strcmp(v, "auto") == 0) {
		free(o->format);
		o->format = NULL;
		return 0;
	}
	if (strcmp(v, "trl") == 0 || strcmp(v, "weightfs") == 0 || scheme_find(v) != NULL)
		return set_text(&o->format, name, v, why);
	buf_addstr(&names, "one of auto, trl, weightfs");
	for (size_t i = 0; schemes[i] != NULL; i++)
		buf_addf(&names, ", %s", schemes[i]->name);
	err = bad_value(why, name, v, buf_str(&names));
	buf_release(&names);
	return err;
}

static int set_prefetch(struct opts *o, const char *name, const char *v, struct why *why)
{
	if (strcmp(v, "read") != 0 && strcmp(v, "all") != 0)
		return bad_value(why, name, v, "\"read\" or \"all\"");
	o->prefetch_all = v[0] == 'a';
	return 0;
}

static int set_log_level(struct opts *o, const char *name, const char *v, struct why *why)
{
	int level = log_level_parse(v);

	if (level < 0)
		return bad_value(why, name, v, "\"error\", \"warning\", \"info\" or \"debug\"");
	o->log_level = level;
	return 0;
}

static int set_options(struct opts *o, const char *name, const char *v, struct why *why)
{
	return opts_set_list(o, v, why);
}

static const struct {
	const char *name;
	int (*set)(struct opts *o, const char *name, const char *value, struct why *why);
	size_t text, flag; /* without set: the field, a text or a switch; no field lies at 0 */
} setters[] = {
	{"base", NULL, offsetof(struct opts, base), 0},
	{"shard-size", set_shard_size, 0, 0},
	{"cache-size", set_cache_size, 0, 0},
	{"poll", set_poll, 0, 0},
	{"keep", set_keep, 0, 0},
	{"hole-grace", set_hole_grace, 0, 0},
	{"settle", set_settle, 0, 0},
	{"max-hold", set_max_hold, 0, 0},
	{"timeout", set_timeout, 0, 0},
	{"verify", set_verify, 0, 0},
	{"format", set_format, 0, 0},
	{"runs", set_runs, 0, 0},
	{"times", set_times, 0, 0},
	{"prefetch", set_prefetch, 0, 0},
	{"warm", NULL, 0, offsetof(struct opts, warm)},
	{"warm-budget", set_budget, 0, 0},
	{"materialize", set_materialize, 0, 0},
	{"materialize-size", set_budget, 0, 0},
	{"materialize-after", set_materialize_after, 0, 0},
	{"inotify", set_inotify, 0, 0},
	{"cache-dir", NULL, offsetof(struct opts, cache_dir), 0},
	{"token-file", NULL, offsetof(struct opts, token_file), 0},
	{"ca-file", NULL, offsetof(struct opts, ca_file), 0},
	{"endpoint-url", NULL, offsetof(struct opts, endpoint_url), 0},
	{"region", NULL, offsetof(struct opts, region), 0},
	{"profile", NULL, offsetof(struct opts, profile), 0},
	{"no-sign-request", NULL, 0, offsetof(struct opts, no_sign_request)},
	{"request-payer", NULL, 0, offsetof(struct opts, request_payer)},
	{"threads", set_threads, 0, 0},
	{"allow-other", NULL, 0, offsetof(struct opts, allow_other)},
	{"foreground", NULL, 0, offsetof(struct opts, foreground)},
	{"ready-fd", set_ready_fd, 0, 0},
	{"log-level", set_log_level, 0, 0},
	{"log-file", NULL, offsetof(struct opts, log_file), 0},
	{"options", set_options, 0, 0},
};

static const struct opt_def *find_def(const char *name, char letter)
{
	for (const struct opt_def *d = opt_defs; d->name != NULL; d++)
		if (name != NULL ? strcmp(d->name, name) == 0 : d->letter == letter)
			return d;
	return NULL;
}

int opts_set(struct opts *o, const char *name, const char *value, struct why *why)
{
	const struct opt_def *def = find_def(name, 0);
	char shown[SHOWN];

	for (size_t i = 0; def != NULL && i < ARRAY_LEN(setters); i++) {
		if (strcmp(setters[i].name, name) != 0)
			continue;
		if (def->arg != NULL && value == NULL)
			return why_set(why, EINVAL, "--%s needs a value (%s)", name, def->arg);
		if (def->arg == NULL && value != NULL)
			return why_set(why, EINVAL, "--%s takes no value", name);
		if (setters[i].set != NULL)
			return setters[i].set(o, name, value, why);
		if (setters[i].flag != 0)
			*(bool *)((char *)o + setters[i].flag) = true;
		return setters[i].text != 0
			       ? set_text((char **)((char *)o + setters[i].text), name, value, why)
			       : 0;
	}
	return why_set(why, ENOENT, "unknown option --%s",
		       printable(shown, sizeof(shown), name, strlen(name)));
}

/* ---- lists ---- */

static bool in_words(const char *word, const char *const *words, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(words[i]);

		if (len > 0 && words[i][len - 1] == '*' ? strncmp(word, words[i], len - 1) == 0
							: strcmp(word, words[i]) == 0)
			return true;
	}
	return false;
}

static bool is_kernel_word(const char *word)
{
	static const char *const words[] = {
		"ro",	       "nosuid",       "suid",		"nodev",
		"dev",	       "noexec",       "exec",		"noatime",
		"atime",       "nodiratime",   "diratime",	"sync",
		"async",       "dirsync",      "nosymfollow",	"context=*",
		"fscontext=*", "defcontext=*", "rootcontext=*", "default_permissions",
		"allow_root",  "auto_unmount", "nonempty",
	};

	return in_words(word, words, ARRAY_LEN(words));
}

/* What fstab and mount(8) say to themselves; "rw" is what mount(8) adds when nothing was said. */
static bool is_fstab_word(const char *word)
{
	static const char *const words[] = {
		"",	   "defaults",	"rw",	       "auto",	     "noauto",
		"_netdev", "nofail",	"user",	       "user=*",     "nouser",
		"users",   "owner",	"group",       "relatime",   "x-*",
		"X-*",	   "comment=*", "strictatime", "norelatime", "lazytime",
	};

	return in_words(word, words, ARRAY_LEN(words));
}

static int set_word(struct opts *o, char *word, struct why *why)
{
	char name[40], shown[SHOWN];
	char *value = strchr(word, '=');
	size_t len = value != NULL ? (size_t)(value - word) : strlen(word);
	const struct opt_def *def = NULL;

	if (len < sizeof(name)) {
		for (size_t i = 0; i < len; i++)
			name[i] = word[i] == '_' ? '-' : word[i];
		name[len] = '\0';
		def = strcmp(name, "options") == 0 ? NULL : find_def(name, 0);
	}
	if (def != NULL)
		return opts_set(o, name, value != NULL ? value + 1 : NULL, why);
	if (is_fstab_word(word))
		return 0;
	if (is_kernel_word(word)) {
		if (o->fuse.len > 0)
			buf_add(&o->fuse, ",", 1);
		buf_addstr(&o->fuse, word);
		return o->fuse.failed ? why_set(why, ENOMEM, "out of memory") : 0;
	}
	return why_set(why, EINVAL, "unknown option \"%s\" in -o",
		       printable(shown, sizeof(shown), word, strlen(word)));
}

int opts_set_list(struct opts *o, const char *list, struct why *why)
{
	char *copy = strdup(list), *word = copy, *to = copy;
	int ret = 0;

	if (copy == NULL)
		return why_set(why, ENOMEM, "out of memory");
	/* "\," is a comma inside a value, as libfuse has it. */
	for (const char *p = list; ret == 0; p++) {
		if (*p == '\\' && (p[1] == ',' || p[1] == '\\')) {
			*to++ = *++p;
		} else if (*p == ',' || *p == '\0') {
			*to++ = '\0';
			ret = set_word(o, word, why);
			word = to;
			if (*p == '\0')
				break;
		} else {
			*to++ = *p;
		}
	}
	free(copy);
	return ret;
}

/* ---- the command line ---- */

struct parse {
	struct opts *o;
	int argc, at;
	char **argv;
	bool mount;
	bool *out_help;
	struct why *why;
};

static int unknown(struct parse *p, const char *word)
{
	char shown[SHOWN];

	return why_set(p->why, EINVAL, "unknown option %s",
		       printable(shown, sizeof(shown), word, strlen(word)));
}

static bool offered(const struct parse *p, const struct opt_def *def)
{
	return def != NULL && (p->mount || !def->mount_only);
}

/* The value that stands in the next word, or NULL with a sentence. */
static const char *next_word(struct parse *p, const struct opt_def *def)
{
	if (p->at < p->argc)
		return p->argv[p->at++];
	why_set(p->why, EINVAL, "--%s needs a value (%s)", def->name, def->arg);
	return NULL;
}

static int parse_long(struct parse *p, const char *word)
{
	const char *equals = strchr(word, '='), *value = NULL;
	size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
	const struct opt_def *def;
	char name[40];

	if (strcmp(word, "--help") == 0) {
		*p->out_help = true;
		return 0;
	}
	if (len - 2 >= sizeof(name))
		return unknown(p, word);
	memcpy(name, word + 2, len - 2);
	name[len - 2] = '\0';
	def = find_def(name, 0);
	if (!offered(p, def))
		return unknown(p, word);
	if (equals != NULL) {
		value = equals + 1;
	} else if (def->arg != NULL) {
		value = next_word(p, def);
		if (value == NULL)
			return -EINVAL;
	}
	return opts_set(p->o, name, value, p->why);
}

/* "-f", "-o LIST", "-oLIST", "-fo LIST" */
static int parse_letters(struct parse *p, const char *word)
{
	for (const char *c = word + 1; *c != '\0'; c++) {
		const struct opt_def *def = find_def(NULL, *c);
		const char *value = NULL;
		int ret;

		if (*c == 'h') {
			*p->out_help = true;
			continue;
		}
		if (!offered(p, def))
			return unknown(p, word);
		if (def->arg != NULL) {
			value = c[1] != '\0' ? c + 1 : next_word(p, def);
			if (value == NULL)
				return -EINVAL;
		}
		ret = opts_set(p->o, def->name, value, p->why);
		if (ret < 0 || def->arg != NULL)
			return ret;
	}
	return 0;
}

int opts_parse(struct opts *o, int argc, char **argv, bool mount, const char **args,
	       size_t max_args, size_t *out_args, bool *out_help, struct why *why)
{
	struct parse p = {o, argc, 0, argv, mount, out_help, why};
	bool only_args = false;
	size_t count = 0;
	char shown[SHOWN];

	*out_help = false;
	while (p.at < argc) {
		const char *word = argv[p.at++];
		int ret = 0;

		if (only_args || word[0] != '-' || word[1] == '\0') {
			if (count == max_args)
				return why_set(why, EINVAL, "unexpected argument \"%s\"",
					       printable(shown, sizeof(shown), word, strlen(word)));
			args[count++] = word;
		} else if (strcmp(word, "--") == 0) {
			only_args = true;
		} else if (word[1] == '-') {
			ret = parse_long(&p, word);
		} else {
			ret = parse_letters(&p, word);
		}
		if (ret < 0)
			return ret;
	}
	*out_args = count;
	return 0;
}
