/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs follow MOUNTPOINT: brings each new version to inference servers, by their own means of
 * reloading, and runs a command.
 *
 *	wait -> prepare (lease, warm) -> pause -> reload versions/N -> verify -> resume -> command
 *
 * Behind, it skips to the newest.  A version is leased from before the first engine hears of it
 * until no engine has it or its path (follow_mount.h); pins stay when follow ends, since the
 * engines do.  What each step may lead to is in follow_plan.c; how it is made, in follow_run.c.
 *
 * Replicas that were away, or that were left untouched by an update that failed, are tried again
 * with a growing delay, also without a new version.  One that was left with mixed weights waits for
 * a newer version or for a person.
 *
 * The main thread does everything but the network.  SIGTERM and SIGINT come through a descriptor.
 */
#include "tools/follow.h"

#include "cache/clock.h"
#include "tools/cli.h"
#include "tools/follow_hook.h"
#include "tools/newest.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define RETRY_NS (60 * NSEC_PER_SEC) /* between updates of the same version, at most */

enum {
	OPT_ENGINE,
	OPT_URL,
	OPT_EXEC,
	OPT_ROUTE,
	OPT_PAUSE,
	OPT_ROLLING,
	OPT_ON_FAILURE,
	OPT_RETRIES,
	OPT_RETRY_DELAY,
	OPT_MIN_INTERVAL,
	OPT_TIMEOUT,
	OPT_PAUSE_TIMEOUT,
	OPT_NO_WARM,
	OPT_ENGINE_PATH,
	OPT_CHECK,
	OPT_START,
	OPT_ONCE,
	OPT_METRICS,
	OPT_CA,
};

