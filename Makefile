# SPDX-License-Identifier: Apache-2.0
#
# weightfs: build, test, install.  `make help` lists the targets.
#
# VARIANT=release|debug|asan|tsan works with every target; objects go to build/$(VARIANT)/.
# (fuzz is a variant too, for `make fuzz`: clang with libFuzzer.)
# PREFIX and DESTDIR as usual.

VARIANT ?= release
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := 0.1.0

B := build/$(VARIANT)
VENV ?= build/venv
PY := $(VENV)/bin/python
JOBS ?= $(shell nproc)
# Seconds for each fuzz target, and how often `make soak` repeats the mount tests.
FUZZ_SECONDS ?= 600
SOAK_ROUNDS ?= 5
# Seconds of the hunt for torn loads in `make soak`; the short form is part of the tests.
TORN_SECONDS ?= 600
# What `make test` runs under the sanitizers, as arguments for pytest.
SANITIZED ?= tests/mount tests/engines/test_guard.py tests/engines/test_materialize.py \
	tests/engines/test_warm.py tests/engines/test_inotify.py tests/publish/test_reading.py \
	tests/publish/test_upkeep.py tests/publish/test_publish.py tests/publish/test_publish_faults.py \
	tests/follow/test_follow.py tests/follow/test_failures.py \
	--ignore=tests/mount/test_huge.py
# Arguments for pytest, e.g. `make pytest PYTEST_ARGS='-k pread -x'`.
PYTEST_ARGS ?=
# Tests at once in `make test`: most of a test is waiting, so more than there are processors; but
# each may take a gigabyte.
PYTEST_JOBS ?= $(shell [ $(JOBS) -lt 12 ] && expr $(JOBS) + 1 || echo 12)
PARALLEL = -n $(PYTEST_JOBS) --dist loadgroup

# A list of targets in a make of its own: what setup installed is seen then, and -j is ours
# unless the caller has chosen it.
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))

CFLAGS_release := -O3 -g -DNDEBUG
CFLAGS_debug := -O0 -g3
# -Og -g1: half the time of -O1 -g to compile, and lines enough for a stack trace.
CFLAGS_asan := -Og -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
CFLAGS_tsan := -Og -g1 -fno-omit-frame-pointer -fsanitize=thread
CFLAGS_fuzz := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=undefined
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_tsan := -fsanitize=thread
LDFLAGS_fuzz := -fsanitize=address,undefined

ifeq ($(VARIANT),fuzz)
CC := clang
else ifeq ($(origin CC),default)
CC := gcc
endif

export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= second_deadlock_stack=1
export WEIGHTFS_VARIANT := $(VARIANT)

# ThreadSanitizer of some compilers cannot live with a kernel that randomises addresses widely.
RUN_tsan := $(shell setarch -R true 2>/dev/null && echo setarch -R)
RUN := $(RUN_$(VARIANT))

# libfuse: its newest API that this machine's version has.
FUSE_API := $(shell pkg-config --atleast-version=3.17 fuse3 2>/dev/null && echo 317 || \
	{ pkg-config --atleast-version=3.12 fuse3 2>/dev/null && echo 312 || echo 31; })
FUSE_CFLAGS = $(shell pkg-config --cflags fuse3) -DFUSE_USE_VERSION=$(FUSE_API)
FUSE_LIBS = $(shell pkg-config --libs fuse3)
LIBS := -ljansson -lxxhash -lzstd -lpthread -lm
# BLAKE3, where its C library is installed (Debian 12 and 13 have no package of it).
BLAKE3_LIBS := $(shell pkg-config --libs libblake3 2>/dev/null)
LIBS += $(BLAKE3_LIBS)
# Only what is in cache/remote needs these.
REMOTE_LIBS := -lcurl -lcrypto -lexpat

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wwrite-strings -Wvla -Wno-unused-parameter -Wno-missing-field-initializers
CPPFLAGS += -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DWEIGHTFS_VERSION='"$(VERSION)"' -I.
ifneq ($(BLAKE3_LIBS),)
CPPFLAGS += -DHAVE_BLAKE3 $(shell pkg-config --cflags libblake3)
endif
CFLAGS ?= $(CFLAGS_$(VARIANT))
# No fused multiply-add: `simulate` writes the same run for a seed on every machine.
# No errno from sqrtf(): it would keep loops from becoming SIMD.
ALL_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) -fno-strict-aliasing -ffp-contract=off -fno-math-errno \
	-MMD -MP
