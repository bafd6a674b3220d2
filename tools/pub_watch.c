/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch: looks, picks the next checkpoint, publishes it, waits.
 *
 * Looking is a listing (pub_found.h), whenever inotify says that something may have changed and
 * every POLL_MS anyway, for file systems that tell nothing.  The next one is the first that is not
 * done; one that is not finished holds back those behind it as long as it still changes, so that
 * numbers go up.  With versions from names, what is not above the newest one is left out.
 *
 * The record is a line per checkpoint, "SIGNATURE NAME", of what is still there and done.
 *
 * One thread.  Signals come through a pipe, since another thread may be the one that gets them.
 */
#include "tools/pub_watch.h"

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/log.h"
#include "fs/human.h"
#include "tools/cli.h"
#include "tools/pub_found.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	POLL_MS = 2000,
	RECORD_MAX = 16 << 20,
	TRIES = 5,	  /* of a damaged checkpoint that others wait for */
	BACKOFF_MAX = 60, /* seconds */
	HOLD = 10,	  /* settle times that an unfinished one may hold back others */
};

/* What has been done with a checkpoint, or tried. */
struct known {
	char *name;
	uint64_t signature;
	int64_t retry_ns; /* monotonic */
	unsigned tries;
	bool done, told;
};

struct watching {
	const struct pub_watch_options *o;
	struct publisher *p;
	struct store *dir;
	struct found_list list;
	struct known *known;
	size_t known_count;
	char *record; /* path; NULL: nothing is remembered */
	uint64_t newest;
	bool failed; /* something could not be published */
};

/* ---- signals ---- */

static struct {
	atomic_int count;
	int pipe[2];
	struct publisher *p;
} signals = {.pipe = {-1, -1}};

static void on_signal(int number)
{
	const int saved = errno;

	(void)number;
	if (atomic_fetch_add(&signals.count, 1) > 0)
		pub_stop(signals.p);
	if (write(signals.pipe[1], "", 1) < 0) {
		/* The pipe is full: it has been heard. */
	}
	errno = saved;
}

static bool ending(void)
{
	return atomic_load(&signals.count) > 0;
}

static int take_signals(struct publisher *p, struct why *why)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	signals.p = p;
	atomic_store(&signals.count, 0);
	if (pipe2(signals.pipe, O_CLOEXEC | O_NONBLOCK) < 0)
		return why_set(why, errno, "no pipe can be made: %s", strerrordesc_np(errno));
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	return 0;
}

/* ---- what is done ---- */

static struct known *known_find(const struct watching *w, const char *name)
{
	for (size_t i = 0; i < w->known_count; i++)
		if (strcmp(w->known[i].name, name) == 0)
			return &w->known[i];
	return NULL;
}

/* The entry of a checkpoint as it is now; NULL: out of memory.  It begins anew when the weights are
 * others. */
static struct known *known_get(struct watching *w, const char *name, uint64_t signature)
{
	struct known *k = known_find(w, name), *v;

	if (k == NULL) {
		v = reallocarray(w->known, w->known_count + 1, sizeof(*v));
		if (v == NULL)
			return NULL;
		w->known = v;
		k = &v[w->known_count];
		*k = (struct known){.name = strdup(name), .signature = signature};
		if (k->name == NULL)
			return NULL;
		w->known_count++;
	}
	if (k->signature != signature)
		*k = (struct known){.name = k->name, .signature = signature};
	return k;
}