static const struct cli_opt own[] = {
	[OPT_ENGINE] = {"engine", 0, "NAME", "vllm, sglang or mlx"},
	[OPT_URL] = {"url", 0, "URL", "a server of that engine; again for each replica", true},
	[OPT_EXEC] = {"exec", 0, "CMD", "then run this, with WEIGHTFS_VERSION and WEIGHTFS_PATH"},
	[OPT_ROUTE] = {"route", 0, "NAME", "vllm: rpc (reload_weights) or transfer (disk backend)"},
	[OPT_PAUSE] = {"pause-mode", 0, "MODE",
		       "vllm: wait, keep, abort; sglang: retract, abort, in_place"},
	[OPT_ROLLING] = {"rolling", 0, NULL, "one replica after another, not all together"},
	[OPT_ON_FAILURE] = {"on-failure", 0, "WHAT",
			    "keep-paused (default), previous (load the one before), or resume"},
	[OPT_RETRIES] = {"retries", 0, "N", "attempts of a step after the first (2)"},
	[OPT_RETRY_DELAY] = {"retry-delay", 0, "SECONDS", "before the first of them, doubling (1)"},
	[OPT_MIN_INTERVAL] = {"min-interval", 0, "SECONDS", "from one update to the next (0)"},
	[OPT_TIMEOUT] = {"timeout", 0, "SECONDS", "of a reload, and of the command (1800)"},
	[OPT_PAUSE_TIMEOUT] = {"pause-timeout", 0, "SECONDS", "of a pause (300)"},
	[OPT_NO_WARM] = {"no-warm", 0, NULL, "do not read a version before the pause"},
	[OPT_ENGINE_PATH] = {"engine-path", 0, "DIR", "where the engines see the mount"},
	[OPT_CHECK] = {"check", 0, "SECONDS",
		       "how often to ask for restarted servers (15; 0: never)"},
	[OPT_START] = {"start-version", 0, "N", "the engines have been started with version N"},
	[OPT_ONCE] = {"once", 0, NULL, "bring the newest version, and end"},
	[OPT_METRICS] = {"metrics", 0, "FILE", "keep metrics for Prometheus there"},
	[OPT_CA] = {"ca-file", 0, "FILE", "authorities to trust, as PEM (SSL_CERT_FILE)"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "follow",
	.args = "[options] MOUNTPOINT",
	.about =
		"Brings each new version to inference servers by their own reload: the version is "
		"read\n"
		"once, so that it is near; then each server is paused, told to load versions/N, "
		"asked\n"
		"whether it has it, and resumed.  One line of JSON per update on standard output.\n"
		"\n"
		"Keys are taken from VLLM_API_KEY, SGLANG_ADMIN_API_KEY or SGLANG_API_KEY, and\n"
		"MLX_API_KEY.  vLLM needs VLLM_SERVER_DEV_MODE=1.  mlx-lm only loads what a "
		"request\n"
		"names: users must name the path that is printed.\n",
	.own = own,
	.min_args = 1,
	.max_args = 1,
	.examples = "  weightfs follow /mnt/policy --engine vllm --url http://localhost:8000\n"
		    "  weightfs follow /mnt/policy --engine sglang --url http://a:30000 --url "
		    "http://b:30000 --rolling\n"
		    "  weightfs follow /mnt/policy --exec 'evaluate \"$WEIGHTFS_PATH\"'\n",
	.exits = "1  also when an engine was left paused, or with weights that failed",
};

/* ---- options ---- */

static int parse_time(const struct cli_line *line, size_t opt, int64_t fallback, int64_t *out)
{
	*out = fallback;
	if (line->value[opt] == NULL || parse_duration_ns(line->value[opt], out) == 0)
		return -1;
	return cli_usage(&cli, "follow: --%s: \"%.40s\" is not a time (such as 5 or 2m)",
			 own[opt].name, line->value[opt]);
}

static int parse_times(const struct cli_line *line, struct follow_settings *set)
{
	int ret = parse_time(line, OPT_RETRY_DELAY, NSEC_PER_SEC, &set->backoff_ns);

	if (ret < 0)
		ret = parse_time(line, OPT_MIN_INTERVAL, 0, &set->min_interval_ns);
	if (ret < 0)
		ret = parse_time(line, OPT_CHECK, 15 * NSEC_PER_SEC, &set->check_ns);
	if (ret < 0)
		ret = parse_time(line, OPT_TIMEOUT, 1800 * NSEC_PER_SEC, &set->reload_ns);
	if (ret < 0)
		ret = parse_time(line, OPT_PAUSE_TIMEOUT, 300 * NSEC_PER_SEC, &set->pause_ns);
	if (ret < 0 &&
	    (set->reload_ns < NSEC_PER_SEC || set->pause_ns < NSEC_PER_SEC ||
	     set->reload_ns > 86400 * 7 * NSEC_PER_SEC || set->pause_ns > 86400 * 7 * NSEC_PER_SEC))
		ret = cli_usage(&cli, "follow: --timeout and --pause-timeout are from a second to "
				      "a week");
	set->backoff_ns = MIN(set->backoff_ns, RETRY_NS);
	return ret;
}

/* One of a list; a usage error names the choices. */
static int parse_choice(const struct cli_line *line, size_t opt, const char *const *list,
			const char **out)
{
	struct buf known = {0};

	*out = engine_choice(list, line->value[opt]);
	if (*out != NULL || (list == NULL && line->value[opt] == NULL))
		return -1;
	for (size_t i = 0; list != NULL && list[i] != NULL; i++)
		buf_addf(&known, "%s%s", i > 0 ? ", " : "", list[i]);
	cli_usage(&cli, "follow: --%s: this engine knows %s, not \"%.40s\"", own[opt].name,
		  known.len > 0 ? buf_str(&known) : "none", line->value[opt]);
	buf_release(&known);
	return EXIT_CODE_USAGE;
}

static int parse_policy(const char *value, enum plan_policy *out)
{
	*out = PLAN_KEEP_PAUSED;
	if (value == NULL || strcmp(value, "keep-paused") == 0)
		return -1;
	if (strcmp(value, "previous") == 0)
		*out = PLAN_GO_BACK;
	else if (strcmp(value, "resume") == 0)
		*out = PLAN_LET_SERVE;
	else
		return cli_usage(&cli, "follow: --on-failure is keep-paused, previous or resume");
	return -1;
}

static int parse_engine(const struct cli_line *line, struct follow_settings *set)
{
	const char *name = line->value[OPT_ENGINE];
	int ret;

	if (name == NULL) {
		static const int needs[] = {OPT_URL, OPT_ROUTE, OPT_PAUSE, OPT_ROLLING,
					    OPT_ON_FAILURE};

		for (size_t i = 0; i < ARRAY_LEN(needs); i++)
			if (line->value[needs[i]] != NULL)
				return cli_usage(&cli, "follow: --%s needs --engine",
						 own[needs[i]].name);
		if (set->hook == NULL)
			return cli_usage(&cli, "follow needs --engine and --url, or --exec");
		return -1;
	}
	set->engine = engine_find(name);
	if (set->engine == NULL)
		return cli_usage(&cli, "follow: --engine is vllm, sglang or mlx, not \"%.40s\"",
				 name);
	if (line->many_count == 0)
		return cli_usage(&cli, "follow: --engine needs --url");
	ret = parse_choice(line, OPT_ROUTE, set->engine->routes, &set->route);
	if (ret < 0)
		ret = parse_choice(line, OPT_PAUSE, set->engine->pause_modes, &set->pause_mode);
	return ret;
}

static int parse_settings(const struct cli_line *line, struct follow_settings *set)
{
	const char *path = line->value[OPT_ENGINE_PATH];
	uint64_t retries = 2;
	int ret;

	*set = (struct follow_settings){
		.hook = line->value[OPT_EXEC],
		.metrics = line->value[OPT_METRICS],
		.engine_path = path,
		.warm = line->value[OPT_NO_WARM] == NULL,
		.rolling = line->value[OPT_ROLLING] != NULL,
		.once = line->value[OPT_ONCE] != NULL,
	};
	if (line->value[OPT_RETRIES] != NULL &&
	    (parse_u64(line->value[OPT_RETRIES], &retries) < 0 || retries > 100))
		return cli_usage(&cli, "follow: --retries is a number up to 100");
	set->retries = (unsigned)retries;
	if (path != NULL && path[0] != '/')
		return cli_usage(&cli, "follow: --engine-path is a path from the root");
	ret = parse_times(line, set);
	if (ret < 0)
		ret = parse_policy(line->value[OPT_ON_FAILURE], &set->policy);
	if (ret < 0)
		ret = parse_engine(line, set);
	return ret;
}

/* ---- setting up ---- */

static int add_replicas(struct follow *f, const struct cli_line *line, struct why *why)
{
	f->replicas = calloc(MAX(line->many_count, 1), sizeof(*f->replicas));
	if (f->replicas == NULL)
		return why_set(why, ENOMEM, "out of memory");
	for (size_t i = 0; i < line->many_count; i++) {
		struct buf url = {0};
		int ret = follow_http_url(line->many[i], &url, why);

		if (ret == 0 && (f->replicas[i].url = strdup(buf_str(&url))) == NULL)
			ret = why_set(why, ENOMEM, "out of memory");
		buf_release(&url);
		if (ret < 0)
			return why_prefix(why, "--url");
		f->replicas[i].state = PLAN_OLD;
		f->replicas[i].fresh = true;
		f->count++;
		for (size_t j = 0; j < i; j++)
			if (strcmp(f->replicas[i].url, f->replicas[j].url) == 0)
				return why_set(why, EINVAL, "--url: %s is given twice",
					       f->replicas[i].url);
	}
	return 0;
}

static int start_http(struct follow *f, const char *ca_file, struct why *why)
{
	const char *key = NULL;

	if (f->set.engine == NULL)
		return 0;
	for (const char *const *name = f->set.engine->keys; *name != NULL && key == NULL; name++) {
		key = getenv(*name);
		if (key != NULL && key[0] == '\0')
			key = NULL;
	}
	return follow_http_new(ca_file, key, (unsigned)f->count, &f->http, why);
}

static int take_signals(struct follow *f, struct why *why)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	/* Before there are threads: they must not take them. */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	f->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return f->signal_fd >= 0 ? 0 : why_set(why, errno, "no descriptor for signals");
}

