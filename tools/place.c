/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling mounts from sources, and asking a mount what it is.
 *
 * A mount is recognised by its .weightfs/status.json and nothing else, so that it also works
 * through bind mounts and in containers that cannot see the mount table of the host.
 *
 * One thread; blocks on the mount.
 */
#include "tools/place.h"

#include "cache/fileio.h"
#include "tools/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATUS_MAX = 64 << 20 };

static int explain(const char *mountpoint, int err, struct why *why)
{
	char shown[200];

	printable(shown, sizeof(shown), mountpoint, strlen(mountpoint));
	switch (err) {
	case ENOTCONN:
	case ECONNABORTED:
		return why_set(why, ENOTCONN,
			       "%s: the mount is dead, its process has gone; weightfs umount "
			       "cleans it up",
			       shown);
	case ENOENT:
		if (access(mountpoint, F_OK) < 0)
			return why_set(why, ENOENT, "%s: no such directory", shown);
		return why_set(why, ENOENT, "%s is not a weightfs mount", shown);
	case ENOTDIR: return why_set(why, ENOTDIR, "%s is not a weightfs mount", shown);
	case EACCES:
		return why_set(why, EACCES,
			       "%s: permission denied; the mount may be another user's, made "
			       "without --allow-other",
			       shown);
	default: return why_set(why, err, "%s: %s", shown, errno_text(err));
	}
}

int place_open(const char *mountpoint, int *out_fd, struct why *why)
{
	char *path = path_join(mountpoint, ".weightfs");
	int fd, err = 0;

	if (path == NULL)
		return why_set(why, ENOMEM, "out of memory");
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		err = errno;
	else if (faccessat(fd, "status.json", F_OK, 0) < 0)
		err = errno;
	free(path);
	if (err != 0) {
		if (fd >= 0)
			close(fd);
		return explain(mountpoint, err, why);
	}
	*out_fd = fd;
	return 0;
}

int place_open_run(const char *mountpoint, int *out_fd, struct why *why)
{
	int ret = place_open(mountpoint, out_fd, why);

	if (ret < 0 || faccessat(*out_fd, "newest", F_OK, 0) == 0 || errno != ENOENT)
		return ret;
	close(*out_fd);
	return why_set(
		why, EISDIR,
		"%s: several runs are mounted there; name one, as in %s/RUN (weightfs status "
		"lists them)",
		SHOWN(mountpoint), SHOWN(mountpoint));
}

int place_read(int fd, const char *mountpoint, const char *name, char **out, struct why *why)
{
	size_t len;
	int ret = file_slurp(fd, name, STATUS_MAX, out, &len);

	return ret < 0 ? explain(mountpoint, -ret, why) : 0;
}

int place_status(const char *mountpoint, json_t **out, struct why *why)
{
	json_error_t error;
	char *text = NULL;
	int fd, ret = place_open(mountpoint, &fd, why);

	if (ret < 0)
		return ret;
	ret = place_read(fd, mountpoint, "status.json", &text, why);
	close(fd);
	if (ret < 0)
		return ret;
	*out = json_loads(text, 0, &error);
	free(text);
	if (*out == NULL)
		return why_set(why, EPROTO, "%s: its status.json cannot be read: %s", mountpoint,
			       error.text);
	return 0;
}

static int set_text(char **field, const char *text)
{
	if (*field != NULL || text == NULL)
		return 0;
	*field = strdup(text);
	return *field != NULL ? 0 : -ENOMEM;
}

/* How the mount reaches its places; what was given on our own command line counts more. */
static int take_options(json_t *options, struct opts *o)
{
	const struct {
		const char *name;
		char **field;
	} texts[] = {
		{"token_file", &o->token_file},	    {"ca_file", &o->ca_file},
		{"endpoint_url", &o->endpoint_url}, {"region", &o->region},
		{"profile", &o->profile},
	};
	int ret = 0;

	for (size_t i = 0; i < ARRAY_LEN(texts) && ret == 0; i++)
		ret = set_text(texts[i].field,
			       json_string_value(json_object_get(options, texts[i].name)));
	if (json_is_true(json_object_get(options, "no_sign_request")))
		o->no_sign_request = true;
	if (json_is_true(json_object_get(options, "request_payer")))
		o->request_payer = true;
	return ret;
}

/* Of one of several runs that are mounted: the source of them all, and which part of it. */
static int take_source(json_t *status, struct opts *o)
{
	const char *whole = json_string_value(json_object_get(status, "part_of"));
	const char *part = json_string_value(json_object_get(status, "part"));

	if (whole == NULL || part == NULL)
		return set_text(&o->source, json_string_value(json_object_get(status, "source")));
	return set_text(&o->source, whole) < 0 ? -ENOMEM : set_text(&o->part, part);
}

int place_source(const char *place, struct opts *o, struct why *why)
{
	json_t *status = NULL;
	int ret = place_status(place, &status, why);

	if (ret == -ENOENT || ret == -ENOTDIR) /* a source, or for its store to say */
		ret = set_text(&o->source, place);
	else if (ret == 0) {
		const char *times = json_string_value(json_object_get(status, "times"));
		json_int_t shard = json_integer_value(json_object_get(status, "shard_size"));

		ret = take_source(status, o);
		if (ret == 0)
			ret = set_text(&o->base,
				       json_string_value(json_object_get(status, "base")));
		if (ret == 0 && o->format == NULL)
			ret = set_text(&o->format,
				       json_string_value(json_object_get(status, "forced_format")));
		if (ret == 0)
			ret = take_options(json_object_get(status, "options"), o);
		if (o->shard_size == 0 && shard > 0)
			o->shard_size = (uint64_t)shard;
		if (times != NULL && strcmp(times, "ignore") == 0)
			o->ignore_times = true;
		json_decref(status);
		if (ret == 0 && o->source == NULL)
			return why_set(why, EPROTO, "%s does not say what its source is", place);
	}
	if (ret == -ENOMEM)
		return why_set(why, ENOMEM, "out of memory");
	return ret;
}
