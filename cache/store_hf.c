/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The uploader of buckets that is a program: `hf buckets cp FILE hf://buckets/NS/NAME/KEY`, and to
 * remove one `hf buckets rm`.
 *
 * The program reads files by name.  A source that is a file with a name is given as it is; anything
 * else is written to a temporary file first.  (It can read its standard input as well, but then
 * holds all of it in memory.)
 *
 * The child has a process group of its own, no input, and all signals as they are by default; it
 * goes when the store is stopped.  Its stdout is dropped.  Of its stderr the last line with text in
 * it is kept, without terminal sequences and with the token blotted out.
 *
 * Blocks; any thread.  What changes is atomic.
 */
#include "cache/store_hf.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/child.h"
#include "cache/clock.h"
#include "cache/fileio.h"

enum { SAID_MAX = 16 << 10, TICK_MS = 100, COPY = 1 << 20, TOKEN_MAX = 4096, GRACE_S = 10 };

extern char **environ;

struct hf_store {
	struct store base;
	struct store *reader; /* owned */
	char *place, *token_file;
	atomic_bool stopping;
};

static struct hf_store *hf_of(struct store *s)
{
	return (struct hf_store *)s;
}

/* ---- the file that the program reads ---- */

/* The name of an open file, if it still is that file; malloc'ed. */
static char *name_of(int fd)
{
	char link[64], path[PATH_MAX];
	struct stat a, b;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0 || path[0] != '/')
		return NULL;
	path[n] = '\0';
	if (fstat(fd, &a) < 0 || stat(path, &b) < 0 || !S_ISREG(b.st_mode) ||
	    a.st_dev != b.st_dev || a.st_ino != b.st_ino)
		return NULL;
	return strdup(path);
}

static int copy_source(const struct source *src, int fd)
{
	uint8_t *buffer = malloc(COPY);
	int err = buffer != NULL ? 0 : -ENOMEM;

	for (uint64_t off = 0; err == 0 && off < src->size; off += COPY) {
		const size_t len = (size_t)MIN(src->size - off, (uint64_t)COPY);

		err = source_read(src, off, buffer, len);
		if (err == 0)
			err = file_pwrite(fd, buffer, len, off);
	}
	free(buffer);
	return err;
}

/* *out_path: what to give to the program; *out_own: it is ours to remove. */
static int file_for(const struct source *src, char **out_path, bool *out_own, struct why *why)
{
	const char *dir = getenv("TMPDIR");
	char *path = NULL;
	int fd = source_fd_of(src), err;

	*out_own = false;
	*out_path = fd >= 0 ? name_of(fd) : NULL;
	if (*out_path != NULL)
		return 0;
	if (asprintf(&path, "%s/weightfs-upload-XXXXXX",
		     dir != NULL && dir[0] == '/' ? dir : "/tmp") < 0)
		return why_set(why, ENOMEM, "out of memory");
	fd = mkostemp(path, O_CLOEXEC);
	err = fd < 0 ? -errno : copy_source(src, fd);
	if (fd >= 0)
		close(fd);
	if (err < 0) {
		if (fd >= 0)
			unlink(path);
		why_set(why, -err, "%s, for what is to be uploaded, cannot be written: %s",
			SHOWN(path), strerrordesc_np(-err));
		free(path);
		return err;
	}
	*out_path = path;
	*out_own = true;
	return 0;
}

/* ---- the child ---- */

/* The token of --token-file, without white space; "" when there is none. */
static int read_token(const struct hf_store *s, char token[TOKEN_MAX], struct why *why)
{
	char *text;
	size_t len, start = 0;
	int err;

	token[0] = '\0';
	if (s->token_file == NULL)
		return 0;
	err = file_slurp(AT_FDCWD, s->token_file, TOKEN_MAX - 1, &text, &len);
	if (err < 0)
		return why_set(why, -err, "the token file %s cannot be read: %s",
			       SHOWN(s->token_file), strerrordesc_np(-err));
	while (len > 0 && (uint8_t)text[len - 1] <= ' ')
		len--;
	while (start < len && (uint8_t)text[start] <= ' ')
		start++;
	memcpy(token, text + start, len - start);
	token[len - start] = '\0';
	explicit_bzero(text, len);
	free(text);
	return 0;
}

