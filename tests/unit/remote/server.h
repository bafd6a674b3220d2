/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP server on loopback that does what a script says, to try the network client's
 * patience.
 *
 * Requests are answered in the order of their arrival by the replies of the script, one each; when
 * the script is at its end, by the object (with ranges).  All requests are kept as text.  A thread
 * per connection; nothing here is fast.
 */
#ifndef TESTS_UNIT_REMOTE_SERVER_H
#define TESTS_UNIT_REMOTE_SERVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/buf.h"

enum after { KEEP, CLOSE, RESET, STALL };

struct reply {
	const char *raw; /* a whole answer; NULL: the object */
	bool whole;	 /* the object as 200, whatever was asked for */
	bool chunked;	 /* the object's body in chunks, without a length */
	size_t extra;	 /* bytes more than the range, chunked only */
	size_t at_most;	 /* a shorter range than asked for; 0: no */
	size_t cut;	 /* end the body here; 0: no */
	bool drip;	 /* a byte at a time, for ever slow */
	const char *etag;
	enum after after;
};

enum { SERVER_CONNECTIONS = 256, SERVER_SCRIPT = 64 };

struct server {
	int fd;
	uint16_t port;
	char origin[96]; /* "http://127.0.0.1:port" */
	pthread_t thread;
	pthread_mutex_t lock;
	struct reply script[SERVER_SCRIPT];
	unsigned scripted, used;
	char *raws[4 * SERVER_SCRIPT];
	unsigned raw_count;
	char *object;
	size_t size;
	struct buf seen[1024]; /* heads and bodies, NUL-terminated */
	unsigned count;
	unsigned parallel, parallel_max; /* requests being answered */
	int connections[SERVER_CONNECTIONS];
	pthread_t threads[SERVER_CONNECTIONS];
	unsigned connection_count;
	bool hold; /* the object is answered only after this has become false */
	bool stop;
};

static void server_script(struct server *s, struct reply r)
{
	pthread_mutex_lock(&s->lock);
	assert_true(s->scripted < SERVER_SCRIPT && s->raw_count < ARRAY_LEN(s->raws));
	if (r.raw != NULL) /* the caller's text may be gone by then */
		r.raw = s->raws[s->raw_count++] = strdup(r.raw);
	s->script[s->scripted++] = r;
	pthread_mutex_unlock(&s->lock);
}

static bool server_send(int fd, const void *bytes, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		bytes = (const char *)bytes + n;
		len -= (size_t)n;
	}
	return true;
}

/* Waits until the client goes away or the server stops. */
static void server_stall(struct server *s, int fd)
{
	char byte;

	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		if (poll(&p, 1, 10) > 0 && recv(fd, &byte, 1, MSG_PEEK) <= 0)
			return;
	}
}

static void server_body(struct server *s, int fd, const struct reply *r, size_t first, size_t n)
{
	size_t len = r->cut ? MIN(r->cut, n) : n;

	if (r->drip) {
		for (size_t i = 0; i < len && !__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE); i++) {
			if (!server_send(fd, s->object + first + i, 1))
				return;
			usleep(5000);
		}
	} else if (r->chunked) {
		char line[32];

		for (size_t done = 0; done < len + r->extra;) {
			size_t step = MIN(len + r->extra - done, 1000);

			snprintf(line, sizeof(line), "%zx\r\n", step);
			server_send(fd, line, strlen(line));
			server_send(fd, s->object + first + done, step);
			server_send(fd, "\r\n", 2);
			done += step;
		}
		if (len == n)
			server_send(fd, "0\r\n\r\n", 5);
	} else {
		server_send(fd, s->object + first, len);
	}
}

static void server_object(struct server *s, int fd, const struct reply *r, const char *head)
{
	const char *range = strcasestr(head, "\r\nRange: bytes=");
	unsigned long long first = 0, last = s->size - 1;
	char text[512];
	size_t n;

	if (range != NULL && !r->whole) {
		sscanf(range + 15, "%llu-%llu", &first, &last);
		if (first >= s->size) {
			snprintf(text, sizeof(text),
				 "HTTP/1.1 416 No\r\nContent-Range: bytes */%zu\r\nContent-Length: "
				 "0\r\n\r\n",
				 s->size);
			server_send(fd, text, strlen(text));
			return;
		}
		last = MIN(last, s->size - 1);
		if (r->at_most > 0)
			last = MIN(last, first + r->at_most - 1);
	}
	n = last - first + 1;
	snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nETag: \"%s\"\r\n",
		 range != NULL && !r->whole ? "206 Partial Content" : "200 OK",
		 r->etag ? r->etag : "one");
	server_send(fd, text, strlen(text));
	if (range != NULL && !r->whole) {
		snprintf(text, sizeof(text), "Content-Range: bytes %llu-%llu/%zu\r\n", first, last,
			 s->size);
		server_send(fd, text, strlen(text));
	}
	if (r->chunked)
		snprintf(text, sizeof(text), "Transfer-Encoding: chunked\r\n\r\n");
	else
		snprintf(text, sizeof(text), "Content-Length: %zu\r\n\r\n", n);
	server_send(fd, text, strlen(text));
	if (strncmp(head, "HEAD", 4) != 0)
		server_body(s, fd, r, first, n);
}

