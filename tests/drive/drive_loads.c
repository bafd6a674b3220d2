/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads files with the system calls of engines that cannot run in a test, and writes what arrived
 *to standard output, file after file:
 *
 *	drive_loads populate FILE...	llama.cpp: MAP_SHARED with MAP_POPULATE,
 *POSIX_FADV_SEQUENTIAL, MADV_WILLNEED, the descriptor closed while the map is used drive_loads
 *libaio FILE...	InstantTensor: header by plain reads, then O_DIRECT through the kernel's
 *AIO, 8 MiB at a time, 64 deep, the last one past the end drive_loads prefetch FILE...	vLLM: eight
 *threads read 16 MiB blocks of all files and drop them, while a private map is taken
 *
 * Exit code 1 and a sentence when a call fails or a read is shorter than the file.  AIO is called
 * without its library, which is a wrapper of these calls and nothing else.
 */
#include "codec/base.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK = 8 << 20, DEPTH = 64, BLOCK = 16 << 20, THREADS = 8, PAGE = 4096 };

static int failed(const char *what, const char *file)
{
	fprintf(stderr, "drive_loads: %s: %s: %s\n", file, what, strerrordesc_np(errno));
	return -1;
}

static int put(const char *data, size_t len)
{
	/* Not by write(2) from the map: page faults are what an engine has. */
	return fwrite(data, 1, len, stdout) == len ? 0 : -1;
}

static int open_file(const char *file, int flags, size_t *out_size)
{
	struct stat st;
	int fd = open(file, O_RDONLY | O_CLOEXEC | flags);

	if (fd < 0)
		return failed("open", file);
	if (fstat(fd, &st) < 0) {
		close(fd);
		return failed("fstat", file);
	}
	*out_size = (size_t)st.st_size;
	return fd;
}

static int load_map(const char *file, int map_flags)
{
	size_t size;
	int ret, fd = open_file(file, 0, &size);
	char *map;

	if (fd < 0)
		return -1;
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	map = mmap(NULL, size, PROT_READ, map_flags, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return failed("mmap", file);
	if (map_flags & MAP_SHARED)
		madvise(map, size, MADV_WILLNEED);
	ret = put(map, size);
	munmap(map, size);
	return ret;
}

/* ---- libaio ---- */

struct aio {
	aio_context_t ctx;
	int fd;
	char *into;
	size_t size, next; /* next: offset to ask for */
	struct iocb cb[DEPTH];
};

static int aio_ask(struct aio *a, struct iocb *cb)
{
	*cb = (struct iocb){
		.aio_lio_opcode = IOCB_CMD_PREAD,
		.aio_fildes = (unsigned)a->fd,
		.aio_buf = (uintptr_t)(a->into + a->next),
		.aio_nbytes = CHUNK,
		.aio_offset = (int64_t)a->next,
		.aio_data = (uintptr_t)cb,
	};
	a->next += CHUNK;
	return syscall(SYS_io_submit, a->ctx, 1L, &cb) == 1 ? 0 : -1;
}

static int aio_run(struct aio *a, const char *file)
{
	unsigned flying = 0;

	while (flying < DEPTH && a->next < a->size) {
		if (aio_ask(a, &a->cb[flying]) < 0)
			return failed("io_submit", file);
		flying++;
	}
	while (flying) {
		struct io_event e;
		struct iocb *cb;

		if (syscall(SYS_io_getevents, a->ctx, 1L, 1L, &e, NULL) != 1)
			return failed("io_getevents", file);
		cb = (struct iocb *)(uintptr_t)e.data;
		errno = e.res < 0 ? (int)-e.res : EIO;
		if (e.res != (int64_t)MIN(a->size - (size_t)cb->aio_offset, CHUNK))
			return failed("a short read", file);
		flying--;
		if (a->next < a->size) {
			if (aio_ask(a, cb) < 0)
				return failed("io_submit", file);
			flying++;
		}
	}
	return 0;
}

/* The header, by an open of its own. */
static int read_header(const char *file)
{
	size_t size;
	uint8_t length[8];
	int fd = open_file(file, 0, &size), ret = -1;
	char *text = NULL;
	uint64_t n;

	if (fd < 0)
		return -1;
	if (read(fd, length, sizeof(length)) == sizeof(length)) {
		n = load_le64(length);
		text = n < size ? malloc(n) : NULL;
		if (text && read(fd, text, n) == (ssize_t)n)
			ret = 0;
	}
	free(text);
	close(fd);
	return ret < 0 ? failed("header", file) : 0;
}

static int load_aio(const char *file)
{
	struct aio *a;
	void *into = NULL;
	int ret = -1;

	if (read_header(file) < 0)
		return -1;
	a = calloc(1, sizeof(*a));
	if (!a)
		return failed("memory", file);
	a->fd = open_file(file, O_DIRECT, &a->size);
	if (a->fd < 0)
		goto out;
	if (posix_memalign(&into, PAGE, ALIGN_UP(a->size, CHUNK))) {
		failed("memory", file);
		goto out;
	}
	a->into = into;
	if (syscall(SYS_io_setup, DEPTH, &a->ctx) < 0) {
		failed("io_setup", file);
		goto out;
	}
	ret = aio_run(a, file);
	syscall(SYS_io_destroy, a->ctx);
	if (ret == 0)
		ret = put(a->into, a->size);
out:
	if (a->fd >= 0)
		close(a->fd);
	free(into);
	free(a);
	return ret;
}

/* ---- prefetch ---- */

struct prefetch {
	char **files;
	size_t count;
	size_t next; /* atomic */
	bool bad;    /* atomic */
};

static void *prefetch_thread(void *arg)
{
	struct prefetch *p = arg;
	char *block = malloc(BLOCK);
	size_t i;

	while (block && (i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->count) {
		size_t size, got = 0;
		int fd = open_file(p->files[i], 0, &size);
		ssize_t n = 0;

		while (fd >= 0 && (n = read(fd, block, BLOCK)) > 0)
			got += (size_t)n;
		if (fd < 0 || n < 0 || got != size)
			__atomic_store_n(&p->bad, true, __ATOMIC_RELAXED);
		if (fd >= 0)
			close(fd);
	}
	free(block);
	return NULL;
}

static int load_prefetched(char **files, size_t count)
{
	struct prefetch p = {.files = files, .count = count};
	pthread_t threads[THREADS];
	unsigned started = 0;
	int ret = 0;

	while (started < THREADS &&
	       pthread_create(&threads[started], NULL, prefetch_thread, &p) == 0)
		started++;
	for (size_t i = 0; i < count && ret == 0; i++)
		ret = load_map(files[i], MAP_PRIVATE);
	while (started)
		pthread_join(threads[--started], NULL);
	if (p.bad)
		fprintf(stderr, "drive_loads: a prefetch thread was told less than there is\n");
	return p.bad ? -1 : ret;
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[1] : "";
	int ret = 0;

	if (strcmp(how, "prefetch") == 0) {
		ret = load_prefetched(argv + 2, (size_t)argc - 2);
	} else if (strcmp(how, "populate") == 0 || strcmp(how, "libaio") == 0) {
		for (int i = 2; i < argc && ret == 0; i++)
			ret = how[0] == 'l' ? load_aio(argv[i])
					    : load_map(argv[i], MAP_SHARED | MAP_POPULATE);
	} else {
		fprintf(stderr, "usage: drive_loads populate|libaio|prefetch FILE...\n");
		return 2;
	}
	return ret < 0 || fflush(stdout) ? 1 : 0;
}
