package netif

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
)

// A rig is Interfaces over a fake kernel.
type rig struct {
	*Interfaces
	k     *fakeKernel
	log   *check.Buffer
	pokes atomic.Int32

	mu     sync.Mutex
	tenure vip.Tenure
}

// with changes the tenure.
func (r *rig) with(change func(*vip.Tenure)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.tenure)
}

func newRig(t *testing.T, k *fakeKernel, change ...func(*Options)) *rig {
	t.Helper()
	logger, logged := log()
	r := &rig{k: k, log: logged, tenure: always()}
	o := Options{Log: logger, Poke: func() { r.pokes.Add(1) }, Interface: "eth0"}
	o.Tenure = func() vip.Tenure {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.tenure
	}
	for _, c := range change {
		c(&o)
	}
	n := check.Value(newInterfaces(o, k))(t)
	r.Interfaces = n
	return r
}

// run runs the task until the test ends.
func (r *rig) run(t *testing.T) (stop func()) {
	stop = check.Run(t, r)
	synctest.Wait()
	return stop
}

func TestSet(t *testing.T) {
	const node = `
		link 1 lo loopback
		link 2 eth0 up
		link 3 eth1 up
		eth0 10.0.0.5/24
	`
	moved := addr("2001:db8::9/128", "eth0")
	tests := []struct {
		name   string
		before string // beside node
		want   []vip.Address
		after  string // beside node's own
		have   string
		err    string
		log    string
	}{
		{name: "nothing"},
		{
			name: "new addresses of both families",
			want: []vip.Address{addr("10.0.0.9/32", "eth0"), moved},
			after: `eth0 10.0.0.9/32 marked 5s
				eth0 2001:db8::9/128 marked 5s`,
			have: `eth0 10.0.0.9/32
				eth0 2001:db8::9/128`,
			log: `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0
				level=INFO msg="bound an address" address=2001:db8::9/128 link=eth0`,
		},
		{
			name:  "two Services on one address are one address",
			want:  []vip.Address{addr("10.0.0.9/32", "eth0"), addr("10.0.0.9/32", "eth0")},
			after: "eth0 10.0.0.9/32 marked 5s",
			have:  "eth0 10.0.0.9/32",
			log:   `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0`,
		},
		{
			name:   "what an earlier process left is kept or swept",
			before: "eth0 10.0.0.8/32 marked\n eth0 10.0.0.9/32 marked\n eth1 2001:db8::7/128 marked",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0")},
			after:  "eth0 10.0.0.9/32 marked 5s",
			have:   "eth0 10.0.0.9/32",
			log: `level=INFO msg="kept an address that an earlier process had bound" address=10.0.0.9/32 link=eth0
				level=INFO msg="removed an address" address=10.0.0.8/32 link=eth0 why="no longer wanted"
				level=INFO msg="removed an address" address=2001:db8::7/128 link=eth1 why="no longer wanted"`,
		},
		{
			name:   "what isn't marked is not touched",
			before: "eth0 10.0.0.8/32\n lo 10.0.0.7/32\n eth1 2001:db8::7/128",
			after:  "eth0 10.0.0.8/32 forever\n eth1 2001:db8::7/128 forever\n lo 10.0.0.7/32 forever",
		},
		{
			name:   "what another program left is taken over",
			before: "eth0 10.0.0.9/32\n eth0 2001:db8::9/128",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0"), moved},
			after:  "eth0 10.0.0.9/32 marked 5s\n eth0 2001:db8::9/128 marked 5s",
			have:   "eth0 10.0.0.9/32\n eth0 2001:db8::9/128",
			log: `level=INFO msg="took over an address that another program had bound" address=10.0.0.9/32 link=eth0
				level=INFO msg="took over an address that another program had bound" address=2001:db8::9/128 link=eth0`,
		},
		{
			name:   "what the kernel does not answer for is removed and bound again",
			before: "eth0 2001:db8::8/128 tentative marked\n eth0 2001:db8::9/128 tentative",
			want:   []vip.Address{addr("2001:db8::8/128", "eth0"), moved},
			after:  "eth0 2001:db8::8/128 marked 5s\n eth0 2001:db8::9/128 marked 5s",
			have:   "eth0 2001:db8::8/128\n eth0 2001:db8::9/128",
			log: `level=INFO msg="removed an address that the kernel does not answer for, to bind it without duplicate address detection" address=2001:db8::8/128 link=eth0
				level=INFO msg="kept an address that an earlier process had bound" address=2001:db8::8/128 link=eth0
				level=INFO msg="removed an address that the kernel does not answer for, to bind it without duplicate address detection" address=2001:db8::9/128 link=eth0
				level=INFO msg="took over an address that another program had bound" address=2001:db8::9/128 link=eth0`,
		},
		{
			name:   "but not on another link",
			before: "eth1 10.0.0.9/32",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0")},
			after:  "eth0 10.0.0.9/32 marked 5s\n eth1 10.0.0.9/32 forever",
			have:   "eth0 10.0.0.9/32",
			log:    `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0`,
		},
		{
			name:   "to another link",
			before: "eth1 10.0.0.9/32 marked\n eth1 2001:db8::9/128 marked",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0"), moved},
			after:  "eth0 10.0.0.9/32 marked 5s\n eth0 2001:db8::9/128 marked 5s",
			have:   "eth0 10.0.0.9/32\n eth0 2001:db8::9/128",
			log: `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0
				level=INFO msg="bound an address" address=2001:db8::9/128 link=eth0
				level=INFO msg="removed an address" address=10.0.0.9/32 link=eth1 why="no longer wanted"
				level=INFO msg="removed an address" address=2001:db8::9/128 link=eth1 why="no longer wanted"`,
		},
		{
			name:   "another prefix length of Herald's",
			before: "eth0 10.0.0.9/24 marked\n eth0 2001:db8::9/64 marked",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0"), moved},
			after:  "eth0 10.0.0.9/32 marked 5s\n eth0 2001:db8::9/128 marked 5s",
			have:   "eth0 10.0.0.9/32\n eth0 2001:db8::9/128",
			log: `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0
				level=INFO msg="removed an address that is to have another prefix length" address=2001:db8::9/64 link=eth0
				level=INFO msg="bound an address" address=2001:db8::9/128 link=eth0
				level=INFO msg="removed an address" address=10.0.0.9/24 link=eth0 why="no longer wanted"`,
		},
		{
			name:   "another prefix length of another program's",
			before: "eth0 10.0.0.9/24 secondary\n eth0 10.0.0.8/32",
			want:   []vip.Address{addr("10.0.0.9/32", "eth0"), addr("10.0.0.8/24", "eth0")},
			after:  "eth0 10.0.0.8/24 marked 5s\n eth0 10.0.0.9/32 marked 5s",
			have:   "eth0 10.0.0.8/24\n eth0 10.0.0.9/32",
			log: `level=INFO msg="bound an address" address=10.0.0.9/32 link=eth0
				level=INFO msg="removed an address that is to have another prefix length" address=10.0.0.9/24 link=eth0
				level=INFO msg="bound an address" address=10.0.0.8/24 link=eth0
				level=INFO msg="removed an address that is to have another prefix length" address=10.0.0.8/32 link=eth0`,
		},
		{
			name:   "the node's own address is not a VIP",
			before: "eth1 2001:db8:1::5/64\n eth1 10.1.0.5/24",
			want:   []vip.Address{addr("10.0.0.5/24", "eth0"), addr("10.1.0.5/32", "eth1"), addr("2001:db8:1::5/128", "eth1"), moved},
			after:  "eth0 2001:db8::9/128 marked 5s\n eth1 10.1.0.5/24 forever\n eth1 2001:db8:1::5/64 forever",
			have:   "eth0 2001:db8::9/128",
			err: `address 10.0.0.5/24 on eth0: the interface has 10.0.0.5/24 already, which looks like the node's own address: remove it (ip address delete 10.0.0.5/24 dev eth0) or give the Service another address
				address 10.1.0.5/32 on eth1: the interface has 10.1.0.5/24 already, which looks like the node's own address: remove it (ip address delete 10.1.0.5/24 dev eth1) or give the Service another address
				address 2001:db8:1::5/128 on eth1: the interface has 2001:db8:1::5/64 already, which looks like the node's own address: remove it (ip address delete 2001:db8:1::5/64 dev eth1) or give the Service another address`,
			log: `level=INFO msg="bound an address" address=2001:db8::9/128 link=eth0`,
		},
		{
			name:  "no such link",
			want:  []vip.Address{addr("10.0.0.9/32", "eth7"), addr("10.0.0.8/32", "eth0")},
			after: "eth0 10.0.0.8/32 marked 5s",
			have:  "eth0 10.0.0.8/32",
			err:   `address 10.0.0.9/32: this node has no interface "eth7"; it has eth0, eth1, lo`,
			log:   `level=INFO msg="bound an address" address=10.0.0.8/32 link=eth0`,
		},
		{
			name:  "with two prefix lengths",
			want:  []vip.Address{moved, addr("2001:db8::9/64", "eth0"), addr("2001:db8::9/64", "eth1")},
			after: "eth0 2001:db8::9/128 marked 5s\n eth1 2001:db8::9/64 marked 5s",
			have:  "eth0 2001:db8::9/128\n eth1 2001:db8::9/64",
			err:   `address 2001:db8::9/64 on eth0: it is wanted with the prefix length 128, too, which goes first`,
			log: `level=INFO msg="bound an address" address=2001:db8::9/128 link=eth0
				level=INFO msg="bound an address" address=2001:db8::9/64 link=eth1`,
		},
		{
			name: "no address",
			want: []vip.Address{{Link: "eth0", Bits: 32}},
			err:  `invalid IP/32 is no address to bind`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newFake(node+tt.before))
				have, err := r.Set(t.Context(), tt.want)
				after := strings.Replace("\n"+r.k.String(), "\neth0 10.0.0.5/24 forever", "", 1)
				for _, c := range []struct{ what, got, want string }{
					{"kernel", after, tt.after},
					{"have", text(have), tt.have},
					{"error", fmt.Sprint(errors.Join(err)), tt.err},
					{"log", r.log.Take(), tt.log},
				} {
					if c.want == "" && c.got == "<nil>" {
						continue
					}
					check.Same(t, check.Lines(c.want), check.Lines(c.got), "%s", c.what)
				}
				// Once more, with the same want: nothing to do, nothing to say.
				bindings := len(r.k.bindings)
				again, _ := r.Set(t.Context(), tt.want)
				check.Same(t, have, again, "the second Set")
				check.Equal(t, len(r.k.bindings), bindings, "bindings after the second Set")
				check.Equal(t, r.log.Take(), "", "log of the second Set")
				check.Equal(t, r.pokes.Load(), 0, "pokes by Set")
				// And what Set says is what the World says.
				check.Same(t, have, worldOf(r.Interfaces).Bound, "Bound")
			})
		})
	}
}

func TestHaveIsAsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newFake("link 2 eth0 up\n eth0 10.0.0.8/32 marked"))
		check.Same(t, []vip.Address{{Addr: addr("10.0.0.8/32", "").Addr, Bits: 32, Link: "eth0"}}, worldOf(r.Interfaces).Bound, "Bound before the first Set")
		a := addr("10.0.0.9/32", "eth0")
		a.New, a.Until = true, time.Now().Add(time.Minute)
		have := check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
		check.Same(t, []vip.Address{a}, have, "got")
		a.New, a.Lease.Name = false, "another"
		have = check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
		check.Same(t, []vip.Address{a}, have, "got")
	})
}

// Another program adds a VIP, with duplicate address detection, just before this process binds it: the kernel keeps it tentative
// (inet6_addr_modify). The next Set removes it, and binds it again.
func TestSetOverTentative(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		k.lag = time.Millisecond
		want := []vip.Address{addr("2001:db8::9/128", "eth0")}
		k.addTentative("eth0", "2001:db8::9/128")
		check.Value(r.Set(t.Context(), want))(t)
		time.Sleep(10 * time.Millisecond) // until the change is received
		have := check.Value(r.Set(t.Context(), want))(t)
		check.Equal(t, text(have), "eth0 2001:db8::9/128", "have")
		check.Equal(t, r.k.String(), "eth0 2001:db8::9/128 marked 5s", "the kernel")
	})
}

func TestSetGoesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake("link 2 eth0 up\n eth0 10.0.0.7/32 marked\n eth0 10.0.0.8/32 marked")
		r := newRig(t, k)
		k.fault = func(op string, p addressKey) error {
			switch op + " " + p.prefix.String() {
			case "bind 10.0.0.1/32":
				return unix.EPERM
			case "bind 2001:db8::1/128":
				return unix.EACCES
			case "unbind 10.0.0.7/32":
				return unix.EBUSY
			}
			return nil
		}
		want := []vip.Address{addr("10.0.0.1/32", "eth0"), addr("10.0.0.2/32", "eth0"), addr("2001:db8::1/128", "eth0"), addr("2001:db8::2/128", "eth0")}
		for range 2 {
			have, err := r.Set(t.Context(), want)
			check.Same(t, check.Lines(`
				eth0 10.0.0.2/32
				eth0 10.0.0.7/32
				eth0 2001:db8::2/128`), text(have), "have (")
			check.Same(t, check.Lines(`
				address 10.0.0.1/32 on eth0: can't bind it: operation not permitted (the process needs the capability NET_ADMIN in the node's network namespace)
				address 2001:db8::1/128 on eth0: can't bind it: permission denied (IPv6 is switched off there: sysctl net.ipv6.conf.eth0.disable_ipv6)
				address 10.0.0.7/32 on eth0: can't remove it: device or resource busy`), err.Error(), "error (")
		}
		k.fault = nil
		have := check.Value(r.Set(t.Context(), want))(t)
		check.Same(t, check.Lines(`
			eth0 10.0.0.1/32
			eth0 10.0.0.2/32
			eth0 2001:db8::1/128
			eth0 2001:db8::2/128`), text(have), "have (")
	})
}

func TestSetAddsBeforeItRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake("link 2 eth0 up\n link 3 eth1 up")
		r := newRig(t, k)
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth0"), addr("2001:db8::1/128", "eth0")}))(t)
		var order []string
		k.fault = func(op string, p addressKey) error {
			order = append(order, op+" "+k.links[p.link].name)
			return nil
		}
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth1"), addr("2001:db8::1/128", "eth1")}))(t)
		check.Same(t, []string{"bind eth1", "bind eth1", "unbind eth0", "unbind eth0"}, order, "got")
	})
}

func TestSetWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newFake("link 2 eth0 up\n eth0 10.0.0.8/32 marked"))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		have, err := r.Set(ctx, []vip.Address{addr("10.0.0.9/32", "eth0")})
		check.Equal(t, fmt.Sprint(err), "not all addresses were looked at: enough", "got")
		if len(have) > 0 || r.k.String() != "" {
			t.Errorf("have %v, kernel %v: what isn't wanted must go all the same", have, r.k)
		}
	})
}

func TestSetWithoutCertainRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newFake("link 2 eth0 up"))
		want := []vip.Address{addr("10.0.0.1/32", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		want = append(want, addr("10.0.0.2/32", "eth0"))

		r.with(func(t *vip.Tenure) { t.Confirmed = false })
		have, err := r.Set(t.Context(), want)
		check.Equal(t, text(have), "eth0 10.0.0.1/32", "unconfirmed: what is there stays, nothing is added")
		check.Equal(t, fmt.Sprint(err), "address 10.0.0.2/32 on eth0: not bound, since this node's right to hold it is not certain", "unconfirmed: the error")

		r.with(func(t *vip.Tenure) { *t = always() })
		r.with(func(t *vip.Tenure) { t.Until = time.Now().Add(999 * time.Millisecond) })
		have, err = r.Set(t.Context(), want)
		if len(have) > 0 || r.k.String() != "" || err == nil {
			t.Errorf("at the end of the tenure: have %v, kernel %v, error %v", have, r.k, err)
		}
	})
}

func TestSetShortensALifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newFake("link 2 eth0 up"))
		a := addr("10.0.0.1/32", "eth0")
		check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
		a.Until = time.Now().Add(1900 * time.Millisecond)
		check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
		check.Equal(t, r.k.String(), "eth0 10.0.0.1/32 marked 1s", "got")
	})
}

// onFake runs a test in a bubble, with Interfaces that run over a fake kernel.
func onFake(t *testing.T, kernel string, test func(t *testing.T, k *fakeKernel, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := newFake(kernel)
		r := newRig(t, k)
		defer r.run(t)()
		test(t, k, r)
	})
}
