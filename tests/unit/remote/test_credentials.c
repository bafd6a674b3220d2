/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where credentials come from, without a network: the choice, its sentences, asks and stopping.
 */
#include "cache/remote/credentials_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static int clean(void **state)
{
	static const char *const names[] = {
		"AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_PROFILE",
		"AWS_REGION",
		"AWS_DEFAULT_REGION",
		"AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_STS",
		"AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_ROLE_ARN",
		"AWS_ROLE_SESSION_NAME",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_EC2_METADATA_DISABLED",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials", 1);
	setenv("AWS_CONFIG_FILE", "/nonexistent/config", 1);
	return 0;
}

/* "KIND URL", or the sentence. */
static const char *found(const char *profile, const char *region)
{
	static char text[600];
	struct credentials_options o = {.profile = profile, .region = region};
	struct credential_source s = {0};
	struct why why = {0};

	if (credentials_find(&o, &s, &why) == 0)
		snprintf(text, sizeof(text), "%d %s", s.kind, s.url != NULL ? s.url : "");
	else
		snprintf(text, sizeof(text), "%s", why.text);
	credential_source_release(&s);
	return text;
}

static void services(void **state)
{
	char want[200];

	snprintf(want, sizeof(want), "%d http://169.254.169.254", CREDENTIALS_INSTANCE);
	assert_string_equal(found(NULL, NULL), want);
	setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv6", 1);
	snprintf(want, sizeof(want), "%d http://[fd00:ec2::254]", CREDENTIALS_INSTANCE);
	assert_string_equal(found(NULL, NULL), want);
	setenv("AWS_EC2_METADATA_DISABLED", "True", 1);
	assert_non_null(strstr(found(NULL, NULL), "there are no credentials"));
	setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/x", 1);
	snprintf(want, sizeof(want), "%d http://169.254.170.2/v2/credentials/x",
		 CREDENTIALS_CONTAINER);
	assert_string_equal(found(NULL, NULL), want);
	setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@evil.example/", 1);
	assert_non_null(strstr(found(NULL, NULL), "does not begin with '/'"));
	setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token", 1);
	assert_non_null(strstr(found(NULL, NULL), "set AWS_ROLE_ARN"));
	setenv("AWS_ROLE_ARN", "arn:x", 1);
	snprintf(want, sizeof(want), "%d https://sts.us-east-1.amazonaws.com",
		 CREDENTIALS_WEB_IDENTITY);
	assert_string_equal(found(NULL, NULL), want);
	snprintf(want, sizeof(want), "%d https://sts.cn-north-1.amazonaws.com.cn",
		 CREDENTIALS_WEB_IDENTITY);
	assert_string_equal(found(NULL, "cn-north-1"), want);
	setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
	snprintf(want, sizeof(want), "%d ", CREDENTIALS_ENVIRONMENT);
	assert_string_equal(found(NULL, NULL), want);
	assert_non_null(strstr(found("named", NULL), "there is no profile 'named'"));
}

static void container_hosts(void **state)
{
	static const char *const good[] = {
		"http://127.0.0.1:8080/x",    "http://127.9.9.9/x",
		"http://localhost/x",	      "http://[::1]/x",
		"http://169.254.170.2/x",     "http://169.254.170.23/v1",
		"http://[fd00:ec2::23]:80/x", "https://example.com/x",
	};
	static const char *const bad[] = {
		"http://example.com/x",	   "http://127.0.0.1.example.com/",
		"http://169.254.169.254/", "http://localhost.example/",
		"ftp://127.0.0.1/",	   "http://10.0.0.1/",
		"http://u@127.0.0.1/",
	};
	struct why why = {0};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_int_equal(credentials_check_container_url(good[i], &why), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		why.err = 0;
		assert_int_equal(credentials_check_container_url(bad[i], &why), -EINVAL);
		assert_non_null(strstr(why.text, "AWS_CONTAINER_CREDENTIALS_FULL_URI"));
	}
}

