package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
)

// A process that dies leaves no address after 6 s, and one that starts within
// 4.2 s finds all: at whatever moment it dies, and whenever the addresses were bound.
func TestProcessDies(t *testing.T) {
	for _, count := range []int{1, 2, 3, 7, 33} {
		for death := time.Second; death < 2500*time.Millisecond; death += 47 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				k := newFake("link 2 eth0 up")
				r := newRig(t, k)
				stop := r.run(t)
				began := time.Now()
				var want []vip.Address
				for i, a := range many(count, "eth0") {
					want = append(want, a)
					check.Value(r.Set(t.Context(), want))(t)
					time.Sleep(time.Duration(i%4) * 7 * time.Millisecond)
				}
				time.Sleep(death - time.Since(began))
				stop()
				time.Sleep(4200 * time.Millisecond)
				check.Equal(t, strings.Count(k.String(), "marked"), count, "%d addresses, death at %v: left after 4.2 s", count, death)
				time.Sleep(1800 * time.Millisecond)
				check.Equal(t, strings.Count(k.String(), "marked"), 0, "%d addresses, death at %v: left after 6 s", count, death)
			})
		}
	}
}

func TestRenewalIsSilent(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		k.lag = time.Millisecond
		want := many(20, "eth0")
		check.Value(r.Set(t.Context(), want))(t)
		r.log.Take()
		before := check.Metric(t, "", r.metrics.renewals)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		each := float64(10 * time.Second / period)
		check.Between(t, check.Metric(t, "", r.metrics.renewals)-before, 20*(each-1), 20*(each+1), "renewals of 20 addresses in 10 s")
		check.Equal(t, r.log.Take(), "", "log of renewals")
		check.Equal(t, r.pokes.Load(), 0, "pokes by renewals")
		check.Equal(t, len(check.Value(r.Set(t.Context(), want))(t)), 20, "addresses")
	})
}

func TestUnconfirmedLetsTheKernelDecide(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		want := []vip.Address{addr("10.0.0.1/32", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		r.with(func(t *vip.Tenure) { t.Confirmed = false })
		time.Sleep(time.Second)
		check.Equal(t, k.String() != "", true, "an unconfirmed process keeps an address that may still be its own")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		check.Equal(t, k.String(), "", "an unconfirmed process renewed")
		check.Equal(t, r.pokes.Load() > 0, true, "poked for an address that the kernel dropped")
		check.Equal(t, len(worldOf(r.Interfaces).Bound), 0, "Bound")
		// Certain again: what it comes back to is for the next plan to say.
		r.with(func(t *vip.Tenure) { *t = always() })
		time.Sleep(time.Second)
		check.Equal(t, k.String(), "", "bound without being asked")
		check.Equal(t, len(check.Value(r.Set(t.Context(), want))(t)), 1, "addresses")
	})
}

func TestShortPauseIsHarmless(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth0")}))(t)
		for range 5 {
			r.with(func(t *vip.Tenure) { t.Confirmed = false })
			time.Sleep(2 * time.Second)
			r.with(func(t *vip.Tenure) { t.Confirmed = true })
			time.Sleep(time.Second)
		}
		if got := k.String(); got == "" || r.pokes.Load() > 0 {
			t.Errorf("kernel %q after %d pokes, want the address and none", got, r.pokes.Load())
		}
	})
}

