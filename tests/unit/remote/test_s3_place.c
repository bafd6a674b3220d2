/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a bucket is: names, endpoints, regions, styles, and the files of AWS tools.
 */
#include "cache/remote/s3_place.h"

#include "cache/fileio.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/weightfs-place-XXXXXX";
static char credentials_file[200], config_file[200];

static int prepare(void **state)
{
	static const char *const names[] = {
		"AWS_PROFILE",
		"AWS_REGION",
		"AWS_DEFAULT_REGION",
		"AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_S3",
		"AWS_ENDPOINT_URL_STS",
		"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	setenv("AWS_SHARED_CREDENTIALS_FILE", credentials_file, 1);
	setenv("AWS_CONFIG_FILE", config_file, 1);
	unlink(credentials_file);
	unlink(config_file);
	return 0;
}

static int make_dir(void **state)
{
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(credentials_file, sizeof(credentials_file), "%s/credentials", dir);
	snprintf(config_file, sizeof(config_file), "%s/config", dir);
	return 0;
}

static int remove_dir(void **state)
{
	prepare(state);
	return rmdir(dir);
}

static struct aws_config *load(const char *profile)
{
	struct aws_config *c = NULL;
	struct why why = {0};

	assert_int_equal(aws_config_load(profile, &c, &why), 0);
	return c;
}

static void write_file(const char *path, const char *text)
{
	assert_int_equal(file_replace(path, text, strlen(text)), 0);
}

/* The URL of an object, or the sentence of a refusal. */
static const char *url_of(const char *source, const struct s3_options *o, const char *key)
{
	static char text[2000];
	struct aws_config *config = load(o->profile);
	struct s3_place p = {0};
	struct why why = {0};
	struct buf b = {0};

	if (s3_place_parse(source, o, config, &p, &why) == 0) {
		s3_place_url(&p, p.region, key, key == NULL ? "list-type=2" : NULL, &b);
		snprintf(text, sizeof(text), "%s %s", buf_str(&b), p.prefix);
	} else {
		snprintf(text, sizeof(text), "%s", why.text);
	}
	buf_release(&b);
	s3_place_release(&p);
	aws_config_free(config);
	return text;
}

static void aws_addresses(void **state)
{
	struct s3_options o = {0};

	assert_string_equal(url_of("s3://my-bucket", &o, NULL),
			    "https://my-bucket.s3.us-east-1.amazonaws.com/?list-type=2 ");
	assert_string_equal(url_of("s3://my-bucket/a/b//", &o, "a/b/k +%\xc3\xbc~"),
			    "https://my-bucket.s3.us-east-1.amazonaws.com/a/b/k%20%2B%25%C3%BC~ "
			    "a/b/");
	/* No certificate covers names with dots; others are no labels of a host. */
	assert_string_equal(url_of("s3://my.bucket", &o, "k"),
			    "https://s3.us-east-1.amazonaws.com/my.bucket/k ");
	assert_string_equal(url_of("s3://My_Bucket", &o, NULL),
			    "https://s3.us-east-1.amazonaws.com/My_Bucket?list-type=2 ");
	o.region = "cn-north-1";
	assert_string_equal(url_of("s3://my-bucket", &o, "k"),
			    "https://my-bucket.s3.cn-north-1.amazonaws.com.cn/k ");
	setenv("AWS_DEFAULT_REGION", "eu-west-1", 1);
	o.region = NULL;
	assert_string_equal(url_of("s3://my-bucket", &o, "k"),
			    "https://my-bucket.s3.eu-west-1.amazonaws.com/k ");
	setenv("AWS_REGION", "eu-west-2", 1);
	assert_string_equal(url_of("s3://my-bucket", &o, "k"),
			    "https://my-bucket.s3.eu-west-2.amazonaws.com/k ");
}

static void custom_endpoints(void **state)
{
	struct s3_options o = {.endpoint_url = "https://s3.hf.co/namespace/"};

	assert_string_equal(url_of("s3://bucket/run", &o, "run/k"),
			    "https://s3.hf.co/namespace/bucket/run/k run/");
	assert_string_equal(url_of("s3://bucket", &o, NULL),
			    "https://s3.hf.co/namespace/bucket?list-type=2 ");
	o.endpoint_url = "http://LOCALHOST:9000";
	assert_string_equal(url_of("s3://bucket", &o, "k"), "http://localhost:9000/bucket/k ");
	o.endpoint_url = NULL;
	setenv("AWS_ENDPOINT_URL", "http://[::1]:9000", 1);
	assert_string_equal(url_of("s3://bucket", &o, "k"), "http://[::1]:9000/bucket/k ");
	setenv("AWS_ENDPOINT_URL_S3", "https://e.example/p", 1);
	assert_string_equal(url_of("s3://bucket", &o, "k"), "https://e.example/p/bucket/k ");
	setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
	assert_string_equal(url_of("s3://bucket", &o, "k"),
			    "https://bucket.s3.us-east-1.amazonaws.com/k ");
}

static void profiles(void **state)
{
	struct s3_options o = {.profile = "with blank"};
	struct aws_config *c;

	write_file(config_file, "# comment\n[default]\nregion = no\n"
				"[profile \"with blank\"]\nREGION=eu-south-1\r\n; comment\n"
				"s3 =\n    addressing_style = virtual\n    other=1\n"
				"credential_process = x # y ; z = 1\n"
				"not a setting\n= nothing\nservices = mine\n"
				"[services mine]\nsts =\n endpoint_url = https://sts.example\n"
				"s3=\n endpoint_url = https://s3.example\n"
				"[sso-session x]\nregion = no\n[unfinished\nregion = no\n");
	write_file(credentials_file, "[with blank]\naws_access_key_id = A=b\n"
				     "[profile with blank]\naws_access_key_id = no\n");
	c = load("with blank");
	assert_true(aws_config_has_profile(c));
	assert_string_equal(aws_config_get(c, "region"), "eu-south-1");
	assert_string_equal(aws_config_get(c, "aws_access_key_id"), "A=b");
	assert_string_equal(aws_config_get(c, "credential_process"), "x # y ; z = 1");
	assert_string_equal(aws_config_get(c, "s3.other"), "1");
	assert_null(aws_config_get(c, "s3"));
	assert_string_equal(aws_config_endpoint(c, "sts"), "https://sts.example");
	assert_string_equal(aws_config_endpoint(c, "s3"), "https://s3.example");
	assert_null(aws_config_endpoint(c, "dynamodb"));
	aws_config_free(c);
	assert_string_equal(url_of("s3://my-bucket", &o, "k"), "https://my-bucket.s3.example/k ");
	c = load("none");
	assert_false(aws_config_has_profile(c));
	assert_null(aws_config_get(c, "region"));
	aws_config_free(c);
}

static void unreadable_file(void **state)
{
	struct aws_config *c = NULL;
	struct why why = {0};

	setenv("AWS_CONFIG_FILE", dir, 1);
	assert_int_equal(aws_config_load(NULL, &c, &why), -EISDIR);
	assert_non_null(strstr(why.text, "cannot be read"));
}

static void refusals(void **state)
{
	static const struct {
		const char *source, *endpoint, *region, *says;
	} bad[] = {
		{"s3://", NULL, NULL, "write s3://BUCKET"},
		{"s3:///x", NULL, NULL, "write s3://BUCKET"},
		{"s3://user@host/x", NULL, NULL, "write s3://BUCKET"},
		{"s3://key:secret@bucket/x", NULL, NULL, "s3://bucket/x: write s3://BUCKET"},
		{"s3://b?x", NULL, NULL, "write s3://BUCKET"},
		{"s3://..", NULL, NULL, "does not begin with '.'"},
		{"s3://b/a//b", NULL, NULL, "an empty, '.' or '..' part"},
		{"s3://b/./b", NULL, NULL, "an empty, '.' or '..' part"},
		{"s3://b", "http://u:secret@h", NULL, "the S3 endpoint"},
		{"s3://b", "http://h/?a=b", NULL, "has a query"},
		{"s3://b", "h", NULL, "the S3 endpoint"},
		{"s3://b", NULL, "eu west", "is not the name of a region"},
		{"s3://b", NULL, "evil.example/", "is not the name of a region"},
		{"s3://b", NULL, "", "is not the name of a region"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct s3_options o = {.endpoint_url = bad[i].endpoint, .region = bad[i].region};
		const char *got = url_of(bad[i].source, &o, "k");

		if (strstr(got, bad[i].says) == NULL || strstr(got, "secret") != NULL)
			fail_msg("case %zu: %s", i, got);
	}
}

static void families(void **state)
{
	static const char ours[] = "https://b.s3.us-east-1.amazonaws.com/k";
	static const char *const good[] = {
		"https://b.s3.eu-west-1.amazonaws.com/k",
		"https://s3-eu-west-1.amazonaws.com/b/k",
		"https://b.s3-us-west-2.amazonaws.com/k?versionId=1",
	};
	static const char *const bad[] = {
		"http://b.s3.eu-west-1.amazonaws.com/k",
		"https://b.s3.eu-west-1.amazonaws.com:8443/k",
		"https://b.s3.amazonaws.com.evil.example/k",
		"https://evilamazonaws.com/k",
		"https://x.execute-api.us-east-1.amazonaws.com/k",
		"https://u@s3.amazonaws.com/k",
		"not a url",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_true(s3_place_both_aws(ours, good[i]));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_false(s3_place_both_aws(ours, bad[i]));
		assert_false(s3_place_both_aws(bad[i], ours));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(aws_addresses, prepare),
		cmocka_unit_test_setup(custom_endpoints, prepare),
		cmocka_unit_test_setup(profiles, prepare),
		cmocka_unit_test_setup(unreadable_file, prepare),
		cmocka_unit_test_setup(refusals, prepare),
		cmocka_unit_test_setup(families, prepare),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
