/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network client's rules: redirects and what may go to whom, cancelling, shutting down, slots
 * and priorities, sentences without secrets.
 */
#include "cache/remote/http.h"

#include "tests/unit/remote/calls.h"

enum { SIZE = 100 * 1000 };

/* A redirect to a path of another server, as a whole answer; static buffers, used in turn. */
static const char *redirect(int status, const char *to, const char *path)
{
	static char raws[4][512];
	static unsigned turn;
	char *raw = raws[turn++ % 4];

	snprintf(raw, sizeof(raws[0]),
		 "HTTP/1.1 %d Found\r\nLocation: %s%s\r\nX-Linked-Size: 12345\r\n"
		 "Content-Length: 9\r\n\r\nelsewhere",
		 status, to, path);
	return raw;
}

static void no_credentials_to_others(void **state)
{
	struct server *hub = server_start(SIZE, 1), *cdn = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, hub);
	struct http_counters n;
	const char *got;

	server_script(hub, (struct reply){.raw = redirect(302, cdn->origin,
							  "/signed?Signature=marked-signature")});
	assert_int_equal(fetch_range(h, hub, &c, 100, 5000), 0);
	assert_int_equal(c.answer.status, 206);
	assert_string_equal(p.linked, "12345");
	got = server_seen(cdn, 0);
	assert_non_null(strstr(got, "GET /signed?Signature=marked-signature HTTP/1.1\r\n"));
	expect_range(cdn, 0, "100-5099");
	assert_null(strcasestr(got, "authorization"));
	assert_null(strcasestr(got, "marked-token"));
	assert_null(strcasestr(got, "x-attempt"));
	assert_null(strcasestr(got, "cookie"));
	http_get_counters(h, &n);
	assert_int_equal(n.redirects, 1);
	/* A resumption goes through the first hop again, and asks for the rest. */
	server_script(hub, (struct reply){.raw = redirect(302, cdn->origin, "/a")});
	server_script(hub, (struct reply){.raw = redirect(302, cdn->origin, "/b")});
	server_script(cdn, (struct reply){.cut = 70000, .after = CLOSE});
	assert_int_equal(fetch_range(h, hub, &c, 0, 90000), 0);
	assert_non_null(strstr(server_seen(cdn, 2), "GET /b "));
	expect_range(cdn, 2, "70000-89999");
	http_call_release(&c);
	http_free(h);
	server_stop(hub);
	server_stop(cdn);
}

/* A builder that would leak is stopped before a byte is sent. */
static void leaks_are_refused(void **state)
{
	struct server *hub = server_start(SIZE, 1), *cdn = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {.leak = true};
	struct http_call c = plan_call(&p, hub);

	server_script(hub, (struct reply){.raw = redirect(302, cdn->origin, "/signed")});
	assert_int_equal(fetch_range(h, hub, &c, 0, 10), -EPERM);
	assert_null(strstr(c.why.text, "marked-token"));
	assert_int_equal(cdn->connection_count, 0);
	/* Nor to the first hop, when that is not the origin. */
	p = (struct plan){.server = hub};
	c.origin = cdn->origin;
	assert_int_equal(fetch_range(h, hub, &c, 0, 10), -EPERM);
	c.origin = NULL;
	assert_int_equal(fetch_range(h, hub, &c, 0, 10), -EPERM);
	assert_int_equal(server_count(hub), 1);
	http_call_release(&c);
	http_free(h);
	server_stop(hub);
	server_stop(cdn);
}

