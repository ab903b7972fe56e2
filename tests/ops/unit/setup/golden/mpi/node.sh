#!/bin/sh
# Prepares a node of the cluster 'h200'. Run again, it changes nothing; with the argument
# 'look' it only prints what it would change. 'glmforge cluster setup' runs it on every node.
# It prints a line for each change, warning and error. A node with an error is not changed.
set -u
umask 077

look=${1:-}
failed=

say() { printf '%s: %s\n' "$1" "$2"; }
warning() { say warning "$1"; }
error() {
  say error "$1"
  failed=yes
}
change() { # DESCRIPTION COMMAND...
  description=$1
  shift
  if [ -n "$failed" ]; then return; fi
  if [ "$look" = look ] || reason=$("$@" 2>&1); then
    say change "$description"
  else
    error "cannot $description: $reason"
  fi
}
directory() { # MODE PATH
  if [ -d "$2" ]; then return; fi
  if [ -e "$2" ] || [ -L "$2" ]; then error "$2 is not a directory; move it away"; fi
  change "make directory $2 ($1)" mkdir -p -m "$1" -- "$2"
}

check_software() {
  python=python3
  for package in glmforge torch; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" 2>/dev/null ||
      warning "$python has no $package; install it there, or give 'python' in cluster.yaml"
  done
  command -v mpirun >/dev/null || warning "has no mpirun; apt-get install openmpi-bin there"
  if ! command -v nvidia-smi >/dev/null; then
    gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
  elif gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>&1); then
    gpus=$(echo "$gpus" | grep -c .)
  else
    warning "nvidia-smi fails: $(echo "$gpus" | tail -n 1); look at the driver there: dmesg | grep -i nvrm"
    gpus=0
  fi
  [ "$gpus" -eq 8 ] ||
    warning "has $gpus GPUs, not 8; look at nvidia-smi and dmesg there, or correct --gpus-per-node"
  getent ahosts node001 >/dev/null ||
    error "does not know the master, node001; add it to DNS or /etc/hosts there, or give its address"
  [ -z "${GLMFORGE_DEV_OWN_HOME:-}" ] ||
    error "is of a development cluster and has your own home directory; use one of 'glmforge cluster dev up --bare'"
}

disk=/local/nvme
check_disk() {
  if [ ! -e "$disk" ]; then
    error "$disk is not there; mount the disk, or correct --nvme-path"
  elif [ ! -d "$disk" ]; then
    error "$disk is a file; give --nvme-path the directory where the disk is mounted"
  elif [ ! -w "$disk" ] && [ ! -w "$disk/glmforge" ]; then
    error "$disk is not writable for $(id -un); have root run: install -d -o $(id -un) -m 0750 '$disk/glmforge'"
  fi
  type=$(df --output=fstype -- "$disk" 2>/dev/null | tail -n 1)
  network_types="nfs nfs4 lustre gpfs beegfs ceph cifs smb3 fuse.sshfs fuse.glusterfs fuse.weka wekafs panfs 9p pvfs2 afs fuse.juicefs fuse.s3fs"
  case " $network_types " in
    *" $type "*) error "$disk is on $type, not a disk of its own; correct --nvme-path" ;;
  esac
}
make_directories() {
  directory 0750 "$disk/glmforge"
  for name in data checkpoints cache tmp; do
    directory 0750 "$disk/glmforge/$name"
  done
}

key='restrict,pty ssh-ed25519 AAAA glmforge-h200'
home=$(getent passwd "$(id -u)" | cut -d : -f 6) # where sshd looks; HOME may differ
keys=$home/.ssh/authorized_keys
check_home() {
  for path in "$home" "$home/.ssh" "$keys"; do
    [ -z "$(find -L "$path" -maxdepth 0 -perm /022 2>/dev/null)" ] ||
      error "others can write to $path, so sshd refuses the key; chmod go-w $path there"
  done
}
is_authorized() { grep -qxF -e "$key" "$keys" 2>/dev/null; }
add_key() {
  # shellcheck disable=SC2094 # read before it is written to
  (
    flock -w 20 9 || : # nodes may share a home directory
    if is_authorized; then exit; fi
    if [ -n "$(tail -c 1 "$keys")" ]; then echo >&9; fi # the last line has no end
    printf '%s\n' "$key" >&9
  ) 9>>"$keys"
}
authorize() {
  directory 0700 "$home/.ssh"
  is_authorized || change "add the cluster's key to $keys" add_key
}

main() { # called last, so that nothing runs before all of the script is there
  check_software
  check_disk
  check_home
  make_directories
  authorize
}
main </dev/null
