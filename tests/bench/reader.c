/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader [-c] STYLE FILE [TENSORS]: reads a file as engines do, and says how long it took.
 *
 *	read	read(2) of 1 MiB			safetensors, cp
 *	threads	pread of 16 MiB by 8 threads		vLLM's prefetch, model streamers
 *	map	memcpy of 16 MiB steps from a mapping	safetensors' mmap, in file order
 *	names	memcpy of whole tensors in the order of TENSORS ("offset length" a line)
 *	back	as map, from the end to the front	what some memcpys do
 *	direct	O_DIRECT preads of 1 MiB by 8 threads	InstantTensor, fastsafetensors
 *	random	pread of 4 KiB at 20,000 places
 *	memory	no file: fills SIZE bytes (FILE) of page cache from a hot buffer
 *	hold	no file: takes SIZE bytes and leaves free memory in small pieces until stdin ends,
 *since this machine may be a guest that gives large free blocks back to its host; first touch of
 *		such a block is many times slower
 *
 * -c: first drops the file's pages from the page cache.  Prints seconds, bytes, its own processor
 * seconds, and a checksum of one word in each page, by which the styles can be compared.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codec/base.h"

enum { STEP = 1 << 20, LARGE = 16 << 20, THREADS = 8, PLACES = 20000, PAGE = 4096 };

struct job {
	int fd;
	uint64_t size, step, next; /* next: atomic */
	uint64_t sum;		   /* atomic */
};

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	fprintf(stderr, "reader: %s: %s\n", what, strerrordesc_np(errno));
	exit(1);
}

static void *memory(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		die("memory");
	return p;
}

static uint64_t sum_of(const uint8_t *p, size_t len)
{
	uint64_t sum = 0, word;

	for (size_t i = 0; i + sizeof(word) <= len; i += PAGE) {
		memcpy(&word, p + i, sizeof(word));
		sum += word;
	}
	return sum;
}

static uint64_t read_all(int fd, uint64_t size, uint64_t *out_sum)
{
	uint8_t *to = memory(STEP);
	uint64_t total = 0;
	ssize_t n;

	while ((n = read(fd, to, STEP)) > 0) {
		*out_sum += sum_of(to, (size_t)n);
		total += (uint64_t)n;
	}
	if (n < 0)
		die("read");
	return total;
}

static void *read_steps(void *ctx)
{
	struct job *j = ctx;
	uint8_t *to = memory(j->step);
	uint64_t sum = 0;

	for (;;) {
		uint64_t at = __atomic_fetch_add(&j->next, j->step, __ATOMIC_RELAXED);
		size_t want = at < j->size ? (size_t)MIN(j->step, j->size - at) : 0;

		if (want == 0)
			break;
		for (size_t have = 0; have < want;) {
			/* O_DIRECT wants whole pages, and is cut at the end. */
			ssize_t n = pread(j->fd, to + have, j->step - have, (off_t)(at + have));

			if (n <= 0)
				die("pread");
			have += (size_t)n;
		}
		sum += sum_of(to, want);
	}
	__atomic_fetch_add(&j->sum, sum, __ATOMIC_RELAXED);
	munmap(to, j->step);
	return NULL;
}

static uint64_t read_threads(int fd, uint64_t size, size_t step, uint64_t *out_sum)
{
	struct job j = {.fd = fd, .size = size, .step = step};
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, read_steps, &j) != 0)
			die("thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	*out_sum = j.sum;
	return size;
}