static void redirects(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 2});
	struct plan p = {.path = "/a/b?x=1"};
	struct http_call c = plan_call(&p, s);

	/* Relative, same origin: credentials stay. */
	server_script(s, (struct reply){.raw = redirect(307, "", "../c?y=2")});
	assert_int_equal(fetch_range(h, s, &c, 0, 10), 0);
	assert_non_null(strstr(server_seen(s, 1), "GET /c?y=2 HTTP/1.1"));
	assert_non_null(strstr(server_seen(s, 1), "Bearer marked-token"));
	/* In circles. */
	s->used = s->scripted = 0;
	for (int i = 0; i < 6; i++)
		server_script(s, (struct reply){.raw = redirect(308, "", "/a/b")});
	assert_int_equal(fetch_range(h, s, &c, 0, 10), -EPROTO);
	assert_non_null(strstr(c.why.text, "in circles"));
	assert_int_equal(server_count(s), 2 + 6);
	/* As a result. */
	s->used = s->scripted = 0;
	c.no_follow = true;
	server_script(
		s, (struct reply){.raw = redirect(302, "https://cdn.example/", "k?Signature=s")});
	assert_int_equal(fetch_range(h, s, &c, 0, 10), 0);
	assert_int_equal(c.answer.status, 302);
	assert_string_equal(c.answer.location, "https://cdn.example/k?Signature=s");
	assert_string_equal(http_header(&c.answer, "X-Linked-Size"), "12345");
	c.no_follow = false;
	/* S3's 301 without a target is an error with a body. */
	server_script(s,
		      (struct reply){.raw = "HTTP/1.1 301 M\r\nContent-Length: 8\r\n\r\n<Region>"});
	assert_int_equal(fetch_range(h, s, &c, 0, 10), -EIO);
	assert_string_equal(buf_str(&c.answer.error_body), "<Region>");
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

static void bad_redirects(void **state)
{
	static const char *const targets[] = {"http://user:marked@127.0.0.1/", "ftp://127.0.0.1/x",
					      "file:///etc/passwd", "http://", "http://a b/"};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 1});

	for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
		struct plan p = {0};
		struct http_call c = plan_call(&p, s);

		server_script(s, (struct reply){.raw = redirect(302, targets[i], "")});
		assert_int_equal(fetch_range(h, s, &c, 0, 10), -EPROTO);
		assert_null(strstr(c.why.text, "marked"));
		assert_int_equal(p.hops, 0);
		http_call_release(&c);
	}
	http_free(h);
	server_stop(s);
}

static void methods_of_redirects(void **state)
{
	static const struct {
		enum method method;
		int status;
		const char *then;
	} cases[] = {
		{METHOD_POST, 303, "GET "}, {METHOD_POST, 302, "GET "}, {METHOD_POST, 307, "POST "},
		{METHOD_PUT, 307, "PUT "},  {METHOD_PUT, 303, "GET "},	{METHOD_HEAD, 303, "HEAD "},
		{METHOD_GET, 301, "GET "},
	};
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct plan p = {.method = cases[i].method};
		struct http_call c = plan_call(&p, s);
		unsigned before = server_count(s);

		if (p.method == METHOD_PUT || p.method == METHOD_POST)
			p.body = "body";
		server_script(s, (struct reply){.raw = redirect(cases[i].status, "", "/then"),
						.after = CLOSE});
		server_script(s, (struct reply){.raw = "HTTP/1.1 204 No\r\n\r\n", .after = CLOSE});
		assert_int_equal(http_run(h, &c), 0);
		assert_int_equal(
			strncmp(server_seen(s, before + 1), cases[i].then, strlen(cases[i].then)),
			0);
		assert_int_equal(strstr(server_seen(s, before + 1), "\r\n\r\nbody") != NULL,
				 p.body != NULL && cases[i].status == 307);
		http_call_release(&c);
	}
	http_free(h);
	server_stop(s);
}

/* ---- many calls ---- */

struct crowd {
	struct http *h;
	int done, failed, cancelled; /* atomics */
	const char *order[8];	     /* paths as they were built; the network thread's */
	unsigned built;
	int resubmit;
};

static void crowd_done(struct http_call *c)
{
	struct plan *p = c->ctx;
	struct crowd *crowd = (struct crowd *)p->upload; /* a place for a pointer */

	if (c->err == -ECANCELED)
		__atomic_fetch_add(&crowd->cancelled, 1, __ATOMIC_RELEASE);
	else if (c->err != 0)
		__atomic_fetch_add(&crowd->failed, 1, __ATOMIC_RELEASE);
	if (crowd->resubmit-- > 0) {
		http_submit(crowd->h, c);
		return;
	}
	http_call_release(c);
	__atomic_fetch_add(&crowd->done, 1, __ATOMIC_RELEASE);
}

static int crowd_build(struct http_call *c, const struct http_hop *hop, struct request *out,
		       struct why *why)
{
	struct plan *p = c->ctx;
	struct crowd *crowd = (struct crowd *)p->upload;
	char url[128];

	if (crowd->built < ARRAY_LEN(crowd->order))
		crowd->order[crowd->built++] = p->path;
	snprintf(url, sizeof(url), "%s%s", p->server->origin, p->path ? p->path : "/object");
	request_set_url(out, url);
	return 0;
}

