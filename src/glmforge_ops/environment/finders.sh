# shellcheck shell=bash
# What an environment script looks for on the node that runs it. `script.py` puts those functions into a script that the
# script calls, and those that they call; so the comment above a function is what the script's reader gets. They work
# under `set -euo pipefail`, need no program but coreutils (`ip` and `getent` are used where they exist), and find
# nothing rather than fail.

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

# INTERFACE[,INTERFACE...]: threads, and sockets per thread, of NCCL's socket transport: 4 x 4, of 64 at most, where the
# link is fast.
_glmforge_socket_threads() {
  if [[ -n $1 ]] && (($(_glmforge_speed "${1%%,*}") >= 50000)); then
    echo 4
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

# PORT AF_INET|AF_INET6: the index of its RoCE v2 address of this kind. IPv4 ones are written ::ffff:a.b.c.d.
_glmforge_gid_of() {
  local at=/sys/class/infiniband/${1%:*}/ports/${1#*:} gid kind index
  for gid in "$at"/gids/*; do
    index=${gid##*/}
    kind=$(cat "$at/gid_attrs/types/$index" 2>/dev/null) || continue # an index without an address cannot be read
    [[ $kind == "RoCE v2" ]] || continue
    case $2.$(<"$gid") in
      AF_INET.0000:0000:0000:0000:0000:ffff:*) ;;
      AF_INET.* | AF_INET6.0000:0000:0000:0000:* | AF_INET6.fe80:*) continue ;;
    esac
    echo "$index"
    return 0
  done
}

# PORTS AF_INET|AF_INET6: says which ports have no RoCE v2 address of this kind, with which they reach no other node.
_glmforge_check_gids() {
  local port
  for port in ${1//,/ }; do
    if [[ -n $2 && -z $(_glmforge_gid_of "$port" "$2") ]]; then
      _glmforge_warn "$port has no RoCE v2 address of $2: give its interface one, or leave it out of NCCL_IB_HCA"
    fi
  done
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
