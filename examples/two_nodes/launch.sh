# shellcheck shell=bash
# The ranks of one node of a run on two nodes, started manually: launch_node0.sh and launch_node1.sh, which set NODE_RANK,
# read this. README.md says how to use them.
#
#   MASTER_ADDR  an address of node 0 that node 1 reaches, the same on both nodes
#   MASTER_PORT  29600; the same on both nodes
#   GPUS         ranks of this node, the same on both nodes: as many as nvidia-smi lists
#   WAIT_S       600: seconds that the nodes wait for each other
#   INTERFACE    network interface between the nodes: the one that has, or leads to, MASTER_ADDR
#   LOGS         logs: directory for rank-N.log of each rank
#   PYTHON       python: the one that glmforge is installed for

set -u
fail() {
  echo "node $NODE_RANK: $*" >&2
  exit 1
}
(($# > 0)) || fail "give a configuration, and settings as for 'glmforge train': $0 CONFIG [key.sub=value ...]"
MASTER_ADDR=${MASTER_ADDR:-}
[[ -n $MASTER_ADDR ]] || fail "MASTER_ADDR is not set: give both nodes an address of node 0 that node 1 reaches"
MASTER_PORT=${MASTER_PORT:-29600}
GPUS=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
((GPUS > 0)) || fail "nvidia-smi lists no GPU: set GPUS to the number of ranks of a node"
WAIT_S=${WAIT_S:-600}
LOGS=${LOGS:-logs}
PYTHON=${PYTHON:-python}

# NCCL and gloo take the first interface they find, which may not lead to the other node, and gloo the one of the host's
# name, which may be the loopback's.
interface() {
  local address
  address=$(getent ahostsv4 "$MASTER_ADDR" | awk 'NR == 1 { print $1 }')
  ip -oneline -4 address | awk -v own="$address/" 'index($4, own) == 1 { print $2; exit }'
  ip -oneline -4 route get "${address:-$MASTER_ADDR}" 2>/dev/null | sed -n 's/^[^l].* dev \([^ ]*\).*/\1/p'
}
INTERFACE=${INTERFACE:-$(interface | head -n 1)}
if [[ -n $INTERFACE ]]; then
  export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE
fi

export MASTER_ADDR MASTER_PORT WORLD_SIZE=$((2 * GPUS)) LOCAL_WORLD_SIZE=$GPUS
mkdir -p "$LOGS" || exit 1
echo "node $NODE_RANK: $GPUS of $WORLD_SIZE ranks, which meet at $MASTER_ADDR:$MASTER_PORT${INTERFACE:+ over $INTERFACE}" \
  "within $WAIT_S s; logs: $LOGS/rank-*.log"

# A rank's output goes to its log, that of the node's first rank to the terminal as well: what ends another rank, it says.
start() { # LOCAL_RANK ARGUMENT...
  local local_rank=$1
  shift
  RANK=$((NODE_RANK * GPUS + local_rank)) LOCAL_RANK=$local_rank \
    exec "$PYTHON" -m glmforge train "$@" "parallel.join_timeout_s=$WAIT_S"
}
exec {shown}> >(exec tee --ignore-interrupts --append "$LOGS/rank-$((NODE_RANK * GPUS)).log")
tee=$!
start 0 "$@" >&"$shown" 2>&1 &
ranks=($!)
exec {shown}>&-
for ((local_rank = 1; local_rank < GPUS; local_rank++)); do
  start "$local_rank" "$@" >>"$LOGS/rank-$((NODE_RANK * GPUS + local_rank)).log" 2>&1 &
  ranks+=($!)
done

# Ctrl-C and SIGTERM: all ranks finish their step, save and end with status 75. The same commands resume from there.
trap 'kill -TERM "${ranks[@]}" 2>/dev/null' INT TERM

# A rank that is lost ends the others by itself; the highest status is the node's.
status=0
for rank in "${ranks[@]}"; do
  wait "$rank"
  code=$?
  while kill -0 "$rank" 2>/dev/null; do # it was a signal that ended the wait
    wait "$rank"
    code=$?
  done
  ((code <= status)) || status=$code
done
wait "$tee"
echo "node $NODE_RANK: ended with status $status after $SECONDS s"
exit "$status"
