#!/usr/bin/env bash
# Runs on each node, started by launch.sh: NUMBER DIRECTORY ARGUMENTS... starts a process for each GPU there.
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster
python=python3

export GLMFORGE_LOCAL_DIR=/local/nvme/glmforge
export TMPDIR="$GLMFORGE_LOCAL_DIR/tmp"
export LOCAL_WORLD_SIZE=8
export MASTER_ADDR=node001
# shellcheck source=/dev/null
. "$cluster/env.sh"

number=$1
cd -- "$2"
shift 2
exec "$python" -m torch.distributed.run \
  --nnodes 2 --nproc-per-node 8 --node-rank "$number" \
  --master-addr "$MASTER_ADDR" --master-port 29500 \
  -m glmforge "$@"