static void wait_for(int *counter, int value)
{
	while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < value)
		usleep(500);
}

static void wait_for_requests(struct server *s, unsigned count)
{
	while (server_count(s) < count)
		usleep(500);
}

static struct http_call crowd_call(struct plan *p, struct crowd *crowd, struct server *s)
{
	p->server = s;
	p->upload = (const struct source *)crowd;
	return (struct http_call){.build = crowd_build, .done = crowd_done, .ctx = p};
}

static void many_at_once(void **state)
{
	enum { CALLS = 300, LEN = 300 };
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){.parallel = 4})};
	static struct http_call calls[CALLS];
	static struct plan plans[CALLS];
	static char dst[CALLS][LEN];
	struct http_counters n;

	memset(plans, 0, sizeof(plans));
	__atomic_store_n(&s->hold, true, __ATOMIC_RELEASE);
	for (size_t i = 0; i < CALLS; i++) {
		calls[i] = crowd_call(&plans[i], &crowd, s);
		calls[i].delivery = HTTP_EXACT;
		calls[i].off = i * LEN;
		calls[i].len = LEN;
		calls[i].dst = dst[i];
		calls[i].class = i % 2 ? HTTP_BACKGROUND : HTTP_READ;
		http_submit(crowd.h, &calls[i]);
	}
	wait_for_requests(s, 4);
	__atomic_store_n(&s->hold, false, __ATOMIC_RELEASE);
	wait_for(&crowd.done, CALLS);
	assert_int_equal(crowd.failed, 0);
	assert_memory_equal(dst, s->object, sizeof(dst));
	assert_true(s->parallel_max <= 4);
	/* Connections are used again. */
	assert_true(s->connection_count <= 8);
	http_get_counters(crowd.h, &n);
	assert_int_equal(n.calls, CALLS);
	assert_int_equal(n.requests, CALLS);
	http_free(crowd.h);
	server_stop(s);
}

/* Reads pass background calls, a promoted one among them, and a quarter of the slots stays free. */
static void reads_first(void **state)
{
	static const char *const paths[] = {"/bg0", "/bg1",  "/bg2", "/bg3",
					    "/bg4", "/read", "/mark"};
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){.parallel = 4})};
	struct http_call calls[7];
	struct plan plans[7] = {0};

	__atomic_store_n(&s->hold, true, __ATOMIC_RELEASE);
	for (size_t i = 0; i < 5; i++) {
		calls[i] = crowd_call(&plans[i], &crowd, s);
		plans[i].path = paths[i];
		calls[i].class = HTTP_BACKGROUND;
		http_submit(crowd.h, &calls[i]);
	}
	wait_for_requests(s, 3); /* of five: the fourth slot is for reads */
	calls[5] = crowd_call(&plans[5], &crowd, s);
	plans[5].path = paths[5];
	http_submit(crowd.h, &calls[5]);
	wait_for_requests(s, 4);
	assert_non_null(strstr(server_seen(s, 3), "/read"));
	http_promote(crowd.h, &calls[4]);
	/* What takes no slot, and comes: so the promotion is known, too. */
	calls[6] = crowd_call(&plans[6], &crowd, s);
	plans[6].path = paths[6];
	calls[6].class = HTTP_STANDING;
	http_submit(crowd.h, &calls[6]);
	wait_for_requests(s, 5);
	__atomic_store_n(&s->hold, false, __ATOMIC_RELEASE);
	wait_for(&crowd.done, 7);
	assert_string_equal(crowd.order[4], "/mark");
	assert_string_equal(crowd.order[5], "/bg4");
	assert_string_equal(crowd.order[6], "/bg3");
	http_free(crowd.h);
	server_stop(s);
}

/* A standing call does not use up the only slot. */
static void standing(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){.parallel = 1})};
	struct plan feed = {.path = "/events"}, p = {0};
	struct http_call events = crowd_call(&feed, &crowd, s), c = plan_call(&p, s);

	events.class = HTTP_STANDING;
	events.deadline_mono_ns = -1;
	server_script(s, (struct reply){.raw = "HTTP/1.1 200 OK\r\n\r\n: ping\n", .after = STALL});
	http_submit(crowd.h, &events);
	wait_for_requests(s, 1);
	assert_int_equal(fetch_range(crowd.h, s, &c, 0, 10), 0);
	http_cancel(crowd.h, &events);
	wait_for(&crowd.done, 1);
	assert_int_equal(crowd.cancelled, 1);
	http_call_release(&c);
	http_free(crowd.h);
	server_stop(s);
}

