/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The access token.
 *
 * The place is chosen once, at the start; what stands in it is read again, so that a rotated token
 * is noticed without a restart: every 30 s, and at once when a server refuses the present one.  A
 * file that has gone or holds nonsense meanwhile changes nothing: the old token is kept, and a
 * refusal will say so.  Where no place had a token at the start, the default file is watched all
 * the same, because that is where a login puts one.
 *
 * The text lives in one buffer that is wiped when it is replaced; sentences name its place only.
 *
 * Threads: any; the lock guards text, number and time.  The file is read with no lock held.
 */
#include "cache/remote/hub_token.h"

#include <fcntl.h>
#include <stdlib.h>
#include <strings.h>

#include "cache/clock.h"
#include "cache/fileio.h"
#include "cache/lock.h"

static const int64_t REREAD_NS = 30 * NSEC_PER_SEC;

struct hub_token {
	char *file; /* NULL: from the environment, or nowhere */
	char origin[300];
	struct lock lock; /* LOCK_QUEUE; guards what follows */
	char text[HUB_TOKEN_MAX];
	uint64_t which;	 /* grows with each change */
	int64_t read_ns; /* when the file was read */
};

/* Copies a trimmed token; -EINVAL when it cannot be one. */
static int take_text(const char *s, size_t len, char dst[HUB_TOKEN_MAX])
{
	while (len > 0 && strchr(" \t\r\n", s[len - 1]) != NULL)
		len--;
	while (len > 0 && strchr(" \t\r\n", *s) != NULL) {
		s++;
		len--;
	}
	if (len == 0 || len >= HUB_TOKEN_MAX)
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if (s[i] <= 0x20 || s[i] == 0x7f)
			return -EINVAL;
	memcpy(dst, s, len);
	dst[len] = '\0';
	return 0;
}

static int read_file(const char *path, char dst[HUB_TOKEN_MAX])
{
	char *text = NULL;
	size_t len = 0;
	int rc = file_slurp(AT_FDCWD, path, HUB_TOKEN_MAX + 64, &text, &len);

	if (rc < 0)
		return rc;
	rc = take_text(text, len, dst);
	explicit_bzero(text, len);
	free(text);
	return rc;
}

static bool is_set(const char *name)
{
	const char *v = getenv(name);

	return v != NULL && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 ||
			     strcasecmp(v, "yes") == 0 || strcasecmp(v, "on") == 0);
}

static const char *variable(const char *name)
{
	const char *v = getenv(name);

	return v != NULL && *v != '\0' ? v : NULL;
}

/* The file that a login writes; NULL: none, or out of memory. */
static char *default_file(void)
{
	const char *v = variable("HF_TOKEN_PATH");

	if (v != NULL)
		return strdup(v);
	v = variable("HF_HOME");
	if (v != NULL)
		return path_join(v, "token");
	v = variable("XDG_CACHE_HOME");
	if (v != NULL)
		return path_join(v, "huggingface/token");
	v = variable("HOME");
	return v != NULL ? path_join(v, ".cache/huggingface/token") : NULL;
}

static void name_file(struct hub_token *t)
{
	char shown[256];
	struct why w;

	/* why_set() cuts to its size, and so does this. */
	why_set(&w, EINVAL, "the file %s",
		printable(shown, sizeof(shown), t->file, strlen(t->file)));
	memcpy(t->origin, w.text, sizeof(t->origin) - 1);
}

static int from_given(struct hub_token *t, const char *file, struct why *why)
{
	int rc;

	t->file = strdup(file);
	if (t->file == NULL)
		return why_set(why, ENOMEM, "out of memory");
	name_file(t);
	rc = read_file(t->file, t->text);
	if (rc == -EINVAL || rc == -EFBIG)
		return why_set(why, EINVAL, "--token-file: %s does not hold a token", t->origin);
	if (rc < 0)
		return why_set(why, -rc, "--token-file: %s cannot be read: %s", t->origin,
			       strerrordesc_np(-rc));
	t->which = 1;
	t->read_ns = clock_mono_ns();
	return 0;
}

static int from_environment(struct hub_token *t, struct why *why)
{
	static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};

	if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *v = variable(names[i]);

		if (v == NULL)
			continue;
		if (take_text(v, strlen(v), t->text) < 0)
			return why_set(why, EINVAL, "%s does not hold a token", names[i]);
		memcpy(t->origin, names[i], strlen(names[i]) + 1);
		t->which = 1;
		return 0;
	}
	t->file = default_file();
	if (t->file == NULL)
		return 0;
	name_file(t);
	if (read_file(t->file, t->text) == 0)
		t->which = 1;
	else
		t->text[0] = '\0';
	t->read_ns = clock_mono_ns();
	return 0;
}

int hub_token_new(const char *file, struct hub_token **out, struct why *why)
{
	struct hub_token *t = calloc(1, sizeof(*t));
	int rc;

	if (t == NULL)
		return why_set(why, ENOMEM, "out of memory");
	lock_init(&t->lock, LOCK_QUEUE);
	rc = file != NULL ? from_given(t, file, why) : from_environment(t, why);
	if (rc < 0)
		hub_token_free(t);
	else
		*out = t;
	return rc;
}

void hub_token_free(struct hub_token *t)
{
	if (t == NULL)
		return;
	lock_destroy(&t->lock);
	free(t->file);
	explicit_bzero(t, sizeof(*t));
	free(t);
}

uint64_t hub_token_get(struct hub_token *t, char dst[HUB_TOKEN_MAX])
{
	uint64_t which;

	lock_take(&t->lock);
	memcpy(dst, t->text, strlen(t->text) + 1);
	which = t->which;
	lock_release(&t->lock);
	return which;
}

static void reread(struct hub_token *t)
{
	char text[HUB_TOKEN_MAX];
	int rc = read_file(t->file, text);

	lock_take(&t->lock);
	t->read_ns = clock_mono_ns();
	if (rc == 0 && strcmp(text, t->text) != 0) {
		explicit_bzero(t->text, sizeof(t->text));
		memcpy(t->text, text, strlen(text) + 1);
		t->which++;
	}
	lock_release(&t->lock);
	explicit_bzero(text, sizeof(text));
}

void hub_token_refresh(struct hub_token *t)
{
	bool due;

	if (t->file == NULL)
		return;
	lock_take(&t->lock);
	due = clock_mono_ns() - t->read_ns >= REREAD_NS;
	lock_release(&t->lock);
	if (due)
		reread(t);
}

bool hub_token_refused(struct hub_token *t, uint64_t which)
{
	bool another;

	lock_take(&t->lock);
	another = t->which != which;
	lock_release(&t->lock);
	if (another || t->file == NULL)
		return another;
	reread(t);
	lock_take(&t->lock);
	another = t->which != which;
	lock_release(&t->lock);
	return another;
}

const char *hub_token_origin(struct hub_token *t)
{
	bool any;

	lock_take(&t->lock);
	any = t->text[0] != '\0';
	lock_release(&t->lock);
	return any ? t->origin : NULL;
}
