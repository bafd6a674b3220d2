#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A host that serves the newest policy with vLLM:  vllm-host.sh SOURCE MOUNTPOINT [VLLM-OPTIONS...]
#
# Mounts the run, starts the server with the newest version, and brings it each later one.  When any
# of the two ends, or this script is told to, the other one is ended and the mount taken down.
# --start-version is for servers too old to say what they have.
set -euo pipefail

source=${1:?usage: vllm-host.sh SOURCE MOUNTPOINT [VLLM-OPTIONS...]}
mount=${2:?usage: vllm-host.sh SOURCE MOUNTPOINT [VLLM-OPTIONS...]}
shift 2
port=${PORT:-8000}
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

VLLM_SERVER_DEV_MODE=1 vllm serve "$mount/.weightfs/versions/$version" \
    --served-model-name policy --host 127.0.0.1 --port "$port" "$@" &
server=$!
weightfs follow --engine vllm --url "http://127.0.0.1:$port" --start-version "$version" "$mount" &
follower=$!
wait -n
