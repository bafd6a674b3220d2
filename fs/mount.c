/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a mount:
 *
 *	fork -> log -> stack -> mount point -> first scan -> session -> mount(2) -> signals, watch,
 *ready threads -> loop ... end of the loop -> watch stops -> unmount -> all is freed
 *
 * Whatever fails before the loop is told in one sentence and leaves nothing behind.  The loop ends
 *when somebody unmounts, or on a signal; then we unmount ourselves, lazily, and close the
 *connection, so that programs that still have files open get errors instead of keeping us.
 *
 * Once the kernel has been answered (the ready thread looks at the root to know), the read-ahead
 * window can be set (before, INIT would set it back), and what uses the mount itself begins: the
 * herald and the preparing thread.  Then the mount counts as usable.
 *
 * Threads: main runs the loop; workers of libfuse; the signal thread; the ready thread; the watch;
 * herald and preparing thread.  All are started after the fork and joined before the end: those
 * that use the mount after the connection was closed, which is what ends a request of theirs.
 */
#include "fs/mount.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/fileio.h"
#include "cache/log.h"
#include "fs/apart.h"
#include "fs/daemon.h"
#include "fs/gate.h"
#include "fs/herald.h"
#include "fs/mountpoint.h"
#include "fs/ops.h"
#include "fs/prepare.h"
#include "fs/reply.h"
#include "fs/roster.h"
#include "fs/settings.h"
#include "fs/status.h"

enum { WORKERS_MIN = 16, WORKERS_MAX = 1024 };

struct mount {
	struct opts *opts;
	struct daemon daemon;
	struct stack *stack;
	struct front *front;
	struct roster *roster; /* NULL: the source is one run */
	struct fuse_session *session;
	struct daemon_signals *signals;
	struct device device;	 /* of the session; outlives the nodes */
	struct prepare *prepare; /* these two: the ready thread's until it was joined */
	struct herald *herald;
	char *point; /* resolved */
	pthread_t ready_thread;
	bool log_elsewhere; /* the log is not the terminal: tell it, too, what the terminal is told
			     */
	bool ready_started;
	struct why ready_why;	/* of the ready thread; read after it was joined */
	struct why through_why; /* why nothing can be passed through */
};

static char
	fuse_said[300]; /* the last thing libfuse complained about; main thread, before the loop */

static void fuse_log_line(enum fuse_log_level level, const char *fmt, va_list args)
{
	char line[300];

	vsnprintf(line, sizeof(line), fmt, args);
	line[strcspn(line, "\n")] = 0;
	log_at(level <= FUSE_LOG_ERR	   ? LOG_LEVEL_ERROR
	       : level <= FUSE_LOG_WARNING ? LOG_LEVEL_WARNING
					   : LOG_LEVEL_DEBUG,
	       "libfuse: %s", line);
}

static void fuse_log_keep(enum fuse_log_level level, const char *fmt, va_list args)
{
	if (level > FUSE_LOG_WARNING)
		return;
	vsnprintf(fuse_said, sizeof(fuse_said), fmt, args);
	fuse_said[strcspn(fuse_said, "\n")] = 0;
}

/* ---- the options of the kernel mount ---- */

/* Appends a value in which commas and backslashes are escaped for libfuse. */
static void add_escaped(struct buf *b, const char *value)
{
	for (; *value; value++) {
		if (*value == ',' || *value == '\\')
			buf_add(b, "\\", 1);
		buf_add(b, value, 1);
	}
}

/* The user's -o words without "nonempty", which libfuse does not know any more. */
static void add_user_options(struct buf *b, const char *list, bool *out_nonempty)
{
	while (*list) {
		size_t len = strcspn(list, ",");

		if (len == strlen("nonempty") && strncmp(list, "nonempty", len) == 0) {
			*out_nonempty = true;
		} else if (len) {
			buf_add(b, ",", 1);
			buf_add(b, list, len);
		}
		list += len + (list[len] == ',');
	}
}

static int kernel_options(struct mount *m, struct buf *out, bool *out_nonempty, struct why *why)
{
	buf_addstr(out, "subtype=weightfs,default_permissions,nosuid,nodev,fsname=");
	add_escaped(out, m->stack->store->name);
	if (m->opts->allow_other)
		buf_addstr(out, ",allow_other");
	add_user_options(out, buf_str(&m->opts->fuse), out_nonempty);
	return out->failed ? why_set(why, ENOMEM, "out of memory") : 0;
}

static bool fuse_conf_allows_other(void)
{
	FILE *f = fopen("/etc/fuse.conf", "re");
	char line[200];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *word = line + strspn(line, " \t");

		word[strcspn(word, " \t\r\n")] = 0;
		found = strcmp(word, "user_allow_other") == 0;
	}
	if (f)
		fclose(f);
	return found;
}

