#!/bin/bash
# node.sh NAME DIR PARTS: PID 1 of a real node, in network, mount, UTS, IPC and PID
# namespaces of its own. It is what is left of an init: it mounts what a node has for
# itself, and keeps containerd and kubelet running. What the node writes is in DIR.
set -eu
name=$1 dir=$2 parts=$3
cgroup=hl-$name
log=$dir/../../logs/node-$name

hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc

# kubelet sets these for the whole machine. It may set files of its own instead.
while read -r sysctl value; do
  mkdir -p "$dir/sysctl/${sysctl%/*}"
  echo "$value" >"$dir/sysctl/$sysctl"
  mount --bind "$dir/sysctl/$sysctl" "/proc/sys/$sysctl"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END

# What is written to the machine's file system stays in the node.
for tree in etc opt usr var; do
  [ -d "/$tree" ] || continue
  mkdir -p "$dir/over/$tree" "$dir/work/$tree"
  mount -t overlay overlay -o "lowerdir=/$tree,upperdir=$dir/over/$tree,workdir=$dir/work/$tree" "/$tree"
done
# The layers of containers are overlays, which can't lie on an overlay.
for own in var/lib/containerd var/lib/kubelet var/lib/etcd var/log/pods etc/kubernetes etc/cni/net.d etc/containerd; do
  mkdir -p "/$own" "$dir/own/$own"
  mount --bind "$dir/own/$own" "/$own"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts
: >"$dir/resolv.conf"
mount --make-rshared / # kubelet passes mounts on

# Everything of this node is in a cgroup of its own, in each hierarchy.
for hierarchy in /sys/fs/cgroup/*/; do
  mkdir -p "$hierarchy$cgroup"
  for file in cpuset.cpus cpuset.mems; do
    [ ! -e "$hierarchy$cgroup/$file" ] || cat "$hierarchy$file" >"$hierarchy$cgroup/$file"
  done
  echo $$ >"$hierarchy$cgroup/cgroup.procs"
done
set +e

# keep NAME COMMAND...: a service that is started again whenever it ends.
keep() {
  local service=$1
  shift
  while :; do
    "$@" >>"$log-$service.log" 2>&1
    echo "== $service ended with status $?" >>"$log-$service.log"
    sleep 1
  done
}

keep containerd containerd --config /etc/containerd/config.toml &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
for image in "$dir"/../../images/*.tar; do
  ctr -n k8s.io images import "$image" || exit 1
done >"$log-images.log" 2>&1
touch "$dir/images-done"

# What kubeadm's package has in kubelet's unit file. kubeadm writes the files.
kubelet() {
  [ -e /var/lib/kubelet/config.yaml ] || return 0
  # shellcheck disable=SC1091
  [ ! -e /var/lib/kubelet/kubeadm-flags.env ] || . /var/lib/kubelet/kubeadm-flags.env
  # shellcheck disable=SC2086
  "$parts/kubelet" --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
    --config=/var/lib/kubelet/config.yaml ${KUBELET_KUBEADM_ARGS-} --v=2
}
keep kubelet kubelet &

# A shell reaps what is orphaned into it whenever it waits.
while :; do
  sleep 3600 &
  wait $!
done
