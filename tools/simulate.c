/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weightfs simulate DIR: a trainer that trains nothing.
 *
 * Writes a run into a bucket as a real one would: the starting policy, then a sync every few
 * seconds. What changes from step to step is what AdamW and the bf16 cast make of noisy gradients
 * (sim_train.c), and the objects are those of the chosen generation (sim_write.c).  The same
 * options give the same bytes.
 *
 * SIGINT and SIGTERM are blocked and looked for between syncs, so that an object is never left
 * half way; readers would not see it anyway, since an object appears by rename.
 */
#include "cache/clock.h"
#include "cache/fileio.h"
#include "tools/cli.h"
#include "tools/sim_write.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>

enum {
	OPT_MODEL,
	OPT_GENERATION,
	OPT_ENCODING,
	OPT_STEPS,
	OPT_EVERY,
	OPT_LR,
	OPT_SEED,
	OPT_ANCHOR_EVERY,
	OPT_ZERO_EVERY,
	OPT_COMPANIONS,
};

static const struct cli_opt own[] = {
	[OPT_MODEL] = {"model", 0, "NAME[/K]", "shapes to use; /K for about a K-th of it (tiny)"},
	[OPT_GENERATION] = {"generation", 0, "NAME", "v1.0 v1.1 v1.2 v1.3 v2 v3 (v3)"},
	[OPT_ENCODING] = {"encoding", 0, "NAME", "of positions in v2 and v3: gap_delta, raw"},
	[OPT_STEPS] = {"steps", 0, "N", "optimizer steps after the start; 0: no end (10)"},
	[OPT_EVERY] = {"every", 0, "SECONDS", "between syncs; 0: as fast as it goes (1)"},
	[OPT_LR] = {"lr", 0, "RATE", "learning rate (1e-6)"},
	[OPT_SEED] = {"seed", 0, "N", "another run of the same kind (1)"},
	[OPT_ANCHOR_EVERY] = {"anchor-every", 0, "N",
			      "an anchor each N versions; 0: only the first"},
	[OPT_ZERO_EVERY] = {"zero-every", 0, "N", "every N-th step changes nothing"},
	[OPT_COMPANIONS] = {"companions", 0, NULL, "also a tokenizer and generation_config.json"},
	{NULL, 0, NULL, NULL},
};

static const struct cli cli = {
	.verb = "simulate",
	.args = "[options] DIR",
	.about = "Writes a realistic run into DIR, as a trainer would into its bucket: "
		 "config.json,\n"
		 "the starting policy, then the changes of each step.  For demos, tests and\n"
		 "measurements.  `--model list` shows the models.\n",
	.own = own,
	.min_args = 0,
	.max_args = 1,
	.examples =
		"  weightfs simulate /tmp/bucket --steps 20 --every 0.5\n"
		"  weightfs simulate /tmp/bucket --model qwen3-0.6b/8 --generation v1.3\n"
		"  weightfs simulate /tmp/bucket --steps 0 --every 5s & weightfs mount /tmp/bucket "
		"/mnt\n",
};

struct plan {
	const char *model;
	const struct sim_generation *generation;
	enum sim_encoding encoding;
	uint64_t steps, seed, zero_every, interval;
	int64_t every_ns;
	double lr;
	bool companions;
};

/* ---- the command line ---- */

static int number_of(const struct cli_line *line, size_t opt, uint64_t *out)
{
	if (line->value[opt] && parse_u64(line->value[opt], out) < 0)
		return cli_usage(&cli, "simulate: --%s: \"%.40s\" is not a number", own[opt].name,
				 line->value[opt]);
	return -1;
}

static int parse_generation(const struct cli_line *line, struct plan *p)
{
	const char *name = line->value[OPT_GENERATION], *encoding = line->value[OPT_ENCODING];
	struct why why = {0};

	p->generation = sim_generation_find(name ? name : "v3", &why);
	if (!p->generation)
		return cli_usage(&cli, "simulate: %s", why.text);
	p->encoding = p->generation->encodes ? SIM_GAP_DELTA : SIM_RAW;
	p->interval = p->generation->interval;
	if (!encoding)
		return -1;
	if (!p->generation->encodes)
		return cli_usage(&cli, "simulate: generation %s has no choice of --encoding",
				 p->generation->name);
	if (strcmp(encoding, "raw") == 0)
		p->encoding = SIM_RAW;
	else if (strcmp(encoding, "gap_delta") != 0)
		return cli_usage(&cli,
				 "simulate: --encoding: \"%.40s\" is neither gap_delta nor raw",
				 encoding);
	return -1;
}

static int parse_times(const struct cli_line *line, struct plan *p)
{
	const char *every = line->value[OPT_EVERY], *lr = line->value[OPT_LR];
	char *end;

	if (every && parse_duration_ns(every, &p->every_ns) < 0)
		return cli_usage(&cli,
				 "simulate: --every: \"%.40s\" is not a time (such as 5 or 500ms)",
				 every);
	if (!lr)
		return -1;
	p->lr = strtod(lr, &end);
	if (end == lr || *end != '\0' || !(p->lr >= 0 && p->lr <= 1))
		return cli_usage(&cli, "simulate: --lr: \"%.40s\" is not a rate from 0 to 1", lr);
	return -1;
}

