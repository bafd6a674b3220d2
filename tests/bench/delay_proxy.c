/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP proxy that makes a server on this machine look far away: what the client sends goes on at
 * once, what the server sends is released DELAY milliseconds after it arrived, so that every answer
 * is late by that much however much is under way.  With RATE, all connections together get at most
 * that many MB/s (the line).
 *
 * Not here: loss, slow start, a delayed handshake.
 *
 * One thread over epoll.  For each connection a queue of chunks, each with the time when it is due;
 * a connection whose queue is full is not read.  Chunks that were sent are used again.
 *
 * Prints the port when it listens, and how many connections there were at once when it ends, by
 * SIGTERM or with its parent.
 *
 * usage: delay_proxy PORT TARGET_PORT DELAY_MS [RATE]    (PORT 0: any)
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "codec/base.h"

enum {
	CHUNK = 256 << 10,
	QUEUE_MAX = 64 << 20, /* bytes of one connection that are on the way */
	SMALL = 64 << 10,     /* what clients send, until the server takes it */
	EVENTS = 64,
};

struct chunk {
	struct chunk *next;
	int64_t due_ns;
	size_t len, sent;
	char bytes[CHUNK];
};

struct connection {
	int fd[2]; /* the client's, the server's */
	struct connection *next;
	struct chunk *first, **last;
	size_t queued;
	bool server_ended, client_ended;
	bool asking;	     /* the client's socket may have bytes, */
	bool readable, full; /* so may the server's; the client's takes none */
	size_t asked, asked_sent;
	char ask[SMALL];
};

struct proxy {
	int epoll, listener, timer, signals;
	uint16_t port, target;
	int64_t delay_ns;
	double ns_per_byte; /* 0: any rate */
	double line_ns;	    /* until then the line is busy */
	struct connection *all;
	struct chunk *spare;
	unsigned now, peak;
};

static void must(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "delay_proxy: %s: %s\n", what, strerrordesc_np(errno));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				    .sin_port = htons(port)};
}

static void watch(struct proxy *p, int fd, uint32_t events, void *what)
{
	struct epoll_event e = {.events = events, .data.ptr = what};

	must(epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &e) == 0, "epoll_ctl");
}

