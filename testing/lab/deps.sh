#!/bin/sh
# deps.sh [demo|test|all|conformance]: installs what of Debian is missing: for the demo; for "make test" (and for labs
# that somebody looks around in); for all tests, which is what it does without an argument; for Kubernetes' own tests, too.
set -eu
wanted=${1-all} updated='' policy=''
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
  [ ! -e "$1" ] && ! command -v "$1" >/dev/null || return 0
  if [ -z "$updated" ]; then
    [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -mtime -7 2>/dev/null | head -n 1)" ] || apt-get -qq update
    updated=yes
  fi
  [ ! -t 1 ] || printf '\r\033[K' # over the progress of a build beside it
  echo "installing $2"
  quietly env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq install -y --no-install-recommends "$2" >/dev/null
}

# router PROGRAM PACKAGE [SERVICE]: one that is run in a namespace. Debian would run it as a service.
router() {
  ! command -v "$1" >/dev/null || return 0
  need "$1" "$2"
  if [ -d /run/systemd/system ]; then systemctl -q disable --now "${3:-$2}" || true; fi
}

need ip iproute2
need nft nftables
[ "$wanted" != demo ] || exit 0

need arping iputils-arping
need dnsmasq dnsmasq-base
router bird bird2 bird
router /usr/sbin/miniupnpd miniupnpd-nftables miniupnpd
need upnpc miniupnpc # asks it
if ! command -v gcc >/dev/null; then # the race detector links with it
  need gcc gcc
  need /usr/include/stdio.h libc6-dev
fi
[ "$wanted" != test ] || exit 0

need shellcheck shellcheck
need spin spin
need iptables iptables
need tcpdump tcpdump
need sysctl procps
need kea-dhcp4 kea-dhcp4-server
need kea-dhcp6 kea-dhcp6-server
router /usr/lib/frr/bgpd frr

# The page of a node is looked at in a browser, which needs a font.
need chromium chromium
need promtool prometheus # tries the alerts
need fc-list fontconfig
[ -n "$(fc-list 2>/dev/null)" ] || need /no/font fonts-dejavu-core

# Real nodes.
need containerd containerd
need runc runc
need /usr/lib/cni/bridge containernetworking-plugins
need unshare util-linux

[ "$wanted" = conformance ] || exit 0
need curl curl
need nc.openbsd netcat-openbsd
need wget wget
