#!/usr/bin/env bash
# Starts glmforge on all nodes by mpirun, a rank for each GPU:
#     launch.sh train run.yaml
# GLMFORGE_HOSTFILE names other nodes than those of the cluster; job.pbs gives those of its job.
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster

if [ "$#" -eq 0 ]; then
  echo "usage: launch.sh ARGUMENTS OF glmforge, as in: launch.sh train run.yaml" >&2
  exit 2
fi

hostfile=${GLMFORGE_HOSTFILE:-$cluster/hostfile}
export MASTER_ADDR=${MASTER_ADDR:-node001}
export MASTER_PORT=29500

exec mpirun --hostfile "$hostfile" -n 16 --map-by ppr:8:node \
  --mca plm_rsh_args "-F $cluster/ssh/config" -x MASTER_ADDR -x MASTER_PORT \
  bash "$cluster/on_node.sh" "$@"