/* What the engines run already: by what they say, or by --start-version. */
static int learn(struct follow *f, const char *start, struct why *why)
{
	uint64_t version = 0;
	int ret = follow_ask(f, why);

	if (ret < 0 || (start != NULL && parse_u64(start, &version) < 0))
		return ret < 0 ? ret : why_set(why, EINVAL, "--start-version is a number");
	f->hook_done = start != NULL;
	f->hook_version = version;
	for (size_t i = 0; i < f->count; i++) {
		struct follow_replica *r = &f->replicas[i];
		struct why lost = {0};

		if (start != NULL && !r->touched && !r->has_whole && !r->is_paused) {
			r->touched = r->has_whole = r->has_path = true;
			r->state = PLAN_NEW;
			r->target = r->whole = r->path = version;
		}
		/* One that is gone cannot be kept; the engine runs it from its own memory. */
		if (r->has_whole && follow_mount_lease(&f->mount, r->whole, true, &lost) < 0)
			cli_error("%s has version %" PRIu64 ", which cannot be kept: %s", r->url,
				  r->whole, lost.text);
	}
	return 0;
}

/* ---- one update ---- */

/* Lets go of what no replica has or points to, but for one more version (NULL: none).  Those that
 * are away may still have theirs, and after a failure SGLang has both paths: the new one, and the
 * old one for its experts. */
