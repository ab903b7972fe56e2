#!/bin/bash
# air: local, ranks started by local, without a supervisor.
# Written by `glmforge launch`.

set -u
cd -- '/shared/my work' || exit
export NODE=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500

# The ranks of a node, one process each, with all that a training program asks for. A signal goes to all of them; one
# that is lost ends the others by itself, since they miss it. The highest status is the node's.
export RANKS=2 NODES=1
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

exec bash -c "$node" node /opt/python -m glmforge train /shared/jobs/air/run.yaml
