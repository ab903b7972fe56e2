#!/bin/bash
# air: slurm, ranks started by torchrun, without a supervisor.
# Written by `glmforge launch`.

#SBATCH --job-name=air
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=scheduler-%j.log

set -u
# Slurm has made the log, and open to all.
chmod go= -- /shared/jobs/air/scheduler-*.log || true

say() { echo "[$(date '+%F %T')] $SLURM_JOB_NAME $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $*"; }

cd -- '/shared/my work' || exit

# This script runs on the first node of the job, and so does the task of rank 0, which the others connect to. The
# controller's address of a node is one that all nodes reach, also where they cannot resolve its name.
MASTER_ADDR=$(scontrol show node -o "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# srun no longer takes --cpus-per-task from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# One torchrun on each node, which starts the ranks there. `static`: nodes are numbered by SLURM_NODEID, so that rank 0
# is on the first one, and nobody waits for a node that joins later. A warning (USR1) reaches the task's first process
# alone where Slurm tracks processes by cgroups, else all of them: torchrun, which it would end, is to ignore it.
# shellcheck disable=SC2016  # to be expanded in the task
agent='
trap "" USR1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
"$PYTHON" -m torch.distributed.run --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" \
  --nproc-per-node "$RANKS_PER_NODE" --rdzv-backend static --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  --max-restarts 0 --no-python "$@" &
torchrun=$!
# torchrun passes on no warning, so its ranks get it from here. A signal ends a wait, which then begins again.
warn() { again=1; read -ra ranks <"/proc/$torchrun/task/$torchrun/children"; kill -USR1 "${ranks[@]}"; } 2>/dev/null
end() { again=1; kill -TERM "$torchrun"; } 2>/dev/null
trap warn USR1
trap end INT TERM HUP
again=1
while ((again)); do
  again=0
  wait "$torchrun"
done
'

# torchrun ends with status 1 whatever its ranks ended with.
say "starts on $SLURM_JOB_NODELIST"
export RANKS_PER_NODE=2 PYTHON=python
unset SRUN_CPUS_PER_TASK # torchrun has all CPUs of its node, and shares them out
srun --nodes "$SLURM_NNODES" --ntasks "$SLURM_NNODES" --ntasks-per-node 1 --cpu-bind=none --kill-on-bad-exit=0 --wait=60 \
  apptainer exec --bind '/shared/my work' --bind /shared/jobs/air /images/torch.sif bash -c "$agent" agent /opt/python -m glmforge train /shared/jobs/air/run.yaml
status=$?
say "ended with status $status after $SECONDS s"
exit "$status"
