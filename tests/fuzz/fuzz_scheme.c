/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: what indexes of versions say, of every scheme.  The first byte chooses the scheme,
 * the second one of its indexes, the rest is the text.
 *
 * Whatever it is, a parser refuses it with a sentence, or names plain paths below the version's
 * directory, a format that is known, and checksums of the length of their kind.
 */
#include "codec/format.h"
#include "codec/scheme.h"
#include "tests/fuzz/exact.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NUMBER = 7 };

static void check_path(const char *path)
{
	REQUIRE(path[0] != '\0' && path[0] != '/' && path[0] != '.');
	REQUIRE(path[strlen(path) - 1] != '/' && strchr(path, '\\') == NULL);
	REQUIRE(strstr(path, "//") == NULL && strstr(path, "/.") == NULL);
	for (const char *s = path; *s != '\0'; s++)
		REQUIRE((unsigned char)*s >= 0x20 && *s != 0x7f);
}

static void check_version(const struct scheme *s, const struct scheme_version *v)
{
	for (size_t i = 0; i < v->file_count; i++) {
		check_path(v->files[i]);
		REQUIRE(i == 0 || strcmp(v->files[i - 1], v->files[i]) < 0);
	}
	for (size_t i = 0; i < v->sum_count; i++) {
		check_path(v->sums[i].path);
		REQUIRE(strlen(v->sums[i].hex) == checksum_digits(v->sums[i].kind));
	}
	REQUIRE(strlen(v->state.hex) == checksum_digits(v->state.kind));
	REQUIRE(memchr(v->encoding, '\0', sizeof(v->encoding)) != NULL);
	REQUIRE(memchr(v->writer, '\0', sizeof(v->writer)) != NULL);
	if (v->delta)
		REQUIRE(format_named(v->encoding) != NULL);
	else /* one that adds nothing to what else is there is of such a scheme only */
		REQUIRE(v->file_count > 0 || s->delta_only);
	REQUIRE(v->encoding[0] == '\0' || format_named(v->encoding) != NULL);
}

/* A file against what the text says of it: where the numbers are equal, the tensors are. */
static void check_names(const struct scheme_version *v, const char *text, size_t len)
{
	static const char json[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
				   "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
	struct st_header *header;
	struct why why = {0};
	int err = st_parse(json, strlen(json), 8 + strlen(json) + 2, &header, &why);

	REQUIRE(err == 0);
	for (size_t i = 0; i < v->file_count && i < 8; i++) {
		err = scheme_names_check(text, len, v->files[i], header, true, &why);
		REQUIRE(err == 0 || err == -EBADMSG);
		REQUIRE((err == 0) == scheme_names_equal(&v->names[i], header));
	}
	st_free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct scheme *s;
	struct scheme_version v = {0};
	struct why why = {0};
	const char *index;
	size_t schemes_n = 0, n = 0;
	char *text;
	int err;

	if (size < 2)
		return 0;
	while (schemes[schemes_n] != NULL)
		schemes_n++;
	s = schemes[data[0] % schemes_n];
	while (s->indexes != NULL && s->indexes[n] != NULL)
		n++;
	REQUIRE(n > 0);
	index = s->indexes[data[1] % n];
	/* Of its own, so that a step beyond it is noticed. */
	text = malloc(size - 2 + 1);
	REQUIRE(text != NULL);
	memcpy(text, data + 2, size - 2);
	text[size - 2] = '\0';
	err = s->parse(index, NUMBER, text, size - 2, &v, &why);
	REQUIRE(err == 0 || (err < 0 && why.err == -err && why.text[0] != '\0'));
	if (err == 0)
		check_version(s, &v);
	if (err == 0 && v.names != NULL)
		check_names(&v, text, size - 2);
	scheme_version_release(&v);
	free(text);
	return 0;
}
