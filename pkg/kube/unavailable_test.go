package kube

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/vip"
)

// fails is the answer of an API server whose webhook for Services of namespace a does not work.
func fails(k vip.Key) error {
	if k.Namespace != "a" {
		return nil
	}
	return apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": connection refused`))
}

// TestStatusesUnavailableForOneNamespace: a namespace whose Services can't be written, since a webhook fails, keeps
// no other from its statuses.
func TestStatusesUnavailableForOneNamespace(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.set(func() { d.refuse = fails })
		all := d.fillNamespace("a", 10)
		d.plan(all...)
		advance(30 * time.Second)
		all = append(all, d.fillNamespace("b", 20)...)
		for range 100 { // passes
			d.plan(all...)
			advance(100 * time.Millisecond)
		}
		if n := d.written(); n != 20 {
			t.Errorf("%d of 20 statuses of the other namespace are written after ten seconds", n)
		}
	})
}

// hangs is fails of a webhook that does not answer: the API server gives up after 10 s.
func hangs(k vip.Key) error {
	if k.Namespace == "a" {
		time.Sleep(10 * time.Second)
	}
	return fails(k)
}

// TestStatusesHangForOneNamespace: a namespace whose webhook does not answer, for more Services than may be written
// at once, keeps no other waiting.
func TestStatusesHangForOneNamespace(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.set(func() { d.refuse = hangs })
		all := d.fillNamespace("a", 8)
		d.plan(all...)
		advance(24 * time.Second)
		for i, s := range d.fillNamespace("b", 2) {
			all = append(all, s)
			d.plan(all...)
			advance(unavailableMax + time.Second)
			if n := d.written(); n != i+1 {
				t.Errorf("%d of %d statuses of the other namespace are written after %v", n, i+1, unavailableMax+time.Second)
			}
		}
		advance(10 * time.Second)
	})
}

// TestStatusesAfterALongOutage: once the API server takes one of those again that it did not take, the others of the
// namespace are written six at a time.
func TestStatusesAfterALongOutage(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		const n = 300
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.plan(d.fill(n)...)
		advance(time.Hour) // each of them has failed
		d.set(func() { d.refuse = nil })
		for d.written() == 0 {
			advance(10 * time.Millisecond)
		}
		advance(n / 4 * 10 * time.Millisecond)
		if got := d.written(); got != n {
			t.Errorf("%d of %d statuses are written %v after the first", got, n, n/4*10*time.Millisecond)
		}
	})
}

// oneAtATime is a webhook of namespace a that answers after 50 ms what comes alone; for what comes together the API
// server gives up after 10 s.
func oneAtATime() func(vip.Key) error {
	var underWay atomic.Int32
	return func(k vip.Key) error {
		if k.Namespace != "a" {
			return nil
		}
		underWay.Add(1)
		defer underWay.Add(-1)
		time.Sleep(50 * time.Millisecond)
		if underWay.Load() == 1 {
			return nil
		}
		return hangs(k)
	}
}

// TestStatusesOneAtATimeInOneNamespace: a namespace with 100 Services whose webhook answers only what comes alone
// keeps no other waiting, and is written, too.
func TestStatusesOneAtATimeInOneNamespace(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.set(func() { d.refuse = oneAtATime() })
		all := d.fillNamespace("a", 100)
		d.plan(all...)
		advance(15 * time.Second)
		for i, s := range d.fillNamespace("b", 40) {
			all = append(all, s)
			d.plan(all...)
			advance(2 * time.Second)
			if d.writes(s.Service) != 1 {
				t.Errorf("the status of Service %d of the other namespace is not written after two seconds", i)
			}
			advance(5 * time.Second)
		}
		if n := d.written(); n != 140 {
			t.Errorf("%d of 140 statuses are written after 300 s", n)
		}
	})
}
