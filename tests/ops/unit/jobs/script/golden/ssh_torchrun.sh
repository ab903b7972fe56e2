#!/bin/bash
# air: ssh, ranks started by torchrun, without a supervisor.
# Written by `glmforge launch`.

set -u
hosts=(node1 node2)

cd -- '/shared/my work' || exit
# An address of the first host that the others reach, and a port there.
export MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

# torchrun on each node, which starts the ranks there. `static`: nodes are numbered here, so that rank 0 is on the first.
export RANKS=2 NODES=2 PYTHON=/opt/python
# shellcheck disable=SC2016  # to be expanded on the node
node='
trap "" USR1
"$PYTHON" -m torch.distributed.run --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$RANKS" \
  --rdzv-backend static --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --max-restarts 0 --no-python "$@" &
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

# ssh hands one line to a shell on the node, so every word is quoted for it; -tt: the ranks end with the connection.
quoted() {
  local word quote="'\\''"
  for word in "$@"; do printf "'%s' " "${word//\'/$quote}"; done
}
# shellcheck disable=SC2016  # to be expanded on the node
there='cd -- "$1" && shift && exec "$@"'
variables=(RANKS="$RANKS" NODES="$NODES" MASTER_ADDR="$MASTER_ADDR" MASTER_PORT="$MASTER_PORT")
variables+=(PYTHON="$PYTHON")
start() { # NODE HOST COMMAND...
  local number=$1 host=$2
  shift 2
  # shellcheck disable=SC2029  # quoted for the node, as it has to be
  ssh -tt -- "$host" "$(quoted bash -c "$there" there "$PWD" env NODE="$number" "${variables[@]}" bash -c "$node" node "$@")" </dev/null
}

nodes=()
trap 'again=1; kill -TERM "${nodes[@]}" 2>/dev/null' INT TERM
for ((number = 0; number < NODES; number++)); do
  start "$number" "${hosts[number]}" /opt/python -m glmforge train /shared/jobs/air/run.yaml &
  nodes+=($!)
done

# The highest status of all nodes.
status=0
for process in "${nodes[@]}"; do
  again=1
  while ((again)); do # a signal ends the wait
    again=0
    wait "$process"
    code=$?
  done
  ((code <= status)) || status=$code
done
exit "$status"
