#!/bin/bash
# air: slurm, ranks started by srun, without a supervisor.
# Written by `glmforge launch`.
#
# How it ends, and what then:
#   0      finished, or stopped by `glmforge control RUN stop`: the job has completed.
#   75     gave way to a warning and saved: requeued, as often as it comes.
#   other  failed (a rank died, hung, or refused): requeued, but after MAX_FAILURES failures in a row, none of which
#          ran for FAILURE_FORGOTTEN_S seconds, the job has failed.
# See docs/runbook.md.

#SBATCH --job-name=air
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=64G
#SBATCH --time=2-00:00:00
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --account=research
#SBATCH --exclusive
#SBATCH --constraint='h200&nvme'
#SBATCH --nodelist=node001
#SBATCH --exclude=node003,node007
#SBATCH --dependency=afterok:12:13,afterany:14
# A warning to the tasks before the time limit and, where the cluster sets preempt_send_user_signal, before preemption:
# enough time for the step that is running and one save.
#SBATCH --signal=USR1@120
# The job may be started again under its number, and goes on writing into the same log.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log
#SBATCH --mail-type=END
#SBATCH '--comment=it'"'"'s'

set -u
# Slurm has made the log, and open to all.
chmod go= -- /shared/jobs/air/scheduler-*.log || true
MAX_FAILURES=${MAX_FAILURES:-3}
FAILURE_FORGOTTEN_S=${FAILURE_FORGOTTEN_S:-3600}
PREEMPTED=75

say() { echo "[$(date '+%F %T')] $SLURM_JOB_NAME $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $*"; }

cd -- '/shared/my work' || exit

# This script runs on the first node of the job, and so does the task of rank 0, which the others connect to. The
# controller's address of a node is one that all nodes reach, also where they cannot resolve its name.
MASTER_ADDR=$(scontrol show node -o "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
MASTER_PORT=29500
export MASTER_ADDR MASTER_PORT
# srun no longer takes --cpus-per-task from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Between nodes.
export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
export NCCL_DEBUG=INFO
export WORDS='it'"'"'s $(odd) `text`'

# One task per GPU. Each sees all GPUs of its node and takes the one of its LOCAL_RANK: do not bind them with
# --gpus-per-task. `exec` lets signals reach Python itself.
# shellcheck disable=SC2016  # to be expanded in the task
task='
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "$@"
'

# The others get a minute to end by themselves when one task has ended, since they too are saving, or writing down where
# they hung; --kill-on-bad-exit would kill them at once. srun's status is the highest of all tasks'.
say "starts on $SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=0 --wait=60 bash -c "$task" task /opt/python -m glmforge train /shared/jobs/air/run.yaml
status=$?
say "ended with status $status after $SECONDS s"

# The starts that failed, one line each, next to the log.
failures=/shared/jobs/air/$SLURM_JOB_ID.failures
if ((status == 0)); then
  rm -f "$failures"
  exit 0
fi
if ((status == PREEMPTED)); then
  rm -f "$failures"
else
  ((SECONDS < FAILURE_FORGOTTEN_S)) || rm -f "$failures"
  (umask 077 && say "status $status" >>"$failures")
  count=$(wc -l <"$failures")
  if ((count > MAX_FAILURES)); then
    say "gives up: failed $count times in a row; see $failures and docs/runbook.md"
    exit "$status"
  fi
fi
say "requeued"
# The requeue ends this script. A status that it gave by itself could arrive late and be taken for the next start's, which
# would then count as failed.
# Of an array this task only: the job number of the last one is also the whole array's.
scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" && exec sleep 600
exit "$status"
