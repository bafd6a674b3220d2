/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An S3 store on a string: commands on standard input, one answer line each, for tests in Python
 * that look at the store without a mount around it.
 *
 *	drive_s3 s3://bucket[/prefix] [--endpoint URL] [--region NAME] [--profile NAME]
 *	         [--anonymous] [--payer]
 *
 *	list [PREFIX]            -> "ok COUNT HIDDEN", then a line "SIZE ERR ID HEXKEY" for each
 *	open HEXKEY              -> "ok", a handle on the object as last listed; several may be open
 *	read HANDLE OFF LEN      -> "ok HEX"
 *	close HANDLE
 *	put|put-absent|put-replace HEXKEY FILE  -> "ok"; replace: what was last listed
 *	remove HEXKEY            -> "ok"; if it is what was last listed, when it was
 *	quit
 *
 * Errors are "err NAME sentence".
 */
#include "cache/fileio.h"
#include "cache/remote/store_s3.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { HANDLES = 64 };

static struct store *store;
static struct listing listed;
static struct handle *handles[HANDLES];

static void answer(int rc, const struct why *why)
{
	if (rc == 0)
		puts("ok");
	else
		printf("err %s %s\n", strerrorname_np(-rc), why != NULL ? why->text : "");
}

static char *unhex(const char *hex)
{
	size_t n = strlen(hex) / 2;
	char *s = calloc(n + 1, 1);

	for (size_t i = 0; s != NULL && i < n; i++) {
		char two[3] = {hex[2 * i], hex[2 * i + 1], 0};

		s[i] = (char)strtoul(two, NULL, 16);
	}
	return s;
}

static void print_hex(const void *bytes, size_t len)
{
	const unsigned char *b = bytes;

	for (size_t i = 0; i < len; i++)
		printf("%02x", b[i]);
}

static void do_list(const char *prefix)
{
	struct why why = {0};
	struct listing l;
	int rc = store_list(store, prefix, &l, &why);
	char id[33];

	if (rc < 0) {
		answer(rc, &why);
		return;
	}
	listing_release(&listed);
	listed = l;
	printf("ok %zu %zu\n", l.count, l.hidden);
	for (size_t i = 0; i < l.count; i++) {
		identity_hex(&l.v[i].id, id);
		printf("%llu %d %s ", (unsigned long long)l.v[i].size, l.v[i].err, id);
		print_hex(l.v[i].key, strlen(l.v[i].key));
		puts("");
	}
}

static void do_open(const char *key)
{
	const struct object *o = listing_find(&listed, key);
	struct why why = {0};
	int at = 0, rc;

	while (at < HANDLES && handles[at] != NULL)
		at++;
	if (o == NULL || at == HANDLES) {
		puts("err ENOENT not listed");
		return;
	}
	rc = store_open(store, o, &handles[at], &why);
	if (rc == 0)
		printf("ok %d\n", at);
	else
		answer(rc, &why);
}

static void do_read(int at, uint64_t off, size_t len)
{
	char *bytes = malloc(len + 1);
	int rc = bytes != NULL ? store_read(handles[at], off, bytes, len) : -ENOMEM;

	if (rc == 0) {
		fputs("ok ", stdout);
		print_hex(bytes, len);
		puts("");
	} else {
		answer(rc, NULL);
	}
	free(bytes);
}

static void do_put(const char *verb, const char *key, const char *file)
{
	const struct object *o = listing_find(&listed, key);
	struct put_condition condition = {
		.absent = strcmp(verb, "put-absent") == 0,
		.replace = strcmp(verb, "put-replace") == 0 && o != NULL ? &o->id : NULL,
	};
	struct why why = {0};
	struct source src;
	int fd = open(file, O_RDONLY | O_CLOEXEC), rc;

	rc = fd < 0 ? -errno : source_fd(fd, &src);
	if (rc == 0 && strcmp(verb, "put") == 0)
		rc = store_put(store, key, &src, &why);
	else if (rc == 0)
		rc = store_put_if(store, key, &src, &condition, &why);
	answer(rc, &why);
	if (fd >= 0)
		close(fd);
}

static void do_remove(const char *key)
{
	const struct object *o = listing_find(&listed, key);
	struct why why = {0};

	answer(store_remove(store, key, o != NULL ? &o->id : NULL, &why), &why);
}

static void obey(char *line)
{
	char *save = NULL, *verb = strtok_r(line, " ", &save), *one, *two, *three, *key;

	one = strtok_r(NULL, " ", &save);
	two = strtok_r(NULL, " ", &save);
	three = strtok_r(NULL, " ", &save);
	if (verb == NULL) {
		puts("err EINVAL");
	} else if (strcmp(verb, "list") == 0) {
		do_list(one != NULL ? one : "");
	} else if (strcmp(verb, "open") == 0 && one != NULL) {
		key = unhex(one);
		do_open(key);
		free(key);
	} else if (strcmp(verb, "read") == 0 && three != NULL) {
		do_read((int)strtol(one, NULL, 10), strtoull(two, NULL, 10),
			strtoull(three, NULL, 10));
	} else if (strcmp(verb, "close") == 0 && one != NULL) {
		store_close(handles[strtol(one, NULL, 10)]);
		handles[strtol(one, NULL, 10)] = NULL;
		puts("ok");
	} else if (strncmp(verb, "put", 3) == 0 && two != NULL) {
		key = unhex(one);
		do_put(verb, key, two);
		free(key);
	} else if (strcmp(verb, "remove") == 0 && one != NULL) {
		key = unhex(one);
		do_remove(key);
		free(key);
	} else {
		puts("err EINVAL");
	}
}

int main(int argc, char **argv)
{
	struct s3_options options = {0};
	struct http_options http_options = {0};
	struct http *http = NULL;
	struct why why = {0};
	char line[8192];
	int rc;

	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "--anonymous") == 0)
			options.no_sign_request = true;
		else if (strcmp(argv[i], "--payer") == 0)
			options.request_payer = true;
		else if (strcmp(argv[i], "--endpoint") == 0)
			options.endpoint_url = argv[++i];
		else if (strcmp(argv[i], "--region") == 0)
			options.region = argv[++i];
		else if (strcmp(argv[i], "--profile") == 0)
			options.profile = argv[++i];
		else if (strcmp(argv[i], "--ca-file") == 0)
			http_options.ca_file = argv[++i];
	}
	rc = http_new(&http_options, &http, &why);
	if (rc == 0)
		rc = store_s3_new(argv[1], &options, http, &store, &why);
	answer(rc, &why);
	fflush(stdout);
	while (rc == 0 && fgets(line, sizeof(line), stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "quit") == 0)
			break;
		obey(line);
		fflush(stdout);
	}
	for (int i = 0; i < HANDLES; i++)
		store_close(handles[i]);
	listing_release(&listed);
	store_stop(store);
	http_shutdown(http);
	store_free(store);
	http_free(http);
	return 0;
}
