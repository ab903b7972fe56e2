#!/usr/bin/env bash
# Runs as each task of srun, whose variables glmforge reads.
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster
python=python3

export GLMFORGE_LOCAL_DIR=/local/nvme/glmforge
export TMPDIR="$GLMFORGE_LOCAL_DIR/tmp"
export LOCAL_WORLD_SIZE=8
# shellcheck source=/dev/null
. "$cluster/env.sh"

exec "$python" -m glmforge "$@"
