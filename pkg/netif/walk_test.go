package netif

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pool is the addresses of a walk: of both families, on two links, some with a wider prefix.
func pool() []vip.Address {
	var all []vip.Address
	for i := range 6 {
		for _, l := range []string{"eth0", "eth1"} {
			all = append(all, addr(fmt.Sprintf("10.1.0.%d/32", i), l), addr(fmt.Sprintf("2001:db8::%x/128", i+1), l))
			if i < 2 {
				all = append(all, addr(fmt.Sprintf("10.1.0.%d/24", i), l), addr(fmt.Sprintf("2001:db8::%x/64", i+1), l))
			}
		}
	}
	return all
}

// some is a random part of the pool, with one prefix length per address and link.
func some(rng *rand.Rand, all []vip.Address) []vip.Address {
	var want []vip.Address
	share := rng.Float64()
	for _, i := range rng.Perm(len(all)) {
		a := all[i]
		if rng.Float64() < share && !slices.ContainsFunc(want, func(b vip.Address) bool { return a.Addr == b.Addr && a.Link == b.Link }) {
			want = append(want, a)
		}
	}
	return want
}

// A walk between wanted states, over failures, other programs and time. After each step that may succeed, the kernel has with Herald's mark
// what is wanted, Set says so, and nobody else's addresses were touched.
func TestRandomSteps(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func walk(t *testing.T, rng *rand.Rand) {
	const foreign = "eth0 10.0.0.5/24 forever\neth1 10.9.9.9/32 forever\neth1 2001:db8::99/128 forever"
	k := newFake("link 2 eth0 up\n link 3 eth1 up\n eth0 10.0.0.5/24\n eth1 10.9.9.9/32\n eth1 2001:db8::99/128")
	k.lag = time.Duration(rng.IntN(4)) * time.Millisecond
	r := newRig(t, k)
	defer r.run(t)()
	all := pool()
	var want []vip.Address
	wait := readInterval + 50*time.Millisecond
	for step := range 200 {
		action, trouble, same := rng.IntN(5), rng.IntN(4) == 0, rng.IntN(3) == 0
		if action == 1 { // what another program replaces must be taken over, or it stays that program's
			trouble, same = false, true
		}
		k.set(nil)
		if trouble {
			rolls := rand.New(rand.NewPCG(rng.Uint64(), 2)) // asked by several goroutines, one at a time
			k.set(func(op string, _ addressKey) error {
				if rolls.IntN(3) == 0 {
					return unix.EBUSY
				}
				return nil
			})
		}
		switch action {
		case 0: // another program takes something away
			if len(want) > 0 {
				a := want[rng.IntN(len(want))]
				k.drop(k.at(a.Link, a.Prefix().String()))
			}
		case 1: // or replaces it
			if len(want) > 0 {
				a := want[rng.IntN(len(want))]
				if a.Prefix().IsSingleIP() {
					k.add(a.Link, a.Prefix().String())
				}
			}
		case 2:
			k.overrun()
		}
		if !same {
			want = some(rng, all)
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		if rng.IntN(10) == 0 {
			time.Sleep(5 * time.Second)
		}
		_, _ = r.Set(t.Context(), want)
		if trouble {
			wait = 1100 * time.Millisecond
			continue
		}
		// The room may not have heard yet what others did, also since it has lost changes, and after
		// trouble it listens again only after a second.
		time.Sleep(wait)
		wait = readInterval + 50*time.Millisecond
		synctest.Wait()
		have := check.Value(r.Set(t.Context(), want))(t)
		check.Same(t, text(want), text(have), "step %d: have", step)
		var marked, others []string
		for line := range strings.Lines(k.String()) {
			if line = strings.TrimSpace(line); strings.Contains(line, " marked ") {
				marked = append(marked, line[:strings.Index(line, " marked ")])
			} else {
				others = append(others, line)
			}
		}
		check.Same(t, text(want), strings.Join(marked, "\n"), "step %d: kernel", step)
		check.Same(t, foreign, strings.Join(others, "\n"), "step %d: addresses of others", step)
		if t.Failed() {
			t.Fatalf("%s\n%s", k, r.log)
		}
	}
}

// renewed is an address with Herald's mark, which is 0 to 1 s old.
var renewed = regexp.MustCompile(` deprecated .*proto=v valid=[45] preferred=0$`)

// The same on the real kernel, without the failures.
func TestKernelRandomSteps(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.5/24")
	newVeth(t, "eth1", "10.9.9.9/32", "2001:db8::99/128")
	r, _ := kernelRig(t)
	rng := rand.New(rand.NewPCG(7, 7))
	all := pool()
	for step := range 150 {
		want := some(rng, all)
		if rng.IntN(4) == 0 && len(want) > 0 {
			// Another program was first.
			if a := want[0]; a.Prefix().IsSingleIP() && !strings.Contains(addresses(t, a.Link), a.Addr.String()+"/") {
				l := check.Value(netlink.LinkByName(a.Link))(t)
				parsed := check.Value(netlink.ParseAddr(a.Prefix().String()))(t)
				parsed.Flags = unix.IFA_F_NODAD
				check.OK(t, netlink.AddrReplace(l, parsed))
				r.await(t, "the change", func() bool { return r.hasUnmarked(a) })
			}
		}
		have := check.Value(r.Set(t.Context(), want))(t)
		check.Same(t, text(want), text(have), "step %d: have", step)
		var marked, others []string
		for line := range strings.Lines(addresses(t, "eth0", "eth1")) {
			words := strings.Fields(line)
			if renewed.MatchString(strings.TrimSpace(line)) {
				marked = append(marked, words[0]+" "+words[1])
			} else {
				others = append(others, words[0]+" "+words[1])
			}
		}
		check.Same(t, text(want), strings.Join(marked, "\n"), "step %d: kernel", step)
		check.Same(t, "eth0 10.0.0.5/24\neth1 10.9.9.9/32\neth1 2001:db8::99/128", strings.Join(others, "\n"), "step %d: addresses of others", step)
		if t.Failed() {
			return
		}
	}
}
