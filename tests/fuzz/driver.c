/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays inputs through a fuzz target without libFuzzer, so that a corpus is an ordinary test with
 * any compiler: `fuzz_X FILE|DIRECTORY...`, directories with all below them.
 *
 * A target that finds something aborts; the name of the input in hand has been written to stderr
 * by then.  Exits 1 when an input cannot be read, and when there was none at all: a corpus that
 * has moved away must not look like success.
 */
#include <fts.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Runs one file; the target gets a block of exactly its size, so that a sanitizer sees overruns. */
static bool replay(const char *path, size_t size)
{
	uint8_t *data = malloc(size > 0 ? size : 1);
	FILE *file = fopen(path, "rb");
	bool ok;

	ok = data != NULL && file != NULL && fread(data, 1, size, file) == size;
	if (!ok)
		fprintf(stderr, "%s: cannot be read\n", path);
	if (file != NULL)
		fclose(file);
	if (ok) {
		fprintf(stderr, "%s\n", path);
		LLVMFuzzerTestOneInput(data, size);
	}
	free(data);
	return ok;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

int main(int argc, char **argv)
{
	size_t count = 0, failed = 0;
	FTSENT *entry;
	FTS *walk;

	if (argc < 2) {
		fprintf(stderr, "usage: %s FILE|DIRECTORY...\n", argv[0]);
		return 1;
	}
	walk = fts_open(argv + 1, FTS_LOGICAL | FTS_NOCHDIR, by_name);
	if (walk == NULL) {
		perror(argv[0]);
		return 1;
	}
	while ((entry = fts_read(walk)) != NULL) {
		if (entry->fts_info == FTS_D || entry->fts_info == FTS_DP)
			continue;
		if (entry->fts_info != FTS_F) {
			fprintf(stderr, "%s: is not a file\n", entry->fts_path);
			failed++;
		} else if (replay(entry->fts_accpath, (size_t)entry->fts_statp->st_size)) {
			count++;
		} else {
			failed++;
		}
	}
	fts_close(walk);
	printf("%zu inputs replayed\n", count);
	return failed > 0 || count == 0;
}
