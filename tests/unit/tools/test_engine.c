/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines: which requests a step is made of, to the byte, and what their answers mean.
 */
#include "tools/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const struct engine_ask rpc = {
	.path = "/mnt/a \"b\"/.weightfs/versions/7",
	.version = 7,
	.fresh = true,
	.paused = true,
	.route = "rpc",
	.pause_mode = "wait",
	.reload_s = 60,
};

/* All requests of a step, one per line. */
static void expect(const struct engine *e, enum engine_step step, const struct engine_ask *ask,
		   const char *want)
{
	struct buf got = {0};

	for (unsigned n = 0;; n++) {
		struct engine_request r = {0};

		if (!e->request(step, n, ask, &r)) {
			buf_release(&r.body);
			break;
		}
		buf_addf(&got, "%s %s %s\n", r.post ? "POST" : "GET", r.target, buf_str(&r.body));
		buf_release(&r.body);
	}
	assert_string_equal(buf_str(&got), want);
	buf_release(&got);
}

#define PATH "/mnt/a \\\"b\\\"/.weightfs/versions/7"

static void test_vllm_requests(void **state)
{
	struct engine_ask ask = rpc;

	expect(&engine_vllm, ENGINE_ASK, &ask, "GET /is_paused \nGET /weight_info \n");
	expect(&engine_vllm, ENGINE_PAUSE, &ask, "POST /pause?mode=wait&clear_cache=true \n");
	expect(&engine_vllm, ENGINE_RELOAD, &ask,
	       "POST /collective_rpc {\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":"
	       "\"" PATH "\",\"is_checkpoint_format\":true},\"timeout\":60}\n"
	       "POST /reset_prefix_cache \n"
	       "POST /update_weight_version {\"new_version\":\"7\"}\n");
	expect(&engine_vllm, ENGINE_VERIFY, &ask, "GET /is_paused \nGET /weight_info \n");
	expect(&engine_vllm, ENGINE_RESUME, &ask, "POST /resume \n");
	ask.route = "transfer";
	expect(&engine_vllm, ENGINE_RELOAD, &ask,
	       "POST /init_weight_transfer_engine {\"init_info\":{}}\n"
	       "POST /start_weight_update \n"
	       "POST /update_weights {\"update_info\":{\"path\":\"" PATH "\"}}\n"
	       "POST /finish_weight_update {\"weight_version\":\"7\"}\n"
	       "POST /reset_prefix_cache \n");
	ask.fresh = false;
	expect(&engine_vllm, ENGINE_RELOAD, &ask,
	       "POST /start_weight_update \n"
	       "POST /update_weights {\"update_info\":{\"path\":\"" PATH "\"}}\n"
	       "POST /finish_weight_update {\"weight_version\":\"7\"}\n"
	       "POST /reset_prefix_cache \n");
}

static void test_other_requests(void **state)
{
	struct engine_ask ask = rpc;

	ask.pause_mode = "retract";
	expect(&engine_sglang, ENGINE_PAUSE, &ask,
	       "POST /pause_generation {\"mode\":\"retract\"}\n");
	expect(&engine_sglang, ENGINE_RELOAD, &ask,
	       "POST /update_weights_from_disk {\"model_path\":\"" PATH
	       "\",\"weight_version\":\"7\","
	       "\"abort_all_requests\":false,\"flush_cache\":true}\n");
	expect(&engine_sglang, ENGINE_RESUME, &ask, "POST /continue_generation {}\n");
	ask.pause_mode = "in_place";
	expect(&engine_sglang, ENGINE_RELOAD, &ask,
	       "POST /update_weights_from_disk {\"model_path\":\"" PATH
	       "\",\"weight_version\":\"7\","
	       "\"abort_all_requests\":false,\"flush_cache\":false}\n");
	expect(&engine_mlx, ENGINE_PAUSE, &ask, "");
	expect(&engine_mlx, ENGINE_ASK, &ask, "");
	expect(&engine_mlx, ENGINE_RELOAD, &ask,
	       "POST /v1/completions {\"model\":\"" PATH "\",\"prompt\":\"a\",\"max_tokens\":1,"
	       "\"temperature\":0}\n");
	expect(&engine_mlx, ENGINE_VERIFY, &ask, "");
	expect(&engine_mlx, ENGINE_RESUME, &ask, "");
}

