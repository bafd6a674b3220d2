/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requests tell the load guard: which process opens which weight file, and by which path.
 *
 * A request names a thread.  The thread group, which is what loads, is read from /proc when a
 * weight file is opened by plain path, and at a look-up only while some load keeps a view of its
 * own (history_split()).  A thread that cannot be found there counts as its own process; 0 is any
 * thread of another pid namespace.
 *
 * An index counts as a weight file: it says in which shard a tensor is, so it and the shards have
 * to be of one version.
 *
 * Where the view moved between a thread's LOOKUP and its OPEN, the open would be of one version and
 * the next shard of another.  Such an open is answered ESTALE, upon which the kernel looks the name
 * up again, once; the guard has begun the load by then, so that the view stays.
 *
 * Locks: front->recall_lock guards recall.  /proc is read and replies are sent without it.
 * Threads: any worker.
 */
#include "fs/ops.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/clock.h"
#include "cache/log.h"

#define INDEX_SUFFIX ".safetensors.index.json"

/* A small file of /proc as a string; false when it cannot be read. */
static bool proc_read(int id, const char *name, char *out, size_t cap)
{
	char path[48];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", id, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, out, cap - 1);
	close(fd);
	if (n <= 0)
		return false;
	out[n] = '\0';
	return true;
}

static int process_of(int tid)
{
	static const char word[] = "\nTgid:\t";
	char text[512];
	const char *at;
	long pid;

	if (tid <= 0 || !proc_read(tid, "status", text, sizeof(text)))
		return MAX(tid, 0);
	at = strstr(text, word);
	pid = at ? strtol(at + strlen(word), NULL, 10) : 0;
	return pid > 0 && pid <= INT_MAX ? (int)pid : tid;
}

static int thread_of(fuse_req_t req)
{
	return (int)fuse_req_ctx(req)->pid;
}

int load_viewer(fuse_req_t req, const struct inode *dir)
{
	return history_split(inodes_stack(dir->of)->history) ? process_of(thread_of(req)) : 0;
}

uint64_t load_epoch(const struct inode *dir)
{
	struct history *history = inodes_stack(dir->of)->history;

	return history_guarded(history) ? history_epoch(history) : 0;
}

static bool is_index(const char *name)
{
	size_t len = strlen(name), suffix = strlen(INDEX_SUFFIX);

	return len >= suffix && strcmp(name + len - suffix, INDEX_SUFFIX) == 0;
}

void load_looked_up(fuse_req_t req, const struct inode *dir, const char *name,
		    const struct inode *child, uint64_t epoch)
{
	struct front *f = front_of(req);
	int tid = thread_of(req);
	bool plain = child && dir->kind == INODE_VIEW_DIR && child->kind == INODE_NODE &&
		     (child->node->kind == NODE_WEIGHTS || is_index(name));

	if (!history_guarded(inodes_stack(dir->of)->history))
		return;
	lock_take(&f->recall_lock);
	if (plain)
		recall_plain(&f->recall, tid, child->ino, epoch, clock_mono_ns());
	else
		recall_other(&f->recall, tid);
	lock_release(&f->recall_lock);
}

static void begun(struct history *history, int pid, uint64_t id)
{
	char name[64] = "";

	if (pid > 0 && proc_read(pid, "comm", name, sizeof(name)))
		name[strcspn(name, "\n")] = '\0';
	history_load_named(history, id, name);
	log_debug("process %d (%s) begins to load by plain path", pid, SHOWN(name));
}

int load_opened(fuse_req_t req, struct front_handle *h, const struct node *node)
{
	struct history *history = inodes_stack(h->of)->history;
	struct front *f = front_of(req);
	bool plain, fresh, weights = node->kind == NODE_WEIGHTS;
	int pid, ret, tid = thread_of(req);
	struct recall_hit hit;
	uint64_t id;

	if (!history_guarded(history))
		return 0;
	lock_take(&f->recall_lock);
	plain = recall_open(&f->recall, tid, h->ino, clock_mono_ns(), &hit);
	lock_release(&f->recall_lock);
	if (!plain || (!hit.known && !weights))
		return 0;
	pid = process_of(tid);
	ret = history_load_opened(
		history, pid,
		weights ? node->state->layout->files[node->file].name : LAYOUT_INDEX_NAME, !weights,
		hit.known && !hit.again ? &hit.epoch : NULL, &id, &fresh);
	if (ret == 0)
		h->load = id;
	if (ret == -ESTALE) {
		lock_take(&f->recall_lock);
		recall_again(&f->recall, tid, clock_mono_ns());
		lock_release(&f->recall_lock);
	}
	if (ret != -ENOMEM && fresh)
		begun(history, pid, id);
	return ret;
}
