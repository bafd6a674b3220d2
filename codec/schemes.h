/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schemes behind the registry of codec/scheme.h.  For codec/schemes.c and codec/scheme_*.c
 * only.
 */
#ifndef CODEC_SCHEMES_H
#define CODEC_SCHEMES_H

#include "codec/scheme.h"

/* Version directories of HF checkpoints and of deltas between them (codec/scheme_hfdir.c). */
extern const struct scheme scheme_hfdir, scheme_checkpoints;
/* FULL/ and DELTA/ in checkpoint directories (codec/scheme_grail.c). */
extern const struct scheme scheme_grail;
/* SkyRL's deltas with a manifest (codec/read_skyrl.c). */
extern const struct scheme scheme_skyrl;
/* prime-rl's broadcasts (codec/scheme_primerl.c). */
extern const struct scheme scheme_primerl;
/* Fireworks' incremental snapshots (codec/read_arc.c). */
extern const struct scheme scheme_arc;

#endif
