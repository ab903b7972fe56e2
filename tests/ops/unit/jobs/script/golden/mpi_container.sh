#!/bin/bash
# air: ranks started by mpirun, without a supervisor.
# Written by `glmforge launch`, which runs it.

set -u
cd -- '/shared/my work' || exit
# An address of the first host that the others reach, and a port there.
export MASTER_ADDR=node1 MASTER_PORT=29500
variables=(-x MASTER_ADDR -x MASTER_PORT)
export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
variables+=(-x GLOO_SOCKET_IFNAME -x NCCL_SOCKET_IFNAME)
export A='it'"'"'s'
variables+=(-x A)
# Its value is in no file: it comes from the environment in which this script is submitted.
[[ -v HF_TOKEN ]] || { echo "HF_TOKEN is not set: set it where the job is submitted" >&2; exit 2; }
export HF_TOKEN
variables+=(-x HF_TOKEN)

# torchrun's variables from Open MPI's.
# shellcheck disable=SC2016  # to be expanded in the process
task='
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
exec "$@"
'

# Ranks are numbered node by node (ppr), and not bound to cores: a rank has many threads.
hosts=(node1 node2)
slots=$(printf "%s:2," "${hosts[@]}")
agent=ssh
exec mpirun --mca plm_rsh_agent "$agent" -np 4 --host "${slots%,}" --map-by ppr:2:node --bind-to none \
  "${variables[@]}" bash -c "$task" task apptainer exec --nv --bind '/shared/my work' --bind /shared/jobs/air /images/t.sif /opt/python -m glmforge train /shared/jobs/air/run.yaml
