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
# The other nodes stay when one dies: the supervisor goes on with them, or on a spare one.
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log

set -eu
# Slurm makes the log readable for all users.
chmod go= -- /shared/jobs/air/scheduler-*.log || true
# Slurm has not refused this start: without this file `glmforge jobs` says that it has. Made in Slurm jobs only; an error
# here, such as a full disk, does not end the job.
if [ -n "${SLURM_JOB_ID:-}" ]; then
  rm -f -- /shared/jobs/air/.script-ran-* || true
  (umask 077 && touch -- /shared/jobs/air/.script-ran-"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}") || true
fi
cd -- '/shared/my work'
exec /opt/python -m glmforge supervise /shared/jobs/air