/* ---- what has to be right before ---- */

static int check_rights(const struct opts *o, struct why *why)
{
	int fd;

	if (o->allow_other && geteuid() != 0 && !fuse_conf_allows_other())
		return why_set(why, EPERM,
			       "--allow-other needs the line user_allow_other in /etc/fuse.conf "
			       "when an ordinary user mounts");
	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return why_set(why, errno,
			       "/dev/fuse cannot be opened: %s (is the fuse module loaded? a "
			       "container needs --device /dev/fuse --cap-add SYS_ADMIN)",
			       strerrordesc_np(errno));
	close(fd);
	return 0;
}

/* A filesystem that reads its source through itself would wait for itself. */
static int check_apart(const char *point, const char *path, const char *what, struct why *why)
{
	char shown[200], *full = path ? realpath(path, NULL) : NULL;
	bool bad = full && (path_inside(point, full) || path_inside(full, point));

	free(full);
	return bad ? why_set(why, EINVAL, "the mount point %s and %s must not lie in each other",
			     printable(shown, sizeof(shown), point, strlen(point)), what)
		   : 0;
}

static int check_point(struct mount *m, bool nonempty, struct why *why)
{
	const struct opts *o = m->opts;
	int ret = mountpoint_resolve(o->mountpoint, &m->point, why);

	if (ret == 0)
		ret = mountpoint_prepare(m->point, nonempty, why);
	if (ret == 0)
		ret = check_apart(m->point, o->source, "the source", why);
	if (ret == 0)
		ret = check_apart(m->point, o->base, "--base", why);
	if (ret == 0)
		ret = check_apart(m->point, o->cache_dir, "--cache-dir", why);
	return ret;
}

/* Objects that versions are made of, and large companions, are held by descriptor. */
static void raise_open_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int open_log(struct mount *m, struct why *why)
{
	const struct opts *o = m->opts;
	char shown[200];
	int ret = 0;

	log_set_level((enum log_level)o->log_level);
	if (o->log_file)
		ret = log_open_file(o->log_file);
	else if (!o->foreground)
		log_use_syslog();
	m->log_elsewhere = ret == 0 && (o->log_file || !o->foreground);
	return ret < 0 ? why_set(why, -ret, "the log file %s cannot be opened: %s",
				 printable(shown, sizeof(shown), o->log_file, strlen(o->log_file)),
				 strerrordesc_np(-ret))
		       : 0;
}

/* ---- session ---- */

/* mount(2), or fusermount3, whose words on stderr belong into our one sentence. */
static int session_mount(struct mount *m, struct why *why)
{
	int said = memfd_create("said", MFD_CLOEXEC), terminal = dup(STDERR_FILENO), ret;
	char text[300] = "";

	if (said >= 0 && terminal >= 0)
		dup2(said, STDERR_FILENO);
	ret = fuse_session_mount(m->session, m->point);
	if (said >= 0 && terminal >= 0) {
		dup2(terminal, STDERR_FILENO);
		if (pread(said, text, sizeof(text) - 1, 0) < 0)
			text[0] = 0;
		text[strcspn(text, "\n")] = 0;
	}
	if (said >= 0)
		close(said);
	if (terminal >= 0)
		close(terminal);
	return ret ? why_set(why, EPERM, "%s cannot be mounted on: %s", m->point,
			     text[0]	    ? text
			     : fuse_said[0] ? fuse_said
					    : "the kernel refused")
		   : 0;
}

static int session_new(struct mount *m, const char *options, struct why *why)
{
	/* libfuse does not change them; its type is older than that promise. */
	char *argv[] = {(char *)"weightfs", (char *)"-o", (char *)options, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);

	fuse_set_log_func(fuse_log_keep);
	m->session = fuse_session_new(&args, &front_ops, sizeof(front_ops), m->front);
	fuse_opt_free_args(&args);
	if (!m->session)
		return why_set(why, EINVAL, "the mount options are refused: %s",
			       fuse_said[0] ? fuse_said : options);
	m->device.session = m->session;
	m->front->passthrough.device = &m->device;
	return session_mount(m, why);
}

static int session_loop(struct mount *m)
{
	unsigned workers = MAX(m->opts->threads, (unsigned)WORKERS_MIN);
#if FUSE_USE_VERSION >= 312
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int ret;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_clone_fd(config, 0);
	/* Reads may wait for the network, as many as there are readers; whoever looks a name up
	 * must not wait with them.  More workers start when all are busy, and go when they are
	 * idle. */
	fuse_loop_cfg_set_max_threads(config, MAX(workers, (unsigned)WORKERS_MAX));
	fuse_loop_cfg_set_idle_threads(config, workers);
	ret = fuse_session_loop_mt(m->session, config);
	fuse_loop_cfg_destroy(config);
	return ret;
#else
	(void)workers; /* that libfuse starts a worker whenever all are busy, without a limit */
	return fuse_session_loop_mt(m->session, 0);
#endif
}

