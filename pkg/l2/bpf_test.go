package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// arpBytes is an ARP frame, byte by byte.
func arpBytes(op uint16, sender, target netip.Addr) []byte {
	f := append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, op)
	f = append(append(f, otherMAC...), sender.AsSlice()...)
	f = append(append(f, make([]byte, 6)...), target.AsSlice()...)
	return append(f, make([]byte, 18)...)
}

// passes runs a filter as the kernel would.
func passes(t *testing.T, filter []bpf.Instruction, frame []byte) bool {
	t.Helper()
	vm, err := bpf.NewVM(filter)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(frame)
	if err != nil {
		t.Fatal(err)
	}
	return n >= len(frame)
}

func TestARPFilter(t *testing.T) {
	a := netip.MustParseAddr
	const request, reply = 1, 2
	ours := []netip.Addr{a("10.0.0.9"), a("10.0.0.32"), a("10.0.0.63"), a("2001:db8::9"), a("::ffff:10.0.1.0"), a("255.255.255.255")}
	for _, tt := range []struct {
		what   string
		frame  []byte
		passes bool
	}{
		{"a request of another host", arpBytes(request, a("10.0.0.1"), a("10.0.0.7")), false},
		{"a request for ours", arpBytes(request, a("10.0.0.1"), a("10.0.0.9")), false}, // the kernel replies
		{"a request from ours", arpBytes(request, a("10.0.0.9"), a("10.0.0.1")), true},
		{"an announcement", arpBytes(request, a("10.0.0.8"), a("10.0.0.8")), false},
		{"an announcement of ours", arpBytes(request, a("10.0.0.9"), a("10.0.0.9")), true},
		{"the first of a block", arpBytes(request, a("10.0.0.32"), a("10.0.0.1")), true},
		{"the last of a block", arpBytes(request, a("10.0.0.63"), a("10.0.0.1")), true},
		{"before it", arpBytes(request, a("10.0.0.31"), a("10.0.0.1")), false},
		{"after it", arpBytes(request, a("10.0.0.64"), a("10.0.0.1")), false},
		{"between them", arpBytes(request, a("10.0.0.33"), a("10.0.0.1")), false},
		{"an IPv4 address in IPv6 form", arpBytes(request, a("10.0.1.0"), a("10.0.0.1")), true},
		{"the last of all", arpBytes(request, a("255.255.255.255"), a("10.0.0.1")), true},
		{"a reply", arpBytes(reply, a("10.0.0.7"), a("10.0.0.1")), true},
		{"a probe", arpBytes(request, a("0.0.0.0"), a("10.0.0.7")), true},
		{"another operation", arpBytes(3, a("10.0.0.7"), a("10.0.0.7")), true},
		{"too short", arpBytes(request, a("10.0.0.9"), a("10.0.0.9"))[:30], false},
	} {
		if got := passes(t, arpFilter(ours), tt.frame); got != tt.passes {
			t.Errorf("%s: passes: %v", tt.what, got)
		}
		if !passes(t, acceptAll, tt.frame) {
			t.Errorf("%s does not pass where everything should", tt.what)
		}
	}
	if passes(t, arpFilter(nil), arpBytes(request, a("10.0.0.9"), a("10.0.0.9"))) || !passes(t, arpFilter(nil), arpBytes(reply, a("10.0.0.9"), a("10.0.0.9"))) {
		t.Error("without senders, replies and no requests should pass")
	}
}

// However many addresses there are, those in the filter pass and no others; and the
// kernel takes it.
func TestARPFilterOfManyAddresses(t *testing.T) {
	connectNeighbour(t)
	conn := check.Value(sockets{}.openReceiver(kernelLink(t, "eth0"), vip.IPv4))(t)
	defer conn.Close()
	for _, c := range []struct{ addresses, apart int }{{1, 1}, {334, 3}, {1000, 1}, {4000, 1}, {maxBlocks, 32}, {maxBlocks + 1, 32}, {5000, 77}} {
		t.Run(fmt.Sprintf("%d, each %d", c.addresses, c.apart), func(t *testing.T) {
			var list []netip.Addr
			for i := range c.addresses {
				list = append(list, netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i*c.apart)))))
			}
			rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			filter := arpFilter(list)
			tooMany := c.addresses*c.apart/32 > maxBlocks
			for range 2000 {
				addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24-40+rand.Uint32N(uint32(c.addresses*c.apart+80)))))
				if got, want := passes(t, filter, arpBytes(1, addr, list[0])), tooMany || slices.Contains(list, addr); got != want {
					t.Fatalf("%s passes: %v", addr, got)
				}
			}
			// An old kernel may not have the memory for the largest (net.core.optmem_max).
			if err := conn.setFilter(true, list); err != nil && !errors.Is(err, unix.ENOMEM) {
				t.Error(err)
			}
		})
	}
}