func TestTenureEnds(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		began := time.Now()
		until := began.Add(7300 * time.Millisecond)
		r.with(func(t *vip.Tenure) { t.Until = until })
		short, long := addr("10.0.0.1/32", "eth0"), addr("2001:db8::1/128", "eth0")
		short.Until = began.Add(4700 * time.Millisecond)
		long.Until = began.Add(time.Hour)
		check.Value(r.Set(t.Context(), []vip.Address{short, long}))(t)
		ends := map[string]time.Duration{}
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			for _, a := range []vip.Address{short, long} {
				if strings.Contains(k.String(), a.Prefix().String()) {
					ends[a.Addr.String()] = time.Since(began)
				}
			}
		}
		for _, c := range []struct {
			a  vip.Address
			at time.Duration
		}{{short, 4700 * time.Millisecond}, {long, 7300 * time.Millisecond}} {
			check.Between(t, ends[c.a.Addr.String()], c.at-1100*time.Millisecond, c.at, "%s was there for", c.a.Addr)
		}
		check.Equal(t, r.pokes.Load() > 0, true, "poked when the right had ended")
		if got, want := strings.Count(k.trace(), "\n")+1, strings.Count(k.trace(), "for 5s")+strings.Count(k.trace(), "for 4s")+strings.Count(k.trace(), "for 3s")+strings.Count(k.trace(), "for 2s")+strings.Count(k.trace(), "for 1s"); got != want {
			t.Errorf("bound for other times than 1 to 5 s:\n%s", k.trace())
		}
	})
}

func TestAnotherEpochHasOtherClaims(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		want := []vip.Address{addr("10.0.0.1/32", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		r.with(func(t *vip.Tenure) { t.Epoch++ })
		time.Sleep(6100 * time.Millisecond)
		check.Equal(t, k.String(), "", "renewed what an earlier epoch had claimed")
		have, _ := r.Set(t.Context(), want) // by a plan from before, as after a kernel call that has hung
		if len(have) != 0 || k.String() != "" {
			t.Errorf("bound what an earlier epoch had claimed: %v", have)
		}
		want[0].Epoch = 1
		have = check.Value(r.Set(t.Context(), want))(t)
		check.Equal(t, len(have), 1, "addresses bound in the new epoch")
		time.Sleep(10 * time.Second)
		check.Equal(t, k.String() != "", true, "renewed in the new epoch")
	})
}

func TestDeletedByAnother(t *testing.T) {
	for _, a := range []vip.Address{addr("10.0.0.1/32", "eth0"), addr("2001:db8::1/128", "eth0")} {
		onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
			check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			k.drop(addressKey{2, a.Prefix()})
			synctest.Wait()
			check.Equal(t, r.pokes.Load(), 1, "pokes")
			check.Equal(t, len(worldOf(r.Interfaces).Bound), 0, "Bound")
			have, err := r.Set(t.Context(), []vip.Address{a})
			if err != nil || len(have) != 1 || k.String() == "" {
				t.Errorf("have %v, kernel %v, error %v", have, k, err)
			}
			fights := func(when string, want bool) {
				t.Helper()
				w := vip.World{Now: time.Now()}
				r.Observe(&w)
				check.Equal(t, w.AddressFights[a.Addr], want, "%s: told as contested", when)
			}
			fights("once", false)
			for range fightTimes - 1 {
				time.Sleep(10 * time.Second)
				k.drop(addressKey{2, a.Prefix()})
				synctest.Wait()
				check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			}
			fights("again and again", true)
			time.Sleep(vip.FightWindow)
			fights("no more", false)
			check.Value(r.Set(t.Context(), nil))(t)
			synctest.Wait()
			fights("removed by Herald", false)
		})
	}
}

func TestReplacedByAnother(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth0")}))(t)
		k.add("eth0", "10.0.0.1/32")
		time.Sleep(time.Second)
		synctest.Wait()
		check.Equal(t, k.String(), "eth0 10.0.0.1/32 marked 5s", "got")
	})
}

func TestRenewalFails(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		want := []vip.Address{addr("10.0.0.1/32", "eth0"), addr("10.0.0.2/32", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		r.log.Take()
		k.set(func(op string, p addressKey) error {
			if op == "bind" && p.prefix.Addr().String() == "10.0.0.1" {
				return unix.EPERM
			}
			return nil
		})
		time.Sleep(7 * time.Second)
		synctest.Wait()
		check.Equal(t, k.String(), "eth0 10.0.0.2/32 marked 5s", "kernel")
		check.Equal(t, strings.Count(r.log.Take(), "level=WARN"), 1, "warnings")
		check.Equal(t, r.pokes.Load(), 1, "pokes")
	})
}