/* ---- ready ---- */

static int try_passthrough(void *ctx, const char *dir, struct why *why)
{
	return passthrough_try(ctx, dir, why);
}

/* What looks into our own mount, or needs an answered INIT: for the run at that point. */
static int begin_users(struct mount *m, struct stack *s, const char *point, struct herald **herald,
		       struct prepare **prepare, struct why *why)
{
	const struct prepare_config config = {
		.stack = s,
		.mountpoint = point,
		.ops = m->front->passthrough.wanted ? &passthrough_ops : NULL,
		.ops_ctx = &m->device,
		.push = settings_push,
		.push_ctx = &m->device,
		.try = try_passthrough,
		.try_ctx = &m->front->passthrough,
	};
	struct why local = m->through_why; /* why not, where it is known already */
	int ret = herald_start(s, point, herald);

	if (ret < 0)
		return why_set(why, -ret, "threads cannot be started: %s", strerrordesc_np(-ret));
	ret = prepare_start(&config, prepare, &local);
	if (ret < 0)
		*why = local;
	return ret;
}

static int start_users(struct mount *m, struct why *why)
{
	return begin_users(m, m->stack, m->point, &m->herald, &m->prepare, why);
}

static bool several(const struct mount *m)
{
	return m->roster && roster_several(m->roster);
}

static void *ready_thread(void *ctx)
{
	struct mount *m = ctx;
	struct buf line = {0};
	struct why why = {0};
	struct stat st;

	if (apart_stat(m->point, &st) < 0 || st.st_ino != INO_ROOT) {
		why_set(&m->ready_why, ENOTCONN, "the mount ended before it could be used");
		return NULL; /* unmounted, or ended by a signal, before it began */
	}
	settings_apply(st.st_dev, &m->stack->serving);
	if (m->roster && roster_settle(m->roster) < 0) {
		why_set(&m->ready_why, ECANCELED, "the mount ended before it could be used");
		return NULL;
	}
	if (!several(m) && start_users(m, &why) < 0) {
		m->ready_why = why;
		kill(getpid(), SIGTERM);
		return NULL;
	}
	if (m->roster)
		roster_usable(m->roster);
	if (several(m))
		roster_line(m->roster, &line);
	else
		status_line(m->stack, &line);
	log_info("%s on %s: %s", m->stack->store->name, m->point, buf_str(&line));
	buf_release(&line);
	daemon_ready(&m->daemon);
	return NULL;
}

/* ---- the whole ---- */

/* These three in the signal thread.  SIGHUP is logrotate's word where the log is a file, else that
 * of a terminal that is gone. */
static bool on_signal(void *ctx, int sig)
{
	const struct mount *m = ctx;
	int ret;

	if (sig != SIGHUP || !m->opts->log_file) {
		log_info("signal %d: unmounting", sig);
		return true;
	}
	ret = log_open_file(m->opts->log_file);
	if (ret < 0)
		log_error("the log file cannot be opened again: %s", strerrordesc_np(-ret));
	return false;
}

static bool is_over(void *ctx)
{
	const struct mount *m = ctx;

	return fuse_session_exited(m->session) != 0;
}

/* So that commands and reads that wait come back.  Pushes end while there still are workers: one
 * may wait for pages of a read that nobody would answer later, and holds the device open. */
static void call_off(struct mount *m)
{
	if (m->stack)
		stack_stop(m->stack);
	roster_cancel(m->roster);
	if (m->session)
		device_close(&m->device);
}

static void on_end(void *ctx)
{
	struct mount *m = ctx;

	call_off(m);
	fuse_session_exit(m->session);
}

/* Only `always` insists. */
static int want_passthrough(struct mount *m, struct why *why)
{
	int ret = passthrough_want(&m->front->passthrough, m->session, &m->through_why);

	if (ret == 0 || m->opts->materialize != MATERIALIZE_ALWAYS)
		return 0;
	*why = m->through_why;
	why_prefix(why, "--materialize always");
	return ret;
}

