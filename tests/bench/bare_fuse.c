/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare_fuse FILE MOUNTPOINT: the least that a FUSE daemon can be: one file, answered from memory.
 *
 * It is what weightfs's read path is measured by: same libfuse, same flags, workers, request sizes
 * and read-ahead, and behind them nothing but an address.  What is lost against it is ours.
 *
 * The file is shown as "file", and as "0", "1", ... which are other inodes with the same bytes: a
 * cold read needs one that was never read.  Prints "ready" once it can be used; ends with SIGTERM
 * or an unmount.
 */
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec/base.h"

enum { INO_FILE = 2, WORKERS = 16 };
#define FOREVER (365.0 * 86400)

static const char *bytes;
static size_t size;

static void do_init(void *ctx, struct fuse_conn_info *conn)
{
#if FUSE_VERSION < FUSE_MAKE_VERSION(3, 17)
	conn->want &=
		~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ |
			    FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_READDIRPLUS);
#endif
	conn->max_background = 64;
	conn->congestion_threshold = 48;
}

static struct stat attr_of(fuse_ino_t ino)
{
	struct stat st = {.st_ino = ino, .st_nlink = 1, .st_blksize = 1 << 20};

	st.st_mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
	st.st_size = ino == FUSE_ROOT_ID ? 0 : (off_t)size;
	return st;
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.attr_timeout = FOREVER};
	char *end;

	e.ino = INO_FILE;
	if (strcmp(name, "file") != 0) {
		e.ino += 1 + strtoul(name, &end, 10);
		if (end == name || *end) {
			fuse_reply_err(req, ENOENT);
			return;
		}
	}
	e.attr = attr_of(e.ino);
	fuse_reply_entry(req, &e);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = attr_of(ino);

	fuse_reply_attr(req, &st, FOREVER);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->keep_cache = 1;
	fi->noflush = 1;
	fuse_reply_open(req, fi);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t len, off_t off,
		    struct fuse_file_info *fi)
{
	size_t at = (size_t)off;

	if (at >= size)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_buf(req, bytes + at, MIN(len, size - at));
}

static const struct fuse_lowlevel_ops ops = {
	.init = do_init,
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
};

static int load(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *to;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size == 0)
		return -1;
	size = (size_t)st.st_size;
	to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (to == MAP_FAILED)
		return -1;
	for (size_t at = 0; at < size;) {
		ssize_t n = pread(fd, to + at, size - at, (off_t)at);

		if (n <= 0)
			return -1;
		at += (size_t)n;
	}
	close(fd);
	bytes = to;
	return 0;
}

int main(int argc, char **argv)
{
	char *options[] = {argv[0], (char *)"-o", (char *)"default_permissions,fsname=bare"};
	struct fuse_args args = FUSE_ARGS_INIT(3, options);
	struct fuse_loop_config *config;
	struct fuse_session *se;
	int ret = 1;

	if (argc != 3 || load(argv[1]) < 0) {
		fprintf(stderr, "usage: bare_fuse FILE MOUNTPOINT (a file that can be read)\n");
		return 2;
	}
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	config = fuse_loop_cfg_create();
	if (!se || !config || fuse_set_signal_handlers(se) != 0)
		return 1;
	if (fuse_session_mount(se, argv[2]) == 0) {
		printf("ready\n");
		fflush(stdout);
		fuse_loop_cfg_set_clone_fd(config, 0);
		fuse_loop_cfg_set_max_threads(config, WORKERS);
		fuse_loop_cfg_set_idle_threads(config, WORKERS);
		ret = fuse_session_loop_mt(se, config) < 0;
		fuse_session_unmount(se);
	}
	fuse_remove_signal_handlers(se);
	fuse_session_destroy(se);
	fuse_loop_cfg_destroy(config);
	return ret;
}