// Messages that don't concern this node are filtered out once nothing is new; those that do are
// heard, and while no other host is heard on the link everything is let pass.
func TestFiltersDropWhatConcernsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN("eth0")
		r := newFixture(t, l)
		defer r.run(t)()
		receiver := func() *fakeReceiver {
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			return slices.Collect(maps.Keys(l.receivers))[0]
		}
		// others announces an address of another host for a while, and returns how often this node was
		// woken up by it.
		others := func(during time.Duration) int64 {
			e := receiver()
			before := e.waits.Load()
			for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				l.announce("eth0", "10.0.0.77", 7)
			}
			return e.waits.Load() - before
		}
		reply := func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.deliver("eth0", messageReply.by("10.0.0.78", 8))
		}
		// settle lets time pass in which the link is seen to work.
		settle := func(d time.Duration) {
			reply()
			time.Sleep(d)
			reply()
			time.Sleep(time.Second)
		}
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		if n := others(2 * time.Second); n < 19 {
			t.Errorf("just after a VIP was new others were heard %d times in 2 s, want all 20", n)
		}
		others(time.Second)
		if n := others(2 * time.Second); n > 0 {
			t.Errorf("others were heard %d times in 2 s, want none", n)
		}
		r.poked()
		l.announce("eth0", "10.0.0.9", 6)
		if r.poked() != 1 {
			t.Error("another host's claim was not heard")
		}
		// For a while after a message was heard the link is known to work.
		if n := others(10 * time.Second); n < 2 || n > 50 {
			t.Errorf("others were heard %d times in 10 s, want a few messages at times", n)
		}
		reply()
		others(time.Second)
		for range 10 {
			reply()
			if n := others(time.Second); n > 2 {
				t.Errorf("while replies were heard others were heard %d times in 1 s", n)
			}
		}
		if r.heard.since("eth0", time.Now()) > linkSilentAfter {
			t.Error("the link seems to be dead")
		}

		// Something new: heard at once, and everything else again for a while.
		r.set(t, "eth0 10.0.0.77 listen\neth0 10.0.0.9", "", announce("eth0", "10.0.0.9"), listenOnly("eth0", "10.0.0.77"))
		r.poked()
		l.announce("eth0", "10.0.0.77", 7)
		if r.poked() != 1 {
			t.Error("what is listened for was not heard")
		}
		settle(3 * time.Second)
		if !receiver().narrow {
			t.Fatal("everything is still heard")
		}
		if d := diff([]netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.77")}, slices.SortedFunc(slices.Values(receiver().senders), netip.Addr.Compare)); d != "" {
			t.Errorf("what is heard (-want +got):\n%s", d)
		}
		// Not wanted any more: it may be wanted again in a moment.
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		if receiver().narrow {
			t.Error("what was wanted a moment ago is not heard")
		}
		settle(2100 * time.Millisecond)

		// A probe for an address.
		if !receiver().narrow {
			t.Fatal("everything is still heard")
		}
		r.AddressChecks().Put([]vip.AddressCheck{probeCheck("eth0", "10.0.0.55")})
		if receiver().narrow {
			t.Error("who has the address that is probed for is not heard")
		}
		settle(2 * time.Second)
		if !slices.Contains(receiver().senders, netip.MustParseAddr("10.0.0.55")) {
			t.Errorf("messages about that address are dropped; let pass: %v", receiver().senders)
		}
		r.AddressChecks().Put(nil)
		synctest.Wait()
		r.lock.Lock()
		defer r.lock.Unlock()
		if len(r.unfiltered) > 0 {
			t.Errorf("still let pass: %v", r.unfiltered)
		}
	})
}

// A kernel that takes no filter is asked once, and everything is heard.
func TestKernelRefusesFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN("eth0")
		r := newFixture(t, l)
		defer r.run(t)()
		l.setFault("setFilter eth0", unix.ENOMEM)
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		for range 100 {
			l.announce("eth0", "10.0.0.77", 7)
			time.Sleep(100 * time.Millisecond)
		}
		r.poked()
		l.announce("eth0", "10.0.0.9", 6)
		if r.poked() != 1 {
			t.Error("another host's claim was not heard")
		}
		if log := r.log.String(); strings.Count(log, "does not leave out") != 1 {
			t.Errorf("want one line:\n%s", log)
		}
	})
}

// On a real link others' chatter does not reach the process, and does again if it is to.
func TestKernelFilter(t *testing.T) {
	n := connectNeighbour(t)
	e := check.Value(sockets{}.openReceiver(kernelLink(t, "eth0"), vip.IPv4))(t)
	defer e.Close()
	tap := n.tap(t, "peer0", 0)
	tell := func(sender string) {
		t.Helper()
		frame := arpBytes(1, netip.MustParseAddr(sender), netip.MustParseAddr("10.0.0.1"))
		copy(frame, "\xff\xff\xff\xff\xff\xff")
		_, err := tap.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
		check.OK(t, err)
	}
	next := func() string {
		t.Helper()
		m, _, err := e.receive()
		check.OK(t, err)
		return m.addr.String()
	}
	check.OK(t, e.setFilter(true, []netip.Addr{netip.MustParseAddr("10.0.0.9")}))
	for range 100 {
		tell("10.0.0.77")
	}
	tell("10.0.0.9")
	if got := next(); got != "10.0.0.9" {
		t.Errorf("heard %s first", got)
	}
	check.OK(t, e.setFilter(false, nil))
	tell("10.0.0.77")
	if got := next(); got != "10.0.0.77" {
		t.Errorf("heard %s, want everything again", got)
	}
}
