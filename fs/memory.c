/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is left, from what the kernel says.
 *
 * Pages put into the page cache on behalf of a mount are charged to the process that puts them
 * there, so a limit of our own control group (version 2) counts as well as the machine's.  Inactive
 * file pages of the group are what could be given up: they count as free.
 *
 * Pressure (PSI) is what tells "full of cache" from "short": a machine that has waited for memory
 * lately is left alone whatever MemAvailable says.
 *
 * No state; each call reads a few small files.
 */
#include "fs/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/fileio.h"

enum { TEXT_MAX = 1 << 16 };
static const double PRESSURE_MAX = 10.0; /* percent of the last 10 s */
static const double SHORT_PART = 0.05;

bool memory_field(const char *text, const char *key, double *out)
{
	for (const char *line = text; line != NULL && *line != '\0';) {
		if (strncmp(line, key, strlen(key)) == 0) {
			char *end;

			*out = strtod(line + strlen(key), &end);
			return end != line + strlen(key);
		}
		line = strchr(line, '\n');
		line = line != NULL ? line + 1 : NULL;
	}
	return false;
}

static bool field_of_file(const char *path, const char *key, double *out)
{
	char *text = NULL;
	size_t len;
	bool found = file_slurp(AT_FDCWD, path, TEXT_MAX, &text, &len) == 0 &&
		     memory_field(text, key, out);

	free(text);
	return found;
}

/* What the control group may still take; false: no limit that we can see. */
static bool group_available(double *out)
{
	double limit, used, inactive = 0;
	char path[4096 + 64], *text = NULL, *group;
	size_t len;
	bool found = false;

	if (file_slurp(AT_FDCWD, "/proc/self/cgroup", TEXT_MAX, &text, &len) < 0)
		return false;
	group = strncmp(text, "0::", 3) == 0 ? text + 3 : strstr(text, "\n0::");
	if (group != NULL) {
		group += *group == '\n' ? 4 : 0;
		group[strcspn(group, "\n")] = '\0';
		snprintf(path, sizeof(path), "/sys/fs/cgroup%.4000s/memory.max", group);
		found = field_of_file(path, "", &limit); /* "max" is no number */
		snprintf(path, sizeof(path), "/sys/fs/cgroup%.4000s/memory.current", group);
		found = found && field_of_file(path, "", &used);
		snprintf(path, sizeof(path), "/sys/fs/cgroup%.4000s/memory.stat", group);
		if (found)
			(void)field_of_file(path, "inactive_file", &inactive);
	}
	free(text);
	if (found)
		*out = MAX(limit - used + inactive, 0);
	return found;
}

uint64_t memory_available(void)
{
	double machine, group;
	uint64_t left = UINT64_MAX;

	if (field_of_file("/proc/meminfo", "MemAvailable:", &machine))
		left = (uint64_t)(machine * 1024);
	if (group_available(&group))
		left = MIN(left, (uint64_t)group);
	return left;
}

bool memory_short(void)
{
	double total, pressure;

	if (field_of_file("/proc/pressure/memory", "some avg10=", &pressure) &&
	    pressure > PRESSURE_MAX)
		return true;
	return field_of_file("/proc/meminfo", "MemTotal:", &total) &&
	       (double)memory_available() < total * 1024 * SHORT_PART;
}