static void keep_leases(struct follow *f, const uint64_t *also)
{
	uint64_t *versions = calloc(2 * f->count + 1, sizeof(*versions));
	size_t n = 0;

	if (versions == NULL)
		return; /* too much is kept, until the next time */
	if (also != NULL)
		versions[n++] = *also;
	for (size_t i = 0; i < f->count; i++) {
		if (f->replicas[i].has_whole)
			versions[n++] = f->replicas[i].whole;
		if (f->replicas[i].has_path)
			versions[n++] = f->replicas[i].path;
	}
	follow_mount_keep(&f->mount, versions, n);
	free(versions);
}

static int prepare(struct follow *f, struct follow_update *u)
{
	int ret = follow_mount_lease(&f->mount, u->version, false, &u->why);

	if (ret < 0 || !f->set.warm || (f->warmed && f->warm_version == u->version))
		return ret;
	ret = follow_mount_warm(&f->mount, u->version, f->signal_fd, &u->warm_bytes, &u->why);
	f->warmed = ret == 0;
	f->warm_version = u->version;
	return ret;
}

static void run_hook(struct follow *f, struct follow_update *u)
{
	struct follow_hook hook = {
		.command = f->set.hook,
		.path = u->path,
		.version = u->version,
		.result = follow_result_name(u->result),
		.timeout_ns = f->set.reload_ns,
		.stop_fd = f->signal_fd,
	};
	int64_t delay = f->set.backoff_ns;

	f->hook_done = true;
	f->hook_version = u->version;
	for (unsigned i = 0;; i++) {
		struct why why = {0};
		int ret = follow_hook_run(&hook, &why);

		if (ret == 0)
			return;
		f->hook_failures++;
		if (ret == -ECANCELED || i >= f->set.retries) {
			u->why = why;
			u->result = u->result == FOLLOW_OK && f->count > 0 ? FOLLOW_PARTIAL
									   : FOLLOW_FAILED;
			return;
		}
		cli_error("version %" PRIu64 ": %s; tried again", u->version, why.text);
		(void)poll(&(struct pollfd){.fd = f->signal_fd, .events = POLLIN}, 1,
			   (int)(delay / 1000000));
		delay = MIN(2 * delay, RETRY_NS);
	}
}

