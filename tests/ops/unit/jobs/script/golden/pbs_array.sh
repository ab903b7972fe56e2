#!/bin/bash
# air: under PBS. The supervisor of glmforge runs on the job's first node, starts the ranks with
# ssh, and starts them again when something fails.
#
#   glmforge jobs show air
#
# Written by `glmforge launch`, which submits it from the job's directory.

#PBS -N air
# A chunk for each node, with all of its ranks.
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l place=scatter
#PBS -J 0-7
# Whether the job may be started again under its number.
#PBS -r n
#PBS -j oe

set -eu
# PBS shows a job's output only when the job is over; this log can be followed. Slurm's qsub may not set PBS_JOBID.
number=${PBS_JOBID:-$SLURM_JOB_ID}
(umask 077 && touch -- /shared/jobs/air/scheduler-"${number%%.*}".log)
exec >>/shared/jobs/air/scheduler-"${number%%.*}".log 2>&1

# The job's nodes, one line for each rank. Slurm's qsub leaves the file to this program.
[[ -n ${PBS_NODEFILE:-} ]] || PBS_NODEFILE=$(generate_pbs_nodefile)
export PBS_NODEFILE

cd -- '/shared/my work'
# Each task of the array is a job with a directory of its own.
exec /opt/python -m glmforge supervise /shared/jobs/air-"${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-$SLURM_ARRAY_TASK_ID}}"
