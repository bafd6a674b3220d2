/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit tests of fs/node: numbers, trees, lifetimes, reads, and a registry that is asked for nodes
 * while their last references go.
 */
#include "fs/node.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

/* Nodes only count references of a state and pass reads on: a double keeps weights out of this
 * test. */
__attribute__((weak)) struct state *state_ref(struct state *s)
{
	__atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
	return s;
}

__attribute__((weak)) void state_unref(struct state *s)
{
	if (s)
		__atomic_fetch_sub(&s->refs, 1, __ATOMIC_RELAXED);
}

__attribute__((weak)) int state_read(const struct state *s, uint32_t file, uint64_t off, void *dst,
				     size_t len)
{
	memset(dst, (int)(file + off), len);
	return 0;
}

__attribute__((weak)) int state_lend(const struct state *s, uint32_t file, uint64_t off, size_t len,
				     struct blob_loan *out)
{
	return -EAGAIN;
}

static struct node *text_node(struct nodes *nodes, const char *text)
{
	char *copy = strdup(text);
	struct node *n;

	assert_non_null(copy);
	n = node_bytes(nodes, copy, strlen(text), 7);
	assert_non_null(n);
	return n;
}

static void put_text(struct node *root, const char *path)
{
	struct node *n = text_node(root->nodes, path);

	assert_int_equal(node_put(root, path, n), 0);
	node_unref(n);
}

static void numbers_are_never_used_twice(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct node *a = text_node(nodes, "a"), *b;
	uint64_t ino = a->ino, own;

	assert_true(ino >= NODE_FIRST);
	node_unref(a);
	own = nodes_number(nodes);
	b = text_node(nodes, "b");
	assert_true(b->ino != ino && b->ino != own && own != ino);
	assert_null(nodes_get(nodes, ino));
	assert_null(nodes_get(nodes, own));
	node_unref(b);
	nodes_free(nodes);
}

static void get_takes_a_reference(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct node *a = text_node(nodes, "a");
	uint64_t ino = a->ino;

	assert_ptr_equal(nodes_get(nodes, ino), a);
	node_unref(a);
	assert_ptr_equal(nodes_get(nodes, ino), a);
	node_unref(a);
	node_unref(a);
	assert_null(nodes_get(nodes, ino));
	nodes_free(nodes);
}

static void tree_is_sorted_and_walkable(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct node *root = node_dir(nodes, NULL, 9), *again, *dir;
	char name[32];

	put_text(root, "tokenizer.json");
	put_text(root, "1_Pooling/config.json");
	put_text(root, "config.json");
	put_text(root, "1_Pooling/a/b");
	put_text(root, "config");
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "many/%d", i * 37 % 100);
		put_text(root, name);
	}
	again = text_node(nodes, "x");
	assert_int_equal(node_put(root, "config.json", again), -EEXIST);
	assert_int_equal(node_put(root, "1_Pooling", again), -EEXIST);
	assert_int_equal(node_put(root, "config.json/x", again), -EEXIST);
	assert_int_equal(node_put(root, "a/../b", again), -EINVAL);
	assert_int_equal(node_put(root, "", again), -EINVAL);
	node_unref(again);
	node_seal(root);

	assert_int_equal(root->entry_count, 5);
	for (size_t i = 1; i < root->entry_count; i++)
		assert_true(strcmp(root->entries[i - 1].name, root->entries[i].name) < 0);
	dir = node_child(root, "many");
	assert_non_null(dir);
	assert_int_equal(dir->kind, NODE_DIR);
	assert_int_equal(dir->mtime_ns, 9);
	assert_int_equal(dir->entry_count, 100);
	for (size_t i = 1; i < dir->entry_count; i++)
		assert_true(strcmp(dir->entries[i - 1].name, dir->entries[i].name) < 0);
	assert_ptr_equal(node_walk(root, ""), root);
	assert_ptr_equal(node_walk(root, "1_Pooling/config.json"),
			 node_child(node_child(root, "1_Pooling"), "config.json"));
	assert_non_null(node_walk(root, "1_Pooling/a/b"));
	assert_non_null(node_child(root, "config"));
	assert_null(node_child(root, "conf"));
	assert_null(node_child(root, "config.json5"));
	assert_null(node_walk(root, "config.json/x"));
	assert_null(node_walk(root, "1_Pooling/a/b/c"));
	node_unref(root);
	nodes_free(nodes);
}

static void child_outlives_its_directory(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct node *one = node_dir(nodes, NULL, 1), *two = node_dir(nodes, NULL, 2);
	struct node *file = text_node(nodes, "shared");
	uint64_t ino = file->ino;

	assert_int_equal(node_put(one, "f", file), 0);
	assert_int_equal(node_put(two, "d/f", file), 0);
	node_unref(file);
	node_unref(one);
	assert_int_equal(node_walk(two, "d/f")->ino, ino);
	file = nodes_get(nodes, ino);
	node_unref(two);
	assert_non_null(file);
	assert_int_equal(file->size, 6);
	node_unref(file);
	assert_null(nodes_get(nodes, ino));
	nodes_free(nodes);
}

static void reads_are_exact(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct node *n = text_node(nodes, "0123456789"), *dir = node_dir(nodes, NULL, 0);
	char got[10];

	assert_int_equal(node_read(n, 3, got, 4), 0);
	assert_memory_equal(got, "3456", 4);
	assert_int_equal(node_read(n, 10, got, 0), 0);
	assert_int_equal(node_read(n, 7, got, 4), -EBADMSG);
	assert_int_equal(node_read(n, UINT64_MAX, got, 2), -EBADMSG);
	assert_int_equal(node_read(dir, 0, got, 1), -EISDIR);
	node_unref(n);
	node_unref(dir);
	nodes_free(nodes);
}

