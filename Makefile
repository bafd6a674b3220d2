# weightfs: build, test, install.  `make help` lists the targets.
#
# VARIANT=release|debug|asan|tsan works with every target; objects go to build/$(VARIANT)/.
# PREFIX and DESTDIR as usual.

VARIANT ?= release
PREFIX ?= /usr/local
DESTDIR ?=
CC ?= gcc
VERSION := 0.1.0

B := build/$(VARIANT)
VENV := build/venv
PY := $(VENV)/bin/python

CFLAGS_release := -O3 -g -DNDEBUG
CFLAGS_debug := -O0 -g3
CFLAGS_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
CFLAGS_tsan := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_tsan := -fsanitize=thread

# libfuse: its newest API that this machine's version has.
FUSE_API := $(shell pkg-config --atleast-version=3.17 fuse3 2>/dev/null && echo 317 || \
	{ pkg-config --atleast-version=3.12 fuse3 2>/dev/null && echo 312 || echo 31; })
FUSE_CFLAGS = $(shell pkg-config --cflags fuse3) -DFUSE_USE_VERSION=$(FUSE_API)
FUSE_LIBS = $(shell pkg-config --libs fuse3)
LIBS := -ljansson -lxxhash -lpthread -lm

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wwrite-strings -Wvla -Wno-unused-parameter -Wno-missing-field-initializers
CPPFLAGS += -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DWEIGHTFS_VERSION='"$(VERSION)"' -I.
CFLAGS ?= $(CFLAGS_$(VARIANT))
ALL_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) -fno-strict-aliasing -MMD -MP
ALL_LDFLAGS = $(LDFLAGS) $(LDFLAGS_$(VARIANT))

# One archive per layer, so that an upward call does not link.
FRONT_SRC := $(wildcard $(addprefix fs/,ops_meta.c ops_data.c ops_special.c control.c reply.c mount.c daemon.c))
CODEC_SRC := $(wildcard codec/*.c)
CACHE_SRC := $(wildcard cache/*.c)
CORE_SRC := $(filter-out $(FRONT_SRC),$(wildcard fs/*.c))
TOOLS_SRC := $(wildcard tools/*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))

UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/unit/%,$(UNIT_SRC))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_REPLAY := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))

.PHONY: all
all: $(B)/weightfs ## build the program: build/VARIANT/weightfs

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(call obj,$(FRONT_SRC)): CPPFLAGS += $(FUSE_CFLAGS)

$(B)/codec.a: $(call obj,$(CODEC_SRC))
$(B)/cache.a: $(call obj,$(CACHE_SRC))
$(B)/core.a: $(call obj,$(CORE_SRC))
$(B)/front.a: $(call obj,$(FRONT_SRC))
$(B)/%.a:
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/weightfs: $(call obj,$(TOOLS_SRC)) $(B)/front.a $(B)/core.a $(B)/cache.a $(B)/codec.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(FUSE_LIBS) $(LIBS)

# ---- tests: a unit test links its own layer's archive and those below, nothing else ----

$(B)/unit/codec/%: $(B)/tests/unit/codec/%.o $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
$(B)/unit/cache/%: $(B)/tests/unit/cache/%.o $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
$(B)/unit/fs/%: $(B)/tests/unit/fs/%.o $(B)/core.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/driver.o $(B)/core.a $(B)/cache.a $(B)/codec.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: unit
unit: $(UNIT_BIN) ## build and run the unit tests
	@set -e; for t in $(UNIT_BIN); do echo "== $$t"; $$t; done

.PHONY: clean
clean: ## remove what was built (keeps the Python environment)
	rm -rf build/release build/debug build/asan build/tsan build/fuzz

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/\1\t/' | expand -t 12

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.SECONDARY:
