/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that notices new objects.  It sleeps in poll() on the store's notification and on an
 * eventfd by which requests wake it, scans when one of them says so or when the poll interval is
 * over, and does what was asked for in between: it is the only caller of run_scan() and
 * run_build().
 *
 * Not here: what a scan finds and which generation results (run), which one is shown (history).
 *
 * Scans are counted: a refresh that waits is satisfied by the end of a scan whose number is above
 * all that had begun when it asked.  Requests for a version live on the stack of the thread that
 * waits for them; they leave the queue done, or cancelled when the thread ends.
 *
 * This is also where the outcome of a scan is logged, but for what run says itself (new problems,
 * versions that are ready): a listing that fails, once per sentence, recoveries, and new notes.
 *
 * Threads: one of our own; everything in struct watch that changes is under `lock` (LOCK_QUEUE) or,
 * where it says so, belongs to that thread.
 */
#include "fs/watch.h"

#include "cache/clock.h"
#include "cache/lock.h"
#include "cache/log.h"
#include "cache/thread.h"
#include "fs/counters.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MSEC INT64_C(1000000)

static const int64_t UNSETTLED_NS = 200 * MSEC; /* rounds while an object is being written */
static const int64_t COALESCE_MIN_NS = 10 * MSEC;
static const int64_t COALESCE_MAX_NS = NSEC_PER_SEC;
static const int64_t TICK_NS = NSEC_PER_SEC;
static const int64_t RARELY_NS = 5 * NSEC_PER_SEC;

struct pin {
	uint64_t version; /* as asked for; when done, what is pinned */
	struct why *why;
	struct pin *next;
	int err;
	bool done;
};

struct watch {
	struct run *run;	 /* borrowed */
	struct history *history; /* borrowed */
	struct turns *turns;	 /* borrowed, or NULL */
	const char *subject;	 /* likewise */
	int64_t poll_ns;
	int store_fd; /* borrowed from the store, or -1 */
	int wake_fd;
	pthread_t thread;

	struct lock lock;
	struct condition done; /* a scan has ended, a pin is done, or the thread ends */
	bool started;	       /* there is a thread to join */
	bool running, stop, scan_wanted;
	bool asked; /* for a scan, by somebody who wants to know */
	uint64_t scans_begun, scans_ended;
	int scan_err;	   /* of the scan that ended last */
	struct pin *first; /* queue of requests */
	struct pin **last;

	/* the thread's own */
	int64_t scan_start, scan_cost; /* monotonic time of the last scan, and how long it took */
	char *failure;		       /* the sentence of the listing that fails, or NULL */
	struct run_report *report;     /* the one of the scan before, or NULL */
	uint64_t newest;
	char newest_lineage[9];
	uint64_t expired; /* holds that have run out, as far as told */
};

int watch_new(struct run *run, struct history *history, int64_t poll_ns, struct watch **out)
{
	struct watch *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return -ENOMEM;
	w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w->wake_fd < 0) {
		int err = errno;

		free(w);
		return -err;
	}
	w->run = run;
	w->history = history;
	w->poll_ns = poll_ns;
	w->store_fd = store_watch_fd(run_store(run));
	w->last = &w->first;
	lock_init(&w->lock, LOCK_QUEUE);
	condition_init(&w->done);
	*out = w;
	return 0;
}

void watch_free(struct watch *w)
{
	if (w == NULL)
		return;
	watch_stop(w);
	run_report_unref(w->report);
	free(w->failure);
	condition_destroy(&w->done);
	lock_destroy(&w->lock);
	close(w->wake_fd);
	free(w);
}

static void wake(struct watch *w)
{
	uint64_t one = 1;

	/* A full counter is as good a wake-up as any. */
	if (write(w->wake_fd, &one, sizeof(one)) < 0)
		return;
}

/* ---- logging a round ---- */

static void log_listing(struct watch *w, int err, const struct why *why)
{
	if (err == 0) {
		if (w->failure != NULL)
			log_info("%s can be listed again", run_store(w->run)->name);
		free(w->failure);
		w->failure = NULL;
		return;
	}
	/* Called off, because the mount ends. */
	if (err == -ECANCELED || (w->failure != NULL && strcmp(w->failure, why->text) == 0))
		return;
	free(w->failure);
	w->failure = strdup(why->text);
	log_error("%s; what is shown stays", why->text);
}

static bool has_problem(const struct run_report *report, const char *object)
{
	for (size_t i = 0; report != NULL && i < report->problem_count; i++)
		if (strcmp(report->problems[i].object, object) == 0)
			return true;
	return false;
}

static bool has_note(const struct run_report *report, const char *note)
{
	for (size_t i = 0; report != NULL && i < report->note_count; i++)
		if (strcmp(report->notes[i], note) == 0)
			return true;
	return false;
}