static void weights_count_opens_in_their_state(void **unused)
{
	struct nodes *nodes = nodes_new();
	struct layout_file files[2] = {{.size = 10}, {.size = 20}};
	struct layout layout = {.refs = 1, .files = files, .file_count = 2};
	struct state state = {.refs = 1, .layout = &layout};
	struct node *w = node_weights(nodes, &state, 1, 5), *dir = node_dir(nodes, &state, 5);
	char got[4];

	assert_int_equal(w->size, 20);
	assert_int_equal(state.refs, 3);
	node_opened(w);
	node_opened(dir);
	node_opened(w);
	assert_int_equal(state.opens, 3);
	node_closed(w);
	node_closed(w);
	node_closed(dir);
	assert_int_equal(state.opens, 0);
	assert_int_equal(node_read(w, 4, got, sizeof(got)), 0);
	assert_memory_equal(got, "\5\5\5\5", 4);
	node_unref(w);
	node_unref(dir);
	assert_int_equal(state.refs, 1);
	nodes_free(nodes);
}

struct race {
	struct nodes *nodes;
	uint64_t ino; /* atomic */
	bool stop;    /* atomic */
	uint64_t got, dead;
};

static void *race_reader(void *ctx)
{
	struct race *r = ctx;

	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		struct node *n = nodes_get(r->nodes, __atomic_load_n(&r->ino, __ATOMIC_ACQUIRE));
		char got[5];

		if (!n)
			continue;
		if (node_read(n, 0, got, 5) || memcmp(got, "alive", 5) != 0)
			__atomic_fetch_add(&r->dead, 1, __ATOMIC_RELAXED);
		node_unref(n);
	}
	return NULL;
}

static void a_dying_node_is_never_handed_out(void **unused)
{
	struct race r = {.nodes = nodes_new()};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, race_reader, &r), 0);
	for (int i = 0; i < 20000; i++) {
		struct node *n = text_node(r.nodes, "alive");

		__atomic_store_n(&r.ino, n->ino, __ATOMIC_RELEASE);
		node_unref(n);
	}
	__atomic_store_n(&r.stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_int_equal(r.dead, 0);
	assert_null(nodes_get(r.nodes, r.ino));
	nodes_free(r.nodes);
}

struct kernel { /* what a whole file is registered with */
	int opened, closed, err;
};

static int fake_open(void *ctx, int fd, int32_t *out)
{
	struct kernel *k = ctx;

	*out = ++k->opened;
	return k->err;
}

static void fake_close(void *ctx, int32_t backing)
{
	struct kernel *k = ctx;

	assert_true(backing > 0 && backing <= k->opened);
	k->closed++;
}

static const struct whole_ops fake_ops = {fake_open, fake_close};

static void attach(struct node *n, struct kernel *k)
{
	struct whole *w;

	assert_int_equal(whole_new(dup(0), 10, &fake_ops, k, NULL, &w), 0);
	assert_int_equal(node_attach(n, w), 0);
}

static void a_whole_file_has_a_number_of_its_own(void **unused)
{
	struct layout_file file = {.size = 10};
	struct layout layout = {.files = &file, .file_count = 1};
	struct state state = {.refs = 1, .layout = &layout};
	struct nodes *nodes = nodes_new();
	struct node *n = node_weights(nodes, &state, 0, 1), *got;
	struct kernel k = {0};
	struct whole *w, *open;
	uint64_t second;

	assert_false(node_may_be_whole(n));
	nodes_allow_whole(nodes);
	assert_true(node_may_be_whole(n));
	assert_int_equal(node_number(n), n->ino);
	assert_false(node_detach(n));
	attach(n, &k);
	second = node_number(n);
	assert_true(node_is_whole(n) && second != n->ino);
	got = nodes_get(nodes, second);
	assert_ptr_equal(got, n);
	node_unref(got);
	assert_null(node_open_whole(n, n->ino)); /* the old number is read the old way */
	assert_int_equal(whole_new(dup(0), 10, &fake_ops, &k, NULL, &w), 0);
	assert_int_equal(node_attach(n, w), -EEXIST);
	k.closed = 0; /* the second registration went first */

	open = node_open_whole(n, second);
	assert_non_null(open);
	assert_false(node_detach(n)); /* in use */
	whole_closed(nodes, open);
	assert_true(node_detach(n));
	assert_int_equal(k.closed, 1);
	assert_int_equal(node_number(n), n->ino);
	/* A walk may still carry it: known, and read as any other. */
	got = nodes_get(nodes, second);
	assert_ptr_equal(got, n);
	node_unref(got);
	assert_null(node_open_whole(n, second));
	k.opened = k.closed;
	attach(n, &k);
	assert_true(node_number(n) != second && node_number(n) != n->ino);
	assert_null(node_open_whole(n, second));
	second = node_number(n);
	node_unref(n);
	assert_null(nodes_get(nodes, second));
	assert_int_equal(k.closed, k.opened);
	nodes_free(nodes);

	k.err = -EPERM;
	assert_int_equal(whole_new(dup(0), 10, &fake_ops, &k, NULL, &w), -EPERM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_are_never_used_twice),
		cmocka_unit_test(get_takes_a_reference),
		cmocka_unit_test(tree_is_sorted_and_walkable),
		cmocka_unit_test(child_outlives_its_directory),
		cmocka_unit_test(reads_are_exact),
		cmocka_unit_test(weights_count_opens_in_their_state),
		cmocka_unit_test(a_whole_file_has_a_number_of_its_own),
		cmocka_unit_test(a_dying_node_is_never_handed_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
