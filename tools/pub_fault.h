/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading maps of files that somebody may cut meanwhile: the pages that are gone read as zeros
 * instead of ending the program, and it is told afterwards.
 */
#ifndef TOOLS_PUB_FAULT_H
#define TOOLS_PUB_FAULT_H

#include "codec/base.h"

/* From here to the end, in all threads.  Not nested; by one thread at a time. */
void pub_fault_begin(void);
/* Was there such a page? */
bool pub_fault_end(void) MUST_CHECK;

#endif
