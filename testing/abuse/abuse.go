// Package abuse makes, in a lab, the load that can be made by whoever may write objects in one
// namespace (the role edit), and by a host of the nodes' link.
package abuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/heraldvip/herald/testing/lab"
)

// A Load is how much of each kind there is. Rates are per second.
type Load map[string]int

// Kinds of a Load.
const (
	Services    = "services"    // Services that ask for addresses of others
	Addresses   = "addresses"   // addresses in one annotation of one Service more
	DHCP        = "dhcp"        // Services that ask a DHCP server for an address, where there is no server
	Changes     = "changes"     // changes a second of these Services, each worth an Event, which a quota refuses
	Leases      = "leases"      // Leases with claims that no Herald wrote
	Elections   = "elections"   // leader elections of other programs: each renews its Lease every 2 s
	Connections = "connections" // to each TCP port of each Herald, held open without a request
	ARP         = "arp"         // frames a second: half are broadcast requests and announcements of other addresses, half name a VIP, to the nodes only
	Heartbeats  = "heartbeats"  // packets a second to each node, in the name of another, without the key
	Offers      = "offers"      // DHCPOFFERs a second, broadcast
)

// Namespace is where the objects of a Load are.
const Namespace = "tenant-of-the-load"

// A Running is a Load that is being made.
type Running struct {
	lab    *lab.Lab
	load   Load
	vips   []netip.Addr // of others
	tenant kubernetes.Interface
	ports  []int
	stop   context.CancelFunc
	done   sync.WaitGroup
	began  time.Time

	made    map[string]*atomic.Int64 // by kind: frames sent, renewals written, changes written, connections opened
	refused atomic.Int64             // connections
	held    atomic.Int64             // connections

	mu  sync.Mutex // guards err
	err error      // the first of those in the background
}

// Start makes the objects of the load, which name vips, and goes on with the rest until Stop: of
// the connections to ports, too. It returns once all objects are there.
func Start(ctx context.Context, l *lab.Lab, load Load, vips []netip.Addr, ports ...int) (*Running, error) {
	ctx, stop := context.WithCancel(ctx)
	r := &Running{lab: l, load: load, vips: vips, ports: ports, stop: stop, began: time.Now(), made: make(map[string]*atomic.Int64)}
	for kind := range load {
		r.made[kind] = new(atomic.Int64)
	}
	err := r.createTenant(ctx)
	if err == nil {
		err = r.createObjects(ctx)
	}
	if err == nil {
		err = r.startFloods(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
	}
	r.began = time.Now()
	r.goOn(ctx, r.renew)
	r.goOn(ctx, r.change)
	r.holdConnections(ctx)
	return r, nil
}

// goOn runs fn in the background until Stop, and stores its error.
func (r *Running) goOn(ctx context.Context, fn func(context.Context) error) {
	r.done.Go(func() {
		if err := fn(ctx); err != nil && ctx.Err() == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.err == nil {
				r.err = err
			}
		}
	})
}

// String says what is made, with the rates that were reached.
func (r *Running) String() string {
	seconds := time.Since(r.began).Seconds()
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(r.load)) {
		text := fmt.Sprintf("%s=%d", kind, r.load[kind])
		switch kind {
		case Connections:
			text += fmt.Sprintf(" (%d held, %d opened, %d refused)", r.held.Load(), r.made[kind].Load(), r.refused.Load())
		case Elections, Changes, ARP, Heartbeats, Offers:
			text += fmt.Sprintf(" (%.0f/s)", float64(r.made[kind].Load())/seconds)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// Stop ends the load and deletes its objects. It returns the first error of what went on in the
// background, or of deleting.
func (r *Running) Stop(ctx context.Context) error {
	r.stop()
	r.done.Wait()
	return errors.Join(r.err, r.deleteObjects(ctx))
}

// each calls fn with the numbers up to n, at a rate per second, until ctx ends or fn returns an
// error. What could not be done in time, since the machine was busy, is left out.
func each(ctx context.Context, rate int, fn func(i int) error) error {
	if rate == 0 {
		return nil
	}
	tick := time.NewTicker(max(time.Second/time.Duration(rate), 2*time.Millisecond))
	defer tick.Stop()
	began, done := time.Now(), 0
	for {
		due := int(time.Since(began).Seconds() * float64(rate))
		done = max(done, due-rate/10) // at most a tenth of a second's at once
		for ; done < due; done++ {
			if err := fn(done); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
