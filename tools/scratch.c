/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch files of the verbs that need some.
 *
 * They have no name, so that a program that is killed leaves nothing behind, and lie where the user
 * says that temporary files should lie: a mount's cache directory belongs to mounts.
 *
 * No state.
 */
#include "tools/scratch.h"

#include <fcntl.h>
#include <stdlib.h>

int scratch_file(int *out_fd, struct why *why)
{
	const char *dir = getenv("TMPDIR");
	int fd;

	dir = dir != NULL && dir[0] != '\0' ? dir : "/tmp";
	fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return why_set(why, errno, "no file can be made in %s: %s", dir,
			       strerrordesc_np(errno));
	*out_fd = fd;
	return 0;
}
