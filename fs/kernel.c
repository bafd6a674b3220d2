/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the codec's kernel.
 *
 * The codec knows what the CPU can do and nothing of the environment; whoever encodes or decodes
 * passes on what is chosen here: links of a state, folds, and the publisher.
 *
 * Threads: any; the first one that asks looks.
 */
#include "fs/kernel.h"

#include "cache/log.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct rice_kernel *chosen;

static void choose(void)
{
	const char *name = getenv("WEIGHTFS_KERNEL");

	if (name != NULL && name[0] == '\0')
		name = NULL;
	chosen = patch_kernel(name);
	if (chosen != NULL)
		return;
	chosen = patch_kernel(NULL);
	log_warning("WEIGHTFS_KERNEL is \"%s\", which this program or this CPU does not have: "
		    "using %s (there are portable, avx2 and avx512)",
		    SHOWN(name), patch_kernel_name(chosen));
}

const struct rice_kernel *kernel_chosen(void)
{
	pthread_once(&once, choose);
	return chosen;
}