ALL_LDFLAGS = $(LDFLAGS) $(LDFLAGS_$(VARIANT))

# One archive per layer, so that an upward call does not link.
FRONT_SRC := $(wildcard fs/ops*.c $(addprefix fs/,control.c reply.c mount.c daemon.c passthrough.c \
	herald.c settings.c))
CODEC_SRC := $(wildcard codec/*.c)
CACHE_SRC := $(wildcard cache/*.c)
REMOTE_SRC := $(wildcard cache/remote/*.c)
CORE_SRC := $(filter-out $(FRONT_SRC),$(wildcard fs/*.c))
TOOLS_SRC := $(wildcard tools/*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))

UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/unit/%,$(UNIT_SRC))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
BENCH_SRC := $(wildcard tests/bench/bench_*.c)
BENCH_BIN := $(patsubst tests/bench/%.c,$(B)/bench/%,$(BENCH_SRC))
BENCH_PY := $(wildcard tests/bench/bench_*.py)
# Those that a benchmark in Python runs, for its table.
BENCH_DRIVEN := $(addprefix $(B)/bench/,bench_wfp1 bench_patch)
DRIVE_SRC := $(wildcard tests/drive/drive_*.c)
DRIVE_BIN := $(patsubst tests/drive/%.c,$(B)/drive/%,$(DRIVE_SRC))
C_FILES = $(wildcard $(addsuffix /*.[ch],codec cache cache/remote fs tools tests/fuzz tests/bench \
	tests/drive tests/unit/codec tests/unit/cache tests/unit/remote tests/unit/fs tests/unit/tools))

.PHONY: all
all: $(B)/weightfs ## build the program: build/VARIANT/weightfs

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(call obj,$(FRONT_SRC)): CPPFLAGS += $(FUSE_CFLAGS)

$(B)/codec.a: $(call obj,$(CODEC_SRC))
$(B)/cache.a: $(call obj,$(CACHE_SRC))
$(B)/remote.a: $(call obj,$(REMOTE_SRC))
$(B)/core.a: $(call obj,$(CORE_SRC))
$(B)/front.a: $(call obj,$(FRONT_SRC))
$(B)/%.a:
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/weightfs: $(call obj,$(TOOLS_SRC)) $(B)/front.a $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(FUSE_LIBS) $(REMOTE_LIBS) $(LIBS)

# ---- what the targets below need on the machine ----

.PHONY: setup setup-build
setup-build: ## install what building needs, where it is missing (C toolchain and libraries)
	@tools/setup.sh build
setup: ## install what everything needs, where it is missing (setup-build, clang, Python packages)
	@VENV=$(VENV) tools/setup.sh all

# ---- tests: a unit test links its own layer's archive and those below, nothing else ----

$(B)/unit/codec/%: $(B)/tests/unit/codec/%.o $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
$(B)/unit/cache/%: $(B)/tests/unit/cache/%.o $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
$(B)/unit/remote/%: $(B)/tests/unit/remote/%.o $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(REMOTE_LIBS) $(LIBS)
$(B)/unit/fs/%: $(B)/tests/unit/fs/%.o $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(REMOTE_LIBS) $(LIBS)
# The verbs' own logic: everything but main().
$(B)/unit/tools/%: $(B)/tests/unit/tools/%.o $(filter-out $(B)/tools/main.o,$(call obj,$(TOOLS_SRC))) \
		$(B)/front.a $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(FUSE_LIBS) $(REMOTE_LIBS) $(LIBS)
$(B)/tests/bench/bare_fuse.o: CPPFLAGS += $(FUSE_CFLAGS)
$(B)/bench/bare_fuse: LIBS += $(FUSE_LIBS)
$(B)/bench/%: $(B)/tests/bench/%.o $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(REMOTE_LIBS) $(LIBS)

# Programs that tests in Python hold by a pipe.
$(B)/drive/%: $(B)/tests/drive/%.o $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(REMOTE_LIBS) $(LIBS)

# A fuzz target is the same program twice: with a driver that replays files (any compiler), and
# with libFuzzer (VARIANT=fuzz).
ifeq ($(VARIANT),fuzz)
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(REMOTE_LIBS) $(LIBS)
else
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/driver.o $(B)/core.a $(B)/remote.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(REMOTE_LIBS) $(LIBS)
endif

# Each as soon as it is built, several at once; what one says is printed in one piece.
run_one = @out=$$($(RUN) $< $(1) 2>&1); rc=$$?; printf '== %s\n%s\n' "$<" "$$out"; exit $$rc
UNIT_RUN := $(addprefix run/,$(UNIT_BIN))
FUZZ_RUN := $(addprefix replay/,$(FUZZ_BIN))

.PHONY: unit $(UNIT_RUN)
unit: $(UNIT_RUN) ## build and run the unit tests
$(UNIT_RUN): run/%: %
	$(call run_one)

.PHONY: replay $(FUZZ_RUN)
replay: $(FUZZ_RUN) ## run every fuzz target over its corpus, without a fuzzer
$(FUZZ_RUN): replay/%: %
	$(call run_one,tests/fuzz/corpus/$(patsubst fuzz_%,%,$(notdir $*)))

.PHONY: pytest
pytest: all $(DRIVE_BIN) ## run the Python tests (PYTEST_ARGS='-k word -x')
	$(RUN) $(PY) -m pytest -c tests/pytest.ini --rootdir tests $(PYTEST_ARGS)

.PHONY: lint
lint: $(B)/codec.a ## style, layers, lengths, format: what a script can hold
	@VENV=$(VENV) CODEC_A=$(B)/codec.a tools/lint.sh

.PHONY: format
format: ## format the C sources
	$(VENV)/bin/clang-format -i $(C_FILES)

# The order: what fails fastest first; pytest's closing line last.
.PHONY: test check
check: setup ## what needs neither root nor a mount: lint, unit tests, replay of the fuzz corpus
	$(SUBMAKE) all lint
	$(SUBMAKE) unit
	$(SUBMAKE) replay
test: setup ## everything: check, the same under asan and tsan, the mount and interop tests
	$(SUBMAKE) VARIANT=release all lint
	$(SUBMAKE) VARIANT=release unit
	$(SUBMAKE) VARIANT=release replay
	$(SUBMAKE) VARIANT=asan all unit
	$(SUBMAKE) VARIANT=asan replay
	$(SUBMAKE) VARIANT=tsan all unit
	$(SUBMAKE) VARIANT=asan pytest PYTEST_ARGS='$(PARALLEL) $(SANITIZED)'
	$(SUBMAKE) VARIANT=tsan pytest PYTEST_ARGS='$(PARALLEL) $(SANITIZED)'
	$(SUBMAKE) VARIANT=release pytest PYTEST_ARGS='$(PARALLEL)'

# ---- longer: hunting and measuring ----

.PHONY: fuzz fuzz-run soak bench demo
fuzz: setup ## fuzz each parser for FUZZ_SECONDS (600) with libFuzzer
	$(SUBMAKE) VARIANT=fuzz fuzz-run
fuzz-run: $(FUZZ_BIN)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz.sh $(FUZZ_BIN)
soak: setup ## long hunts: `fuzz`, torn loads, then the mount tests SOAK_ROUNDS (5) times in each variant
	$(SUBMAKE) fuzz
	TORN_SECONDS=$(TORN_SECONDS) $(SUBMAKE) pytest PYTEST_ARGS='-x tests/engines/test_torn.py'
	MANY_VERSIONS=10000 $(SUBMAKE) pytest PYTEST_ARGS='-x tests/mount/test_many.py'
	@set -e; for round in $$(seq $(SOAK_ROUNDS)); do for v in release asan tsan; do \
		echo "== round $$round, $$v"; \
		$(SUBMAKE) VARIANT=$$v pytest PYTEST_ARGS='-x tests/mount'; done; done
bench: setup-build ## run the benchmarks (some 15 minutes; BENCH_LONG=1: 45)
	$(SUBMAKE) all $(BENCH_BIN) $(addprefix $(B)/bench/,delay_proxy bare_fuse reader)
	@set -e; for b in $(filter-out $(BENCH_DRIVEN),$(BENCH_BIN)); do echo "== $$b"; $$b; done
	@set -e; py=$(PY); [ -x $$py ] || py=python3; \
		for b in $(BENCH_PY); do echo "== $$b"; $$py $$b; done
demo: setup-build ## a simulated run, mounted and checked version by version with plain tools
	@$(SUBMAKE) VARIANT=release all
	@tools/demo.sh build/release/weightfs

# ---- install ----

BINDIR := $(DESTDIR)$(PREFIX)/bin
MANDIR := $(DESTDIR)$(PREFIX)/share/man/man1
COMPDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
UNITDIR := $(DESTDIR)$(PREFIX)/lib/systemd/system
SHAREDIR := $(DESTDIR)$(PREFIX)/share/weightfs
# mount(8) looks for its helpers in /sbin only; a private PREFIX keeps the helper to itself.
SBINDIR := $(DESTDIR)$(if $(filter /usr /usr/local,$(PREFIX)),,$(PREFIX))/sbin
INSTALLED := $(BINDIR)/weightfs $(MANDIR)/weightfs.1 $(COMPDIR)/weightfs \
	$(UNITDIR)/weightfs@.service $(UNITDIR)/weightfs-follow@.service \
	$(SBINDIR)/mount.fuse.weightfs $(SHAREDIR)/weightfs.py \
	$(addprefix $(SHAREDIR)/examples/,$(notdir $(wildcard tools/examples/*.*)) fstab)
at_prefix = sed 's|@PREFIX@|$(PREFIX)|g' $(1) >$(2) && chmod $(3) $(2)

.PHONY: install uninstall
install: all ## install under PREFIX (/usr/local): program, man page, completion, units, mount helper
	install -d $(sort $(dir $(INSTALLED)))
	install -m 755 $(B)/weightfs $(BINDIR)/weightfs
	install -m 644 tools/weightfs.1 $(MANDIR)/weightfs.1
	install -m 644 tools/weightfs.bash $(COMPDIR)/weightfs
	install -m 644 tools/weightfs.py $(SHAREDIR)/weightfs.py
	install -m 644 -t $(SHAREDIR)/examples $(filter-out %.sh,$(wildcard tools/examples/*))
	install -m 755 -t $(SHAREDIR)/examples $(wildcard tools/examples/*.sh)
	$(call at_prefix,tools/weightfs@.service,$(UNITDIR)/weightfs@.service,644)
	$(call at_prefix,tools/weightfs-follow@.service,$(UNITDIR)/weightfs-follow@.service,644)
	$(call at_prefix,tools/mount.fuse.weightfs,$(SBINDIR)/mount.fuse.weightfs,755)
uninstall: ## remove exactly what install put there
	rm -f $(INSTALLED)

.PHONY: clean
clean: ## remove what was built (keeps the Python environment)
	rm -rf build/release build/debug build/asan build/tsan build/fuzz

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.SECONDARY:
