/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network client against a server that misbehaves by script: ranges, retries, deliveries,
 * deadlines.  What may go to whom, and the life of calls, are in test_http_rules.c.
 */
#include "cache/remote/http.h"

#include "tests/unit/remote/calls.h"

enum { SIZE = 200 * 1000 };

static void plain_range(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	assert_int_equal(fetch_range(h, s, &c, 1000, 5000), 0);
	assert_int_equal(c.answer.status, 206);
	assert_true(c.answer.ranged);
	assert_int_equal(c.answer.range.total, SIZE);
	assert_int_equal(c.answer.length, 5000);
	assert_string_equal(http_header(&c.answer, "etag"), "\"one\"");
	assert_null(http_header(&c.answer, "absent"));
	expect_range(s, 0, "1000-5999");
	assert_non_null(
		strstr(server_seen(s, 0), "\r\nUser-Agent: weightfs/" WEIGHTFS_VERSION "\r\n"));
	assert_non_null(strstr(server_seen(s, 0), "\r\nAccept-Encoding: identity\r\n"));
	assert_non_null(strstr(server_seen(s, 0), "\r\nAuthorization: Bearer marked-token\r\n"));
	/* The connection is used again, and without a range for a whole object. */
	c.whole = true;
	assert_int_equal(fetch_range(h, s, &c, 0, SIZE), 0);
	assert_null(strstr(server_seen(s, 1), "\r\nRange:"));
	assert_int_equal(s->connection_count, 1);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void range_is_ignored(void **state)
{
	struct server *s = server_start(3 << 20, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	server_script(s, (struct reply){.whole = true});
	assert_int_equal(fetch_range(h, s, &c, 100000, 5000), 0);
	server_script(s, (struct reply){.whole = true, .chunked = true});
	assert_int_equal(fetch_range(h, s, &c, 0, 70000), 0);
	server_script(s, (struct reply){.whole = true});
	assert_int_equal(fetch_range(h, s, &c, 2 << 20, 5000), -EOPNOTSUPP);
	assert_int_equal(c.attempts, 1);
	assert_non_null(strstr(c.why.text, "ignores ranges"));
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

/* After a cut only what is missing is asked for, however often. */
static void resumes(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);
	struct http_counters n;

	for (int i = 0; i < 12; i++) /* more cuts than attempts without progress */
		server_script(s, (struct reply){.cut = 70000, .after = CLOSE});
	assert_int_equal(fetch_range(h, s, &c, 10, 150000), 0);
	expect_range(s, 0, "10-150009");
	expect_range(s, 1, "70010-150009");
	expect_range(s, 2, "140010-150009");
	assert_int_equal(server_count(s), 3);
	http_get_counters(h, &n);
	assert_int_equal(n.resumes, 2);
	assert_int_equal(n.retries, 2);
	assert_int_equal(n.requests, 3);
	assert_true(n.bytes_in >= 150000);
	/* A reset may lose what was sent, but nothing else. */
	s->used = s->scripted = 0;
	for (int i = 0; i < 3; i++)
		server_script(s, (struct reply){.cut = 70000, .after = RESET});
	assert_int_equal(fetch_range(h, s, &c, 10, 150000), 0);
	/* Small pieces are no progress: patience ends. */
	s->used = s->scripted = 0;
	for (int i = 0; i < 6; i++)
		server_script(s, (struct reply){.cut = 100, .after = CLOSE});
	assert_int_equal(fetch_range(h, s, &c, 0, 150000), -ECONNRESET);
	assert_int_equal(c.attempts, 6);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

/* A server that gives less than was asked for, properly. */
static void shorter_parts(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	server_script(s, (struct reply){.at_most = 66000});
	assert_int_equal(fetch_range(h, s, &c, 0, 100000), 0);
	expect_range(s, 1, "66000-99999");
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

/* How many bytes were told of when a range of 150,000 has come, or not. */
static size_t told(struct http *h, struct server *s, struct plan *p, bool chunked, int want)
{
	struct http_call c = plan_call(p, s);

	c.sound = plan_sound;
	c.more = plan_more;
	p->told = 0;
	if (chunked)
		server_script(s, (struct reply){.chunked = true});
	assert_int_equal(fetch_range(h, s, &c, 10, 150000), want);
	assert_int_equal(c.given, p->told);
	http_call_release(&c);
	return p->told;
}

/* What has come is told of as it comes, also across a cut: but not what may not be the object's, or
 * has no length; and never of two versions. */
static void early(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};

	assert_int_equal(told(h, s, &p, false, 0), 150000);
	assert_true(p.tellings > 0);
	server_script(s, (struct reply){.cut = 70000, .after = CLOSE});
	assert_int_equal(told(h, s, &p, false, 0), 150000);
	/* Resumed by an answer that begins again. */
	server_script(s, (struct reply){.cut = 70000, .after = CLOSE});
	server_script(s, (struct reply){.whole = true});
	assert_int_equal(told(h, s, &p, false, 0), 150000);
	assert_int_equal(told(h, s, &p, true, 0), 0);
	/* Whose first half is another object's and whose second is not. */
	for (int cut = 0; cut < 2; cut++) {
		if (cut)
			server_script(s, (struct reply){.cut = 70000, .after = CLOSE});
		p.unsound = 1;
		assert_int_equal(told(h, s, &p, false, -ESTALE), 0);
		p.unsound = 0;
	}
	for (int whole = 0; whole < 2; whole++) {
		server_script(s, (struct reply){.cut = 70000, .etag = "old", .after = CLOSE});
		server_script(s, (struct reply){.etag = "new", .whole = whole == 1});
		assert_int_equal(told(h, s, &p, false, -ESTALE), 70000);
	}
	http_free(h);
	server_stop(s);
}

static void never_two_versions(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	server_script(s, (struct reply){.cut = 70000, .etag = "old", .after = CLOSE});
	server_script(s, (struct reply){.etag = "new"}); /* answers the resumption: refused */
	server_script(s, (struct reply){.etag = "new"});
	assert_int_equal(fetch_range(h, s, &c, 0, 150000), 0);
	assert_string_equal(http_header(&c.answer, "ETag"), "\"new\"");
	expect_range(s, 1, "70000-149999");
	expect_range(s, 2, "0-149999");
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void wrong_answers(void **state)
{
	static const struct {
		const char *raw;
		int err;
	} cases[] = {
		{"HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/100\r\nContent-Length: "
		 "10\r\n\r\n0123456789",
		 -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Range: bytes 10-39/100\r\nContent-Length: "
		 "30\r\n\r\n012345678901234567890123456789",
		 -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Range: bytes 10-19/100\r\nContent-Length: "
		 "12\r\n\r\n012345678901",
		 -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Range: rubbish\r\nContent-Length: 10\r\n\r\n0123456789",
		 -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Length: 10\r\n\r\n0123456789", -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Range: bytes 10-19/100\r\nContent-Encoding: "
		 "gzip\r\nContent-Length: 10\r\n\r\n0123456789",
		 -EPROTO},
		{"HTTP/1.1 204 No\r\n\r\n", -EPROTO},
		{"HTTP/1.1 206 P\r\nContent-Range: bytes 10-14/15\r\nContent-Length: "
		 "5\r\n\r\n01234",
		 -ESTALE},
		{"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n012345678901", -ESTALE},
		{"HTTP/1.1 416 No\r\nContent-Range: bytes */5\r\nContent-Length: 0\r\n\r\n",
		 -ERANGE},
		{"rubbish\r\n\r\n", -EPROTO},
	};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 2});

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		bool transient = cases[i].err == -EPROTO;
		struct plan p = {0};
		struct http_call c = plan_call(&p, s);

		s->used = s->scripted = 0;
		server_script(s, (struct reply){.raw = cases[i].raw, .after = CLOSE});
		if (transient)
			server_script(s, (struct reply){.raw = cases[i].raw, .after = CLOSE});
		if (fetch_range(h, s, &c, 10, 10) != cases[i].err)
			print_error("case %zu: %d %s\n", i, c.err, c.why.text);
		assert_int_equal(c.err, cases[i].err);
		assert_int_equal(c.why.err, -cases[i].err);
		assert_int_equal(c.attempts, transient ? 2 : 1);
		/* Once only: the bytes come after all. */
		s->used = s->scripted = 0;
		server_script(s, (struct reply){.raw = cases[i].raw, .after = CLOSE});
		assert_int_equal(fetch_range(h, s, &c, 10, 10), transient ? 0 : cases[i].err);
		http_call_release(&c);
	}
	http_free(h);
	server_stop(s);
}

/* rclone's S3 server answers so.  What is not exactly the range that was asked for stays a 200. */
static void ranges_called_200(void **state)
{
	static const char good[] = "HTTP/1.1 200 OK\r\nContent-Range: bytes 10-19/100\r\n"
				   "Content-Length: 10\r\n\r\n0123456789";
	static const char whole[] = "HTTP/1.1 200 OK\r\nContent-Range: bytes 0-19/20\r\n"
				    "Content-Length: 20\r\n\r\n..........0123456789";
	static const char shifted[] = "HTTP/1.1 200 OK\r\nContent-Range: bytes 11-20/100\r\n"
				      "Content-Length: 10\r\n\r\n0123456789";
	const char *const raw[] = {good, whole, shifted};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 1});

	for (size_t i = 0; i < ARRAY_LEN(raw); i++) {
		struct plan p = {0};
		struct http_call c = plan_call(&p, s);
		char bytes[10] = "";

		s->used = s->scripted = 0;
		server_script(s, (struct reply){.raw = raw[i], .after = CLOSE});
		c.delivery = HTTP_EXACT;
		c.dst = bytes;
		c.off = c.len = 10;
		assert_int_equal(http_run(h, &c), raw[i] == shifted ? -ESTALE : 0);
		if (raw[i] != shifted)
			assert_memory_equal(bytes, "0123456789", 10);
		http_call_release(&c);
	}
	http_free(h);
	server_stop(s);
}

