package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

const (
	idleFactor    = 10                     // so many times as many connections without traffic as with
	lineInterval  = 500 * time.Millisecond // between two lines on a connection with traffic
	throughputFor = 4 * time.Second
)

// connections measures on a cluster of its own what becomes of n connections with traffic, and of idleFactor times as many without,
// when the owner of their VIP is stopped, and how fast one is that is sent on.
func (s setup) connections(ctx context.Context, n int) (err error) {
	l, err := lab.Up(ctx, lab.Options{Nodes: s.nodes, Herald: s.herald, Dir: s.logs, RBAC: s.rbac, Wait: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	b := &bench{setup: s, lab: l, heralds: map[string]*lab.Process{}, addrs: []netip.Addr{vips.Addr().Next()}}
	if _, err := l.Run(ctx, "cl", "ip", "route", "add", vips.String(), "dev", "eth0"); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{b.startHeralds, b.createServices} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for _, node := range l.Nodes() {
		out, err := l.Run(ctx, node, "nft", "list", "tables")
		if err != nil || strings.Contains(out, "herald") {
			return fmt.Errorf("%s has a table though no VIP has moved (%w):\n%s", node, err, out)
		}
	}
	fmt.Printf("\n%s, %s\n", s.version(ctx), machine())
	return errors.Join(b.trafficThroughMove(ctx, n), b.idleThroughMove(ctx, idleFactor*n), b.throughputOfMove(ctx))
}

// address is the VIP and its port.
func (b *bench) address() string { return netip.AddrPortFrom(b.addrs[0], 80).String() }

// move stops the owner of the VIP by SIGTERM, waits until another node has it and its process has ended, and starts it again.
func (b *bench) move(ctx context.Context) error {
	for node, p := range b.heralds {
		have, err := b.bound(node)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			continue
		}
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := b.until(ctx, stepTimeout, func() error {
			if have, err := b.bound(node); err != nil || len(have) > 0 {
				return fmt.Errorf("%s still has the VIP (%w)", node, err)
			}
			return nil
		}); err != nil {
			return err
		}
		return errors.Join(p.Wait(ctx), b.startHerald(ctx, node))
	}
	return errors.New("no node has the VIP")
}

// trafficThroughMove has n connections exchange lines while the VIP moves.
func (b *bench) trafficThroughMove(ctx context.Context, n int) error {
	all, err := b.lab.HoldMany(ctx, b.address(), n)
	if err != nil {
		return err
	}
	defer closeAll(all)
	stop := lab.Exchange(all, lineInterval)
	sleep(ctx, 5*time.Second)
	fmt.Printf("%d connections with traffic, no fault: %v\n", n, stop())
	stop = lab.Exchange(all, lineInterval)
	sleep(ctx, 2*time.Second)
	err = b.move(ctx)
	sleep(ctx, 5*time.Second)
	fmt.Printf("%d connections with traffic, SIGTERM of the owner: %v\n", n, stop())
	return err
}

// idleThroughMove opens n connections, has the VIP move, and then uses each of them once.
func (b *bench) idleThroughMove(ctx context.Context, n int) error {
	began := time.Now()
	all, err := b.lab.HoldMany(ctx, b.address(), n)
	if err != nil {
		return err
	}
	defer closeAll(all)
	b.log("%d connections opened in %v", n, time.Since(began).Round(time.Millisecond))
	err = b.move(ctx)
	sleep(ctx, 5*time.Second)
	r := lab.TrafficReport{Connections: len(all)}
	for _, h := range all {
		took, err := h.Ask()
		r.Slowest = max(r.Slowest, took)
		if err != nil {
			r.Broken, r.First = r.Broken+1, err
			continue
		}
		r.Lines++
	}
	fmt.Printf("%d idle connections, SIGTERM of the owner: %v\n", n, r)
	return err
}

// throughputOfMove measures a connection before and after its VIP moves, when it is sent on, and one that began after it.
func (b *bench) throughputOfMove(ctx context.Context) error {
	measure := func(what string, h *lab.Held) error {
		rate, err := h.Throughput(throughputFor)
		if err == nil {
			fmt.Printf("throughput there and back, %s: %.0f MiB/s\n", what, rate/(1<<20))
		}
		return err
	}
	for range 3 {
		old, err := b.lab.Hold(ctx, b.address())
		if err != nil {
			return err
		}
		err = errors.Join(measure("by the owner alone", old), b.move(ctx), measure("sent on by its successor", old))
		old.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func closeAll(all []*lab.Held) {
	for _, h := range all {
		h.Close()
	}
}
