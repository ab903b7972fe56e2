#!/bin/bash
# air: pbs, ranks started by srun, without a supervisor.
# Written by `glmforge launch`.
# For Slurm that takes jobs of PBS: srun is there, and numbers the ranks.

#PBS -N air
# A chunk for each node, with all of its ranks.
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
# Whether the job may be started again under its number.
#PBS -r y
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

# shellcheck disable=SC2016  # to be expanded in the task
task='
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "$@"
'

# The job's own number of tasks is PBS's to say: here it is asked for again.
exec srun --ntasks 4 --ntasks-per-node 2 --kill-on-bad-exit=0 --wait=60 \
  bash -c "$task" task /opt/python -m glmforge train /shared/jobs/air/run.yaml
