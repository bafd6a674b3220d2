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

oracle() {
    python3 "$here/demo_oracle.py" bucket "$1" | cut -d' ' -f2
}

# One version: what plain tools show of it, and whether it is what the bucket's files make it.
show_version() {
    local version=$1 tree=policy/.weightfs/versions/$1 plain
    headline "version $version"
    show ls -li policy
    show stat -c 'inode %i  size %s  modified %y' policy/model.safetensors
    show cat policy/.weightfs/version
    show sha256sum "$tree/model.safetensors"
    must_equal "version $version is what an independent replay of the bucket gives" \
        "$(sum_of "$tree/model.safetensors")" "$(oracle "$version")"
    # The plain path shows the current version, which may be a later one by now: any, but whole.
    plain=$(sum_of policy/model.safetensors)
    must_equal "policy/model.safetensors is one of the bucket's versions, to its last byte" \
        "$(python3 "$here/demo_oracle.py" bucket | grep -c "$plain")" 1
}

cd "$work"
mkdir bucket policy
headline "an empty bucket, mounted"
show weightfs mount --cache-dir "$work/cache" --poll 0.2 bucket policy
show ls -li policy

headline "a trainer starts (simulated: AdamW on $model, a step every $every s)"
printf '$ weightfs simulate bucket --model %s --steps %s --every %s --anchor-every 4 &\n' \
    "$model" "$steps" "$every"
weightfs simulate bucket --model "$model" --steps "$steps" --every "$every" --anchor-every 4 \
    --companions >trainer.log 2>&1 &
trainer=$!

version=0
while [ "$version" -lt $((steps + 1)) ]; do
    version=$(weightfs wait policy --after "$version" --timeout 60)
    show_version "$version"
    if [ -z "${first:-}" ]; then
        first=$version
        exec 3<"policy/.weightfs/versions/$first/model.safetensors"
        echo "  (descriptor 3 stays open on version $first)"
    fi
done
wait "$trainer" || { cat trainer.log; exit 1; }
trainer=

headline "what was opened stays what it was"
show cat policy/.weightfs/version
echo '$ sha256sum <&3'
must_equal "the descriptor opened at version $first still reads version $first" \
    "$(sha256sum <&3 | cut -d' ' -f1)" "$(oracle "$first")"
exec 3<&-

headline "the run"
show cat trainer.log
show weightfs log policy
show weightfs status policy

headline "the end"
show weightfs umount policy
if [ "$failed" -ne 0 ]; then
    echo "demo: something above is WRONG"
    exit 1
fi
echo "demo: every version was what the bucket's files make it"
