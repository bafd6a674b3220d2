#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# vLLM in a container, on a mount of the host:  docker-vllm.sh MOUNTPOINT [VLLM-OPTIONS...]
#
# The mount has to be made with --allow-other unless the container runs as the same user.  Its
# parent is bound with rslave, so that a mount that is made anew is seen inside.  The port is the
# host's loopback only: the routes for reloading are for the follower alone.  The container goes on
# when the follower ends: docker stop policy.
set -euo pipefail

mount=$(realpath "${1:?usage: docker-vllm.sh MOUNTPOINT [VLLM-OPTIONS...]}")
shift
parent=$(dirname "$mount")
port=${PORT:-8000}
version=$(weightfs wait "$mount")

docker run --rm --detach --name "${NAME:-policy}" --gpus all --ipc=host \
    --publish "127.0.0.1:$port:8000" \
    --env VLLM_SERVER_DEV_MODE=1 \
    --mount "type=bind,source=$parent,target=$parent,bind-propagation=rslave,readonly" \
    "${IMAGE:-vllm/vllm-openai:latest}" \
    --model "$mount/.weightfs/versions/$version" --served-model-name policy "$@"

exec weightfs follow --engine vllm --url "http://127.0.0.1:$port" "$mount"