static void accept_one(struct proxy *p)
{
	struct sockaddr_in to = loopback(p->target);
	int fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
	struct connection *c;

	if (fd < 0)
		return;
	c = calloc(1, sizeof(*c));
	must(c != NULL, "calloc");
	c->last = &c->first;
	c->fd[0] = fd;
	c->fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(c->fd[1] >= 0, "socket");
	/* On loopback it is there at once or not at all. */
	if (connect(c->fd[1], (struct sockaddr *)&to, sizeof(to)) < 0) {
		close(c->fd[0]);
		close(c->fd[1]);
		free(c);
		return;
	}
	for (int i = 0; i < 2; i++)
		setsockopt(c->fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->next = p->all;
	p->all = c;
	p->now++;
	p->peak = MAX(p->peak, p->now);
	watch(p, c->fd[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, c);
	watch(p, c->fd[1], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, c);
}

static bool is_later(ssize_t n)
{
	return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* False, here and below: the connection is broken. */
static bool ask(struct connection *c)
{
	while (c->asking) {
		ssize_t n;

		while (c->asked_sent < c->asked) {
			n = send(c->fd[1], c->ask + c->asked_sent, c->asked - c->asked_sent,
				 MSG_NOSIGNAL | MSG_DONTWAIT);
			c->asking = n >= 0;
			if (n < 0)
				return is_later(n);
			c->asked_sent += (size_t)n;
		}
		c->asked = c->asked_sent = 0;
		if (c->client_ended)
			return true;
		n = recv(c->fd[0], c->ask, SMALL, MSG_DONTWAIT);
		c->asking = n >= 0;
		if (n < 0)
			return is_later(n);
		c->asked = (size_t)n;
		if (n == 0) {
			c->client_ended = true;
			shutdown(c->fd[1], SHUT_WR);
		}
	}
	return true;
}

static int64_t due(struct proxy *p, int64_t now, size_t len)
{
	if (p->ns_per_byte > 0) {
		p->line_ns = MAX(p->line_ns, (double)now) + p->ns_per_byte * (double)len;
		now = (int64_t)p->line_ns;
	}
	return now + p->delay_ns;
}

/* One chunk at most, so that connections take turns. */
static bool take(struct proxy *p, struct connection *c)
{
	struct chunk *k = p->spare;
	ssize_t n;

	if (c->server_ended || !c->readable || c->queued >= QUEUE_MAX)
		return true;
	if (k != NULL)
		p->spare = k->next;
	else
		k = malloc(sizeof(*k));
	must(k != NULL, "malloc");
	n = recv(c->fd[1], k->bytes, CHUNK, MSG_DONTWAIT);
	if (n <= 0) {
		k->next = p->spare;
		p->spare = k;
		c->readable = n == 0;
		c->server_ended = n == 0;
		return n == 0 || is_later(n);
	}
	k->next = NULL;
	k->len = (size_t)n;
	k->sent = 0;
	k->due_ns = due(p, now_ns(), k->len);
	*c->last = k;
	c->last = &k->next;
	c->queued += k->len;
	return true;
}

/* Also false when all is over. */
static bool give(struct proxy *p, struct connection *c, int64_t now)
{
	while (c->first != NULL && c->first->due_ns <= now && !c->full) {
		struct chunk *k = c->first;
		ssize_t n = send(c->fd[0], k->bytes + k->sent, k->len - k->sent,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0) {
			c->full = true;
			return is_later(n);
		}
		k->sent += (size_t)n;
		if (k->sent < k->len)
			continue;
		c->queued -= k->len;
		c->first = k->next;
		if (c->first == NULL)
			c->last = &c->first;
		k->next = p->spare;
		p->spare = k;
	}
	return c->first != NULL || !c->server_ended;
}

static void end(struct proxy *p, struct connection **at)
{
	struct connection *c = *at;

	*at = c->next;
	close(c->fd[0]);
	close(c->fd[1]);
	for (struct chunk *k = c->first, *next; k != NULL; k = next) {
		next = k->next;
		free(k);
	}
	free(c);
	p->now--;
}

/* Moves what can be moved; returns when to look again: 0 at once, -1 when something happens. */
static int64_t turn(struct proxy *p)
{
	int64_t now = now_ns(), until = -1;

	for (struct connection **at = &p->all; *at != NULL;) {
		struct connection *c = *at;

		if (!ask(c) || !take(p, c) || !give(p, c, now)) {
			end(p, at);
			continue;
		}
		at = &c->next;
		if (!c->server_ended && c->readable && c->queued < QUEUE_MAX)
			until = 0;
		if (c->first != NULL && !c->full && (until < 0 || c->first->due_ns < until))
			until = c->first->due_ns;
	}
	return until;
}

static void set_timer(struct proxy *p, int64_t until)
{
	struct itimerspec t = {
		.it_value = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000}};

	must(timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0, "timerfd_settime");
}

/* What epoll says of a connection does not say of which socket: it is tried. */
static bool loop_once(struct proxy *p, int64_t until)
{
	struct epoll_event events[EVENTS];
	uint64_t ticks;
	int n;

	if (until > 0)
		set_timer(p, until);
	n = epoll_wait(p->epoll, events, EVENTS, until == 0 ? 0 : -1);
	for (int i = 0; i < n; i++) {
		struct connection *c = events[i].data.ptr;

		if (events[i].data.ptr == &p->listener) {
			accept_one(p);
		} else if (events[i].data.ptr == &p->timer) {
			(void)!read(p->timer, &ticks, sizeof(ticks));
		} else if (events[i].data.ptr == &p->signals) {
			return false;
		} else {
			c->asking = c->readable = true;
			c->full = false;
		}
	}
	return true;
}

static void open_all(struct proxy *p)
{
	struct sockaddr_in at = loopback(p->port);
	socklen_t len = sizeof(at);
	int one = 1;
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	p->epoll = epoll_create1(EPOLL_CLOEXEC);
	p->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	p->signals = signalfd(-1, &signals, SFD_CLOEXEC);
	must(p->epoll >= 0 && p->listener >= 0 && p->timer >= 0 && p->signals >= 0, "descriptors");
	setsockopt(p->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	must(bind(p->listener, (struct sockaddr *)&at, len) == 0, "bind");
	must(listen(p->listener, 512) == 0, "listen");
	must(getsockname(p->listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
	watch(p, p->listener, EPOLLIN, &p->listener);
	watch(p, p->timer, EPOLLIN, &p->timer);
	watch(p, p->signals, EPOLLIN, &p->signals);
	printf("%u\n", ntohs(at.sin_port));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct proxy p = {0};
	double rate;

	if (argc < 4 || argc > 5) {
		fprintf(stderr, "usage: delay_proxy PORT TARGET_PORT DELAY_MS [RATE]\n");
		return 2;
	}
	p.port = (uint16_t)strtoul(argv[1], NULL, 10);
	p.target = (uint16_t)strtoul(argv[2], NULL, 10);
	p.delay_ns = (int64_t)(strtod(argv[3], NULL) * 1e6);
	rate = argc > 4 ? strtod(argv[4], NULL) : 0;
	p.ns_per_byte = rate > 0 ? 1e3 / rate : 0;
	open_all(&p);
	while (loop_once(&p, turn(&p)))
		;
	printf("%u\n", p.peak);
	return 0;
}
