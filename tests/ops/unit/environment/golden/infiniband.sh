#!/bin/bash
# Environment variables of a training job on InfiniBand. Written by:
#
#   glmforge cluster env --network infiniband
#
# For every node: read by the shell that starts its ranks, or run before the command that a rank is.
#
#   source env.sh && torchrun ... -m glmforge train run.yaml
#   srun env.sh glmforge train run.yaml
#
# Not in a batch script before srun: what the first node found would be every node's.
#
# What is set already stays as it is. What nodes may have different (interfaces, adapters, cores) is looked for on the
# node that runs this. All variables with defaults and sources: docs/cluster-env.md of glmforge.

if [ -z "${BASH_VERSION-}" ]; then
  echo "env: needs bash" >&2
  # shellcheck disable=SC2317 # not sourced, but run by another shell
  return 1 2>/dev/null || exit 1
fi

_glmforge_warn() { echo "env: ${HOSTNAME-this node}: $*" >&2; }

# NAME VALUE: what the caller has set stays; an empty VALUE means that nothing was found.
_glmforge_export() {
  if [[ ! -v $1 && -n $2 ]]; then
    printf -v "$1" %s "$2"
  fi
  if [[ -v $1 ]]; then
    export "${1?}"
  fi
}

# NAME: whether an interface has an IPv4 address, which always comes with a route.
_glmforge_has_ipv4() {
  local name rest
  while read -r name rest; do
    [[ $name != "$1" || -z $rest ]] || return 0
  done </proc/net/route
  return 1
} 2>/dev/null

# NAME: whether it has an IPv6 address that other networks reach (scope 00; those of scope 20 hold on one link only).
_glmforge_has_ipv6() {
  local scope name
  while read -r _ _ _ scope _ name; do
    [[ $name != "$1" || $scope != 00 ]] || return 0
  done </proc/net/if_inet6
  return 1
} 2>/dev/null

# NAME: whether other nodes may be behind an interface: up, with an address, neither the loopback nor part of another
# (bond, bridge), nor what containers and virtual machines bring.
_glmforge_is_network() {
  local at=/sys/class/net/$1
  case $1 in
    lo | docker* | br-* | virbr* | veth* | vnet* | cni* | flannel* | cali* | cilium* | lxc* | lxd* | podman* | kube* | \
      tun* | tap* | wg* | tailscale* | dummy* | ifb* | sit* | usb*) return 1 ;;
  esac
  [[ -r $at/operstate && ! -e $at/master && ! -e $at/bridge ]] || return 1
  [[ $(<"$at/operstate") != @(down|lowerlayerdown|dormant|notpresent|testing) ]] || return 1
  _glmforge_has_ipv4 "$1" || _glmforge_has_ipv6 "$1"
}

# The interface with, or towards, the address at which the ranks meet.
_glmforge_towards_master() {
  local address words
  if [[ -z ${MASTER_ADDR-} ]] || ! command -v ip >/dev/null; then
    return 0
  fi
  address=$(getent hosts "$MASTER_ADDR" 2>/dev/null) || true
  address=${address%%[[:space:]]*}
  words=$(ip -oneline address show to "${address:-$MASTER_ADDR}" 2>/dev/null) || true
  if [[ $words =~ ^[0-9]+:\ ([^ ]+) ]]; then
    echo "${BASH_REMATCH[1]}"
  fi
  words=$(ip -oneline route get "${address:-$MASTER_ADDR}" 2>/dev/null) || true
  if [[ $words != local* && $words =~ \ dev\ ([^ ]+) ]]; then
    echo "${BASH_REMATCH[1]}"
  fi
}

# The interface of the default route.
_glmforge_default_route() {
  local name destination prefix rest
  while read -r name destination rest; do
    [[ $destination != 00000000 || -z $rest ]] || echo "$name"
  done </proc/net/route
  while read -r destination prefix _ _ _ _ _ _ _ name; do
    [[ $destination.$prefix != 00000000000000000000000000000000.00 ]] || echo "$name"
  done </proc/net/ipv6_route
  return 0
} 2>/dev/null

# NAME: its speed in Mbit/s, 0 where it has none to tell.
_glmforge_speed() {
  local speed
  speed=$(cat "/sys/class/net/$1/speed" 2>/dev/null) || true
  [[ $speed =~ ^[0-9]+$ ]] || speed=0
  echo "$speed"
}

# All interfaces, the fastest first.
_glmforge_by_speed() {
  local at name
  for at in /sys/class/net/*; do
    name=${at##*/}
    echo "$(_glmforge_speed "$name") $name"
  done | sort -k 1,1nr -k 2,2 | while read -r _ name; do echo "$name"; done
}

