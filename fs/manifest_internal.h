/* SPDX-License-Identifier: Apache-2.0 */
/* What reading and changing a manifest share. */
#ifndef FS_MANIFEST_INTERNAL_H
#define FS_MANIFEST_INTERNAL_H

#include "fs/manifest.h"

enum { MANIFEST_VERSION = 1 };

extern const char *const manifest_kinds[]; /* by enum manifest_kind */

/* All rules that span entries; sorts the spans.  -EBADMSG with a sentence, -ENOMEM. */
int manifest_check(struct manifest *m, struct why *why) MUST_CHECK;
bool manifest_lineage_ok(const char *text);

#endif