static bool replaced(const char *entry, bool token)
{
	static const char *const quiet[] = {
		"HF_HUB_DISABLE_PROGRESS_BARS=", "NO_COLOR=", "HF_HUB_DISABLE_UPDATE_CHECK="};

	for (size_t i = 0; i < ARRAY_LEN(quiet); i++)
		if (strncmp(entry, quiet[i], strlen(quiet[i])) == 0)
			return true;
	return token && strncmp(entry, "HF_TOKEN=", 9) == 0;
}

/* Ours, without bars and colours, and with the token of the file; the array is malloc'ed. */
static char **environment(char *token_entry)
{
	static char *const set[] = {(char *)"HF_HUB_DISABLE_PROGRESS_BARS=1", (char *)"NO_COLOR=1",
				    (char *)"HF_HUB_DISABLE_UPDATE_CHECK=1"};
	size_t n = 0, k = 0;
	char **env;

	while (environ[n] != NULL)
		n++;
	env = calloc(n + ARRAY_LEN(set) + 2, sizeof(*env));
	if (env == NULL)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (!replaced(environ[i], token_entry != NULL))
			env[k++] = environ[i];
	for (size_t i = 0; i < ARRAY_LEN(set); i++)
		env[k++] = set[i];
	if (token_entry != NULL)
		env[k++] = token_entry;
	return env;
}

/* Reads what it says until it has closed stderr, keeping the last SAID_MAX bytes. */
static int listen_to(struct hf_store *s, int fd, char *said, size_t *len)
{
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n;

		if (atomic_load(&s->stopping))
			return -ECANCELED;
		if (poll(&p, 1, TICK_MS) <= 0)
			continue;
		if (*len == SAID_MAX) {
			memmove(said, said + SAID_MAX / 2, SAID_MAX / 2);
			*len = SAID_MAX / 2;
		}
		n = read(fd, said + *len, SAID_MAX - *len);
		if (n == 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		*len += n > 0 ? (size_t)n : 0;
	}
}

