#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs libFuzzer targets one after the other, FUZZ_SECONDS (600) each: tools/fuzz.sh PROGRAM...
#
# New inputs go to build/fuzz/corpus/NAME (the tracked corpus is only read), crashes to
# build/fuzz/finds/NAME-*.  All targets run, whatever the first ones find; the exit code says
# whether there was a find.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-600}
finds=build/fuzz/finds
mkdir -p "$finds"
failed=()

for program in "$@"; do
    name=$(basename "$program")
    name=${name#fuzz_}
    seeds=tests/fuzz/corpus/$name
    grown=build/fuzz/corpus/$name
    log=build/fuzz/$name.log
    mkdir -p "$grown"
    echo "== $name, $seconds s"
    if ! "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="$finds/$name-" -print_final_stats=1 "$grown" "$seeds" >"$log" 2>&1; then
        failed+=("$name")
        echo "   found something, see $log:"
        grep -E 'ERROR|SUMMARY|runtime error|Test unit written' "$log" | sed 's/^/   /' || true
    fi
    sed -nE 's/^stat::(number_of_executed_units|new_units_added|peak_rss_mb): */   \1 /p' "$log"
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz: finds in ${failed[*]}; inputs are in $finds"
    exit 1
fi
echo "fuzz: $# targets, nothing found"