static void cancelling(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){.parallel = 1,
								.retry.base_ms = 3600000,
								.retry.cap_ms = 3600000})};
	struct http_call calls[3];
	struct plan plans[3] = {0};

	/* One that runs, one that waits for its turn, one that waits for its back-off to end. */
	server_script(s, (struct reply){.raw = "HTTP/1.1 503 X\r\nRetry-After: 60\r\n"
					       "Content-Length: 0\r\n\r\n"});
	server_script(s, (struct reply){.raw = "", .after = STALL});
	for (size_t i = 0; i < 3; i++) {
		calls[i] = crowd_call(&plans[i], &crowd, s);
		calls[i].deadline_mono_ns = -1;
		http_submit(crowd.h, &calls[i]);
	}
	wait_for_requests(s, 2);
	for (int i = 2; i >= 0; i--)
		http_cancel(crowd.h, &calls[i]);
	wait_for(&crowd.done, 3);
	assert_int_equal(crowd.cancelled, 3);
	assert_int_equal(server_count(s), 2);
	/* A call that has ended, and one that never was: nothing happens. */
	http_cancel(crowd.h, &calls[0]);
	http_promote(crowd.h, &calls[1]);
	http_free(crowd.h);
	server_stop(s);
}

static void shutting_down(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){.parallel = 2})};
	struct http_call calls[6], late;
	struct plan plans[7] = {0};
	struct plan again = {0};
	struct http_call c = plan_call(&again, s);

	for (size_t i = 0; i < 2; i++)
		server_script(s, (struct reply){.raw = "", .after = STALL});
	for (size_t i = 0; i < 6; i++) {
		calls[i] = crowd_call(&plans[i], &crowd, s);
		calls[i].class = i == 5 ? HTTP_BACKGROUND : HTTP_READ;
		http_submit(crowd.h, &calls[i]);
	}
	wait_for_requests(s, 2);
	http_shutdown(crowd.h);
	assert_int_equal(crowd.done, 6);
	assert_int_equal(crowd.cancelled, 6);
	late = crowd_call(&plans[6], &crowd, s);
	http_submit(crowd.h, &late);
	assert_int_equal(crowd.cancelled, 7);
	assert_int_equal(fetch_range(crowd.h, s, &c, 0, 10), -ECANCELED);
	http_call_release(&c);
	http_free(crowd.h);
	http_free(NULL);
	server_stop(s);
}

static void resubmitting(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct crowd crowd = {.h = client((struct http_options){0}), .resubmit = 20};
	struct plan p = {0};
	struct http_call c = crowd_call(&p, &crowd, s);

	http_submit(crowd.h, &c);
	wait_for(&crowd.done, 1);
	assert_int_equal(server_count(s), 21);
	http_free(crowd.h);
	server_stop(s);
}

static struct http *deadlock_client;
static int deadlock_err;

static void run_inside(struct http_call *c)
{
	struct plan *p = c->ctx, inner = {0};
	struct http_call d = plan_call(&inner, p->server);

	__atomic_store_n(&deadlock_err, http_run(deadlock_client, &d), __ATOMIC_RELEASE);
}

static void waiting_inside(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	deadlock_client = client((struct http_options){0});
	c.done = run_inside;
	http_submit(deadlock_client, &c);
	while (__atomic_load_n(&deadlock_err, __ATOMIC_ACQUIRE) == 0)
		usleep(500);
	assert_int_equal(deadlock_err, -EDEADLK);
	http_free(deadlock_client);
	http_call_release(&c);
	server_stop(s);
}