static enum follow_result sum_up(const struct follow *f, uint64_t version)
{
	size_t good = 0;

	for (size_t i = 0; i < f->count; i++)
		good += f->replicas[i].state == PLAN_NEW && f->replicas[i].target == version;
	if (good == f->count)
		return FOLLOW_OK;
	return good > 0 ? FOLLOW_PARTIAL : FOLLOW_FAILED;
}

/* What came in the meantime is said, and comes next. */
static void look_behind(struct follow *f, struct follow_update *u)
{
	bool any = false;

	if (newest_read(f->mount.newest_fd, f->mount.path, &any, &u->newest) == 0 && any)
		u->superseded = u->newest != u->version;
}

static enum follow_result update(struct follow *f, uint64_t version)
{
	struct follow_update u = {.version = version, .began_real_ns = clock_real_ns()};
	int64_t began = clock_mono_ns(), at;
	char *path = NULL;
	int ret;

	if (asprintf(&path, "%s/.weightfs/versions/%" PRIu64,
		     f->set.engine_path != NULL ? f->set.engine_path : f->mount.path, version) < 0)
		path = NULL;
	u.path = path;
	u.result = FOLLOW_FAILED;
	ret = path != NULL ? prepare(f, &u) : why_set(&u.why, ENOMEM, "out of memory");
	u.prepare_ns = clock_mono_ns() - began;
	if (ret == 0 && f->count > 0)
		ret = follow_bring(f, &u, &u.why);
	if (ret == 0)
		u.result = sum_up(f, version);
	at = clock_mono_ns();
	if (ret == 0 && u.result != FOLLOW_FAILED && f->set.hook != NULL && !follow_stopping(f))
		run_hook(f, &u);
	u.hook_ns = clock_mono_ns() - at;
	u.total_ns = clock_mono_ns() - began;
	u.stopped = follow_stopping(f);
	look_behind(f, &u);
	f->updates[u.result]++;
	if (u.result == FOLLOW_OK) {
		f->any_good = true;
		f->last_good = version;
		f->last_good_real_ns = clock_real_ns();
	}
	keep_leases(f, &version);
	follow_report(f, &u);
	free(path);
	return u.result;
}

/* ---- the loop ---- */

struct rhythm {
	bool any;
	uint64_t last;	    /* the version of the last update */
	unsigned again;	    /* updates in a row that did not succeed */
	int64_t not_before; /* of any update */
	int64_t retry_at;   /* of one to the same version */
	int64_t check_at;   /* of the replicas */
};

static bool is_due(const struct follow *f, uint64_t newest)
{
	/* A command has had its attempts; a version that could not be read has not. */
	return f->count == 0 ? !(f->hook_done && f->hook_version == newest)
			     : follow_wants(f, newest);
}

static void note_update(const struct follow *f, struct rhythm *t, uint64_t version,
			enum follow_result result, int64_t began)
{
	int64_t delay;

	if (result == FOLLOW_OK || !t->any || t->last != version)
		t->again = 0;
	t->any = true;
	t->last = version;
	if (result != FOLLOW_OK)
		t->again++;
	delay = MAX(f->set.backoff_ns, NSEC_PER_SEC / 100) << MIN(t->again, 12U);
	t->not_before = began + f->set.min_interval_ns;
	t->retry_at = clock_mono_ns() + MIN(delay, RETRY_NS);
	t->check_at = clock_mono_ns() + f->set.check_ns;
}

/* Versions whose numbers a run that has begun again has used up anew: none has those now. */
static void look_for_renewed(struct follow *f)
{
	for (size_t i = 0; i < f->mount.lease_count; i++) {
		uint64_t version = f->mount.leases[i].version;

		if (!follow_mount_renewed(&f->mount, i))
			continue;
		cli_error("version %" PRIu64 " is another run's now", version);
		f->hook_done &= f->hook_version != version;
		f->warmed &= f->warm_version != version;
		for (size_t j = 0; j < f->count; j++)
			follow_forget(&f->replicas[j], version);
	}
}

