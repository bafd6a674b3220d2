/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the new state is kept for the next version: as a copy of its files, or as a patch on top of
 * the copy that is there.
 *
 *	a clone		where the file system can share blocks: costs nothing
 *	a patch		some megabytes instead of the model's size; after PUB_CHAIN_MAX of them, or
 *			when they have grown too large, a copy again
 *	a copy		written while comparing, since the bytes are at hand then
 *
 * A stream has been written into the free slot already, which is a copy.  Which of them it will be
 * is chosen before comparing; afterwards a patch may turn out not to do (the base was not what it
 * should have been, or nearly everything changed), and the files are copied then.
 *
 * The slot that state.json names is never written to.
 */
#include "tools/pub_internal.h"

#include "cache/fileio.h"

#include <stdio.h>
#include <stdlib.h>

static bool chain_may_grow(const struct attempt *a, uint64_t more)
{
	return a->chain.count < PUB_CHAIN_MAX &&
	       a->chain.bytes + more <= a->new->bytes / PUB_CHAIN_SHARE;
}

/* Is a patch on the last state's copy of use next time? */
static bool wants_patch(const struct attempt *a)
{
	const struct pub_encoding *e = a->p->encoding;

	return a->old != NULL && a->p->o->against == NULL && !e->reads_old && chain_may_grow(a, 0);
}

int pub_copy_begin(struct attempt *a, struct pub_slot *slot, struct why *why)
{
	int ret;

	if (a->slot == 0 || a->streamed)
		return 0;
	a->patched = wants_patch(a);
	ret = pub_slot_open(a->slot_path, a->new, a->patched, slot, why);
	if (ret == -EOPNOTSUPP && a->patched) {
		pub_slot_release(slot);
		return 0;
	}
	a->patched = false;
	return ret;
}

/* The files as they are, after all. */
static int copy_now(struct attempt *a, struct why *why)
{
	struct progress progress = {0}, *shown = a->p->o->quiet ? NULL : &progress;
	struct pub_slot slot = {0};
	int ret = pub_slot_open(a->slot_path, a->new, false, &slot, why);

	if (ret == 0) {
		if (shown != NULL)
			progress_begin(shown, "copy", a->new->bytes);
		ret = pub_slot_fill(&slot, a->new, shown, &a->p->stop, why);
		progress_clear(&progress);
	}
	pub_slot_release(&slot);
	if (ret == 0)
		ret = pub_checkpoint_unchanged(a->new, why);
	if (ret == 0)
		ret = pub_checkpoint_move(a->new, a->slot_path, why);
	return ret;
}

static int save_patch(struct attempt *a, struct why *why)
{
	struct pub_state *s = a->p->state;
	char *path;
	int ret;

	a->slot = s->now.slot;
	a->patches = s->now.patches != NULL ? json_copy(s->now.patches) : json_array();
	if (a->patches == NULL)
		return why_set(why, ENOMEM, "out of memory");
	if (a->diff.changed == 0)
		return 0;
	path = path_join(s->patches, a->in.attempt);
	if (path == NULL || json_array_append_new(a->patches, json_string(a->in.attempt)) < 0)
		ret = why_set(why, ENOMEM, "out of memory");
	else
		ret = pub_chain_save(path, a->new->tensors, a->new->count, why);
	free(path);
	return ret;
}

int pub_copy_end(struct attempt *a, struct why *why)
{
	if (a->slot == 0 || !a->patched)
		return 0;
	if (a->old != NULL && chain_may_grow(a, a->diff.encoded))
		return save_patch(a, why);
	a->patched = false;
	return copy_now(a, why);
}
