package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
)

// onSwitchPort calls fn with a host's port on a bridge of the switch.
func (l *Lab) onSwitchPort(bridge, name string, fn func(*netlink.Handle, netlink.Link) error) error {
	err := withNetlink("switch", func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(bridge + "-" + name)
		if err != nil {
			return err
		}
		return fn(nl, link)
	})
	if err != nil {
		return fmt.Errorf("port %s-%s of the switch: %w", bridge, name, err)
	}
	return nil
}

// Unplug pulls a host's cable from the LAN: it sees eth0 lose its carrier.
func (l *Lab) Unplug(name string) error {
	return l.onSwitchPort(lanBridge, name, func(nl *netlink.Handle, p netlink.Link) error { return nl.LinkSetDown(p) })
}

// Cut cuts a host from the LAN unnoticed: eth0 stays up, every frame is lost.
func (l *Lab) Cut(name string) error {
	return l.onSwitchPort(lanBridge, name, func(nl *netlink.Handle, p netlink.Link) error { return nl.LinkSetNoMaster(p) })
}

// Reconnect undoes Unplug and Cut.
func (l *Lab) Reconnect(name string) error { return l.reconnect(lanBridge, name) }

// CutAPI cuts a node from the API server unnoticed: packets are lost both ways.
func (l *Lab) CutAPI(node string) error {
	return l.onSwitchPort(mgmtBridge, node,
		func(nl *netlink.Handle, p netlink.Link) error { return nl.LinkSetNoMaster(p) })
}

// ConnectAPI undoes CutAPI.
func (l *Lab) ConnectAPI(node string) error { return l.reconnect(mgmtBridge, node) }

func (l *Lab) reconnect(bridge, name string) error {
	return l.onSwitchPort(bridge, name, func(nl *netlink.Handle, p netlink.Link) error {
		br, err := nl.LinkByName(bridge)
		if err != nil {
			return err
		}
		return errors.Join(nl.LinkSetMaster(p, br), nl.LinkSetUp(p))
	})
}

// BlockPort has a node's firewall drop what comes and goes by a port, UDP and TCP.
func (l *Lab) BlockPort(ctx context.Context, node string, port int) error {
	return l.nft(ctx, node,
		"add table inet lab_block",
		"add chain inet lab_block in { type filter hook input priority -300; }",
		"add chain inet lab_block out { type filter hook output priority -300; }",
		fmt.Sprintf("add rule inet lab_block in th dport %d drop", port),
		fmt.Sprintf("add rule inet lab_block out th dport %d drop", port))
}

// nft runs commands of nft(8) on a node until one fails.
func (l *Lab) nft(ctx context.Context, node string, commands ...string) error {
	for _, command := range commands {
		if _, err := l.Run(ctx, node, "nft", command); err != nil {
			return err
		}
	}
	return nil
}

// OpenPort undoes BlockPort.
func (l *Lab) OpenPort(ctx context.Context, node string) error {
	return l.nft(ctx, node, "delete table inet lab_block")
}

// StopAPI kills the API server (SIGKILL). etcd keeps the objects.
func (l *Lab) StopAPI() error {
	l.api.Kill()
	return nil
}

// StartAPI starts the API server again and waits until it is ready.
func (l *Lab) StartAPI(ctx context.Context) error {
	if l.api.Running() {
		return errors.New("the API server runs already")
	}
	if err := l.spawnAPI(); err != nil {
		return err
	}
	return l.awaitAPI(ctx)
}

const preferred = -15

// PreferControlPlane gives etcd, the API server and the controller the processors first, as if they had their own
// machine; not a later API server.
func (l *Lab) PreferControlPlane() error {
	for _, p := range []*Process{l.etcd, l.api, l.controller} {
		if err := syscall.Setpriority(syscall.PRIO_PGRP, p.Pid, preferred); err != nil {
			return fmt.Errorf("can't change the priority of %s: %w", p.Name, err)
		}
		// Each process has its session, by which a kernel with autogroups (sched(7)) schedules.
		err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", p.Pid), []byte(strconv.Itoa(preferred)), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("can't change the priority of %s: %w", p.Name, err)
		}
	}
	return nil
}

// Lose has a node lose so many of a hundred frames on eth0, in and out; with 100 it receives, or sends, nothing.
func (l *Lab) Lose(ctx context.Context, node string, in, out int) error {
	rule := func(percent int) string {
		if percent == 100 {
			return "drop"
		}
		return fmt.Sprintf("numgen random mod 100 < %d drop", percent)
	}
	return l.nft(ctx, node,
		"add table netdev lab_loss",
		"add chain netdev lab_loss in { type filter hook ingress device eth0 priority 0; }",
		"add chain netdev lab_loss out { type filter hook egress device eth0 priority 0; }",
		"add rule netdev lab_loss in "+rule(in),
		"add rule netdev lab_loss out "+rule(out))
}

// LoseNothing undoes Lose.
func (l *Lab) LoseNothing(ctx context.Context, node string) error {
	return l.nft(ctx, node, "delete table netdev lab_loss")
}

// PauseAPI suspends the API server (SIGSTOP): connections stay open, unanswered.
func (l *Lab) PauseAPI() error { return l.signalAPI(syscall.SIGSTOP) }

// ResumeAPI undoes PauseAPI.
func (l *Lab) ResumeAPI() error { return l.signalAPI(syscall.SIGCONT) }

func (l *Lab) signalAPI(sig syscall.Signal) error {
	return l.api.Signal(sig)
}