/* EXIT_CODE_OK, or a failure that has been said. */
static int loop(struct follow *f)
{
	struct rhythm t = {0};
	uint64_t seen = 0;

	while (!follow_stopping(f)) {
		int64_t until = INT64_MAX, now = clock_mono_ns();
		uint64_t newest = 0;
		bool any = false;
		int ret = newest_read(f->mount.newest_fd, f->mount.path, &any, &newest);

		if (ret < 0)
			return cli_error("%s: the mount has gone: %s", SHOWN(f->mount.path),
					 errno_text(ret));
		look_for_renewed(f);
		if (any && newest != seen)
			follow_mount_repin(&f->mount);
		seen = newest;
		if (any && is_due(f, newest)) {
			until = t.not_before;
			if (t.any && t.last == newest)
				until = MAX(until, t.retry_at);
			if (!t.any || until <= now) {
				enum follow_result result = update(f, newest);

				note_update(f, &t, newest, result, now);
				if (f->set.once)
					return result == FOLLOW_OK ? EXIT_CODE_OK
								   : EXIT_CODE_FAILURE;
				continue;
			}
		} else if (any && f->set.once) {
			return EXIT_CODE_OK;
		}
		if (f->count > 0 && f->set.check_ns > 0) {
			if (t.check_at <= now) {
				/* Told to end: the loop sees it. */
				if (t.check_at != 0)
					(void)!follow_check(f);
				follow_mount_repin(&f->mount);
				t.check_at = clock_mono_ns() + f->set.check_ns;
				continue;
			}
			until = MIN(until, t.check_at);
		}
		newest_sleep(f->mount.newest_fd, f->signal_fd, until);
	}
	return EXIT_CODE_OK;
}

/* Says what is left as it should not be; that is a failure, whatever ended us. */
static int close_up(struct follow *f, int code)
{
	struct why why = {0};

	if (follow_let_go(f, &why) < 0)
		code = cli_fail(&why);
	keep_leases(f, NULL);
	for (size_t i = 0; i < f->count; i++) {
		const struct follow_replica *r = &f->replicas[i];

		if (!r->touched || r->state == PLAN_NEW || r->state == PLAN_OLD ||
		    r->state == PLAN_AWAY)
			continue;
		code = cli_error("%s stays %s", r->url, plan_name(r->state));
	}
	if (follow_metrics(f) < 0)
		code = cli_error("--metrics: %s cannot be written", SHOWN(f->set.metrics));
	return code;
}

int verb_follow(int argc, char **argv)
{
	struct follow f = {.signal_fd = -1, .mount = {.dot_fd = -1, .newest_fd = -1}};
	struct cli_line line;
	struct why why = {0};
	int ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret < 0)
		ret = parse_settings(&line, &f.set);
	if (ret >= 0)
		return ret;
	ret = add_replicas(&f, &line, &why);
	if (ret == 0)
		ret = take_signals(&f, &why);
	if (ret == 0)
		ret = follow_mount_open(line.args[0], &f.mount, &why);
	if (ret == 0)
		ret = start_http(&f, line.value[OPT_CA], &why);
	if (ret == 0)
		ret = learn(&f, line.value[OPT_START], &why);
	if (ret == 0)
		ret = close_up(&f, loop(&f));
	else if (ret == -ECANCELED)
		ret = EXIT_CODE_OK;
	else
		ret = cli_fail(&why);
	follow_http_free(f.http);
	follow_mount_close(&f.mount);
	for (size_t i = 0; i < f.count; i++)
		free(f.replicas[i].url);
	free(f.replicas);
	if (f.signal_fd >= 0)
		close(f.signal_fd);
	return ret;
}
