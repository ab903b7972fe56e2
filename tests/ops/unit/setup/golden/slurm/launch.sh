#!/usr/bin/env bash
# Starts glmforge on the nodes of a Slurm job, a task for each GPU; job.sbatch calls it. By hand:
#     salloc --nodes 2 bash launch.sh train run.yaml
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster

if [ "$#" -eq 0 ]; then
  echo "usage: launch.sh ARGUMENTS OF glmforge, as in: launch.sh train run.yaml" >&2
  exit 2
fi
if [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "launch.sh: not in a Slurm job; submit it: sbatch $cluster/job.sbatch $*" >&2
  exit 2
fi

export MASTER_PORT=29500

exec srun --nodes "$SLURM_JOB_NUM_NODES" --ntasks-per-node 8 --gpus-per-node 8 \
  --kill-on-bad-exit=1 bash "$cluster/on_node.sh" "$@"
