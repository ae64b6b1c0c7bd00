package dhcp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/vishvananda/netlink"
)

// long is a lease that does not end while a test runs.
var long = terms{lease: 3600, t1: 1800, t2: 3000}

// servers is every real server that a lease can come from.
var servers = []struct {
	name   string
	family vip.Family
	file   string
}{
	{"dnsmasq", vip.IPv4, "dnsmasq.leases"}, {"dnsmasq", vip.IPv6, "dnsmasq.leases"}, {"kea", vip.IPv4, "kea4.csv"}, {"kea", vip.IPv6, "kea6.csv"},
}

// A lease is found, moves to another node with its address, and is given back.
func TestLeaseMovesBetweenNodes(t *testing.T) {
	t.Parallel()
	for _, s := range servers {
		t.Run(s.name+"/"+s.family.String(), func(t *testing.T) {
			t.Parallel()
			l := lan(t)
			if s.name == "kea" {
				l.keaOf(s.family, long, 100, 110)
			} else {
				l.dnsmasq()
			}
			h := l.request(s.family)
			began := time.Now()
			first := newNode(t)
			first.put(h)
			got := first.await(30*time.Second, "a lease", leased)
			t.Logf("%s after %v, from %s, expires in %v", got.Lease.Addr, time.Since(began).Round(time.Millisecond), got.Lease.Server, time.Until(got.Lease.Expires).Round(time.Second))
			check.Equal(t, got.Problem, "", "problem")
			check.Equal(t, got.Lost, false, "lost")
			if a := got.Lease.Addr; a.Less(l.addr(s.family, 100)) || l.addr(s.family, 110).Less(a) {
				t.Errorf("%s is not in the pool", a)
			}
			check.True(t, 5*time.Second, "the lease file to name the host", func() bool { return strings.Contains(l.file(s.file), "host-"+h.Link) })

			// Another node goes on with it: what is recorded holds at once.
			first.stop()
			h.LastLease = got.Lease
			second := newNode(t)
			second.put(h)
			held := second.await(5*time.Second, "what is recorded", func(x vip.DHCPState) bool { return x.Lease.Addr == got.Lease.Addr })
			check.Equal(t, held.Lost, false, "it counts as lost")
			check.Equal(t, second.await(20*time.Second, "an answer", leased).Lease.Addr, got.Lease.Addr, "the address after a move")
			// A third, by whose clock it is over, asks first.
			second.stop()
			h.LastLease.Expires = time.Now().Add(-time.Minute)
			third := newNode(t)
			third.put(h)
			check.Equal(t, third.await(20*time.Second, "an answer", leased).Lease.Addr, got.Lease.Addr, "the address after another")
			// dnsmasq empties its file each time before it writes it.
			check.True(t, 5*time.Second, "the server to have one lease", func() bool { return leases(l.file(s.file), s.name) == 1 })
			h.Release = true
			third.put(h)
			check.True(t, 20*time.Second, "the client to end", func() bool { return len(third.states()) == 0 })
			check.True(t, 10*time.Second, "the lease to be given back", func() bool { return leases(l.file(s.file), s.name) == 0 })
		})
	}
}

// leases counts the leases of a lease file. Kea's is a journal: the last line of an address counts, and one with a lifetime of 0 is over.
func leases(text, server string) int {
	now := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if server == "dnsmasq" {
			if line != "" && !strings.HasPrefix(line, "duid") {
				now[line] = true
			}
			continue
		}
		f := strings.Split(line, ",")
		if len(f) < 5 || f[0] == "address" {
			continue
		}
		now[f[0]] = f[3] != "0" && f[2] != "0" || strings.Contains(f[0], ":") && f[2] != "0"
		if !now[f[0]] {
			delete(now, f[0])
		}
	}
	return len(now)
}

// short leases, whose life is watched from the first moment to the last.
var short = terms{lease: 12, t1: 3, t2: 9}

