/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dtypes of safetensors: names, sizes, and which a trainer can have as a parameter.
 *
 * One row per dtype, in the order of enum st_dtype.  Names are those of the format's own list and
 * are matched exactly, as every reader does.
 */
#include "codec/safetensors.h"

struct dtype_row {
	const char *name;
	uint8_t bits;
	bool is_float;
};

static const struct dtype_row rows[ST_DTYPES] = {
	[ST_BOOL] = {"BOOL", 8, false},
	[ST_F4] = {"F4", 4, true},
	[ST_F6_E2M3] = {"F6_E2M3", 6, true},
	[ST_F6_E3M2] = {"F6_E3M2", 6, true},
	[ST_U8] = {"U8", 8, false},
	[ST_I8] = {"I8", 8, false},
	[ST_F8_E5M2] = {"F8_E5M2", 8, true},
	[ST_F8_E4M3] = {"F8_E4M3", 8, true},
	[ST_F8_E8M0] = {"F8_E8M0", 8, true},
	[ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, true},
	[ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, true},
	[ST_I16] = {"I16", 16, false},
	[ST_U16] = {"U16", 16, false},
	[ST_F16] = {"F16", 16, true},
	[ST_BF16] = {"BF16", 16, true},
	[ST_I32] = {"I32", 32, false},
	[ST_U32] = {"U32", 32, false},
	[ST_F32] = {"F32", 32, true},
	[ST_C64] = {"C64", 64, true},
	[ST_F64] = {"F64", 64, true},
	[ST_I64] = {"I64", 64, false},
	[ST_U64] = {"U64", 64, false},
};

const char *st_dtype_name(enum st_dtype dtype)
{
	return (unsigned)dtype < ST_DTYPES ? rows[dtype].name : "?";
}

int st_dtype_parse(const char *name, size_t len)
{
	for (int i = 0; i < ST_DTYPES; i++)
		if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
			return i;
	return -1;
}

unsigned st_dtype_bits(enum st_dtype dtype)
{
	return rows[dtype].bits;
}

unsigned st_dtype_width(enum st_dtype dtype)
{
	return rows[dtype].bits < 8 ? 1 : rows[dtype].bits / 8;
}

bool st_dtype_is_float(enum st_dtype dtype)
{
	return rows[dtype].is_float;
}
