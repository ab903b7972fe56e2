#!/bin/bash
# air: slurm, ranks started by mpirun, without a supervisor.
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
#SBATCH --ntasks-per-node=2
# The job may be started again under its number, and goes on writing into the same log.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log

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
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# srun no longer takes --cpus-per-task from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export A='b c'

# Each process learns from Open MPI which rank it is, and tells it to the program as torchrun would.
# shellcheck disable=SC2016  # to be expanded in the process
task='
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
exec "$@"
'

# Ranks are numbered node by node (ppr), and not bound to cores: a rank has many threads. MPI itself is not used.
variables=(-x MASTER_ADDR -x MASTER_PORT)
variables+=(-x A)

# mpirun finds the nodes in Slurm's variables, and starts its daemons there through srun. A warning (USR1) that this
# script gets it passes on to all ranks.
say "starts on $SLURM_JOB_NODELIST"
mpirun -np 4 --map-by ppr:2:node --bind-to none "${variables[@]}" bash -c "$task" task /opt/python -m glmforge train /shared/jobs/air/run.yaml &
mpirun=$!
trap 'again=1; kill -USR1 "$mpirun"' USR1
again=1
while ((again)); do # a signal ends the wait
  again=0
  wait "$mpirun"
  status=$?
done
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
scontrol requeue "$SLURM_JOB_ID" && exec sleep 600
exit "$status"
