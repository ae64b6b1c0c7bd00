package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// fails is the answer of an API server whose webhook for Services of namespace a does not work.
func fails(k vip.Key) error {
	if k.Namespace != "a" {
		return nil
	}
	return apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": connection refused`))
}

// An assignmentTest is Assignments with an API server of which the answers are set.
type assignmentTest struct {
	*Assignments
	log logBuffer

	mu     sync.Mutex
	answer func(vip.Key) error
	writes map[vip.Key]int
	done   map[vip.Key]bool
}

func newAssignmentTest(t *testing.T, answer func(vip.Key) error) *assignmentTest {
	d := &assignmentTest{answer: answer, writes: make(map[vip.Key]int), done: make(map[vip.Key]bool)}
	d.Assignments = &Assignments{log: d.log.logger(), wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: func() {}},
		cached: func(k vip.Key) *cachedService {
			d.mu.Lock()
			defer d.mu.Unlock()
			o := &cachedService{version: "1"}
			if d.done[k] {
				o.Addresses, o.Source = addrs("10.0.0.1"), addressesKey
			}
			return o
		},
		patch: func(_ context.Context, k vip.Key, _ []byte) error {
			time.Sleep(time.Millisecond)
			d.mu.Lock()
			answer := d.answer
			d.mu.Unlock()
			err := answer(k)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.writes[k]++
			d.done[k] = err == nil
			return err
		},
	}
	t.Cleanup(check.Run(t, d.Assignments))
	return d
}

// plan has n Services of a namespace be given an address, in addition to all.
func (d *assignmentTest) plan(all []vip.Assignment, namespace string, n int) []vip.Assignment {
	all = slices.Clone(all) // what was planned before may be read still
	for i := range n {
		all = append(all, vip.Assignment{Service: vip.Key{Namespace: namespace, Name: fmt.Sprintf("web-%03d", i)}, Addresses: addrs("10.0.0.1")})
	}
	d.Put(all)
	return all
}

// count returns how many writes there were, and how many Services of a namespace have their address.
func (d *assignmentTest) count(namespace string) (writes, done int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, n := range d.writes {
		writes += n
		if d.done[k] && k.Namespace == namespace {
			done++
		}
	}
	return writes, done
}

// TestAssignmentsWhileUnavailable: while the API server is away, or refuses Herald everything, 2000 Services that are given addresses cost a write and
// a try each second, and one line in the log. Once it is back all are written at once.
func TestAssignmentsWhileUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, func(vip.Key) error { return apierrors.NewServiceUnavailable("away") })
		all := d.plan(nil, "a", 2000)
		for range 200 { // passes
			time.Sleep(50 * time.Millisecond)
			d.plan(all, "", 0)
		}
		if n, _ := d.count("a"); n < 8 || n > 30 {
			t.Errorf("%d writes in ten seconds", n)
		}
		if n := strings.Count(d.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
		d.mu.Lock()
		d.answer = func(vip.Key) error { return nil }
		d.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if _, n := d.count("a"); n != 2000 {
			t.Errorf("%d Services have their address in three seconds", n)
		}
	})
}

// TestAssignmentsUnavailableForOneNamespace: a namespace whose Services can't be written, since a webhook fails, keeps no other from its addresses.
func TestAssignmentsUnavailableForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, fails)
		all := d.plan(nil, "a", 50)
		time.Sleep(20 * time.Second)
		all = d.plan(all, "b", 100)
		for range 100 { // passes
			time.Sleep(50 * time.Millisecond)
			d.plan(all, "", 0)
		}
		if _, n := d.count("b"); n < 60 {
			t.Errorf("%d of 100 Services of the other namespace have their address after five seconds", n)
		}
	})
}

// TestStatusesUnavailableForOneNamespace: the same of statuses.
func TestStatusesUnavailableForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
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

// TestAssignmentsHangForOneNamespace: a namespace whose webhook does not answer, for more Services than may be written at once, keeps no other waiting.
func TestAssignmentsHangForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, hangs)
		all := d.plan(nil, "a", 8)
		time.Sleep(25 * time.Second)
		for i := range 2 {
			all = d.plan(all, "b", i+1)
			time.Sleep(2 * time.Second)
			if _, n := d.count("b"); n != i+1 {
				t.Errorf("%d of %d Services of the other namespace have their address after two seconds", n, i+1)
			}
		}
	})
}

// TestStatusesHangForOneNamespace: the same of statuses.
func TestStatusesHangForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
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

// TestStatusesAfterALongOutage: once the API server takes one of those again that it did not take, the others of the namespace are written six at a time.
func TestStatusesAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
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

// TestAssignmentsAfterALongOutage: the same of addresses.
func TestAssignmentsAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, func(vip.Key) error { return apierrors.NewServiceUnavailable("away") })
		const n = 300
		d.plan(nil, "a", n)
		time.Sleep(10 * time.Minute)
		d.mu.Lock()
		d.answer = func(vip.Key) error { return nil }
		d.mu.Unlock()
		for done := 0; done == 0; _, done = d.count("a") {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(n / 4 * time.Millisecond)
		synctest.Wait()
		if _, got := d.count("a"); got != n {
			t.Errorf("%d of %d Services have their address %v after the first", got, n, n/4*time.Millisecond)
		}
	})
}

// oneAtATime is a webhook of namespace a that answers after 50 ms what comes alone; for what comes together the API server gives up after 10 s.
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

// TestAssignmentsOneAtATimeInOneNamespace: a namespace with 100 Services whose webhook answers only what comes alone keeps no other waiting, and is written, too.
func TestAssignmentsOneAtATimeInOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, oneAtATime())
		inA := d.plan(nil, "a", 100)
		time.Sleep(15 * time.Second)
		for i := range 40 {
			d.plan(inA, "b", i+1)
			time.Sleep(2 * time.Second)
			if _, n := d.count("b"); n != i+1 {
				t.Errorf("%d of %d Services of the other namespace have their address after two seconds", n, i+1)
			}
			time.Sleep(5 * time.Second)
		}
		if _, n := d.count("a"); n != 100 {
			t.Errorf("%d of 100 Services of the namespace have their address after 300 s", n)
		}
	})
}

// TestStatusesOneAtATimeInOneNamespace: the same of statuses.
func TestStatusesOneAtATimeInOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
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