/* A name of its own for each destination. */
static int record_path(struct watching *w)
{
	uint64_t sum = UINT64_C(0xcbf29ce484222325);

	for (const char *s = w->o->dest; *s != '\0'; s++)
		sum = (sum ^ (uint8_t)*s) * UINT64_C(0x100000001b3);
	if (asprintf(&w->record, "%s/.weightfs-published-%016" PRIx64, w->o->dir, sum) < 0) {
		w->record = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void record_read(struct watching *w)
{
	char *text = NULL, *line, *next;
	size_t len;

	if (file_slurp(AT_FDCWD, w->record, RECORD_MAX, &text, &len) < 0)
		return;
	for (line = text; *line != '\0'; line = next) {
		struct known *k;
		uint64_t signature;
		char *name;

		next = strchrnul(line, '\n');
		if (*next != '\0')
			*next++ = '\0';
		signature = strtoull(line, &name, 16);
		if (name != line + 16 || *name != ' ')
			continue; /* of another version, or damaged: published once more */
		k = known_get(w, name + 1, signature);
		if (k != NULL)
			k->done = true;
	}
	free(text);
}

/* Of those that are still there. */
static void record_write(struct watching *w)
{
	struct buf b = {0};
	int err;

	for (size_t i = 0; w->record != NULL && i < w->list.count; i++) {
		const struct known *k = known_find(w, w->list.v[i].name);

		if (k != NULL && k->done && strchr(k->name, '\n') == NULL)
			buf_addf(&b, "%016" PRIx64 " %s\n", k->signature, k->name);
	}
	if (w->record != NULL && !b.failed) {
		err = file_replace(w->record, b.data != NULL ? b.data : "", b.len);
		if (err < 0) {
			cli_error("%s cannot be written (%s), so a watch that starts again may "
				  "publish a checkpoint once more",
				  w->record, errno_text(err));
			free(w->record);
			w->record = NULL;
		}
	}
	buf_release(&b);
}

/* ---- which one ---- */

static bool any_numbered(const struct watching *w)
{
	for (size_t i = 0; i < w->list.count; i++)
		if (w->list.v[i].numbered)
			return true;
	return false;
}

/* One that will never be published; said once. */
static bool left_out(struct watching *w, const struct found *f, struct known *k)
{
	const char *reason = NULL;

	if (w->o->count_versions)
		return false;
	if (!f->numbered && any_numbered(w))
		reason = "its name has no number, and others have (--version-from count counts)";
	else if (f->numbered && f->number == 0)
		reason = "versions begin at 1";
	else if (f->numbered && f->number <= w->newest)
		reason = "the newest version is not below it (--new-run begins a new run, "
			 "--version-from count counts)";
	if (reason != NULL && !k->told)
		cli_error("%s is not published: %s", SHOWN(f->path), reason);
	k->told |= reason != NULL;
	return reason != NULL;
}

struct choice {
	struct found *next;
	int64_t again_ns; /* when to look again; INT64_MAX: when something happens */
	bool waiting;	  /* something may still become finished */
};

/* The first that is not done and can be published now. */
static void choose(struct watching *w, int64_t now, struct choice *out)
{
	*out = (struct choice){.again_ns = INT64_MAX};
	for (size_t i = 0; i < w->list.count; i++) {
		struct found *f = &w->list.v[i];
		struct known *k = known_get(w, f->name, f->signature);
		int64_t again;

		if (k == NULL || k->done || left_out(w, f, k))
			continue;
		if (k->retry_ns > now) {
			out->again_ns = MIN(out->again_ns, k->retry_ns);
			out->waiting = true;
			if (k->tries < TRIES && !w->o->latest_only)
				return; /* those behind it wait, too */
			continue;
		}
		if (found_finished(f, w->o->settle_ns, now, &again)) {
			out->next = f;
			if (!w->o->latest_only)
				return;
			continue;
		}
		if (again < 0)
			again = f->quiet_ns + HOLD * w->o->settle_ns;
		if (again <= now) { /* given up by who wrote it, or so it seems */
			if (!k->told)
				cli_error("%s is not finished: %s", SHOWN(f->path), f->why.text);
			k->told = true;
			continue;
		}
		out->again_ns = MIN(out->again_ns, again);
		out->waiting = true;
		if (!w->o->latest_only && out->next == NULL)
			return;
	}
}

/* All in front of it are passed over. */
static void skip_older(struct watching *w, const struct found *next)
{
	for (size_t i = 0; i < w->list.count && &w->list.v[i] != next; i++) {
		struct found *f = &w->list.v[i];
		struct known *k = known_get(w, f->name, f->signature);

		if (k != NULL && !k->done && f->numbered == next->numbered) {
			log_info("%s: passed over for %s", f->path, next->name);
			k->done = true;
		}
	}
}

/* ---- publishing ---- */

static void report(const struct watching *w, const struct pub_report *r)
{
	if (r->note[0] != '\0')
		log_warning("%s", r->note);
	if (w->o->json)
		pub_report_json(r, w->o->dest);
	else if (!w->o->quiet)
		pub_report_print(r, w->o->dest);
	fflush(stdout);
}

/* -errno for what ends the watch. */
static int publish_one(struct watching *w, struct found *f, struct why *why)
{
	const bool numbered = f->numbered && !w->o->count_versions;
	struct known *k = known_get(w, f->name, f->signature);
	struct pub_report r = {0};
	struct why own = {0};
	int64_t wait;
	int err;

	if (k == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (w->o->latest_only)
		skip_older(w, f);
	err = pub_publish(w->p, f->path, numbered ? &f->number : NULL, &r, &own);
	if (err == 0) {
		k->done = true;
		w->newest = r.version;
		record_write(w);
		report(w, &r);
		return 0;
	}
	if (ending())
		return 0;
	if (err == -EBUSY || err == -ENOMEM) {
		if (why != NULL)
			*why = own;
		return err;
	}
	k->tries++;
	w->failed = true;
	wait = MIN(INT64_C(1) << MIN(k->tries - 1, 10U), (int64_t)BACKOFF_MAX);
	k->retry_ns = clock_mono_ns() + wait * NSEC_PER_SEC;
	if (w->o->once) {
		k->retry_ns = INT64_MAX;
		k->tries = TRIES;
		cli_error("%s: %s", SHOWN(f->path), own.text);
	} else {
		cli_error("%s: %s; it is tried again in %" PRId64 " s", SHOWN(f->path), own.text,
			  wait);
	}
	return 0;
}

static void wait_for_more(struct watching *w, int64_t again_ns, int64_t now)
{
	struct pollfd fds[2] = {
		{.fd = signals.pipe[0], .events = POLLIN},
		{.fd = store_watch_fd(w->dir), .events = POLLIN},
	};
	int64_t ms = POLL_MS;

	if (again_ns != INT64_MAX)
		ms = MIN(ms, MAX((again_ns - now) / 1000000 + 1, INT64_C(1)));
	if (poll(fds, 2, (int)ms) > 0 && fds[1].revents != 0) {
		store_watch_drain(w->dir);
		/* A writer makes many events: one look at all of them. */
		poll(fds, 1, 50);
	}
}

/* A listing that fails is reported once, and tried again. */
static bool look(struct watching *w, bool *io_said)
{
	struct why why = {0};
	struct pub_places places;
	int err;

	pub_own_places(w->p, &places);
	err = found_scan(w->dir, w->o->dir, &places, clock_mono_ns(), &w->list, &why);

	if (err < 0 && !*io_said)
		cli_error("%s: %s", w->o->dir, why.text);
	*io_said = err < 0;
	return err == 0;
}

static int run(struct watching *w, struct why *why)
{
	bool said = false;
	int err;

	if (!w->o->new_run)
		record_read(w);
	do { /* where the network is down at the start, it may come up */
		err = w->o->new_run ? 0 : pub_newest(w->p, &w->newest, why);
		if (err < 0 && (err != -ETIMEDOUT || w->o->once))
			return err;
		if (err < 0)
			cli_error("%s", why->text);
	} while (err < 0 && !ending());
	while (!ending()) {
		struct choice c = {.again_ns = INT64_MAX};

		if (look(w, &said))
			choose(w, clock_mono_ns(), &c);
		if (c.next != NULL && ending())
			break;
		if (c.next != NULL) {
			err = publish_one(w, c.next, why);
			if (err < 0)
				return err;
			continue;
		}
		if (w->o->once && (said || !c.waiting || c.again_ns == INT64_MAX))
			break;
		wait_for_more(w, c.again_ns, clock_mono_ns());
	}
	if (w->o->once && (w->failed || said))
		return why_set(why, EIO, "%s: not everything could be published", w->o->dir);
	return 0;
}

int pub_watch(struct publisher *p, const struct pub_watch_options *options, struct why *why)
{
	struct watching w = {.o = options, .p = p};
	int err = store_dir_new(options->dir, true, &w.dir, why);

	if (err == 0 && pub_is_dest(p, options->dir))
		err = why_set(why, EINVAL,
			      "the watched directory and the destination are one: the run would "
			      "be taken for checkpoints");
	if (err == 0)
		err = take_signals(p, why);
	if (err == 0 && record_path(&w) < 0)
		err = why_set(why, ENOMEM, "out of memory");
	if (err == 0)
		err = run(&w, why);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	for (size_t i = 0; i < 2; i++)
		if (signals.pipe[i] >= 0)
			close(signals.pipe[i]);
	found_release(&w.list);
	for (size_t i = 0; i < w.known_count; i++)
		free(w.known[i].name);
	free(w.known);
	free(w.record);
	store_free(w.dir);
	return err;
}
