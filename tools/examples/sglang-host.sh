#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A host that serves the newest policy with SGLang:
#   sglang-host.sh SOURCE MOUNTPOINT [SGLANG-OPTIONS...]
#
# As vllm-host.sh.  With --admin-api-key among the options, set SGLANG_ADMIN_API_KEY to the same for
# the follower.
set -euo pipefail

source=${1:?usage: sglang-host.sh SOURCE MOUNTPOINT [SGLANG-OPTIONS...]}
mount=${2:?usage: sglang-host.sh SOURCE MOUNTPOINT [SGLANG-OPTIONS...]}
shift 2
port=${PORT:-30000}
server='' follower=''

finish() {
    # The follower first: it takes back what it has paused.
    [ -z "$follower" ] || kill "$follower" 2>/dev/null || true
    [ -z "$follower" ] || wait "$follower" || true
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    weightfs umount "$mount" || weightfs umount --lazy "$mount"
}

mkdir -p "$mount"
weightfs mount --prefetch all "$source" "$mount"
trap finish EXIT
trap 'exit 143' TERM INT
version=$(weightfs wait "$mount")

python3 -m sglang.launch_server --model-path "$mount/.weightfs/versions/$version" \
    --host 127.0.0.1 --port "$port" "$@" &
server=$!
weightfs follow --engine sglang --url "http://127.0.0.1:$port" --start-version "$version" "$mount" &
follower=$!
wait -n
