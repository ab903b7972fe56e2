#!/usr/bin/env bash
# Runs as each rank, started by mpirun: tells it what torch wants to know, and becomes glmforge.
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster
python=python3

export GLMFORGE_LOCAL_DIR=/local/nvme/glmforge
export TMPDIR="$GLMFORGE_LOCAL_DIR/tmp"
export LOCAL_WORLD_SIZE=8
# shellcheck source=/dev/null
. "$cluster/env.sh"

export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
exec "$python" -m glmforge "$@"