/* Reads a head and its body; false: the client is gone. */
static bool server_read(int fd, struct buf *in)
{
	size_t head = 0, want = SIZE_MAX;
	char step[65536];

	while (head == 0 || in->len < want) {
		ssize_t n = recv(fd, step, sizeof(step), 0);
		const char *end, *length;

		if (n <= 0)
			return false;
		buf_add(in, step, (size_t)n);
		if (head != 0 || (end = strstr(buf_str(in), "\r\n\r\n")) == NULL)
			continue;
		head = (size_t)(end - in->data) + 4;
		length = strcasestr(in->data, "\r\nContent-Length:");
		want = head + (length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0);
	}
	return true;
}

static bool server_answer(struct server *s, int fd, const char *head)
{
	struct reply r = {0};

	pthread_mutex_lock(&s->lock);
	if (s->used < s->scripted)
		r = s->script[s->used++];
	s->parallel++;
	s->parallel_max = MAX(s->parallel_max, s->parallel);
	pthread_mutex_unlock(&s->lock);
	while (__atomic_load_n(&s->hold, __ATOMIC_ACQUIRE) &&
	       !__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE))
		usleep(1000);
	pthread_mutex_lock(&s->lock);
	s->parallel--;
	pthread_mutex_unlock(&s->lock);
	if (r.raw != NULL)
		server_send(fd, r.raw, strlen(r.raw));
	else
		server_object(s, fd, &r, head);
	if (r.after == STALL)
		server_stall(s, fd);
	if (r.after == RESET) {
		struct linger hard = {.l_onoff = 1, .l_linger = 0};

		usleep(20000); /* what was sent may be received first */
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	}
	return r.after == KEEP;
}

struct server_arg {
	struct server *server;
	unsigned index;
};

static void *server_connection(void *arg)
{
	struct server_arg a = *(struct server_arg *)arg;
	struct server *s = a.server;
	int fd = s->connections[a.index];
	bool go_on = true;

	free(arg);
	/* Or the kernel holds the last bytes back, and a reset discards them. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	while (go_on) {
		struct buf in = {0};
		char *head;

		if (!server_read(fd, &in)) {
			buf_release(&in);
			break;
		}
		head = strdup(buf_str(&in));
		pthread_mutex_lock(&s->lock);
		if (s->count < ARRAY_LEN(s->seen))
			s->seen[s->count++] = in;
		else
			buf_release(&in);
		pthread_mutex_unlock(&s->lock);
		go_on = server_answer(s, fd, head);
		free(head);
	}
	pthread_mutex_lock(&s->lock);
	close(fd);
	s->connections[a.index] = -1;
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void *server_accept(void *arg)
{
	struct server *s = arg;
	int fd;

	while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
		struct server_arg *a = malloc(sizeof(*a));

		pthread_mutex_lock(&s->lock);
		if (__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE) ||
		    s->connection_count == SERVER_CONNECTIONS) {
			pthread_mutex_unlock(&s->lock);
			close(fd);
			free(a);
			continue;
		}
		*a = (struct server_arg){.server = s, .index = s->connection_count++};
		s->connections[a->index] = fd;
		pthread_create(&s->threads[a->index], NULL, server_connection, a);
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

/* A server whose object is `size` bytes of a pattern made of the seed. */
static struct server *server_start(size_t size, unsigned seed)
{
	struct server *s = calloc(1, sizeof(*s));
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	s->object = malloc(size + 4096);
	s->size = size;
	for (size_t i = 0; i < size + 4096; i++)
		s->object[i] = (char)((i * 2654435761u + seed * 97) >> 7);
	pthread_mutex_init(&s->lock, NULL);
	s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(s->fd, 64), 0);
	assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &len), 0);
	s->port = ntohs(a.sin_port);
	snprintf(s->origin, sizeof(s->origin), "http://127.0.0.1:%u", s->port);
	assert_int_equal(pthread_create(&s->thread, NULL, server_accept, s), 0);
	return s;
}

static void server_stop(struct server *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELEASE);
	shutdown(s->fd, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->fd);
	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < s->connection_count; i++)
		if (s->connections[i] >= 0)
			shutdown(s->connections[i], SHUT_RDWR);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->connection_count; i++)
		pthread_join(s->threads[i], NULL);
	for (unsigned i = 0; i < s->count; i++)
		buf_release(&s->seen[i]);
	for (unsigned i = 0; i < s->raw_count; i++)
		free(s->raws[i]);
	pthread_mutex_destroy(&s->lock);
	free(s->object);
	free(s);
}

static unsigned server_count(struct server *s)
{
	unsigned n;

	pthread_mutex_lock(&s->lock);
	n = s->count;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* The i-th request as it came. */
static const char *server_seen(struct server *s, unsigned i)
{
	const char *text;

	pthread_mutex_lock(&s->lock);
	assert_true(i < s->count);
	text = buf_str(&s->seen[i]);
	pthread_mutex_unlock(&s->lock);
	return text;
}

#endif
