#!/bin/bash
# air: pbs, ranks started by mpirun, without a supervisor.
# Written by `glmforge launch`.

#PBS -N air
# A chunk for each node, with all of its ranks.
#PBS -l select=2:ncpus=2:mpiprocs=2:mem=64gb
#PBS -l place=scatter
# Whether the job may be started again under its number.
#PBS -r n
#PBS -j oe

set -u
# PBS itself shows what a job prints when it is over: this log can be followed. Slurm that takes jobs of PBS may not set
# the variables of PBS.
number=${PBS_JOBID:-$SLURM_JOB_ID}
(umask 077 && touch -- /shared/jobs/air/scheduler-"${number%%.*}".log)
exec >>/shared/jobs/air/scheduler-"${number%%.*}".log 2>&1

# The job's nodes, one line for each rank. Slurm's qsub leaves the file to this program.
[[ -n ${PBS_NODEFILE:-} ]] || PBS_NODEFILE=$(generate_pbs_nodefile)
export PBS_NODEFILE
mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE")

cd -- '/shared/my work' || exit
export MASTER_ADDR=${hosts[0]}
export MASTER_PORT=$((20000 + ${number%%[^0-9]*} % 10000))

# Each process learns from Open MPI which rank it is, and tells it to the program as torchrun would.
# shellcheck disable=SC2016  # to be expanded in the process
task='
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
exec "$@"
'

# Ranks are numbered node by node (ppr), and not bound to cores: a rank has many threads. MPI itself is not used.
variables=(-x MASTER_ADDR -x MASTER_PORT)

slots=$(printf "%s:2," "${hosts[@]}")
agent=ssh
exec mpirun --mca plm_rsh_agent "$agent" -np 4 --host "${slots%,}" --map-by ppr:2:node --bind-to none \
  "${variables[@]}" bash -c "$task" task /opt/python -m glmforge train /shared/jobs/air/run.yaml
