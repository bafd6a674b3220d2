/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signer against vectors that AWS published (the SigV4 test suite and the examples of the S3
 * manual) and against what botocore makes of awkward requests.
 */
#include "cache/remote/sigv4.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

struct vector {
	enum method method;
	const char *url, *region;
	bool token;
	const char *payload;
	struct {
		const char *name, *value;
	} headers[4];
	const char *names, *signature;
};

#include "tests/unit/remote/sigv4_vectors.h"

static void expect_signature(const struct request *r, const char *names, const char *signature)
{
	const char *got = request_header(r, "Authorization");
	char expected[1024];

	assert_non_null(got);
	snprintf(expected, sizeof(expected), "SignedHeaders=%s, Signature=%s", names, signature);
	if (strstr(got, expected) == NULL)
		print_error("%s\n  has not\n%s\n", got, expected);
	assert_non_null(strstr(got, expected));
}

/* The SigV4 test suite: service "service", 2015-08-30. */
static void test_suite(void **state)
{
	static const struct {
		const char *name;
		enum method method;
		const char *url, *names, *signature;
		const char *headers[2][2];
	} cases[] = {
		{"get-vanilla", METHOD_GET, "https://example.amazonaws.com/", "host;x-amz-date",
		 "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-vanilla-query-order-key-case", METHOD_GET,
		 "https://example.amazonaws.com/?Param2=value2&Param1=value1", "host;x-amz-date",
		 "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"get-vanilla-query-unreserved", METHOD_GET,
		 "https://example.amazonaws.com/"
		 "?-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz="
		 "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
		 "host;x-amz-date",
		 "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
		{"get-utf8", METHOD_GET, "https://example.amazonaws.com/\xe1\x88\xb4",
		 "host;x-amz-date",
		 "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
		{"get-header-value-trim",
		 METHOD_GET,
		 "https://example.amazonaws.com/",
		 "host;my-header1;my-header2;x-amz-date",
		 "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
		 {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}},
		{"post-vanilla", METHOD_POST, "https://example.amazonaws.com/", "host;x-amz-date",
		 "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
	};
	struct sigv4_keys keys = {.access_key = "AKIDEXAMPLE",
				  .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
	struct sigv4_scope scope = {
		.region = "us-east-1", .service = "service", .time_s = 1440938160};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct request r = {.method = cases[i].method};

		request_set_url(&r, cases[i].url);
		for (size_t j = 0; j < 2 && cases[i].headers[j][0] != NULL; j++)
			request_set_header(&r, cases[i].headers[j][0], cases[i].headers[j][1]);
		assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
		assert_string_equal(request_header(&r, "X-Amz-Date"), "20150830T123600Z");
		assert_null(request_header(&r, "x-amz-content-sha256"));
		expect_signature(&r, cases[i].names, cases[i].signature);
		request_release(&r);
	}
}

/* Examples of the S3 manual, 2013-05-24. */
static void s3_manual(void **state)
{
	static const char names[] = "host;x-amz-content-sha256;x-amz-date";
	struct sigv4_keys keys = {.access_key = "AKIAIOSFODNN7EXAMPLE",
				  .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
	struct sigv4_scope scope = {.region = "us-east-1", .service = "s3", .time_s = 1369353600};
	struct request r = {0};

	request_set_url(&r, "https://examplebucket.s3.amazonaws.com/?lifecycle");
	assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
	expect_signature(&r, names,
			 "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	/* Signed again: nothing of the first time is left. */
	request_set_url(&r, "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J");
	assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
	expect_signature(&r, names,
			 "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
	assert_non_null(strstr(request_header(&r, "Authorization"),
			       "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/"
			       "us-east-1/s3/aws4_request, SignedHeaders="));
	request_release(&r);
}

static void botocore(void **state)
{
	struct sigv4_keys keys = {.access_key = VECTOR_ACCESS, .secret_key = VECTOR_SECRET};

	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		const struct vector *v = &vectors[i];
		struct sigv4_scope scope = {.region = v->region,
					    .service = "s3",
					    .time_s = VECTOR_TIME,
					    .payload_hash = v->payload};
		struct request r = {.method = v->method};

		request_set_url(&r, v->url);
		for (size_t j = 0; j < 4 && v->headers[j].name != NULL; j++)
			request_set_header(&r, v->headers[j].name, v->headers[j].value);
		/* Left out of the signature. */
		request_set_header(&r, "Accept-Encoding", "identity");
		request_set_range(&r, 5, 10);
		keys.session_token = v->token ? VECTOR_TOKEN : NULL;
		assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
		expect_signature(&r, v->names, v->signature);
		request_release(&r);
	}
}

/* A byte that need not be encoded is signed as the server will see it. */
static void needless_escapes(void **state)
{
	struct sigv4_keys keys = {.access_key = "a", .secret_key = "s"};
	struct sigv4_scope scope = {.region = "r", .service = "s3", .time_s = 1};
	struct request plain = {0}, odd = {0};

	request_set_url(&plain, "https://h/b/~x-%2A?k=~");
	request_set_url(&odd, "https://h/b/%7ex%2D*?k=%7e");
	assert_int_equal(sigv4_sign(&plain, &keys, &scope), 0);
	assert_int_equal(sigv4_sign(&odd, &keys, &scope), 0);
	assert_string_equal(request_header(&plain, "Authorization"),
			    request_header(&odd, "Authorization"));
	request_release(&plain);
	request_release(&odd);
}

static void payloads(void **state)
{
	static const char empty[] =
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
	static char big[600 * 1024];
	struct sigv4_keys keys = {.access_key = "a", .secret_key = "s", .session_token = "t"};
	struct sigv4_scope scope = {.region = "r", .service = "s3", .time_s = 1};
	struct source src = source_memory(big, sizeof(big));
	struct request r = {.method = METHOD_PUT};
	char hash[65], other[65];

	request_set_url(&r, "https://h/k");
	assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
	assert_string_equal(request_header(&r, "x-amz-content-sha256"), empty);
	assert_string_equal(request_header(&r, "x-amz-security-token"), "t");
	request_set_body(&r, "x", 1);
	keys.session_token = NULL;
	assert_int_equal(sigv4_sign(&r, &keys, &scope), 0);
	assert_string_equal(request_header(&r, "x-amz-content-sha256"), SIGV4_UNSIGNED);
	assert_null(request_header(&r, "x-amz-security-token"));
	request_release(&r);
	sigv4_sha256_hex("", 0, hash);
	assert_string_equal(hash, empty);
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (char)(i * 7);
	sigv4_sha256_hex(big, sizeof(big), hash);
	assert_int_equal(sigv4_sha256_source(&src, other), 0);
	assert_string_equal(hash, other);
	/* No URL, a time nobody can write, a header that cannot be. */
	assert_int_equal(sigv4_sign(&r, &keys, &scope), -EINVAL);
	request_set_url(&r, "https://h/");
	scope.time_s = INT64_MAX;
	assert_int_equal(sigv4_sign(&r, &keys, &scope), -EINVAL);
	scope.time_s = 1;
	keys.session_token = "a\r\nb";
	assert_int_equal(sigv4_sign(&r, &keys, &scope), -EINVAL);
	request_release(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_suite), cmocka_unit_test(s3_manual),
		cmocka_unit_test(botocore),   cmocka_unit_test(needless_escapes),
		cmocka_unit_test(payloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