static void log_report(struct watch *w)
{
	struct run_report *now = run_report(w->run), *before = w->report;

	if (now == before) {
		run_report_unref(now);
		return;
	}
	for (size_t i = 0; before != NULL && i < before->problem_count; i++)
		if (now != NULL && before->problems[i].object[0] != '\0' &&
		    !has_problem(now, before->problems[i].object))
			log_info("%s: no longer a problem", before->problems[i].object);
	for (size_t i = 0; now != NULL && i < now->note_count; i++)
		if (!has_note(before, now->notes[i]))
			log_info("%s", now->notes[i]);
	run_report_unref(before);
	w->report = now;
}

/* run has logged it; here it counts. */
static void count_newest(struct watch *w)
{
	struct generation *g = history_newest(w->history);

	if (g != NULL && g->state != NULL &&
	    (g->version != w->newest || strcmp(g->lineage, w->newest_lineage) != 0)) {
		COUNT(versions_published, 1);
		w->newest = g->version;
		memcpy(w->newest_lineage, g->lineage, sizeof(w->newest_lineage));
	}
	generation_unref(g);
}

static void log_expired(struct watch *w)
{
	char command[16];
	int pid;
	uint64_t expired = history_expired(w->history, &pid, command);

	if (expired != w->expired)
		log_warning("process %d (%s) has been loading by plain path for --max-hold: the "
			    "plain paths move on, what it has open stays what it is",
			    pid, SHOWN(command));
	w->expired = expired;
}

/* ---- the thread's work ---- */

static void scan(struct watch *w)
{
	struct why why = {0};
	bool asked;
	int err;

	lock_take(&w->lock);
	asked = w->asked;
	w->scan_wanted = w->asked = false;
	w->scans_begun++;
	lock_release(&w->lock);

	w->scan_start = clock_mono_ns();
	if (w->store_fd >= 0)
		store_watch_drain(run_store(w->run));
	if (asked)
		store_refresh(run_store(w->run));
	turns_take(w->turns);
	err = run_scan(w->run, &why);
	turns_give(w->turns);
	if (err < 0 && why.text[0] == '\0')
		why_set(&why, -err, "cannot list %s", run_store(w->run)->name);
	w->scan_cost = clock_mono_ns() - w->scan_start;
	log_listing(w, err, &why);
	log_report(w);
	count_newest(w);

	lock_take(&w->lock);
	w->scans_ended++;
	w->scan_err = err;
	condition_broadcast(&w->done);
	lock_release(&w->lock);
}

static int build_pinned(struct watch *w, uint64_t *version, struct why *why)
{
	struct generation *g;
	int err;

	turns_take(w->turns);
	err = run_build(w->run, *version, &g, why);
	turns_give(w->turns);

	if (err < 0)
		return err;
	/* A number that the trainer skipped is the version before it, which may be there. */
	*version = g->version;
	err = history_pin(w->history, *version);
	if (err == -ENOENT)
		err = history_add_pinned(w->history, g);
	generation_unref(g);
	if (err < 0)
		return why_set(why, -err, "version %llu cannot be kept",
			       (unsigned long long)*version);
	return 0;
}

static int do_pin(struct watch *w, uint64_t *version, struct why *why)
{
	int err;

	if (history_pin(w->history, *version) == 0)
		return 0;
	err = build_pinned(w, version, why);
	if (err != -ENOENT)
		return err;
	/* It may have arrived since the last look. */
	scan(w);
	if (history_pin(w->history, *version) == 0)
		return 0;
	return build_pinned(w, version, why);
}

static void do_pins(struct watch *w)
{
	for (;;) {
		struct why why = {0};
		struct pin *pin;
		uint64_t version;
		int err;

		lock_take(&w->lock);
		pin = w->first;
		version = pin != NULL ? pin->version : 0;
		lock_release(&w->lock);
		if (pin == NULL)
			return;
		err = do_pin(w, &version, &why);
		lock_take(&w->lock);
		w->first = pin->next;
		if (w->first == NULL)
			w->last = &w->first;
		pin->err = err;
		pin->version = version;
		if (err < 0 && pin->why != NULL)
			*pin->why = why;
		pin->done = true;
		condition_broadcast(&w->done);
		lock_release(&w->lock);
	}
}

/* Sleeps until something is to be done; true when the store says that it changed. */
static bool sleep_until(struct watch *w, int64_t until, bool listen)
{
	struct pollfd fds[2] = {{.fd = w->wake_fd, .events = POLLIN},
				{.fd = listen ? w->store_fd : -1, .events = POLLIN}};
	int64_t left = until - clock_mono_ns();
	struct timespec ts = clock_timespec(left > 0 ? left : 0);
	uint64_t count;

	if (ppoll(fds, 2, &ts, NULL) <= 0)
		return false;
	if (fds[0].revents != 0 && read(w->wake_fd, &count, sizeof(count)) < 0)
		return false;
	if ((fds[1].revents & (POLLERR | POLLNVAL)) != 0)
		w->store_fd = -1; /* polling remains */
	return (fds[1].revents & POLLIN) != 0;
}

