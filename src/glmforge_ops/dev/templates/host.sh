# First process of a host: host.sh MODE NAME DIRECTORY SHM_SIZE HOME COMMAND...
# The host ends with it. HOME is the home directory of a bare host, or empty. COMMAND is empty, except on the head:
# there it is run if the process that starts the cluster ends before it has written a line to our input.
set -e
mode=$1 name=$2 directory=$3 shm_size=$4 home=$5
shift 5
read -r pid _ </proc/self/stat # as this machine sees it: the host has no /proc of its own yet

if [ "$mode" = namespaces ]; then
  hostname "$name"
  mount -n -t tmpfs -o mode=755,size=64m tmpfs /run
  mkdir /run/sshd /run/lock /run/cgroup
  [ ! -d /sys/fs/cgroup ] || mount -n --rbind /sys/fs/cgroup /run/cgroup
  mount -n -t proc proc /proc
  mount -n -t sysfs sysfs /sys # interfaces of this host only
  ! mountpoint -q /run/cgroup || mount -n --move /run/cgroup /sys/fs/cgroup
  mount -n -t tmpfs -o "size=$shm_size" tmpfs /dev/shm
  [ -e /etc/hosts ] || : >/etc/hosts
  mount -n --bind "$directory/hosts_file" /etc/hosts
  [ "$name" = head ] || mount -n --bind "$directory/hosts/$name/disk" "$directory/local"
  if [ -n "$home" ]; then
    mount -n --bind "$directory/hosts/$name/home" "$home"
  elif [ -e /etc/ssh/ssh_config ]; then
    mount -n --bind "$directory/ssh/config" /etc/ssh/ssh_config
  fi
fi

echo "$pid"
exec >/dev/null
if [ $# -gt 0 ]; then
  read -r _ || exec "$@"
fi
exec env --ignore-signal=CHLD sleep infinity # ignored: the kernel reaps orphans
