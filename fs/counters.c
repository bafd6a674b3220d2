/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counters themselves: one set for the process, counted where things happen and read by status.
 *
 * A module of its own, so that whoever counts need not know who reports.
 */
#include "fs/counters.h"

struct counters counters;
