/* SPDX-License-Identifier: Apache-2.0 */
/* Times as text, "2026-11-30T23:05:59.123456789Z" (RFC 3339), and back.  Pure. */
#ifndef FS_RFC3339_H
#define FS_RFC3339_H

#include "codec/base.h"

enum { RFC3339_LEN = 31 }; /* with the NUL */

/* UTC, with as many decimals as it takes (none, 3, 6 or 9). */
void rfc3339_format(int64_t ns, char out[RFC3339_LEN]);
/* Up to nine decimals; Z or an offset such as +02:00.  Years 1970 to 2200.  -EINVAL. */
int rfc3339_parse(const char *text, int64_t *out_ns) MUST_CHECK;

#endif
