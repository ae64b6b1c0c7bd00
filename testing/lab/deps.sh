#!/bin/sh
# deps.sh [demo|conformance]: installs what the lab needs of Debian, where it is missing; with "demo"
# only what the demo runs, with "conformance" also what Kubernetes' own tests run in their pods.
set -eu
updated='' policy=''
trap '[ -z "$policy" ] || rm -f "$policy"' EXIT
trap 'exit 130' INT TERM HUP

# What a package starts when it is installed is not wanted: the lab has its own.
quietly() {
  if ! [ -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
  fi
  "$@"
}

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null && return
  if [ -z "$updated" ]; then
    [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -mtime -7 2>/dev/null | head -n 1)" ] || apt-get -qq update
    updated=yes
  fi
  [ ! -t 1 ] || printf '\r\033[K' # over the progress of a build beside it
  echo "installing $2"
  quietly env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq install -y --no-install-recommends "$2" >/dev/null
}

need ip iproute2
need nft nftables
[ "${1-}" != demo ] || exit 0

need arping iputils-arping
need iptables iptables
need tcpdump tcpdump
need sysctl procps
need dnsmasq dnsmasq-base
need kea-dhcp4 kea-dhcp4-server
need kea-dhcp6 kea-dhcp6-server

# A router with UPnP, and a program to ask it. Debian would run it as a service.
if ! command -v /usr/sbin/miniupnpd >/dev/null; then
  need /usr/sbin/miniupnpd miniupnpd-nftables
  if [ -d /run/systemd/system ]; then systemctl -q disable --now miniupnpd || true; fi
fi
need upnpc miniupnpc

# The page of a node is looked at in a browser, which needs a font.
need chromium chromium
need promtool prometheus # tries the alerts
need fc-list fontconfig
[ -n "$(fc-list 2>/dev/null)" ] || quietly env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends fonts-dejavu-core >/dev/null

# Real nodes.
need containerd containerd
need runc runc
need /usr/lib/cni/bridge containernetworking-plugins
need unshare util-linux
need dbus-daemon dbus-daemon

# Routers that speak BGP, each run in a namespace. Debian would run them as services.
for router in "/usr/lib/frr/bgpd frr" "bird bird2"; do
  # shellcheck disable=SC2086 # a program and its package
  set -- $router
  if ! command -v "$1" >/dev/null; then
    need "$1" "$2"
    if [ -d /run/systemd/system ]; then systemctl -q disable --now "${2%2}" || true; fi
  fi
done

[ "${1-}" = conformance ] || exit 0
need curl curl
need nc.openbsd netcat-openbsd
need wget wget
