#!/bin/sh
# Stands in for herald: prints what it was started with, and waits.
trap 'echo terminated; exit 3' TERM # before what tells the test that it may signal
echo "$0 $* as $vip_nodename with $k8s_config_file, arp=$vip_arp, user=$USER"
while :; do sleep 0.05; done
