#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The demonstration: a trainer (simulated) publishes into a bucket while the bucket is mounted, and
# plain tools watch model.safetensors become version after version.  Each version's SHA-256 is
# compared with an independent computation from the bucket's files (demo_oracle.py, standard
# library only).  Leaves nothing behind; the exit code says whether everything was as it must be.
#
#   tools/demo.sh [PATH-OF-WEIGHTFS]
#
# DEMO_MODEL, DEMO_STEPS and DEMO_EVERY change the run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
weightfs=$(realpath "${1:-$here/../build/release/weightfs}")
model=${DEMO_MODEL:-qwen3-0.6b/16}
steps=${DEMO_STEPS:-6}
every=${DEMO_EVERY:-2}
PATH=$(dirname "$weightfs"):$PATH

# An ordinary user mounts with fusermount3; where the device is root's alone, sudo helps.
if [ "$(id -u)" -ne 0 ] && [ ! -w /dev/fuse ]; then
    echo "demo: /dev/fuse is not ours to open: going on with sudo"
    exec sudo --preserve-env=DEMO_MODEL,DEMO_STEPS,DEMO_EVERY "$0" "$weightfs"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/weightfs-demo-XXXXXX")
trainer=
failed=0

cleanup() {
    local code=$?
    trap - EXIT
    if [ -n "$trainer" ]; then
        kill "$trainer" 2>/dev/null || true
        wait "$trainer" 2>/dev/null || true
    fi
    exec 3<&- 2>/dev/null || true
    cd /
    if mountpoint -q "$work/policy"; then
        weightfs umount "$work/policy" || fusermount3 -uz "$work/policy" || true
    fi
    rm -rf "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

headline() {
    printf '\n\033[1m== %s\033[0m\n' "$*"
}

# Shows a command as one would type it in $work, and what it says.
show() {
    printf '$ %s\n' "$*"
    "$@"
}

# must_equal WHAT IS MUST-BE
must_equal() {
    if [ "$2" = "$3" ]; then
        printf '  ok: %s\n' "$1"
    else
        printf '  WRONG: %s: is %s, must be %s\n' "$1" "$2" "$3"
        failed=1
    fi
}

sum_of() {
    sha256sum "$1" | cut -d' ' -f1
}

# "VERSION SHA256" for every version in the bucket, computed from the bucket's files alone.
oracle() {
    python3 "$here/demo_oracle.py" bucket
}

# One version: what plain tools show of it, and whether it is what the bucket's files make it.
show_version() {
    local version=$1 file=policy/.weightfs/versions/$1/model.safetensors sums
    headline "version $version"
    show cat policy/.weightfs/version
    show ls -li policy/model.safetensors
    show stat -c 'inode %i  size %s  modified %y' policy/model.safetensors
    show sha256sum "$file"
    sums=$(oracle)
    must_equal "version $version is what an independent replay of the bucket gives" \
        "$(sum_of "$file")" "$(awk -v version="$version" '$1 == version { print $2 }' <<<"$sums")"
    # The plain path shows the current version, which may be a later one by now: any, but whole.
    must_equal "policy/model.safetensors is one of the run's versions, to its last byte" \
        "$(grep -c "$(sum_of policy/model.safetensors)" <<<"$(oracle)")" 1
}

cd "$work"
mkdir bucket policy
headline "an empty bucket, mounted"
# What is read by plain path below is no load that has to stay in one version for long.
show weightfs mount --cache-dir cache --poll 0.2 --settle 0.5 --keep $((steps + 2)) bucket policy
show ls -li policy

headline "a trainer starts (simulated: AdamW on $model, a step every $every s)"
printf '$ weightfs simulate bucket --model %s --steps %s --every %s --anchor-every 4 &\n' \
    "$model" "$steps" "$every"
weightfs simulate bucket --model "$model" --steps "$steps" --every "$every" --anchor-every 4 \
    --companions >trainer.log 2>&1 &
trainer=$!

for version in $(seq $((steps + 1))); do
    weightfs wait policy --version "$version" --timeout 60 >/dev/null
    show_version "$version"
    if [ "$version" -eq 1 ]; then
        show ls -l policy
        exec 3<policy/.weightfs/versions/1/model.safetensors
        first=$(sum_of policy/.weightfs/versions/1/model.safetensors)
        echo "  (descriptor 3 stays open on version 1)"
    fi
done
wait "$trainer" || { cat trainer.log; exit 1; }
trainer=

headline "what was opened stays what it was"
show cat policy/.weightfs/version
echo '$ sha256sum <&3'
must_equal "the descriptor opened at version 1 still reads version 1" \
    "$(sha256sum <&3 | cut -d' ' -f1)" "$first"
exec 3<&-

headline "the run"
show cat trainer.log
show weightfs log policy
show getfattr -d policy/model.safetensors
show weightfs status policy

headline "the end"
show weightfs umount policy
if [ "$failed" -ne 0 ]; then
    echo "demo: something above is WRONG"
    exit 1
fi
echo "demo: every version was what the bucket's files make it"
