#!/bin/bash
# air: slurm, ranks started by srun, without a supervisor.
# Written by `glmforge launch`.
#
# How it ends, and what then:
#   0      the job has completed.
#   75     gave way to a warning and saved (EX_TEMPFAIL): requeued, as often as it comes.
#   other  the job has failed.

#SBATCH --job-name=air
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
# The job may be started again under its number, and goes on writing into the same log.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log

set -u
# Slurm has made the log, and open to all.
chmod go= -- /shared/jobs/air/scheduler-*.log || true
PREEMPTED=75

say() { echo "[$(date '+%F %T')] $SLURM_JOB_NAME $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $*"; }

cd -- '/shared/my work' || exit

# This script runs on the first node of the job, and so does the task of rank 0, which the others connect to. The
# controller's address of a node is one that all nodes reach, also where they cannot resolve its name.
MASTER_ADDR=$(scontrol show node -o "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# srun no longer takes --cpus-per-task from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# One task per rank. `exec` lets signals reach the program itself.
# shellcheck disable=SC2016  # to be expanded in the task
task='
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "$@"
'

# The others get a minute to end by themselves when one task has ended, since they too are saving, or writing down where
# they hung; --kill-on-bad-exit would kill them at once. srun's status is the highest of all tasks'.
say "starts on $SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=0 --wait=60 bash -c "$task" task /opt/python train.py --out '/a b/it'"'"'s'
status=$?
say "ended with status $status after $SECONDS s"
((status == PREEMPTED)) || exit "$status"
say "requeued"
# The requeue ends this script. A status that it gave by itself could arrive late and be taken for the next start's, which
# would then count as failed.
# Of an array this task only: the job number of the last one is also the whole array's.
scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" && exec sleep 600
exit "$status"