# The interface over which nodes reach each other.
_glmforge_find_interface() {
  local name
  for name in $(_glmforge_towards_master) $(_glmforge_default_route) $(_glmforge_by_speed); do
    if _glmforge_is_network "$name"; then
      echo "$name"
      return 0
    fi
  done
  _glmforge_warn "no interface found that leads to other nodes: set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
}

# INTERFACE[,INTERFACE...]: IPv4 where it has such an address. IPv6 addresses that hold on one link only do not count.
_glmforge_family() {
  if [[ -z $1 ]]; then
    return 0
  elif _glmforge_has_ipv4 "${1%%,*}"; then
    echo AF_INET
  elif _glmforge_has_ipv6 "${1%%,*}"; then
    echo AF_INET6
  fi
}

# InfiniBand|Ethernet: the fastest active RDMA ports of this kind, as in mlx5_0:1,mlx5_1:1.
_glmforge_rdma_ports() {
  local at device rate best=0 found=
  for at in /sys/class/infiniband/*/ports/*; do
    if [[ -r $at/state && $(<"$at/state") == *ACTIVE* && $(<"$at/link_layer") == "$1" ]]; then
      device=${at%/ports/*}
      rate=$(<"$at/rate") # 400 Gb/sec (4X NDR)
      rate=${rate%%[!0-9]*}
      rate=${rate:-0}
      if ((rate > best)); then
        best=$rate
        found=
      fi
      if ((rate == best)); then
        found+=,${device##*/}:${at##*/}
      fi
    fi
  done
  echo "${found#,}"
}

# Cores of this node that its job may use: bound to it, and within the quota of its container.
_glmforge_cores() {
  local cores quota period
  cores=$(OMP_NUM_THREADS='' OMP_THREAD_LIMIT='' nproc)
  if [[ -r /sys/fs/cgroup/cpu.max ]] && read -r quota period </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$((quota / period))
    cores=$((quota < cores ? quota : cores))
  fi
  echo "$cores"
}

# Cores of one rank; beside a GPU, more than 16 threads bring nothing.
_glmforge_threads() {
  local at gpus=0 cores ranks threads
  for at in /dev/nvidia[0-9]*; do
    [[ ! -e $at ]] || gpus=$((gpus + 1))
  done
  cores=$(_glmforge_cores)
  ranks=${LOCAL_WORLD_SIZE:-${SLURM_NTASKS_PER_NODE:-$gpus}}
  [[ $ranks =~ ^[1-9][0-9]*$ ]] || ranks=1
  if [[ ${SLURM_CPUS_PER_TASK-} =~ ^[1-9][0-9]*$ ]]; then
    threads=$SLURM_CPUS_PER_TASK
  elif [[ -n ${SLURM_LOCALID-} && ${SLURM_CPUS_ON_NODE-} =~ ^[0-9]+$ ]] && ((cores < SLURM_CPUS_ON_NODE)); then
    threads=$cores # srun has bound this task to cores of its own
  else
    threads=$((cores / ranks))
  fi
  threads=$((threads < 1 ? 1 : threads))
  echo $((gpus > 0 && threads > 16 ? 16 : threads))
}

# A directory of this node that only this user can write to, since code in it is run.
_glmforge_make_cache() {
  local cache=${TMPDIR:-/tmp}/glmforge-cache-$EUID
  mkdir -m 700 "$cache" 2>/dev/null || true
  if [[ -d $cache && ! -L $cache && -O $cache ]]; then
    chmod 700 "$cache"
    echo "$cache"
  else
    _glmforge_warn "$cache is not a directory of this user: caches stay where they are by default"
  fi
}

_glmforge_interface=$(_glmforge_find_interface)
_glmforge_cache=$(_glmforge_make_cache)
_glmforge_ports=$(_glmforge_rdma_ports InfiniBand)
if [[ -z $_glmforge_ports ]]; then
  _glmforge_warn "no active InfiniBand port: NCCL will fail here; look at ibstat, or use --network tcp"
fi

# ---- NCCL ----

# Interface over which ranks find each other, and all bytes of the socket transport go.
#   default: the first that is not lo or docker, InfiniBand's first
#   change: Name it where nodes have several networks and the wrong one is found; `=` before a name means exactly
#     this one, `^` all but these.
_glmforge_export NCCL_SOCKET_IFNAME "${_glmforge_interface:+=$_glmforge_interface}"

# IPv4 or IPv6 on that interface.
#   default: whichever address of the interface comes first
#   change: `AF_INET6` if nodes have addresses of both kinds, but reach each other over IPv6 only.
_glmforge_export NCCL_SOCKET_FAMILY "$(_glmforge_family "$_glmforge_interface")"