func TestLinkGoes(t *testing.T) {
	onFake(t, "link 2 eth0 up\n link 3 eth1 up", func(t *testing.T, k *fakeKernel, r *rig) {
		want := []vip.Address{addr("10.0.0.1/32", "eth1"), addr("2001:db8::1/128", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		r.log.Take()
		k.removeLink("eth1")
		synctest.Wait()
		check.Equal(t, r.pokes.Load() > 0, true, "poked")
		have, err := r.Set(t.Context(), want)
		check.Equal(t, text(have), "eth0 2001:db8::1/128", "have")
		check.Equal(t, fmt.Sprint(err), `address 10.0.0.1/32: this node has no interface "eth1"; it has eth0`, "got")
		// It comes back as another.
		k.setLink(link{index: 9, name: "eth1", up: true})
		synctest.Wait()
		check.Equal(t, len(check.Value(r.Set(t.Context(), want))(t)), 2, "addresses")
		time.Sleep(10 * time.Second)
		check.Lacks(t, r.log.Take(), "WARN")
	})
}

func TestOverrun(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		want := []vip.Address{addr("10.0.0.1/32", "eth0"), addr("10.0.0.2/32", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		k.overrun()
		synctest.Wait()
		check.Equal(t, r.pokes.Load(), 0, "pokes although nothing had changed")
		k.mu.Lock() // no change is sent
		delete(k.addrs, k.at("eth0", "10.0.0.1/32"))
		k.mu.Unlock()
		k.overrun()
		time.Sleep(readInterval) // after the last one
		synctest.Wait()
		check.Equal(t, r.pokes.Load(), 1, "pokes")
		check.Equal(t, text(worldOf(r.Interfaces).Bound), "eth0 10.0.0.2/32", "Bound")
	})
}

// However often default routes come and go, or changes are lost, the kernel is asked four times a second, and no renewal waits for the
// answer about routes, of which there may be a million. What it has at last is known a quarter of a second later.
func TestKernelIsReadFourTimesASecond(t *testing.T) {
	onFake(t, "link 2 eth0 up\n default 4 eth0 100 10.0.0.1", func(t *testing.T, k *fakeKernel, r *rig) {
		reads, held := map[string]int{}, false
		k.set(func(op string, _ addressKey) error {
			reads[op]++
			if op == "routes" {
				if held = held || !r.Interfaces.mu.TryLock(); !held {
					r.Interfaces.mu.Unlock()
				}
			}
			return nil
		})
		last := route{family: vip.IPv4, link: 2, via: netip.MustParseAddr("10.0.0.2")}
		for range 50 {
			k.setDefaults()
			k.setDefaults(last)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		check.Equal(t, r.Gateway("eth0"), last.via, "the gateway")
		for range 50 {
			k.overrun()
			time.Sleep(20 * time.Millisecond)
		}
		k.mu.Lock() // no change is sent
		k.defaults = nil
		k.mu.Unlock()
		k.overrun()
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		check.Equal(t, r.Gateway("eth0"), netip.Addr{}, "the gateway, though there is no route")
		k.set(nil)
		if reads["routes"] > 6 || reads["read"] > 6 || held {
			t.Errorf("in a second and a quarter each, routes were read %d times, and everything %d times; with the lock: %v", reads["routes"], reads["read"], held)
		}
	})
}

func TestSubscriptionFails(t *testing.T) {
	for _, op := range []string{"subscribe", "read", "routes"} {
		synctest.Test(t, func(t *testing.T) {
			k := newFake("link 2 eth0 up\n eth0 10.0.0.5/24")
			r := newRig(t, k)
			broken := true
			k.fault = func(o string, _ addressKey) error {
				if broken && o == op {
					return errors.New("not now")
				}
				return nil
			}
			defer r.run(t)()
			if op == "routes" {
				k.setDefaults()
			}
			time.Sleep(5500 * time.Millisecond)
			synctest.Wait()
			check.Equal(t, strings.Count(r.log.Take(), "level=WARN"), 1, "%s: warnings in 5 s", op)
			k.mu.Lock()
			broken = false
			k.mu.Unlock()
			time.Sleep(time.Second)
			k.add("eth0", "10.0.0.77/32")
			synctest.Wait()
			check.Equal(t, text(worldOf(r.Interfaces).Unmanaged), "eth0 10.0.0.77/32", "%s: Unmanaged after it went again", op)
			check.Equal(t, r.pokes.Load() > 0, true, "%s: poked", op)
		})
	}
}

// An old kernel keeps no mark, so that only this process knows what is its own.
func TestOldKernel(t *testing.T) {
	onFake(t, "link 2 eth0 up", func(t *testing.T, k *fakeKernel, r *rig) {
		k.old, k.lag = true, time.Millisecond
		want := []vip.Address{addr("10.0.0.1/32", "eth0"), addr("2001:db8::1/128", "eth0")}
		check.Value(r.Set(t.Context(), want))(t)
		r.log.Take()
		before := k.reads
		time.Sleep(10 * time.Second)
		r.isBound(t, "after renewals", want)
		check.Equal(t, k.reads-before, 0, "reads for the sake of renewals")
		k.overrun()
		time.Sleep(time.Second)
		r.isBound(t, "after missed changes", want)
		if got := r.log.Take(); strings.Contains(got, "INFO") || r.pokes.Load() > 0 {
			t.Errorf("%d pokes, logged %s", r.pokes.Load(), got)
		}
		check.Value(r.Set(t.Context(), nil))(t)
		check.Equal(t, k.String(), "", "left")
	})
}

// isBound compares the World's Bound.
func (r *rig) isBound(t *testing.T, what string, want []vip.Address) {
	t.Helper()
	synctest.Wait()
	check.Same(t, text(want), text(worldOf(r.Interfaces).Bound), "%s: Bound", what)
}

// Changes that are received late, one by one.
func TestChangesReceivedLate(t *testing.T) {
	a := addr("2001:db8::1/128", "eth0")
	at := addressKey{2, a.Prefix()}
	unmarked := change{address: &kernelAddress{addressKey: at, global: true}}
	marked := change{address: &kernelAddress{addressKey: at, global: true, marked: true}}
	removed := change{address: &kernelAddress{addressKey: at, global: true, marked: true}, gone: true}
	for _, tt := range []struct {
		name     string
		want     []vip.Address
		received []change
		reads    int
		pokes    bool
	}{
		{"bound, received as done", []vip.Address{a}, []change{marked}, 0, false},
		{"bound, an earlier removal", []vip.Address{a}, []change{removed}, 1, false},
		{"bound, an earlier unmarked one", []vip.Address{a}, []change{unmarked}, 1, false},
		{"removed, received as done", nil, []change{removed}, 0, false},
		{"removed, an earlier binding", nil, []change{marked}, 1, false},
		{"removed, an earlier unmarked one, then an earlier binding", nil, []change{unmarked, marked}, 1, true}, // for a moment it is unmanaged
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newFake("link 2 eth0 up")
			r := newRig(t, k)
			for _, want := range [][]vip.Address{{a}, tt.want} {
				check.Value(r.Set(t.Context(), want))(t)
			}
			before := k.reads
			pokes := check.Value(r.applyChanges(tt.received))(t)
			check.Equal(t, pokes, tt.pokes, "%s: pokes", tt.name)
			check.Equal(t, k.reads-before, tt.reads, "%s: reads", tt.name)
			r.isBound(t, tt.name, tt.want)
			check.Equal(t, len(check.Value(r.Set(t.Context(), tt.want))(t)), len(tt.want), "what Set has")
		})
	}
}
