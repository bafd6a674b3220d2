/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them: for status lines and the output of tools.  Each appends to the
 * buffer.  No I/O. */
#ifndef FS_HUMAN_H
#define FS_HUMAN_H

#include "codec/buf.h"

/* A length of time with one unit: "0 s", "59 s", "12 min", "3 h", "9 d"; negative counts as 0. */
void human_time(struct buf *b, int64_t ns);
/* "512 B", "1.2 MB", "16.4 GB": powers of 1000, as file managers and disks have it. */
void human_bytes(struct buf *b, uint64_t bytes);
/* "950", "1.2 k", "1.2 M", "3.4 G". */
void human_count(struct buf *b, uint64_t n);
/* "2026-11-30 20:18:03 UTC" */
void human_date(struct buf *b, int64_t real_ns);

#endif