static void more_bytes_than_asked(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 2});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	server_script(s, (struct reply){.chunked = true, .extra = 5});
	assert_int_equal(fetch_range(h, s, &c, 10, 1000), 0);
	assert_int_equal(server_count(s), 2);
	/* A whole object that has grown. */
	c.whole = true;
	server_script(s, (struct reply){.chunked = true, .extra = 5});
	assert_int_equal(fetch_range(h, s, &c, 0, SIZE), -ESTALE);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void refusals(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.parallel = 16});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);
	struct http_counters n;

	server_script(s, (struct reply){.raw = "HTTP/1.1 429 Slow\r\nRetry-After: "
					       "0\r\nContent-Length: 3\r\n\r\nno!"});
	server_script(s,
		      (struct reply){.raw = "HTTP/1.1 503 SlowDown\r\nContent-Length: 0\r\n\r\n"});
	server_script(
		s, (struct reply){.raw = "HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\n<html>"});
	server_script(s, (struct reply){.raw = "HTTP/1.1 429 R\r\nRateLimit: "
					       "\"api\";r=0;t=0\r\nContent-Length: 0\r\n\r\n"});
	assert_int_equal(fetch_range(h, s, &c, 0, 100), 0);
	assert_int_equal(c.attempts, 5);
	assert_non_null(strstr(server_seen(s, 4), "X-Attempt: 5"));
	http_get_counters(h, &n);
	assert_int_equal(n.refused, 3);
	assert_int_equal(n.by_class[2], 1);
	assert_int_equal(n.by_class[4], 2);
	assert_int_equal(n.by_class[5], 2);
	assert_int_equal(n.limit, 2); /* 16, halved three times */
	/* What it asks for is more than the patience of the call. */
	server_script(s, (struct reply){.raw = "HTTP/1.1 429 Slow\r\nRetry-After: "
					       "200\r\nContent-Length: 0\r\n\r\n"});
	assert_int_equal(fetch_range(h, s, &c, 0, 100), -EIO);
	assert_non_null(strstr(c.why.text, "answered 429"));
	assert_non_null(strstr(c.why.text, "127.0.0.1"));
	/* No second attempt where the caller wants none. */
	c.once = true;
	server_script(s, (struct reply){.raw = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"});
	assert_int_equal(fetch_range(h, s, &c, 0, 100), -EIO);
	assert_int_equal(c.attempts, 1);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void statuses(void **state)
{
	static const struct {
		int status, err;
	} cases[] = {{400, -EIO},    {401, -EACCES}, {403, -EACCES}, {404, -ENOENT},
		     {409, -EEXIST}, {412, -ESTALE}, {413, -ENOSPC}, {507, -ENOSPC}};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct plan p = {.path = "/secret/path?X-Amz-Signature=marked-signature"};
		struct http_call c = plan_call(&p, s);
		char raw[128];

		snprintf(raw, sizeof(raw), "HTTP/1.1 %d X\r\nContent-Length: 4\r\n\r\nbody",
			 cases[i].status);
		server_script(s, (struct reply){.raw = raw});
		assert_int_equal(fetch_range(h, s, &c, 0, 10), cases[i].err);
		assert_int_equal(c.answer.status, cases[i].status);
		assert_string_equal(buf_str(&c.answer.error_body), "body");
		assert_non_null(strstr(c.why.text, "/secret/path"));
		assert_null(strstr(c.why.text, "marked"));
		http_call_release(&c);
	}
	http_free(h);
	server_stop(s);
}

static void judged(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {.verdict = HTTP_JUDGE_AGAIN};
	struct http_call c = plan_call(&p, s);
	struct reply bad = {.raw = "HTTP/1.1 400 Bad\r\nContent-Length: 8\r\n\r\n<Region>"};

	c.judge = plan_judge;
	server_script(s, bad);
	assert_int_equal(fetch_range(h, s, &c, 0, 10), 0);
	assert_int_equal(p.judged, 1);
	assert_int_equal(c.attempts, 2);
	p = (struct plan){.server = s, .verdict = -EXDEV};
	server_script(s, bad);
	assert_int_equal(fetch_range(h, s, &c, 0, 10), -EXDEV);
	assert_string_equal(c.why.text, "judged: <Region>");
	/* The builder may want to begin again. */
	p = (struct plan){.server = s, .again = 2};
	assert_int_equal(fetch_range(h, s, &c, 0, 10), 0);
	assert_int_equal(c.attempts, 3);
	p = (struct plan){.server = s, .again = 100};
	assert_int_equal(fetch_range(h, s, &c, 0, 10), -EAGAIN);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void into_a_buffer(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);
	struct buf b = {0};

	buf_addstr(&b, "before:");
	c.delivery = HTTP_BUFFER;
	c.buffer = &b;
	c.buffer_max = SIZE;
	server_script(s, (struct reply){.raw = "HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nbody"});
	server_script(s, (struct reply){.cut = 5000, .after = CLOSE});
	assert_int_equal(http_run(h, &c), 0);
	assert_int_equal(b.len, 7 + SIZE);
	assert_memory_equal(b.data, "before:", 7);
	assert_memory_equal(b.data + 7, s->object, SIZE);
	b.len = 0;
	c.buffer_max = SIZE - 1;
	assert_int_equal(http_run(h, &c), -EFBIG);
	assert_int_equal(b.len, 0);
	/* 304 is an answer, not an error. */
	server_script(s,
		      (struct reply){.raw = "HTTP/1.1 304 Not Modified\r\nETag: \"one\"\r\n\r\n"});
	assert_int_equal(http_run(h, &c), 0);
	assert_int_equal(c.answer.status, 304);
	/* A HEAD has no body, and its length is that of the object. */
	p.method = METHOD_HEAD;
	c.delivery = HTTP_DISCARD;
	assert_int_equal(http_run(h, &c), 0);
	assert_int_equal(c.answer.length, SIZE);
	buf_release(&b);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void streamed(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	c.delivery = HTTP_STREAM;
	c.data = plan_data;
	server_script(s, (struct reply){.raw = "HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nbody"});
	server_script(s, (struct reply){.chunked = true});
	assert_int_equal(http_run(h, &c), 0);
	assert_int_equal(p.streamed.len, SIZE);
	assert_memory_equal(p.streamed.data, s->object, SIZE);
	/* What was delivered cannot be taken back. */
	p.streamed.len = 0;
	server_script(s, (struct reply){.cut = 5000, .after = CLOSE});
	assert_int_equal(http_run(h, &c), -ECONNRESET);
	assert_int_equal(c.attempts, 1);
	p.data_err = -EDOM;
	assert_int_equal(http_run(h, &c), -EDOM);
	buf_release(&p.streamed);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static int read_pattern(void *ctx, uint64_t off, void *dst, size_t len)
{
	int *broken = ctx;

	if (*broken)
		return -EIO;
	for (size_t i = 0; i < len; i++)
		((char *)dst)[i] = (char)('a' + (off + i) % 23);
	return 0;
}

static void uploads(void **state)
{
	int broken = 0;
	struct source src = {.read = read_pattern, .ctx = &broken, .size = 300000};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 2});
	struct plan p = {.method = METHOD_PUT, .upload = &src};
	struct http_call c = plan_call(&p, s);
	static const char created[] =
		"HTTP/1.1 201 Created\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n";
	const char *body;

	server_script(s, (struct reply){.raw = "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"});
	server_script(s, (struct reply){.raw = created});
	assert_int_equal(http_run(h, &c), 0);
	assert_int_equal(c.answer.status, 201);
	body = strstr(server_seen(s, 1), "\r\n\r\n") + 4;
	assert_int_equal(strlen(body), 300000);
	for (size_t i = 0; i < 300000; i += 997)
		assert_int_equal(body[i], 'a' + i % 23);
	assert_null(strstr(server_seen(s, 1), "Expect:"));
	assert_null(strstr(server_seen(s, 1), "Transfer-Encoding"));
	broken = 1;
	assert_int_equal(http_run(h, &c), -EIO);
	/* A PUT without a body says so. */
	p = (struct plan){.server = s, .method = METHOD_PUT};
	server_script(s, (struct reply){.raw = created});
	assert_int_equal(http_run(h, &c), 0);
	assert_non_null(strstr(server_seen(s, server_count(s) - 1), "\r\nContent-Length: 0\r\n"));
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void posts_are_not_repeated(void **state)
{
	static const char oops[] = "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n";
	static const char good[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {.method = METHOD_POST, .body = "{\"paths\":[]}"};
	struct http_call c = plan_call(&p, s);

	server_script(s, (struct reply){.raw = oops});
	assert_int_equal(http_run(h, &c), -EIO);
	assert_int_equal(c.attempts, 1);
	assert_non_null(strstr(server_seen(s, 0), "\r\n\r\n{\"paths\":[]}"));
	assert_null(strstr(server_seen(s, 0), "Content-Type"));
	c.repeatable = true;
	server_script(s, (struct reply){.raw = oops});
	server_script(s, (struct reply){.raw = good});
	assert_int_equal(http_run(h, &c), 0);
	/* A refusal has done nothing yet. */
	c.repeatable = false;
	server_script(s, (struct reply){.raw = "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"});
	server_script(s, (struct reply){.raw = good});
	assert_int_equal(http_run(h, &c), 0);
	/* The connection broke: nobody knows. */
	server_script(s, (struct reply){.raw = "", .after = RESET});
	assert_int_equal(http_run(h, &c), -ECONNRESET);
	assert_int_equal(c.attempts, 1);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void patience_ends(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	/* A stall ends the attempt, not the call; on a busy machine even before the first byte, so
	 * more time is given until that has come. */
	for (c.inactivity_ms = 150; c.inactivity_ms < 60000; c.inactivity_ms *= 3) {
		unsigned before = server_count(s);

		s->used = s->scripted = 0;
		server_script(s, (struct reply){.cut = 70000, .after = STALL});
		assert_int_equal(fetch_range(h, s, &c, 0, 100000), 0);
		assert_true(c.attempts >= 2);
		if (strstr(server_seen(s, before + 1), "\r\nRange: bytes=70000-99999\r\n") != NULL)
			break;
	}
	assert_true(c.inactivity_ms < 60000);
	c.inactivity_ms = 150;
	c.once = true;
	server_script(s, (struct reply){.raw = "HTTP/1.1 200 OK\r\n", .after = STALL});
	assert_int_equal(fetch_range(h, s, &c, 0, 100000), -ETIMEDOUT);
	assert_int_equal(c.attempts, 1);
	c.once = false;
	/* A trickle is progress, until the deadline. */
	c.deadline_mono_ns = clock_mono_ns() + NSEC_PER_SEC / 5;
	for (int i = 0; i < 8; i++)
		server_script(s, (struct reply){.drip = true});
	assert_int_equal(fetch_range(h, s, &c, 0, 100000), -ETIMEDOUT);
	/* A deadline that has passed already. */
	c.deadline_mono_ns = 1;
	assert_int_equal(fetch_range(h, s, &c, 0, 100000), -ETIMEDOUT);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_range),
		cmocka_unit_test(range_is_ignored),
		cmocka_unit_test(resumes),
		cmocka_unit_test(shorter_parts),
		cmocka_unit_test(early),
		cmocka_unit_test(never_two_versions),
		cmocka_unit_test(wrong_answers),
		cmocka_unit_test(ranges_called_200),
		cmocka_unit_test(more_bytes_than_asked),
		cmocka_unit_test(refusals),
		cmocka_unit_test(statuses),
		cmocka_unit_test(judged),
		cmocka_unit_test(into_a_buffer),
		cmocka_unit_test(streamed),
		cmocka_unit_test(uploads),
		cmocka_unit_test(posts_are_not_repeated),
		cmocka_unit_test(patience_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
