/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engines' answers have in common.
 *
 * A clear no (a route that is not there, a key that is not accepted, a body that was not
 * understood) is told from a failure, and both from an answer that never came: the plan goes on
 * differently.  What an engine says is shown in printable form and cut; that it repeats no key is
 * the caller's care, who knows the key.
 *
 * Pure; no I/O, no state.
 */
#include "tools/engine.h"

#include "tools/cli.h"

#include <jansson.h>

static const struct engine *const engines[] = {&engine_vllm, &engine_sglang, &engine_mlx};

const struct engine *engine_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(engines); i++)
		if (strcmp(engines[i]->name, name) == 0)
			return engines[i];
	return NULL;
}

const char *engine_choice(const char *const *list, const char *value)
{
	if (list == NULL)
		return NULL;
	if (value == NULL)
		return list[0];
	for (; *list != NULL; list++)
		if (strcmp(*list, value) == 0)
			return *list;
	return NULL;
}

static json_t *parse(const struct engine_answer *a)
{
	return a->len > 0 ? json_loadb(a->body, a->len, JSON_DECODE_ANY, NULL) : NULL;
}

bool engine_number(const struct engine_answer *a, const char *key, uint64_t *out)
{
	json_t *root = parse(a), *v = json_object_get(root, key);
	bool ok = false;

	if (json_is_integer(v) && json_integer_value(v) >= 0) {
		*out = (uint64_t)json_integer_value(v);
		ok = true;
	} else if (json_is_string(v)) {
		ok = parse_u64(json_string_value(v), out) == 0;
	}
	json_decref(root);
	return ok;
}

bool engine_text(const struct engine_answer *a, const char *key, char *dst, size_t cap)
{
	json_t *root = parse(a);
	const char *text = json_string_value(json_object_get(root, key));

	if (text != NULL)
		printable(dst, cap, text, strlen(text));
	json_decref(root);
	return text != NULL;
}

int engine_text_is(const struct engine_answer *a, const char *key, const char *text)
{
	json_t *root = parse(a);
	const char *has = json_string_value(json_object_get(root, key));
	int ret = has == NULL ? -1 : strcmp(has, text) == 0;

	json_decref(root);
	return ret;
}

int engine_bool(const struct engine_answer *a, const char *key)
{
	json_t *root = parse(a), *v = json_object_get(root, key);
	int ret = json_is_boolean(v) ? json_is_true(v) : -1;

	json_decref(root);
	return ret;
}

/* What the engine says of a failure: the usual places in its JSON, else the text. */
static void explain(const struct engine_answer *a, char *dst, size_t cap)
{
	static const char *const keys[] = {"message", "error", "detail"};
	json_t *root = parse(a);

	dst[0] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(keys) && dst[0] == '\0'; i++) {
		json_t *v = json_object_get(root, keys[i]);
		const char *text = json_string_value(v);

		if (json_is_object(v))
			text = json_string_value(json_object_get(v, "message"));
		if (text != NULL)
			printable(dst, cap, text, strlen(text));
	}
	if (dst[0] == '\0' && root == NULL && a->len > 0)
		printable(dst, cap, a->body, a->len);
	json_decref(root);
}

static enum plan_outcome no_answer(const struct engine_answer *a, const char *what, struct why *why)
{
	/* The transport's own sentence is in *why. */
	if (why->text[0] == '\0')
		why_set(why, -a->err, "%s", errno_text(a->err));
	why_prefix(why, "%s", what);
	return a->connected ? PLAN_LOST : PLAN_DOWN;
}

enum plan_outcome engine_judge(const struct engine_answer *a, const char *what, const char *remedy,
			       struct why *why)
{
	char said[240];

	if (a->err != 0)
		return no_answer(a, what, why);
	if (a->status >= 200 && a->status < 300)
		return PLAN_OK;
	explain(a, said, sizeof(said));
	switch (a->status) {
	case 401:
	case 403:
		why_set(why, EACCES,
			"%s: the engine does not accept the key (%d); set the variable that the "
			"manual names for it",
			what, a->status);
		return PLAN_REFUSED;
	case 404:
	case 405:
	case 501:
		why_set(why, ENOENT, "%s: the engine has no such route (%d); %s", what, a->status,
			remedy);
		return PLAN_REFUSED;
	case 422:
		why_set(why, EINVAL, "%s: the engine does not understand the request (%d)%s%s",
			what, a->status, said[0] != '\0' ? ": " : "", said);
		return PLAN_REFUSED;
	default:
		why_set(why, EIO, "%s: the engine answers %d%s%s", what, a->status,
			said[0] != '\0' ? ": " : "", said);
		/* A redirect leads to something else than what was named. */
		return a->status < 400 ? PLAN_REFUSED : PLAN_FAILED;
	}
}
