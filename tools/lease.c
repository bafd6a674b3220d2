/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs lease DEST NAME: keeps a version of a run from being pruned for some time.
 *
 * A lease is an object leases/NAME.json with a version and a time.  It is written first and the run
 * looked at again afterwards: a prune that read the leases before cannot have taken the version
 * away unnoticed.
 */
#include "tools/upkeep.h"

#include "cache/clock.h"
#include "cache/log.h"
#include "fs/lineage.h"
#include "fs/rfc3339.h"
#include "fs/stack.h"
#include "tools/cli.h"
#include "tools/pointer.h"

#include <inttypes.h>
#include <stdio.h>

enum { OPT_VERSION, OPT_FOR, OPT_RELEASE };

static const struct cli_opt own[] = {
	[OPT_VERSION] = {"version", 0, "N", "the version that is needed"},
	[OPT_FOR] = {"for", 0, "SECONDS", "for how long, from now"},
	[OPT_RELEASE] = {"release", 0, NULL, "end the lease of that name"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "lease",
	.args = "[options] DEST NAME",
	.about = "Keeps a version of a run, and all that it is made of, from being pruned until a "
		 "time.\n"
		 "The same NAME again renews it.  An expired lease protects nothing, and the next\n"
		 "prune removes it.\n",
	.own = own,
	.with = CLI_PLACE,
	.min_args = 2,
	.max_args = 2,
	.examples = "  weightfs lease s3://bucket/run eval-7 --version 40 --for 3600\n"
		    "  weightfs lease s3://bucket/run eval-7 --release\n",
};

static bool name_ok(const char *name)
{
	size_t len = strlen(name);

	return len > 0 && len <= 100 && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
		       len;
}

/* Is there anything of a run? */
static int check_run(struct store *store, struct why *why)
{
	struct listing l = {0};
	int ret = store_list(store, "", &l, why);
	bool found = false;

	for (size_t i = 0; ret == 0 && !found && i < l.count; i++)
		found = lineage_owns(l.v[i].key);
	listing_release(&l);
	if (ret == 0 && !found)
		ret = why_set(why, ENOENT, "%s holds no run", store->name);
	return ret;
}

/* Is the version there?  Without weightfs.json nobody can tell cheaply; prune looks itself. */
static int check_version(struct store *store, uint64_t version, struct why *why)
{
	struct pointer p = {0};
	int ret = pointer_read(store, &p, why);

	if (ret == 0 && p.manifest == NULL)
		ret = check_run(store, why);
	if (ret == 0 && p.manifest != NULL && manifest_state(p.manifest, version) == NULL)
		ret = why_set(why, ENOENT,
			      "version %" PRIu64 " is not in %s: it has %" PRIu64 " to %" PRIu64,
			      version, store->name,
			      p.manifest->step_count > 0 ? p.manifest->steps[0].version : 0,
			      p.manifest->newest);
	pointer_release(&p);
	return ret;
}

static int take(struct store *store, const char *key, uint64_t version, int64_t for_ns,
		struct why *why)
{
	struct buf text = {0};
	char until[RFC3339_LEN];
	struct source src;
	struct why ignored = {0};
	int ret = check_version(store, version, why);

	if (ret < 0)
		return ret;
	rfc3339_format(clock_real_ns() + for_ns, until);
	buf_addf(&text, "{\"version\": %" PRIu64 ", \"until\": \"%s\"}\n", version, until);
	if (text.failed)
		return why_set(why, ENOMEM, "out of memory");
	src = source_memory(text.data, text.len);
	ret = store_put(store, key, &src, why);
	buf_release(&text);
	if (ret == 0) {
		ret = check_version(store, version, why);
		if (ret == -ENOENT && store_remove(store, key, NULL, &ignored) < 0)
			log_debug("%s", ignored.text);
	}
	if (ret == 0)
		printf("version %" PRIu64 " is kept until %s\n", version, until);
	return ret;
}

static int run_lease(struct opts *o, const struct cli_line *line, uint64_t version, int64_t for_ns)
{
	struct stack *stack = NULL;
	struct why why = {0};
	char key[160];
	int ret = stack_new_writable(o, line->args[0], false, &stack, &why);

	snprintf(key, sizeof(key), LEASES "%s.json", line->args[1]);
	if (ret == 0 && line->value[OPT_RELEASE] != NULL) {
		ret = store_remove(stack->store, key, NULL, &why);
		if (ret == -ENOENT)
			ret = 0;
	} else if (ret == 0) {
		ret = take(stack->store, key, version, for_ns, &why);
	}
	stack_free(stack);
	return ret < 0 ? cli_fail(&why) : cli_done();
}

int verb_lease(int argc, char **argv)
{
	struct cli_line line;
	uint64_t version = 0;
	int64_t for_ns = 0;
	struct opts o;
	int ret;

	opts_init(&o);
	o.log_level = LOG_LEVEL_WARNING;
	ret = cli_parse(&cli, argc, argv, &o, &line);
	if (ret < 0 && !name_ok(line.args[1]))
		ret = cli_usage(&cli, "lease: a name has letters, digits, '.', '_' and '-'");
	if (ret < 0 && (line.value[OPT_RELEASE] != NULL) ==
			       (line.value[OPT_VERSION] != NULL || line.value[OPT_FOR] != NULL))
		ret = cli_usage(&cli, "lease: either --version N --for SECONDS, or --release");
	if (ret < 0 && line.value[OPT_RELEASE] == NULL &&
	    (line.value[OPT_VERSION] == NULL ||
	     parse_count(line.value[OPT_VERSION], 1, INT64_MAX, &version) < 0))
		ret = cli_usage(&cli, "lease: --version: a number from 1 on is needed");
	if (ret < 0 && line.value[OPT_RELEASE] == NULL &&
	    (line.value[OPT_FOR] == NULL || parse_duration_ns(line.value[OPT_FOR], &for_ns) < 0 ||
	     for_ns <= 0))
		ret = cli_usage(&cli, "lease: --for: a time in seconds is needed");
	if (ret < 0) {
		log_set_level(o.log_level);
		ret = run_lease(&o, &line, version, for_ns);
	}
	opts_release(&o);
	return ret;
}