/* When to wake by ourselves: the next look at the store, a second's tick, the end of a hold. */
static int64_t next_wake(struct watch *w, int64_t next_scan)
{
	int64_t now = clock_mono_ns(), until = MIN(next_scan, now + TICK_NS);

	return MIN(until, history_wake_at(w->history));
}

static int64_t next_scan(const struct watch *w)
{
	int64_t gap = w->poll_ns;

	if (run_unsettled(w->run))
		gap = MIN(gap, UNSETTLED_NS);
	else if (w->store_fd >= 0)
		gap = MAX(gap, MIN(20 * w->scan_cost, RARELY_NS));
	/* A place that takes long to list is not listed all the time, the less so if it tells of
	 * changes by itself. */
	return w->scan_start + MAX(gap, 2 * w->scan_cost);
}

static bool take_wants(struct watch *w, bool *out_scan)
{
	bool go;

	lock_take(&w->lock);
	*out_scan = w->scan_wanted;
	go = !w->stop;
	lock_release(&w->lock);
	return go;
}

static void cancel_all(struct watch *w)
{
	lock_take(&w->lock);
	w->running = false;
	for (struct pin *pin = w->first; pin != NULL; pin = pin->next) {
		pin->err = -ECANCELED;
		pin->done = true;
	}
	w->first = NULL;
	w->last = &w->first;
	condition_broadcast(&w->done);
	lock_release(&w->lock);
}

static void *watch_main(void *arg)
{
	struct watch *w = arg;
	bool asked = true;

	log_set_subject(w->subject);
	while (take_wants(w, &asked)) {
		bool changed = false;

		if (!asked && clock_mono_ns() < next_scan(w)) {
			changed = sleep_until(w, next_wake(w, next_scan(w)), true);
			/* One upload makes several events; a wake-up by request ends the wait. */
			if (changed)
				sleep_until(w,
					    clock_mono_ns() +
						    MIN(MAX(w->scan_cost, COALESCE_MIN_NS),
							COALESCE_MAX_NS),
					    false);
			if (!take_wants(w, &asked))
				break;
		}
		if (asked || changed || clock_mono_ns() >= next_scan(w))
			scan(w);
		do_pins(w);
		history_tick(w->history);
		log_expired(w);
	}
	cancel_all(w);
	return NULL;
}

/* ---- for everybody else ---- */

int watch_start(struct watch *w)
{
	int err;

	lock_take(&w->lock);
	w->scan_wanted = w->running = true;
	w->stop = false;
	lock_release(&w->lock);
	run_stop(w->run, false);
	err = thread_start(&w->thread, "watch", watch_main, w);
	if (err < 0) {
		cancel_all(w);
		return err;
	}
	w->started = true;
	return 0;
}

static void end(struct watch *w, bool stop_store)
{
	bool join;

	lock_take(&w->lock);
	join = w->started;
	w->started = false;
	w->stop = true;
	lock_release(&w->lock);
	if (!join)
		return;
	run_stop(w->run, true);
	/* A listing under way may be waiting for a network that is not there. */
	if (stop_store)
		store_stop(run_store(w->run));
	wake(w);
	pthread_join(w->thread, NULL);
}

void watch_stop(struct watch *w)
{
	end(w, true);
}

void watch_retire(struct watch *w)
{
	end(w, false);
}

void watch_share(struct watch *w, struct turns *turns, const char *subject)
{
	w->turns = turns;
	w->subject = subject;
}

bool watch_scanned(struct watch *w)
{
	bool yes;

	lock_take(&w->lock);
	yes = w->scans_ended > 0;
	lock_release(&w->lock);
	return yes;
}

static int request(struct watch *w, bool wait, bool ask)
{
	uint64_t number;
	int err;

	lock_take(&w->lock);
	number = w->scans_begun + 1;
	w->scan_wanted = true;
	w->asked |= ask;
	wake(w);
	while (wait && w->running && w->scans_ended < number)
		(void)condition_wait(&w->done, &w->lock, -1);
	if (!w->running)
		err = -ECANCELED;
	else
		err = wait ? w->scan_err : 0;
	lock_release(&w->lock);
	return err;
}

int watch_refresh(struct watch *w, bool wait)
{
	return request(w, wait, true);
}

int watch_look(struct watch *w)
{
	return request(w, true, false);
}

int watch_pin(struct watch *w, uint64_t version, uint64_t *out_pinned, struct why *why)
{
	struct pin pin = {.version = version, .why = why, .err = -ECANCELED};

	lock_take(&w->lock);
	if (w->running) {
		*w->last = &pin;
		w->last = &pin.next;
		wake(w);
		while (!pin.done)
			(void)condition_wait(&w->done, &w->lock, -1);
	}
	lock_release(&w->lock);
	if (pin.err == -ECANCELED)
		why_set(why, ECANCELED, "the mount is being taken down");
	if (pin.err == 0 && out_pinned != NULL)
		*out_pinned = pin.version;
	return pin.err;
}
