#!/bin/bash
# air: under PBS. The supervisor of glmforge runs on the job's first node, starts the ranks with
# ssh, and starts them again when something fails.
#
#   glmforge jobs show air
#
# Written by `glmforge launch`, which submits it from the job's directory.

#PBS -N air
# A chunk for each node, with all of its ranks.
#PBS -l select=3:ncpus=96:mpiprocs=8:ngpus=8:mem=64gb
#PBS -l place=scatter:excl
#PBS -l walltime=48:00:00
#PBS -q gpu
#PBS -A research
#PBS -W depend=afterok:12:13,afterany:14
# Whether the job may be started again under its number.
#PBS -r y
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
exec /opt/python -m glmforge supervise /shared/jobs/air
