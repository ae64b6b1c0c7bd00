#!/bin/sh
# Stands in for herald: prints what it was started with, and waits.
echo "$0 $* as $vip_nodename with $k8s_config_file, arp=$vip_arp, user=$USER"
trap 'echo terminated; exit 3' TERM
while :; do sleep 0.05; done
