/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Hub's access token: where it comes from, and fresh ones as the file changes.
 *
 * In this order: the file given (--token-file), HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file
 * HF_TOKEN_PATH, $HF_HOME/token ($XDG_CACHE_HOME/huggingface or ~/.cache/huggingface).
 * HF_HUB_DISABLE_IMPLICIT_TOKEN leaves only the first.  The token's text is never in a sentence.
 */
#ifndef CACHE_REMOTE_HUB_TOKEN_H
#define CACHE_REMOTE_HUB_TOKEN_H

#include "codec/base.h"

enum { HUB_TOKEN_MAX = 4096 };

struct hub_token; /* opaque */

/* file NULL: the usual places.  A file that was given must be there and hold a token: -errno with a
 * sentence.  No token anywhere is fine. */
int hub_token_new(const char *file, struct hub_token **out, struct why *why) MUST_CHECK;
void hub_token_free(struct hub_token *t); /* NULL is fine */

/* Copies the token ("": none) and says which one it is.  The caller wipes dst. */
uint64_t hub_token_get(struct hub_token *t, char dst[HUB_TOKEN_MAX]);
/* Reads the file again when that was 30 s ago.  Blocks on the file. */
void hub_token_refresh(struct hub_token *t);
/* A server did not accept token `which`.  True: there is another one now.  Reads a small file. */
bool hub_token_refused(struct hub_token *t, uint64_t which);
/* Where it comes from, for people: "HF_TOKEN", "the file ..."; NULL: there is none.  Valid as long
 * as t. */
const char *hub_token_origin(struct hub_token *t);

#endif
