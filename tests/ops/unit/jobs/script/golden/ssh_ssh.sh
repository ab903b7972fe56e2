#!/bin/bash
# air: ssh, ranks started by ssh, without a supervisor.
# Written by `glmforge launch`.

set -u
hosts=(node1 node2)

cd -- '/shared/my work' || exit
# An address of the first host that the others reach, and a port there.
export MASTER_ADDR=node1 MASTER_PORT=29500
# Between nodes.
export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
export A='it'"'"'s'

# The ranks of a node, one process each, with all that a training program asks for. A signal goes to all of them; one
# that is lost ends the others by itself, since they miss it. The highest status is the node's.
export RANKS=2 NODES=2
# shellcheck disable=SC2016  # to be expanded on the node
node='
ranks=()
warn() { again=1; kill -USR1 "${ranks[@]}" 2>/dev/null; }
end() { again=1; kill -TERM "${ranks[@]}" 2>/dev/null; }
trap warn USR1
trap end INT TERM HUP
export WORLD_SIZE=$((NODES * RANKS)) LOCAL_WORLD_SIZE=$RANKS GROUP_RANK=$NODE
for ((i = 0; i < RANKS; i++)); do
  RANK=$((NODE * RANKS + i)) LOCAL_RANK=$i "$@" &
  ranks+=($!)
done
status=0
for rank in "${ranks[@]}"; do
  again=1
  while ((again)); do # a signal ends the wait
    again=0
    wait "$rank"
    code=$?
  done
  ((code <= status)) || status=$code
done
exit "$status"
'

# ssh hands one line to a shell on the node, so every word is quoted for it; -tt: the ranks end with the connection.
quoted() {
  local word quote="'\\''"
  for word in "$@"; do printf "'%s' " "${word//\'/$quote}"; done
}
# shellcheck disable=SC2016  # to be expanded on the node
there='cd -- "$1" && shift && exec "$@"'
variables=(RANKS="$RANKS" NODES="$NODES" MASTER_ADDR="$MASTER_ADDR" MASTER_PORT="$MASTER_PORT")
variables+=(A='it'"'"'s')
variables+=(GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0)
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