// ofBothFamilies runs a test for each family, beside others.
func ofBothFamilies(t *testing.T, test func(t *testing.T, family vip.Family, l *network)) {
	t.Parallel()
	for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			t.Parallel()
			test(t, family, lan(t))
		})
	}
}

// Renewed at T1; by any server after T2; gone when it expires; found again.
func TestRenewalAndExpiry(t *testing.T) {
	ofBothFamilies(t, func(t *testing.T, family vip.Family, l *network) {
		server := l.keaOf(family, short, 100, 100)
		h := l.request(family)
		d := newNode(t)
		d.put(h)
		first := d.await(20*time.Second, "a lease", leased)
		asked := d.await(10*time.Second, "a renewal", func(x vip.DHCPState) bool { return x.State == stateRenewing })
		check.Between(t, time.Until(asked.Lease.Renews).Abs(), 0, time.Second, "renewal began off T1 by")
		second := d.await(5*time.Second, "its answer", func(x vip.DHCPState) bool { return leased(x) && x.Lease.Expires.After(first.Lease.Expires) })

		server.kill() // down at T1, back before T2
		d.await(10*time.Second, "a renewal", func(x vip.DHCPState) bool { return x.State == stateRenewing })
		server = l.keaOf(family, short, 100, 100)
		third := d.await(10*time.Second, "its answer", func(x vip.DHCPState) bool { return leased(x) && x.Lease.Expires.After(second.Lease.Expires) })
		if third.Lost || third.Problem != "" || third.Lease.Addr != first.Lease.Addr {
			t.Errorf("after a short absence: %+v", third)
		}

		server.kill() // down for good
		d.await(20*time.Second, "rebinding", func(x vip.DHCPState) bool { return x.State == stateRebinding && x.Problem != "" })
		lost := d.await(20*time.Second, "the end", func(x vip.DHCPState) bool { return !x.Lease.Addr.IsValid() })
		if !lost.Lost || !strings.Contains(lost.Problem, "expired") {
			t.Errorf("after the end: %+v", lost)
		}
		check.Between(t, time.Since(third.Lease.Expires), -50*time.Millisecond, time.Second, "dropped after it expired after")
		l.keaOf(family, short, 100, 100)
		if again := d.await(40*time.Second, "a lease", leased); again.Lost || again.Problem != "" {
			t.Errorf("found again: %+v", again)
		}
	})
}

// The server's pool is another one when it is asked again.
func TestServerChangesPool(t *testing.T) {
	ofBothFamilies(t, func(t *testing.T, family vip.Family, l *network) {
		server := l.keaOf(family, short, 100, 100)
		d := newNode(t)
		d.put(l.request(family))
		d.await(20*time.Second, "a lease", leased)
		server.kill()
		check.OK(t, removeAll(l.dir, "kea*.csv*"))
		l.keaOf(family, short, 107, 107)
		want := l.addr(family, 107)
		d.await(40*time.Second, "the new address", func(x vip.DHCPState) bool { return leased(x) && x.Lease.Addr == want })
	})
}

// One address for two: the problem of the second is reported, and it gets the address when the first gives it back.
func TestPoolExhausted(t *testing.T) {
	ofBothFamilies(t, func(t *testing.T, family vip.Family, l *network) {
		l.keaOf(family, long, 100, 100)
		a, b := newNode(t), newNode(t)
		first := l.request(family)
		a.put(first)
		a.await(20*time.Second, "a lease", leased)
		b.put(l.request(family))
		b.await(40*time.Second, "a problem to be reported", func(x vip.DHCPState) bool { return x.Problem != "" })
		first.Release = true
		a.put(first)
		b.await(30*time.Second, "the address", leased)
	})
}