static int prepare(struct mount *m, struct why *why)
{
	struct buf options = {0};
	bool nonempty = false;
	int ret = open_log(m, why);

	umask(077);
	raise_open_files();
	if (ret == 0)
		ret = check_rights(m->opts, why);
	if (ret == 0)
		ret = stack_new(m->opts, true, &m->stack, why);
	if (ret == 0)
		ret = kernel_options(m, &options, &nonempty, why);
	if (ret == 0)
		ret = check_point(m, nonempty, why);
	if (ret == 0 && (ret = chdir("/")) < 0)
		ret = why_set(why, errno, "the root directory cannot be entered");
	if (ret == 0)
		prepare_gate(m->stack);
	if (ret == 0)
		ret = run_scan(m->stack->run, why);
	if (ret == 0) {
		m->front = front_new(m->stack);
		reply_init();
		if (!m->front)
			ret = why_set(why, ENOMEM, "out of memory");
	}
	daemon_signals_block();
	if (ret == 0)
		ret = session_new(m, buf_str(&options), why);
	if (ret == 0 && m->opts->materialize != MATERIALIZE_NEVER)
		ret = want_passthrough(m, why);
	buf_release(&options);
	return ret;
}

/* ---- several runs ---- */

struct users { /* of one run */
	struct prepare *prepare;
	struct herald *herald;
};

static void run_made(void *ctx, struct stack *s)
{
	struct mount *m = ctx;

	prepare_gate(s);
	history_subscribe(s->history, front_changed, m->front);
}

static void run_begun(void *ctx, struct stack *s, void **out)
{
	struct mount *m = ctx;
	struct users *u = calloc(1, sizeof(*u));
	struct why why = {0};

	if (!u)
		why_set(&why, ENOMEM, "out of memory");
	else
		(void)!begin_users(m, s, s->opts->mountpoint, &u->herald, &u->prepare, &why);
	if (why.err)
		log_error("%s: %s", s->store->name, why.text);
	*out = u;
}

static void run_ended(void *ctx, struct stack *s, void *what)
{
	struct users *u = what;

	history_subscribe(s->history, NULL, NULL);
	if (u) {
		prepare_end(u->prepare);
		herald_end(u->herald);
	}
	free(u);
}

static void runs_changed(void *ctx)
{
	const struct mount *m = ctx;

	front_changed(m->front);
}

static int start_roster(struct mount *m)
{
	static const struct roster_ops ops = {run_made, run_begun, run_ended, runs_changed};
	int ret;

	if (gate_state(m->stack->store) == GATE_ONE)
		return 0;
	ret = roster_new(m->stack, m->front->inodes, m->point, &ops, m, &m->roster);
	m->front->roster = m->roster;
	return ret < 0 ? ret : roster_start(m->roster);
}

/* Starts the threads; the mount is there. */
static int start_threads(struct mount *m, struct why *why)
{
	static const struct daemon_signal_ops signal_ops = {on_signal, is_over, on_end};
	int ret;

	fuse_set_log_func(fuse_log_line);
	daemon_mounted(&m->daemon);
	history_subscribe(m->stack->history, front_changed, m->front);
	ret = watch_start(m->stack->watch);
	if (ret == 0)
		ret = start_roster(m);
	/* After the watch, which a signal stops. */
	if (ret == 0)
		ret = daemon_signals_begin(&signal_ops, m, &m->signals);
	if (ret == 0)
		ret = -pthread_create(&m->ready_thread, NULL, ready_thread, m);
	m->ready_started = ret == 0;
	return ret < 0 ? why_set(why, -ret, "threads cannot be started: %s", strerrordesc_np(-ret))
		       : 0;
}

static void take_down(struct mount *m)
{
	/* First, because a signal may be stopping the watch at this moment. */
	daemon_signals_end(m->signals);
	call_off(m);
	if (m->session) {
		fuse_session_unmount(m->session);
		/* Its look at the root ends with the connection at the latest. */
		if (m->ready_started)
			pthread_join(m->ready_thread, NULL);
		prepare_end(m->prepare);
		herald_end(m->herald);
		roster_end(m->roster);
		fuse_session_destroy(m->session);
	}
	if (m->stack)
		history_subscribe(m->stack->history, NULL, NULL);
	front_close(m->front);
	roster_free(m->roster);
	front_free(m->front);
	stack_free(m->stack);
	free(m->point);
}

int mount_run(struct opts *opts)
{
	struct mount m = {.opts = opts};
	struct why why = {0};
	int ret = daemon_start(&m.daemon, opts->foreground, opts->ready_fd);

	if (ret >= 0)
		return ret;
	ret = prepare(&m, &why);
	if (ret == 0)
		ret = start_threads(&m, &why);
	if (ret == 0) {
		ret = session_loop(&m);
		if (ret < 0)
			why_set(&why, -ret, "serving %s ended with an error: %s", m.point,
				strerrordesc_np(-ret));
		else
			ret = 0; /* also a signal's number */
	}
	take_down(&m);
	if (ret == 0 && m.ready_why.err) {
		why = m.ready_why;
		ret = -why.err;
	}
	if (ret < 0) {
		if (m.log_elsewhere)
			log_error("%s", why.text);
		daemon_failed(&m.daemon, &why);
	} else {
		log_info("unmounted");
	}
	return ret < 0 ? 1 : 0;
}
