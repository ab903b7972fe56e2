#!/bin/bash
# air: under Slurm. The supervisor of glmforge runs on the job's first node, starts the ranks with srun,
# starts them again when something fails, and requeues the job when it has to give way.
#
#   glmforge jobs show air
#
# Written by `glmforge launch`, which submits it from the job's directory.

#SBATCH --job-name=air
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --array=0-7%2
# The other nodes stay when one dies: the supervisor goes on with them, or on a spare one.
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%A_%a.log

set -eu
# Slurm makes the log readable for all users.
chmod go= -- /shared/jobs/air/scheduler-*.log || true
cd -- '/shared/my work'
# Each task of the array is a job with a directory of its own.
exec /opt/python -m glmforge supervise /shared/jobs/air-"$(printf '%01d' "$SLURM_ARRAY_TASK_ID")"