/* While nobody answers, a patient call goes on until its deadline; others have six attempts. */
static void patience(void **state)
{
	static const char oops[] = "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n";
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){0});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);

	for (int i = 0; i < 6; i++)
		server_script(s, (struct reply){.raw = "", .after = CLOSE});
	assert_int_equal(fetch_range(h, s, &c, 0, 1000), -ECONNRESET);
	assert_int_equal(c.attempts, 6);
	c.patient = true;
	for (int i = 0; i < 20; i++)
		server_script(s, (struct reply){.raw = "", .after = CLOSE});
	assert_int_equal(fetch_range(h, s, &c, 0, 1000), 0);
	assert_int_equal(c.attempts, 21);
	/* An answer that is no good is one, before and after the silence. */
	for (int i = 0; i < 26; i++) {
		const bool silent = i >= 3 && i < 23;

		server_script(s, (struct reply){.raw = silent ? "" : oops, .after = CLOSE});
	}
	assert_int_equal(fetch_range(h, s, &c, 0, 1000), -EIO);
	assert_int_equal(c.attempts, 26);
	for (int i = 0; i < 6; i++)
		server_script(s, (struct reply){.raw = oops});
	assert_int_equal(fetch_range(h, s, &c, 0, 1000), -EIO);
	assert_int_equal(c.attempts, 6);
	http_call_release(&c);
	http_free(h);
	server_stop(s);
}

/* 64 letters, of which a name may have 63 up to its next dot. */
#define LONG_LABEL "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbccccccccccccccccdddddddddddddddd"

static void nobody_there(void **state)
{
	struct server *s = server_start(SIZE, 1);
	struct http *h = client((struct http_options){.retry.attempts = 2});
	struct plan p = {.path = "/p?token=marked"};
	struct http_call c = plan_call(&p, s);
	struct server gone = *s;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(a);

	server_stop(s);
	/* A port that is taken, so that nobody else listens there, and not listened on. */
	assert_int_equal(bind(held, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(held, (struct sockaddr *)&a, &len), 0);
	snprintf(gone.origin, sizeof(gone.origin), "http://127.0.0.1:%u", ntohs(a.sin_port));
	p.server = &gone;
	c.origin = gone.origin;
	assert_int_equal(fetch_range(h, &gone, &c, 0, 10), -ECONNREFUSED);
	assert_int_equal(c.attempts, 2);
	assert_non_null(strstr(c.why.text, "127.0.0.1"));
	assert_null(strstr(c.why.text, "marked"));
	/* Of a name that is none nobody is asked, so this needs no server for names. */
	snprintf(gone.origin, sizeof(gone.origin), "http://%s.invalid", LONG_LABEL);
	assert_int_equal(fetch_range(h, &gone, &c, 0, 10), -EHOSTUNREACH);
	assert_non_null(strstr(c.why.text, LONG_LABEL ".invalid"));
	http_call_release(&c);
	http_free(h);
	close(held);
}

static void bad_certificates_file(void **state)
{
	struct http_options o = {.ca_file = "/nonexistent/ca.pem"};
	struct http *h = NULL;
	struct why why = {0};

	assert_int_equal(http_new(&o, &h, &why), -ENOENT);
	assert_null(h);
	assert_non_null(strstr(why.text, "--ca-file"));
}

/* Loopback never goes through a proxy, others do. */
static void proxies(void **state)
{
	struct server *s = server_start(SIZE, 1), *proxy = server_start(SIZE, 2);
	struct http *h = client((struct http_options){.retry.attempts = 1});
	struct plan p = {0};
	struct http_call c = plan_call(&p, s);
	struct server far = {.object = proxy->object};

	setenv("http_proxy", proxy->origin, 1);
	assert_int_equal(fetch_range(h, s, &c, 0, 10), 0);
	assert_int_equal(server_count(proxy), 0);
	snprintf(far.origin, sizeof(far.origin), "http://far.invalid");
	p.server = &far;
	c.origin = far.origin;
	assert_int_equal(fetch_range(h, &far, &c, 0, 10), 0);
	assert_non_null(strstr(server_seen(proxy, 0), "GET http://far.invalid/object HTTP/1.1"));
	unsetenv("http_proxy");
	http_call_release(&c);
	http_free(h);
	server_stop(s);
	server_stop(proxy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_credentials_to_others),
		cmocka_unit_test(leaks_are_refused),
		cmocka_unit_test(redirects),
		cmocka_unit_test(bad_redirects),
		cmocka_unit_test(methods_of_redirects),
		cmocka_unit_test(many_at_once),
		cmocka_unit_test(reads_first),
		cmocka_unit_test(standing),
		cmocka_unit_test(cancelling),
		cmocka_unit_test(shutting_down),
		cmocka_unit_test(resubmitting),
		cmocka_unit_test(waiting_inside),
		cmocka_unit_test(patience),
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(bad_certificates_file),
		cmocka_unit_test(proxies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
