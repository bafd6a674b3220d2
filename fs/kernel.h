/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel of the codec this process uses: the one that WEIGHTFS_KERNEL in the environment
 * names
 * ("portable", "avx2", "avx512"), else the best that the CPU has.
 *
 * All kernels give the same bytes, so this is for tests, for measurements, and for a CPU that
 * cannot be trusted.
 */
#ifndef FS_KERNEL_H
#define FS_KERNEL_H

#include "codec/patch.h"

/* Looked up once in a process; a name that is unknown here, or that this CPU cannot run, gives the
 * best one and one warning in the log.  Never NULL; any thread. */
const struct rice_kernel *kernel_chosen(void);

#endif