/* Its exit code; one that does not end is ended. */
static int reap(struct hf_store *s, pid_t pid, bool kill_it)
{
	int64_t until = clock_mono_ns() + GRACE_S * NSEC_PER_SEC;
	int status = 0;

	if (kill_it)
		kill(-pid, SIGTERM);
	for (;;) {
		pid_t n = waitpid(pid, &status, WNOHANG);

		if (n == pid)
			break;
		if (n < 0 && errno != EINTR)
			return 128; /* children are not ours to wait for */
		if (clock_mono_ns() > until || (atomic_load(&s->stopping) && !kill_it)) {
			kill(-pid, SIGKILL);
			until = INT64_MAX;
			kill_it = true;
		}
		poll(NULL, 0, 10);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- what it said ---- */

/* Drops "ESC [ ... letter" and other control bytes, in place; lines stay apart. */
static void plain_text(char *text, size_t *len)
{
	size_t out = 0;

	for (size_t i = 0; i < *len; i++) {
		if (text[i] == '\033' && i + 1 < *len && text[i + 1] == '[') {
			for (i += 2; i < *len && ((uint8_t)text[i] < '@' || text[i] > '~'); i++)
				;
		} else if (text[i] == '\r') {
			text[out++] = '\n';
		} else if ((uint8_t)text[i] >= ' ' || text[i] == '\n') {
			text[out++] = text[i];
		}
	}
	*len = out;
}

static void blot_out(char *text, size_t len, const char *secret)
{
	const size_t n = secret != NULL ? strlen(secret) : 0;
	char *at = text;

	while (n > 0 && (at = memmem(at, len - (size_t)(at - text), secret, n)) != NULL)
		memset(at, '*', n);
}

/* The last line that has something to say: hints for people come in front of or behind it. */
static const char *last_line(const char *text, size_t len, size_t *out_len)
{
	while (len > 0) {
		const char *nl = memrchr(text, '\n', len), *line = nl != NULL ? nl + 1 : text;
		size_t n = len - (size_t)(line - text);

		while (n > 0 && line[n - 1] == ' ')
			n--;
		if (n > 0 && strncmp(line, "Hint:", MIN(n, (size_t)5)) != 0 &&
		    strncmp(line, "Set HF_DEBUG", MIN(n, (size_t)12)) != 0) {
			*out_len = n;
			return line;
		}
		len = nl != NULL ? (size_t)(nl - text) : 0;
	}
	return NULL;
}

static int complain(const char *verb, const char *uri, int code, char *said, size_t len,
		    const char *token, struct why *why)
{
	char shown[300];
	const char *line;
	size_t n = 0;

	plain_text(said, &len);
	blot_out(said, len, token);
	blot_out(said, len, getenv("HF_TOKEN"));
	line = last_line(said, len, &n);
	if (line == NULL)
		return why_set(why, EIO, "%s: hf buckets %s ended with exit code %d", SHOWN(uri),
			       verb, code);
	return why_set(why, EIO, "%s: hf buckets %s: %s", SHOWN(uri), verb,
		       printable(shown, sizeof(shown), line, n));
}

/* argv: "hf", "buckets", what it is to do, ..., NULL; about the object of that name. */
static int run(struct hf_store *s, char *const argv[], const char *uri, struct why *why)
{
	char entry[TOKEN_MAX + 16] = "HF_TOKEN=", *token = entry + 9;
	char *said = malloc(SAID_MAX), **env = NULL;
	size_t len = 0;
	int fd = -1, err, code = 0;
	pid_t pid = 0;

	err = read_token(s, token, why);
	if (err == 0)
		env = environment(s->token_file != NULL ? entry : NULL);
	if (err == 0 && (said == NULL || env == NULL))
		err = why_set(why, ENOMEM, "out of memory");
	if (err < 0)
		goto out;
	err = child_start_pipe(argv, env, STDERR_FILENO, CHILD_NULL, &pid, &fd);
	if (err < 0) {
		why_set(why, -err, "hf, the Hub's command line, cannot be started: %s",
			strerrordesc_np(-err));
		goto out;
	}
	err = listen_to(s, fd, said, &len);
	close(fd);
	code = reap(s, pid, err < 0);
	if (err == 0 && atomic_load(&s->stopping) && code != 0)
		err = -ECANCELED;
	if (err == -ECANCELED)
		why_set(why, ECANCELED, "%s: hf buckets %s was interrupted", SHOWN(uri), argv[2]);
	else if (err < 0)
		why_set(why, -err, "%s: hf buckets %s: %s", SHOWN(uri), argv[2],
			strerrordesc_np(-err));
	else if (code != 0)
		err = complain(argv[2], uri, code, said, len, token, why);
out:
	explicit_bzero(entry, sizeof(entry));
	free(env);
	free(said);
	return err;
}

/* ---- the store ---- */

static int hf_put(struct store *store, const char *key, const struct source *src, struct why *why)
{
	struct hf_store *s = hf_of(store);
	char *path = NULL, *uri = NULL;
	bool own = false;
	int err = file_for(src, &path, &own, why);

	if (err < 0)
		return err;
	if (asprintf(&uri, "%s/%s", s->place, key) < 0) {
		uri = NULL;
		err = why_set(why, ENOMEM, "out of memory");
	} else {
		char *argv[] = {
			(char *)"hf", (char *)"buckets", (char *)"cp", (char *)"--quiet", path, uri,
			NULL};

		err = run(s, argv, uri, why);
	}
	if (own)
		unlink(path);
	free(path);
	free(uri);
	store_refresh(s->reader);
	return err;
}

enum wanted { ANYTHING, ABSENT, PRESENT };

/* What is there, by a listing of now: -EEXIST, -ENOENT; -ESTALE when it is not `id` (NULL: any). */
static int check(struct hf_store *s, const char *key, enum wanted wanted, const struct identity *id,
		 struct why *why)
{
	struct listing now = {0};
	const struct object *object;
	int err;

	store_refresh(s->reader);
	err = store_list(s->reader, key, &now, why);
	if (err < 0)
		return err;
	object = listing_find(&now, key);
	if (wanted == ABSENT && object != NULL)
		err = why_set(why, EEXIST, "%s/%s is there already", s->place, SHOWN(key));
	else if (wanted == PRESENT && object == NULL)
		err = why_set(why, ENOENT, "%s/%s is not there", s->place, SHOWN(key));
	else if (id != NULL && (object == NULL || !identity_equal(&object->id, id)))
		err = why_set(why, ESTALE, "%s/%s was changed by somebody else", s->place,
			      SHOWN(key));
	listing_release(&now);
	return err;
}

static int hf_put_if(struct store *store, const char *key, const struct source *src,
		     const struct put_condition *condition, struct why *why)
{
	int err = check(hf_of(store), key, condition->absent ? ABSENT : ANYTHING,
			condition->replace, why);

	return err < 0 ? err : hf_put(store, key, src, why);
}

static int hf_remove(struct store *store, const char *key, const struct identity *id,
		     struct why *why)
{
	struct hf_store *s = hf_of(store);
	char *uri = NULL;
	int err = check(s, key, PRESENT, id, why);

	if (err == 0 && asprintf(&uri, "%s/%s", s->place, key) < 0) {
		uri = NULL;
		err = why_set(why, ENOMEM, "out of memory");
	}
	if (err == 0) {
		char *argv[] = {(char *)"hf",
				(char *)"buckets",
				(char *)"rm",
				(char *)"--yes",
				(char *)"--quiet",
				uri,
				NULL};

		err = run(s, argv, uri, why);
	}
	free(uri);
	store_refresh(s->reader);
	return err;
}

static int hf_list(struct store *s, const char *prefix, struct listing *out, struct why *why)
{
	return store_list(hf_of(s)->reader, prefix, out, why);
}

/* Handles are the reader's own, and so go to it. */
static int hf_open(struct store *s, const struct object *object, struct handle **out,
		   struct why *why)
{
	return store_open(hf_of(s)->reader, object, out, why);
}

static void hf_refresh(struct store *s)
{
	store_refresh(hf_of(s)->reader);
}

static bool hf_describe(struct store *s, struct buf *out)
{
	return store_describe(hf_of(s)->reader, out);
}

static void hf_stop(struct store *s)
{
	atomic_store(&hf_of(s)->stopping, true);
	store_stop(hf_of(s)->reader);
}

static void hf_free(struct store *store)
{
	struct hf_store *s = hf_of(store);

	store_free(s->reader);
	free(s->place);
	free(s->token_file);
	free(s->base.name);
	free(s);
}

static const struct store_ops hf_ops = {
	.name = "hf",
	.list = hf_list,
	.open = hf_open,
	.put = hf_put,
	.put_if = hf_put_if,
	.remove = hf_remove,
	.refresh = hf_refresh,
	.describe = hf_describe,
	.stop = hf_stop,
	.free = hf_free,
};

static bool in_path(const char *program)
{
	const char *path = getenv("PATH");

	for (const char *at = path; at != NULL && *at != '\0';) {
		const size_t len = strcspn(at, ":");
		char full[PATH_MAX];

		if (snprintf(full, sizeof(full), "%.*s/%s", (int)len, at, program) <
			    (int)sizeof(full) &&
		    access(full, X_OK) == 0)
			return true;
		at += len + (at[len] == ':');
	}
	return false;
}

int store_hf_new(const struct store_hf_options *options, struct store *reader, struct store **out,
		 struct why *why)
{
	struct hf_store *s = calloc(1, sizeof(*s));

	if (s == NULL) {
		store_free(reader);
		return why_set(why, ENOMEM, "out of memory");
	}
	s->base.ops = &hf_ops;
	s->base.remote = true;
	s->base.name = strdup(options->place);
	s->reader = reader;
	s->place = strdup(options->place);
	if (options->token_file != NULL)
		s->token_file = strdup(options->token_file);
	if (s->base.name == NULL || s->place == NULL ||
	    (options->token_file != NULL && s->token_file == NULL)) {
		hf_free(&s->base);
		return why_set(why, ENOMEM, "out of memory");
	}
	if (!in_path("hf")) {
		hf_free(&s->base);
		return why_set(
			why, ENOENT,
			"%s: hf, the Hub's command line, is not in PATH: install it (pip "
			"install -U huggingface_hub), or give the keys of its S3 gateway and "
			"--uploader s3",
			SHOWN(options->place));
	}
	*out = &s->base;
	return 0;
}