// An address that somebody uses is declined, and another one is leased.
func TestAddressInUseIsDeclined(t *testing.T) {
	ofBothFamilies(t, func(t *testing.T, family vip.Family, l *network) {
		used := l.addr(family, 100)
		l.inside(func() { // a host that knows nothing of DHCP
			link := check.Value(netlink.LinkByName(fmt.Sprint("srv", l.n)))(t)
			a := check.Value(netlink.ParseAddr(netip.PrefixFrom(used, used.BitLen()*3/4).String()))(t)
			a.Flags = 2 // IFA_F_NODAD
			check.OK(t, netlink.AddrAdd(link, a))
		})
		l.keaOf(family, long, 100, 101)
		d := newNode(t)
		h := l.request(family)
		h.Requested = used
		d.put(h)
		d.await(20*time.Second, "it to be declined", func(x vip.DHCPState) bool { return strings.Contains(x.Problem, "in use by") })
		got := d.await(20*time.Second, "another address", leased)
		if got.Lease.Addr == used {
			t.Errorf("leased %s, which is in use", used)
		}
		// What the plan can't have is declined as well.
		h.Declined, h.DeclinedWhy = got.Lease.Addr, "it is the address of another Service"
		d.put(h)
		d.await(20*time.Second, "it to be declined", func(x vip.DHCPState) bool { return x.Lost && strings.Contains(x.Problem, h.DeclinedWhy) })
	})
}

// Without the right to hold VIPs nothing is sent: another node may be asking.
func TestSilentWithoutTenure(t *testing.T) {
	t.Parallel()
	l := lan(t)
	server := l.keaOf(vip.IPv4, long, 100, 110)
	d := newNode(t)
	d.tenure.Store(false)
	d.put(l.request(vip.IPv4))
	time.Sleep(1500 * time.Millisecond) // long enough for a second message
	check.Lacks(t, server.out.String(), "DHCPDISCOVER")
	d.tenure.Store(true)
	d.await(30*time.Second, "a lease", leased)
}

// Links come and go, and a lease is found all the same.
func TestLinkAppearsLater(t *testing.T) {
	t.Parallel()
	l := lan(t)
	l.dnsmasq()
	h := l.request(vip.IPv4)
	link := check.Value(netlink.LinkByName(h.Link))(t)
	check.OK(t, netlink.LinkSetName(link, "elsewhere"))
	d := newNode(t)
	d.put(h)
	d.await(20*time.Second, "a problem to be reported", func(x vip.DHCPState) bool { return strings.Contains(x.Problem, h.Link) })
	check.OK(t, netlink.LinkSetName(link, h.Link))
	d.await(20*time.Second, "a lease", leased)
}

// TestReservations: an address that a server keeps for a Service of kube-vip is the one that it gives to Herald: by
// the host name as the client identifier (option 61), by the MAC address, or since the client asks for it.
func TestReservations(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]struct {
		hostname string // "": none is sent
		dnsmasq  string // of the MAC or the name, for --dhcp-host
		kea      string
		asked    bool
	}{
		"by host name": {"web", "id:web", `"client-id": "'web'"`, false},
		"by MAC":       {"", "MAC", `"hw-address": "MAC"`, false},
		"asked for":    {"web", "", "", true},
	} {
		for _, server := range []string{"dnsmasq", "kea"} {
			t.Run(name+"/"+server, func(t *testing.T) {
				t.Parallel()
				l := lan(t)
				h := l.request(vip.IPv4)
				h.Hostname = s.hostname
				want := l.addr(vip.IPv4, 107)
				if s.asked {
					h.Requested = want
				}
				key := strings.NewReplacer("MAC", h.MAC).Replace
				switch {
				case server == "kea" && s.kea == "":
					l.keaOf(vip.IPv4, long, 100, 110)
				case server == "kea":
					l.kea4(long, fmt.Sprintf(`%s"}], "reservations": [{%s, "ip-address": "%s`, l.pool(vip.IPv4, 100, 110), key(s.kea), want))
				case s.dnsmasq == "":
					l.dnsmasq()
				default:
					l.dnsmasq("--dhcp-host=" + key(s.dnsmasq) + "," + want.String())
				}
				n := newNode(t)
				n.put(h)
				check.Equal(t, n.await(30*time.Second, "a lease", leased).Lease.Addr, want, "leased")
			})
		}
	}
}