static int parse_plan(const struct cli_line *line, struct plan *p)
{
	int ret;

	*p = (struct plan){
		.model = line->value[OPT_MODEL] ? line->value[OPT_MODEL] : "tiny",
		.steps = 10,
		.seed = 1,
		.every_ns = NSEC_PER_SEC,
		.lr = 1e-6,
		.companions = line->value[OPT_COMPANIONS] != NULL,
	};
	ret = parse_generation(line, p);
	if (ret < 0)
		ret = parse_times(line, p);
	if (ret < 0)
		ret = number_of(line, OPT_STEPS, &p->steps);
	if (ret < 0)
		ret = number_of(line, OPT_SEED, &p->seed);
	if (ret < 0)
		ret = number_of(line, OPT_ZERO_EVERY, &p->zero_every);
	if (ret < 0)
		ret = number_of(line, OPT_ANCHOR_EVERY, &p->interval);
	return ret;
}

/* ---- the run ---- */

/* Sleeps until then; true when the user wants an end. */
static bool interrupted(const sigset_t *signals, int64_t until)
{
	for (;;) {
		int64_t left = until - clock_mono_ns();
		struct timespec ts = clock_timespec(left > 0 ? left : 0);

		if (sigtimedwait(signals, NULL, &ts) > 0)
			return true;
		if (errno == EAGAIN)
			return false;
	}
}

struct totals {
	uint64_t objects, bytes;
	int64_t began;
};

static void print_sync(const struct sim_report *r, uint64_t numel, struct totals *totals)
{
	printf("%6" PRIu64 "  %-14s  %9" PRIu64 " changed (%6.3f %%)  ", r->number, r->kind,
	       r->changed, 100.0 * (double)r->changed / (double)numel);
	if (r->key[0] != '\0') {
		printf("%12" PRIu64 " bytes  %s\n", r->bytes, r->key);
		totals->objects++;
		totals->bytes += r->bytes;
	} else {
		printf("no object\n");
	}
	fflush(stdout);
}

static int run(const struct plan *p, struct sim_train *train, struct sim_writer *writer,
	       struct why *why)
{
	struct totals totals = {.began = clock_mono_ns()};
	int64_t next = totals.began;
	uint64_t step = 0;
	sigset_t signals;
	int err = 0;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	for (;; step++) {
		struct sim_report report;

		if (step > 0)
			err = sim_train_step(train, p->zero_every && step % p->zero_every == 0,
					     why);
		if (err == 0)
			err = sim_writer_sync(writer, &report, why);
		if (err < 0)
			return err;
		print_sync(&report, train->model->numel, &totals);
		next += p->every_ns;
		if ((p->steps > 0 && step == p->steps) || interrupted(&signals, next))
			break;
	}
	printf("%" PRIu64 " steps, newest version %" PRIu64 ", %" PRIu64
	       " objects, %.1f MB, %.1f s\n",
	       step, writer->number, totals.objects, (double)totals.bytes / 1e6,
	       (double)(clock_mono_ns() - totals.began) / 1e9);
	return 0;
}

static int simulate(const struct plan *p, const char *dir, struct why *why)
{
	struct sim_model model = {0};
	struct sim_train train = {0};
	struct sim_writer writer;
	struct store *store = NULL;
	int err = sim_model_init(&model, p->model, why);

	if (err < 0)
		return err;
	err = file_mkdirs(dir);
	if (err < 0) {
		why_set(why, -err, "%s: cannot be made: %s", dir, errno_text(err));
		goto out;
	}
	err = store_dir_new(dir, false, &store, why);
	if (err == 0)
		err = sim_train_init(&train, &model, p->seed, p->lr, why);
	if (err == 0)
		err = sim_model_put_companions(&model, store, p->companions, why);
	if (err < 0)
		goto out;
	sim_writer_init(&writer, p->generation, store, &train);
	writer.encoding = p->encoding;
	writer.interval = p->interval;
	printf("%s, %.1f M parameters in %zu tensors, TRL %s\n", p->model,
	       (double)model.numel / 1e6, model.count, p->generation->name);
	err = run(p, &train, &writer, why);
out:
	store_free(store);
	sim_train_release(&train);
	sim_model_release(&model);
	return err;
}

int verb_simulate(int argc, char **argv)
{
	struct cli_line line;
	struct plan plan;
	struct why why = {0};
	int ret = cli_parse(&cli, argc, argv, NULL, &line);

	if (ret >= 0)
		return ret;
	ret = parse_plan(&line, &plan);
	if (ret >= 0)
		return ret;
	if (strcmp(plan.model, "list") == 0) {
		sim_model_print_names();
		return cli_done();
	}
	if (line.count == 0)
		return cli_usage(&cli,
				 "simulate needs a directory; weightfs simulate --help says more");
	if (simulate(&plan, line.args[0], &why) < 0)
		return cli_fail(&why);
	return cli_done();
}