static void json(void **state)
{
	static const struct {
		const char *text;
		int err;
	} cases[] = {
		{"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}", 0},
		{"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Token\":\"t\",\"Expiration\":"
		 "\"2030-01-02T03:04:05Z\",\"Code\":\"Success\"}",
		 0},
		{"{\"Code\":\"Failed\",\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}", -EACCES},
		{"{\"AccessKeyId\":\"a\"}", -EPROTO},
		{"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"\"}", -EPROTO},
		{"{\"AccessKeyId\":7,\"SecretAccessKey\":\"b\"}", -EPROTO},
		{"{\"AccessKeyId\":\"a\\nb\",\"SecretAccessKey\":\"b\"}", -EINVAL},
		{"{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Expiration\":\"soon\"}",
		 -EPROTO},
		{"[]", -EPROTO},
		{"no", -EPROTO},
		{"", -EPROTO},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct credential_set *s = calloc(1, sizeof(*s));
		struct why why = {0};

		assert_non_null(s);
		s->refs = 1;
		assert_int_equal(credentials_parse_json(cases[i].text, strlen(cases[i].text),
							"Token", "somebody", s, &why),
				 cases[i].err);
		if (i == 1) {
			assert_string_equal(s->session_token, "t");
			assert_true(s->expires_ns == INT64_C(1893553445) * 1000000000);
		} else if (i == 0) {
			assert_true(s->expires_ns == INT64_MAX && s->session_token == NULL);
		} else {
			assert_int_equal(why.err, -cases[i].err);
		}
		credential_set_unref(s);
	}
}

static void asks(void **state)
{
	struct credentials_options o = {0};
	struct credential_set *a, *b;
	struct credentials *c;
	struct why why = {0};

	setenv("AWS_ACCESS_KEY_ID", "a", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
	assert_int_equal(credentials_new(&o, NULL, &c, &why), 0);
	assert_string_equal(credentials_from(c), "the environment");
	assert_int_equal(credentials_get(c, 0, &a, &why), 0);
	assert_string_equal(a->secret_key, "s");
	assert_int_equal(credentials_get(c, a->generation, &b, &why), -EKEYEXPIRED);
	assert_non_null(strstr(why.text, "the environment"));
	assert_int_equal(credentials_get(c, 0, &b, &why), 0);
	credential_set_unref(b);
	credentials_stop(c);
	assert_int_equal(credentials_get(c, 0, &b, &why), -ECANCELED);
	credentials_free(c);
	/* What is in use outlives where it came from. */
	assert_string_equal(a->access_key, "a");
	credential_set_unref(a);
}

static void anonymous(void **state)
{
	struct credentials_options o = {.anonymous = true};
	struct credential_set *set;
	struct credentials *c;
	struct why why = {0};

	setenv("AWS_ACCESS_KEY_ID", "a", 1);
	assert_int_equal(credentials_new(&o, NULL, &c, &why), 0);
	assert_int_equal(credentials_get(c, 0, &set, &why), 0);
	assert_true(set->anonymous && set->access_key == NULL);
	credential_set_unref(set);
	credentials_free(c);
}

static void nothing(struct credential_ask *ask)
{
}

/* A process that never ends goes when the mount does, with its children. */
static void process_is_stopped(void **state)
{
	char dir[] = "/tmp/weightfs-cred-XXXXXX", config[100], text[300];
	struct credentials_options o = {.profile = "p"};
	struct credential_ask ask = {0};
	struct credentials *c;
	struct why why = {0};
	FILE *f;

	assert_non_null(mkdtemp(dir));
	snprintf(config, sizeof(config), "%s/config", dir);
	snprintf(text, sizeof(text),
		 "[profile p]\ncredential_process = touch %s/begun; sleep 600 | cat\n", dir);
	f = fopen(config, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	fclose(f);
	setenv("AWS_CONFIG_FILE", config, 1);
	assert_int_equal(credentials_new(&o, NULL, &c, &why), 0);
	ask.ready = nothing;
	credentials_ask(c, &ask);
	snprintf(text, sizeof(text), "%s/begun", dir);
	while (access(text, F_OK) < 0)
		usleep(1000);
	credentials_free(c);
	assert_int_equal(ask.err, -ECANCELED);
	unlink(text);
	unlink(config);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(services, clean),
		cmocka_unit_test_setup(container_hosts, clean),
		cmocka_unit_test_setup(json, clean),
		cmocka_unit_test_setup(asks, clean),
		cmocka_unit_test_setup(anonymous, clean),
		cmocka_unit_test_setup(process_is_stopped, clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