static const struct answer {
	const struct engine *e;
	enum engine_step step;
	unsigned n;
	int err, status;
	bool connected;
	const char *body;
	enum plan_outcome want;
	const char *says; /* part of the sentence */
} answers[] = {
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 200, true, "{\"status\":\"paused\"}", PLAN_OK, ""},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 404, true, "{}", PLAN_REFUSED, "VLLM_SERVER_DEV_MODE"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 403, true, "", PLAN_REFUSED, "key"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 422, true, "{\"detail\":\"no\"}", PLAN_REFUSED, "no"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 307, true, "", PLAN_REFUSED, "307"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 500, true, "{\"error\":{\"message\":\"oh\"}}",
	 PLAN_FAILED, "oh"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 500, true, "plain \x01 text", PLAN_FAILED,
	 "plain \\x01 text"},
	{&engine_vllm, ENGINE_PAUSE, 0, 0, 500, true, "[[[[", PLAN_FAILED, "[[[["},
	{&engine_vllm, ENGINE_PAUSE, 0, -ECONNREFUSED, 0, false, "", PLAN_DOWN, "pause"},
	{&engine_vllm, ENGINE_PAUSE, 0, -ECONNRESET, 0, true, "", PLAN_LOST, "pause"},
	{&engine_vllm, ENGINE_RELOAD, 2, 0, 404, true, "", PLAN_OK, ""},
	{&engine_vllm, ENGINE_RELOAD, 1, 0, 404, true, "", PLAN_REFUSED, "reset_prefix_cache"},
	{&engine_vllm, ENGINE_VERIFY, 0, 0, 200, true, "{\"is_paused\":true}", PLAN_OK, ""},
	{&engine_vllm, ENGINE_VERIFY, 0, 0, 200, true, "{\"is_paused\":false}", PLAN_FAILED,
	 "no longer paused"},
	{&engine_vllm, ENGINE_VERIFY, 1, 0, 200, true, "{\"weight_version\":\"7\"}", PLAN_OK, ""},
	{&engine_vllm, ENGINE_VERIFY, 1, 0, 200, true, "{\"weight_version\":\"default\"}",
	 PLAN_FAILED, "\"default\", not 7"},
	{&engine_vllm, ENGINE_VERIFY, 1, 0, 200, true, "null", PLAN_FAILED, "\"none\", not 7"},
	{&engine_vllm, ENGINE_VERIFY, 1, 0, 404, true, "", PLAN_OK, ""},
	{&engine_sglang, ENGINE_RELOAD, 0, 0, 200, true, "{\"success\":true}", PLAN_OK, ""},
	{&engine_sglang, ENGINE_RELOAD, 0, 0, 200, true, "{\"success\":false,\"message\":\"why\"}",
	 PLAN_FAILED, "why"},
	{&engine_sglang, ENGINE_RELOAD, 0, 0, 200, true, "", PLAN_FAILED, "does not say"},
	{&engine_sglang, ENGINE_RELOAD, 0, 0, 400, true, "{\"message\":\"mixed\"}", PLAN_FAILED,
	 "mixed"},
	{&engine_sglang, ENGINE_VERIFY, 0, 0, 200, true,
	 "{\"model_path\":\"/x\",\"weight_version\":\"7\"}", PLAN_FAILED, "/x"},
	{&engine_sglang, ENGINE_VERIFY, 0, 0, 200, true,
	 "{\"model_path\":\"" PATH "\",\"weight_version\":\"7\"}", PLAN_OK, ""},
	{&engine_sglang, ENGINE_VERIFY, 0, 0, 200, true, "{\"weight_version\":\"6\"}", PLAN_FAILED,
	 "version 6, not 7"},
	{&engine_sglang, ENGINE_VERIFY, 0, 0, 200, true, "{}", PLAN_OK, ""},
	{&engine_mlx, ENGINE_RELOAD, 0, 0, 404, true, "{\"error\":\"gone\"}", PLAN_FAILED, "gone"},
	{&engine_mlx, ENGINE_RELOAD, 0, 0, 200, true, "{\"model\":\"" PATH "\"}", PLAN_OK, ""},
	{&engine_mlx, ENGINE_RELOAD, 0, 0, 200, true, "{\"model\":\"default_model\"}", PLAN_FAILED,
	 "default_model"},
};

static void test_answers(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		const struct answer *t = &answers[i];
		struct engine_answer a = {t->err, t->status, t->connected, t->body,
					  strlen(t->body)};
		struct engine_seen seen = {0};
		struct why why = {0};
		enum plan_outcome got = t->e->judge(t->step, t->n, &rpc, &a, &seen, &why);

		if (got != t->want || strstr(why.text, t->says) == NULL)
			fail_msg("answer %zu: outcome %d, \"%s\"", i, got, why.text);
		assert_true(got == PLAN_OK || why.text[0] != '\0');
	}
}

static void test_seen(void **state)
{
	struct engine_answer paused = {0, 200, true, "{\"is_paused\":true}", 18};
	struct engine_answer version = {0, 200, true, "{\"weight_version\":\"12\"}", 23};
	struct engine_answer odd = {0, 200, true, "{\"weight_version\":\"-1\"}", 23};
	struct engine_seen seen = {.paused = -1};
	struct why why = {0};

	engine_vllm.judge(ENGINE_ASK, 0, &rpc, &paused, &seen, &why);
	engine_vllm.judge(ENGINE_ASK, 1, &rpc, &version, &seen, &why);
	assert_true(seen.any && seen.version == 12 && seen.paused == 1);
	seen = (struct engine_seen){.paused = -1};
	engine_sglang.judge(ENGINE_ASK, 0, &rpc, &odd, &seen, &why);
	assert_true(!seen.any && seen.paused == -1);
}

static void test_choices(void **state)
{
	assert_ptr_equal(engine_find("sglang"), &engine_sglang);
	assert_null(engine_find("vllm2"));
	assert_string_equal(engine_choice(engine_vllm.routes, NULL), "rpc");
	assert_string_equal(engine_choice(engine_vllm.routes, "transfer"), "transfer");
	assert_null(engine_choice(engine_vllm.routes, "disk"));
	assert_null(engine_choice(engine_mlx.pause_modes, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vllm_requests), cmocka_unit_test(test_other_requests),
		cmocka_unit_test(test_answers),	      cmocka_unit_test(test_seen),
		cmocka_unit_test(test_choices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