# Transport between nodes: with `IB` (InfiniBand and RoCE), a node whose adapters fail is an error instead of a job
# that silently runs over sockets, many times slower.
#   default: the fastest that works
#   change: The name of the plugin, where one carries the traffic (AWS's EFA, SHARP): NCCL_DEBUG=INFO shows it.
_glmforge_export NCCL_NET IB

# RDMA ports that NCCL uses; leaves out slower ones and Ethernet ports, which are for storage.
#   default: all active RDMA ports
#   change: Name the ports if storage has some of the same speed; `=` exactly these, `^` all but these.
_glmforge_export NCCL_IB_HCA "${_glmforge_ports:+=$_glmforge_ports}"

# How much NCCL says: a failing call with its reason.
#   default: nothing is said
#   change: INFO once, to see which network and algorithm it uses; TRACE writes gigabytes.
_glmforge_export NCCL_DEBUG WARN

# ---- gloo ----

# Interface of collectives on the CPU. The default is often the loopback, to which no other node connects. A name,
# without NCCL's signs.
#   default: the interface of the address that the host's name resolves to
#   change: As NCCL_SOCKET_IFNAME.
_glmforge_export GLOO_SOCKET_IFNAME "$_glmforge_interface"

# ---- CUDA ----

# Numbers GPUs as nvidia-smi does, so that a GPU named in a log is the one that is looked at.
#   default: FASTEST_FIRST
#   change: Leave it.
_glmforge_export CUDA_DEVICE_ORDER PCI_BUS_ID

# ---- allocator ----

# Lets the caching allocator's segments grow, so that changing shapes (experts, packed rows) leave fewer holes.
#   default: segments of fixed size
#   change: Leave it out with what registers memory by itself and fails with it (some versions of RDMA plugins, CUDA
#     IPC). PYTORCH_CUDA_ALLOC_CONF is its old name.
_glmforge_export PYTORCH_ALLOC_CONF expandable_segments:True

# ---- OpenMP ----

# Threads of each rank for work on the CPU: offloaded optimizers, data, checkpoints.
#   default: all cores for every rank; torchrun sets 1
#   change: 1 where ranks do nothing on the CPU, more where the optimizer is offloaded.
_glmforge_export OMP_NUM_THREADS "$(_glmforge_threads)"

# ---- caches ----

# Kernels that Triton compiled. A home directory on NFS is read and written by all ranks at once.
#   default: ~/.triton/cache
#   change: A directory that outlives the job, on a disk of the node, saves compiling again.
_glmforge_export TRITON_CACHE_DIR "${_glmforge_cache:+$_glmforge_cache/triton}"

# Kernels and graphs that torch.compile made.
#   default: torchinductor_USER in the temporary directory
#   change: As TRITON_CACHE_DIR.
_glmforge_export TORCHINDUCTOR_CACHE_DIR "${_glmforge_cache:+$_glmforge_cache/torchinductor}"

# Extensions compiled at run time (DeepSpeed's). On a shared home a killed build leaves a lock on which all later
# jobs wait.
#   default: ~/.cache/torch_extensions
#   change: As TRITON_CACHE_DIR.
_glmforge_export TORCH_EXTENSIONS_DIR "${_glmforge_cache:+$_glmforge_cache/torch_extensions}"

# Machine code that the driver compiled from PTX.
#   default: ~/.nv/ComputeCache
#   change: As TRITON_CACHE_DIR.
_glmforge_export CUDA_CACHE_PATH "${_glmforge_cache:+$_glmforge_cache/cuda_cache}"

# ---- tokenizers ----

# Threads of Hugging Face's tokenizers: a thread per core in each of many worker processes is too many.
#   default: true, until a process that used it forks
#   change: true to train a tokenizer, in one process.
_glmforge_export TOKENIZERS_PARALLELISM false

# ---- logging ----

# Lines appear in the job's log when they are written, also the last ones of a rank that is killed.
#   default: output to a file is kept back until a block is full
#   change: Leave it.
_glmforge_export PYTHONUNBUFFERED 1

if [[ ${BASH_SOURCE[0]-} == "$0" ]]; then
  if (($# == 0)); then
    _glmforge_warn "source this file, or give it the command to run with these variables"
    exit 2
  fi
  exec "$@"
fi
unset -f _glmforge_warn _glmforge_export _glmforge_has_ipv4 _glmforge_has_ipv6 _glmforge_is_network \
  _glmforge_towards_master _glmforge_default_route _glmforge_speed _glmforge_by_speed \
  _glmforge_find_interface _glmforge_family _glmforge_rdma_ports _glmforge_cores _glmforge_threads \
  _glmforge_make_cache
unset _glmforge_cache _glmforge_interface _glmforge_network _glmforge_ports
