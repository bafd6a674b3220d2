/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is left, from what the kernel says.
 *
 * Pages put into the page cache on behalf of a mount are charged to the process that puts them
 * there, so limits of our own control group (version 2) and of those above it count as well as the
 * machine's.  Inactive
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

bool memory_of_group(const char *root, const char *group, struct memory_room *out)
{
	size_t len = strlen(root), end = len + strlen(group);
	char path[4096 + 64];
	bool found = false;

	if (end > 4096)
		return false;
	memcpy(path, root, len);
	memcpy(path + len, group, end - len + 1);
	/* Each group on the way up has a limit of its own. */
	for (;;) {
		double limit, used, left, inactive = 0;
		bool limited;

		snprintf(path + end, sizeof(path) - end, "/memory.max");
		limited = field_of_file(path, "", &limit); /* "max" is no number */
		snprintf(path + end, sizeof(path) - end, "/memory.current");
		if (limited && field_of_file(path, "", &used)) {
			snprintf(path + end, sizeof(path) - end, "/memory.stat");
			(void)field_of_file(path, "inactive_file", &inactive);
			left = MAX(limit - used + inactive, 0);
			if (!found || left < out->left)
				*out = (struct memory_room){left, limit};
			found = true;
		}
		if (end <= len)
			return found;
		do
			end--;
		while (end > len && path[end] != '/');
	}
}

/* The room of this process's control group; false: no limit that we can see. */
static bool own_group(struct memory_room *out)
{
	char *text = NULL, *group;
	bool found = false;
	size_t len;

	if (file_slurp(AT_FDCWD, "/proc/self/cgroup", TEXT_MAX, &text, &len) < 0)
		return false;
	group = strncmp(text, "0::", 3) == 0 ? text + 3 : strstr(text, "\n0::");
	if (group != NULL) {
		group += *group == '\n' ? 4 : 0;
		group[strcspn(group, "\n")] = '\0';
		found = memory_of_group("/sys/fs/cgroup", group, out);
	}
	free(text);
	return found;
}

static bool machine(struct memory_room *out)
{
	if (!field_of_file("/proc/meminfo", "MemAvailable:", &out->left) ||
	    !field_of_file("/proc/meminfo", "MemTotal:", &out->total))
		return false;
	out->left *= 1024;
	out->total *= 1024;
	return true;
}

uint64_t memory_available(void)
{
	struct memory_room room;
	uint64_t left = UINT64_MAX;

	if (machine(&room))
		left = (uint64_t)room.left;
	if (own_group(&room))
		left = MIN(left, (uint64_t)room.left);
	return left;
}

static bool is_short(const struct memory_room *room)
{
	return room->left < room->total * SHORT_PART;
}

bool memory_short(void)
{
	struct memory_room room;
	double pressure;

	if (field_of_file("/proc/pressure/memory", "some avg10=", &pressure) &&
	    pressure > PRESSURE_MAX)
		return true;
	return (machine(&room) && is_short(&room)) || (own_group(&room) && is_short(&room));
}
