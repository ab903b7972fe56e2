#!/bin/bash
# air: under Slurm. The supervisor of glmforge runs on the job's first node, starts the ranks with srun,
# starts them again when something fails, and requeues the job when it has to give way.
#
#   glmforge jobs show air
#
# Written by `glmforge launch`, which submits it from the job's directory.

#SBATCH --job-name=air
# As many as are free: at least the first number, at most the second, spares included. (With --ntasks-per-node Slurm would
# give the first number and no more.)
#SBATCH --nodes=1-3
#SBATCH --mincpus=96
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=64G
#SBATCH --time=2-00:00:00
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --account=research
#SBATCH --constraint='h200&nvme'
#SBATCH --exclusive
#SBATCH --nodelist=node001
#SBATCH --exclude=node003,node007
#SBATCH --dependency=afterok:12:13,afterany:14
# A warning before the time limit and, where the cluster sets preempt_send_user_signal, before preemption. B: to this
# script alone, which is the supervisor by then, and passes it on to the ranks.
#SBATCH --signal=B:USR1@120
# The other nodes stay when one dies: the supervisor goes on with them, or on a spare one.
#SBATCH --no-kill
# The job may be started again under its number, and goes on writing into the same log.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log
#SBATCH --mail-type=END
#SBATCH '--comment=it'"'"'s'

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
