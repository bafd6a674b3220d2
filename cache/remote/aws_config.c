/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of the INI form that AWS tools use.
 *
 * Sections are [NAME] in the credentials file, and [default], [profile NAME], [services NAME] in
 * config.  An indented line below a key with no value is a setting of its own, "key.name"; one
 * below a key with a value continues that value and is not needed here, so it is left out.  Lines
 * that make no sense are passed over, as those tools do; nothing is expanded.
 *
 * All settings lie in one array: the files are short.  No state beyond it, no lock: it is constant
 * once loaded.
 */
#include "cache/remote/aws_config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "cache/fileio.h"

enum { FILE_MAX = 4 << 20, SETTINGS_MAX = 100000 };

struct setting {
	bool credentials; /* which file */
	char *section, *key, *value;
};

struct aws_config {
	char *profile;
	bool found;
	struct setting *v;
	size_t count, cap;
};

const char *aws_env(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && *value != '\0' ? value : NULL;
}

bool aws_env_true(const char *name)
{
	const char *value = aws_env(name);

	return value != NULL && (strcasecmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *s)
{
	size_t n;

	while (is_blank(*s))
		s++;
	for (n = strlen(s); n > 0 && is_blank(s[n - 1]); n--)
		s[n - 1] = '\0';
	return s;
}

/* The section that a header's inside means, in place: "profile x" is "x" of config.  NULL: one that
 * has nothing to say to us. */
static char *section_of(char *inside, bool credentials)
{
	char *name = trim(inside);
	size_t n;

	if (!credentials) {
		size_t word = strcspn(name, " \t");

		if (word == 7 && strncmp(name, "profile", 7) == 0 && name[7] != '\0')
			name = trim(name + 7);
		else if (word == 8 && strncmp(name, "services", 8) == 0 && name[8] != '\0')
			return name;
		else if (strcmp(name, "default") != 0)
			return NULL;
	}
	n = strlen(name);
	if (n >= 2 && (name[0] == '"' || name[0] == '\'') && name[n - 1] == name[0]) {
		name[n - 1] = '\0';
		name++;
	}
	return name;
}

static int add(struct aws_config *c, bool credentials, const char *section, const char *parent,
	       const char *key, const char *value)
{
	struct setting *s;
	char *full = NULL;

	if (c->count == SETTINGS_MAX)
		return -EFBIG;
	if (c->count == c->cap) {
		size_t cap = c->cap > 0 ? c->cap * 2 : 32;
		struct setting *v = reallocarray(c->v, cap, sizeof(*v));

		if (v == NULL)
			return -ENOMEM;
		c->v = v;
		c->cap = cap;
	}
	s = &c->v[c->count];
	if (asprintf(&full, "%s%s%s", parent != NULL ? parent : "", parent != NULL ? "." : "",
		     key) < 0)
		return -ENOMEM;
	for (char *p = full; *p != '\0'; p++)
		if (*p >= 'A' && *p <= 'Z')
			*p = (char)(*p - 'A' + 'a');
	*s = (struct setting){credentials, strdup(section), full, strdup(value)};
	c->count++;
	return s->section != NULL && s->value != NULL ? 0 : -ENOMEM;
}

struct parse {
	struct aws_config *config;
	bool credentials;
	char *section; /* NULL: none of ours */
	char *parent;  /* a key without a value; NULL: none */
};

static int parse_line(struct parse *p, char *line)
{
	bool indented = is_blank(*line);
	char *text = trim(line), *end, *equals;
	int rc;

	if (*text == '\0' || *text == '#' || *text == ';')
		return 0;
	if (*text == '[' && !indented) {
		p->parent = NULL;
		end = strchr(text, ']');
		p->section = NULL;
		if (end == NULL)
			return 0;
		*end = '\0';
		p->section = section_of(text + 1, p->credentials);
		return 0;
	}
	equals = strchr(text, '=');
	if (p->section == NULL || equals == NULL || (indented && p->parent == NULL))
		return 0;
	*equals = '\0';
	text = trim(text);
	equals = trim(equals + 1);
	if (!indented)
		p->parent = *equals == '\0' ? text : NULL;
	rc = add(p->config, p->credentials, p->section, indented ? p->parent : NULL, text, equals);
	return rc;
}

static int parse_file(struct aws_config *c, char *text, bool credentials)
{
	struct parse p = {.config = c, .credentials = credentials};
	int rc = 0;

	while (rc == 0 && text != NULL) {
		char *line = strsep(&text, "\n");

		rc = parse_line(&p, line);
	}
	return rc;
}

/* The file's path: a variable's, else in the home directory.  NULL: there is none (or no memory, as
 * *err says). */
static char *file_path(const char *variable, const char *name, int *err)
{
	const char *given = aws_env(variable), *home = aws_env("HOME");
	char *path = NULL;

	*err = 0;
	if (given != NULL && (strncmp(given, "~/", 2) != 0 || home == NULL))
		path = strdup(given);
	else if (given != NULL)
		path = path_join(home, given + 2);
	else if (home != NULL)
		path = path_join(home, name);
	else
		return NULL;
	if (path == NULL)
		*err = -ENOMEM;
	return path;
}

static int load_file(struct aws_config *c, const char *variable, const char *name, bool credentials,
		     struct why *why)
{
	char *path, *text = NULL, shown[200];
	size_t len = 0;
	int rc;

	path = file_path(variable, name, &rc);
	if (path != NULL)
		rc = file_slurp(AT_FDCWD, path, FILE_MAX, &text, &len);
	if (rc == 0 && text != NULL)
		rc = parse_file(c, text, credentials);
	if (rc == -ENOENT || rc == -ENOTDIR)
		rc = 0;
	if (rc == -ENOMEM)
		why_set(why, ENOMEM, "out of memory");
	else if (rc < 0)
		why_set(why, -rc, "%s cannot be read: %s",
			printable(shown, sizeof(shown), path, strlen(path)), strerrordesc_np(-rc));
	if (text != NULL)
		explicit_bzero(text, len);
	free(text);
	free(path);
	return rc;
}

int aws_config_load(const char *profile, struct aws_config **out, struct why *why)
{
	struct aws_config *c = calloc(1, sizeof(*c));
	int rc;

	if (profile == NULL)
		profile = aws_env("AWS_PROFILE");
	if (c == NULL || (c->profile = strdup(profile != NULL ? profile : "default")) == NULL) {
		free(c);
		return why_set(why, ENOMEM, "out of memory");
	}
	rc = load_file(c, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", true, why);
	if (rc == 0)
		rc = load_file(c, "AWS_CONFIG_FILE", ".aws/config", false, why);
	for (size_t i = 0; rc == 0 && i < c->count; i++)
		c->found |= strcmp(c->v[i].section, c->profile) == 0;
	if (rc == 0)
		*out = c;
	else
		aws_config_free(c);
	return rc;
}

void aws_config_free(struct aws_config *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->count; i++) {
		free(c->v[i].section);
		free(c->v[i].key);
		if (c->v[i].value != NULL)
			explicit_bzero(c->v[i].value, strlen(c->v[i].value));
		free(c->v[i].value);
	}
	free(c->v);
	free(c->profile);
	free(c);
}

char *aws_ca_bundle(const char *profile, const char **out_from)
{
	const char *file = aws_env("AWS_CA_BUNDLE");
	struct aws_config *config = NULL;
	char *copy;

	*out_from = "AWS_CA_BUNDLE";
	if (file == NULL && aws_config_load(profile, &config, NULL) == 0) {
		file = aws_config_get(config, "ca_bundle");
		*out_from = "the profile's ca_bundle";
	}
	copy = file != NULL && *file != '\0' ? strdup(file) : NULL;
	aws_config_free(config);
	return copy;
}

const char *aws_config_profile(const struct aws_config *c)
{
	return c->profile;
}

bool aws_config_has_profile(const struct aws_config *c)
{
	return c->found;
}

static const char *find(const struct aws_config *c, bool credentials, const char *section,
			const char *key)
{
	const char *value = NULL;

	/* The last one counts. */
	for (size_t i = 0; i < c->count; i++)
		if (c->v[i].credentials == credentials && strcmp(c->v[i].section, section) == 0 &&
		    strcmp(c->v[i].key, key) == 0)
			value = c->v[i].value;
	return value != NULL && *value != '\0' ? value : NULL;
}

const char *aws_config_get(const struct aws_config *c, const char *key)
{
	const char *value = find(c, true, c->profile, key);

	return value != NULL ? value : find(c, false, c->profile, key);
}

const char *aws_config_endpoint(const struct aws_config *c, const char *service)
{
	const char *value, *services;
	char name[80];

	if (aws_env_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"))
		return NULL;
	snprintf(name, sizeof(name), "AWS_ENDPOINT_URL_%s", service);
	for (char *p = name; *p != '\0'; p++)
		if (*p >= 'a' && *p <= 'z')
			*p = (char)(*p - 'a' + 'A');
	value = aws_env(name);
	if (value == NULL)
		value = aws_env("AWS_ENDPOINT_URL");
	services = aws_config_get(c, "services");
	if (value == NULL && services != NULL) {
		char section[200], key[60];

		snprintf(section, sizeof(section), "services %s", services);
		snprintf(key, sizeof(key), "%s.endpoint_url", service);
		value = find(c, false, section, key);
	}
	return value != NULL ? value : aws_config_get(c, "endpoint_url");
}

const char *aws_config_region(const struct aws_config *c)
{
	const char *value = aws_env("AWS_REGION");

	if (value == NULL)
		value = aws_env("AWS_DEFAULT_REGION");
	return value != NULL ? value : aws_config_get(c, "region");
}