static const uint8_t *map(int fd, uint64_t size)
{
	const uint8_t *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static uint64_t copy_steps(int fd, uint64_t size, bool back, uint64_t *out_sum)
{
	const uint8_t *from = map(fd, size);
	uint8_t *to = memory(LARGE);

	for (uint64_t at = 0; at < size; at += LARGE) {
		size_t n = (size_t)MIN((uint64_t)LARGE, size - at);

		if (back) /* page by page: memcpy's own direction is its own choice */
			for (size_t left = n; left > 0;) {
				size_t part = left % PAGE > 0 ? left % PAGE : PAGE;

				left -= part;
				memcpy(to + left, from + (size - at - n) + left, part);
			}
		else
			memcpy(to, from + at, n);
		*out_sum += back ? 0 : sum_of(to, n);
	}
	return size;
}

static uint64_t copy_tensors(int fd, uint64_t size, const char *list)
{
	const uint8_t *from = map(fd, size);
	unsigned long long off, len;
	uint64_t total = 0, cap = LARGE;
	uint8_t *to = memory(cap);
	FILE *f = fopen(list, "re");

	if (f == NULL)
		die(list);
	while (fscanf(f, "%llu %llu", &off, &len) == 2) {
		if (off > size || len > size - off)
			die("a tensor outside the file");
		for (uint64_t at = 0; at < len; at += cap)
			memcpy(to, from + off + at, (size_t)MIN(cap, len - at));
		total += len;
	}
	fclose(f);
	return total;
}

static uint64_t read_places(int fd, uint64_t size)
{
	uint64_t state = 88172645463325252u, pages = size / PAGE;
	uint8_t to[PAGE];

	for (int i = 0; i < PLACES; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		if (pread(fd, to, PAGE, (off_t)(state % pages * PAGE)) != PAGE)
			die("pread");
	}
	return (uint64_t)PLACES * PAGE;
}

static uint64_t fill_memory(uint64_t size)
{
	int fd = memfd_create("fill", MFD_CLOEXEC);
	uint8_t *from = memory(STEP);

	for (uint64_t at = 0; at < size; at += STEP)
		if (pwrite(fd, from, STEP, (off_t)at) != STEP)
			die("memfd");
	return size;
}

static void hold(uint64_t size)
{
	const size_t piece = 64 * (size_t)PAGE;
	uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char c;

	if (p == MAP_FAILED)
		die("memory");
	(void)madvise(p, size, MADV_NOHUGEPAGE);
	for (uint64_t at = 0; at < size; at += PAGE)
		p[at] = 1;
	for (uint64_t at = 0; at + piece <= size; at += piece)
		(void)madvise(p + at + PAGE, piece - PAGE, MADV_DONTNEED);
	printf("holding\n");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) > 0)
		continue;
}

int main(int argc, char **argv)
{
	bool cold = argc > 1 && strcmp(argv[1], "-c") == 0;
	uint64_t total = 0, sum = 0;
	struct rusage usage;
	const char *style;
	struct stat st = {0};
	double began, took;
	int fd = -1;

	argc -= cold;
	argv += cold;
	if (argc < 3) {
		fprintf(stderr, "usage: reader [-c] STYLE FILE|SIZE [TENSORS]\n");
		return 2;
	}
	style = argv[1];
	if (strcmp(style, "hold") == 0) {
		hold(strtoull(argv[2], NULL, 10));
		return 0;
	}
	began = seconds();
	if (strcmp(style, "memory") == 0) {
		total = fill_memory(strtoull(argv[2], NULL, 10));
	} else {
		fd = open(argv[2], O_RDONLY | O_CLOEXEC | (strcmp(style, "direct") ? 0 : O_DIRECT));
		if (fd < 0 || fstat(fd, &st) < 0)
			die(argv[2]);
		if (cold)
			(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		began = seconds();
	}
	if (strcmp(style, "read") == 0)
		total = read_all(fd, (uint64_t)st.st_size, &sum);
	else if (strcmp(style, "threads") == 0)
		total = read_threads(fd, (uint64_t)st.st_size, LARGE, &sum);
	else if (strcmp(style, "direct") == 0)
		total = read_threads(fd, (uint64_t)st.st_size, STEP, &sum);
	else if (strcmp(style, "map") == 0 || strcmp(style, "back") == 0)
		total = copy_steps(fd, (uint64_t)st.st_size, style[0] == 'b', &sum);
	else if (strcmp(style, "names") == 0 && argc > 3)
		total = copy_tensors(fd, (uint64_t)st.st_size, argv[3]);
	else if (strcmp(style, "random") == 0)
		total = read_places(fd, (uint64_t)st.st_size);
	took = seconds() - began;
	getrusage(RUSAGE_SELF, &usage);
	printf("%.6f %llu %.3f %016llx\n", took, (unsigned long long)total,
	       (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6,
	       (unsigned long long)sum);
	return 0;
}
