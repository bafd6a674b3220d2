/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the Hub's token comes from, and when it is read again.
 */
#include "cache/remote/hub_token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/clock.h"

static char dir[] = "/tmp/weightfs-token-XXXXXX";
static const char *const names[] = {
	"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",	     "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME",
	"HOME",	    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
};

static char *path(const char *name)
{
	static char text[2][200];
	static int turn;
	char *p = text[turn ^= 1];

	snprintf(p, sizeof(text[0]), "%s/%s", dir, name);
	return p;
}

static void write_file(const char *name, const char *text)
{
	FILE *f = fopen(path(name), "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int clean(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	unlink(path("given"));
	unlink(path("token"));
	return 0;
}

static void expect(const char *file, const char *token, const char *origin)
{
	struct hub_token *t;
	struct why why = {0};
	char text[HUB_TOKEN_MAX];

	if (hub_token_new(file, &t, &why) < 0)
		fail_msg("%s", why.text);
	hub_token_get(t, text);
	assert_string_equal(text, token);
	if (origin == NULL)
		assert_null(hub_token_origin(t));
	else
		assert_non_null(strstr(hub_token_origin(t), origin));
	hub_token_free(t);
}

static void test_order(void **state)
{
	expect(NULL, "", NULL);
	setenv("HOME", dir, 1);
	expect(NULL, "", NULL);
	write_file("token", "  hf_file\n\n");
	setenv("HF_HOME", dir, 1);
	expect(NULL, "hf_file", "token");
	write_file("given", "hf_given");
	setenv("HF_TOKEN_PATH", path("given"), 1);
	expect(NULL, "hf_given", "given");
	setenv("HUGGING_FACE_HUB_TOKEN", "hf_old", 1);
	expect(NULL, "hf_old", "HUGGING_FACE_HUB_TOKEN");
	setenv("HF_TOKEN", "hf_env\n", 1);
	expect(NULL, "hf_env", "HF_TOKEN");
	expect(path("token"), "hf_file", "token");
	setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
	expect(NULL, "", NULL);
	expect(path("given"), "hf_given", "given");
}

static void test_bad(void **state)
{
	struct hub_token *t;
	struct why why = {0};

	assert_int_equal(hub_token_new(path("none"), &t, &why), -ENOENT);
	assert_non_null(strstr(why.text, "none"));
	write_file("given", " \n");
	assert_int_equal(hub_token_new(path("given"), &t, &why), -EINVAL);
	write_file("given", "hf_secret and more");
	assert_int_equal(hub_token_new(path("given"), &t, &why), -EINVAL);
	assert_null(strstr(why.text, "hf_secret"));
	setenv("HF_TOKEN", "hf_sec ret", 1);
	assert_int_equal(hub_token_new(NULL, &t, &why), -EINVAL);
	assert_null(strstr(why.text, "hf_sec"));
}

static void test_again(void **state)
{
	struct hub_token *t;
	char text[HUB_TOKEN_MAX];
	uint64_t first;

	clock_fake(1000 * NSEC_PER_SEC);
	write_file("given", "hf_one");
	assert_int_equal(hub_token_new(path("given"), &t, NULL), 0);
	first = hub_token_get(t, text);
	assert_false(hub_token_refused(t, first));
	write_file("given", "hf_two");
	hub_token_refresh(t); /* too early */
	assert_int_equal(hub_token_get(t, text), first);
	assert_true(hub_token_refused(t, first));
	assert_true(hub_token_get(t, text) != first);
	assert_string_equal(text, "hf_two");
	assert_true(hub_token_refused(t, first)); /* somebody else has read it */
	clock_fake(1031 * NSEC_PER_SEC);
	write_file("given", "hf_three");
	hub_token_refresh(t);
	hub_token_get(t, text);
	assert_string_equal(text, "hf_three");
	/* Gone or nonsense: the old one stays. */
	clock_fake(1062 * NSEC_PER_SEC);
	unlink(path("given"));
	hub_token_refresh(t);
	hub_token_get(t, text);
	assert_string_equal(text, "hf_three");
	hub_token_free(t);
	clock_fake(-1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_order, clean),
		cmocka_unit_test_setup(test_bad, clean),
		cmocka_unit_test_setup(test_again, clean),
	};
	int rc;

	if (mkdtemp(dir) == NULL)
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	clean(NULL);
	rmdir(dir);
	return rc;
}
