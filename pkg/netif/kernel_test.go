package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A kRig is Interfaces over the real kernel, running.
type kRig struct {
	*Interfaces
	log   *check.Buffer
	poked chan struct{}
	pokes atomic.Int32
}

// kernelRig makes one that runs until stop is called, or the test ends.
func kernelRig(t testing.TB, change ...func(*Options)) (*kRig, func()) {
	t.Helper()
	logger, logged := log()
	r := &kRig{log: logged, poked: make(chan struct{}, 1)}
	o := Options{Log: logger, Tenure: always, Interface: "eth0"}
	o.Poke = func() {
		r.pokes.Add(1)
		select {
		case r.poked <- struct{}{}:
		default:
		}
	}
	for _, c := range change {
		c(&o)
	}
	n := check.Value(New(o))(t)
	r.Interfaces = n
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return r, stop
}

func worldOf(n *Interfaces) (w vip.World) {
	n.Observe(&w)
	return w
}

// await waits for pokes until ok.
func (r *kRig) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-r.poked:
		case <-time.After(5 * time.Millisecond): // not everything is worth a poke
		case <-deadline:
			t.Fatalf("waited in vain for %s; log:\n%s", what, r.log)
		}
	}
}

// hasUnmarked reports whether the snapshot has an address without Herald's mark.
func (r *kRig) hasUnmarked(a vip.Address) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.snapshot.addresses[addressKey{r.snapshot.index[a.Link], a.Prefix()}]
	return ok && !e.marked
}

func TestKernelBinds(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24", "2001:db8:1::5/64")
	r, _ := kernelRig(t)
	l := check.Value(netlink.LinkByName("eth0"))(t)
	check.Equal(t, r.Info().Links[0].MAC, l.Attrs().HardwareAddr.String(), "MAC")
	check.Equal(t, len(worldOf(r.Interfaces).Bound), 0, "Bound before anything was")
	addOther(t, eth0, "10.0.0.8/32")
	addOther(t, eth0, "2001:db8::8/128")
	r.await(t, "the unmanaged addresses", func() bool { return len(worldOf(r.Interfaces).Unmanaged) == 2 })
	want := []vip.Address{
		addr("10.0.0.9/32", "eth0"), addr("10.0.0.10/24", "eth0"), addr("2001:db8::9/128", "eth0"),
		addr("10.0.0.8/32", "eth0"), addr("2001:db8::8/128", "eth0"),
	}
	have := check.Value(r.Set(t.Context(), want))(t)
	check.Same(t, text(want), text(have), "have")
	const after = `
		eth0 10.0.0.10/24 deprecated noprefixroute proto=v valid=5 preferred=0
		eth0 10.0.0.5/24 permanent
		eth0 10.0.0.8/32 deprecated proto=v valid=5 preferred=0
		eth0 10.0.0.9/32 deprecated noprefixroute proto=v valid=5 preferred=0
		eth0 2001:db8:1::5/64 permanent
		eth0 2001:db8::8/128 deprecated noprefixroute proto=v valid=5 preferred=0
		eth0 2001:db8::9/128 deprecated noprefixroute proto=v valid=5 preferred=0`
	check.Same(t, check.Lines(after), addresses(t, "eth0"), "kernel")
	check.Equal(t, addedRoutes(t, eth0), "", "routes made by binding")
	check.Value(r.Set(t.Context(), nil))(t)
	check.Same(t, "eth0 10.0.0.5/24 permanent\neth0 2001:db8:1::5/64 permanent", addresses(t, "eth0"), "kernel after Set(nothing)")
}

// addedRoutes is the routes of the main table other than those of the node's own subnets.
func addedRoutes(t *testing.T, l netlink.Link) string {
	t.Helper()
	routes := check.Value(netlink.RouteList(l, netlink.FAMILY_ALL))(t)
	var found []string
	for _, r := range routes {
		if d := r.Dst.String(); d != "10.0.0.0/24" && d != "2001:db8:1::/64" && d != "fe80::/64" {
			found = append(found, d)
		}
	}
	return strings.Join(found, "\n")
}

// Duplicate address detection has failed for an address that another program left, since another host has it: it is bound without that, and
// answered for. So is one that bears the mark, by an earlier process that bound it over such an address.
func TestKernelBindsOverDADFailed(t *testing.T) {
	eth0 := newVeth(t, "eth0")
	peer := check.Value(netlink.LinkByName("eth0p"))(t)
	left, marked := addr("2001:db8::8/128", "eth0"), addr("2001:db8::9/128", "eth0")
	for _, a := range []vip.Address{left, marked} {
		addOther(t, peer, a.Prefix().String())
		failDAD(t, eth0, a.Prefix().String())
	}
	k := check.Value(openNetlink())(t)
	check.OK(t, errors.Join(k.bind([]bindRequest{{addressKey{eth0.Attrs().Index, marked.Prefix()}, "eth0", 5}})...))
	r, _ := kernelRig(t)
	have := check.Value(r.Set(t.Context(), []vip.Address{left, marked}))(t)
	check.Equal(t, text(have), "eth0 2001:db8::8/128\neth0 2001:db8::9/128", "have")
	check.Equal(t, strings.ReplaceAll(addresses(t, "eth0"), "valid=4", "valid=5"), "eth0 2001:db8::8/128 deprecated noprefixroute proto=v valid=5 preferred=0\neth0 2001:db8::9/128 deprecated noprefixroute proto=v valid=5 preferred=0", "kernel")
}

// failDAD adds an IPv6 address that another host has, as another program would, and waits until duplicate address detection has failed.
func failDAD(t *testing.T, l netlink.Link, addr string) {
	t.Helper()
	sysctl(t, "net/ipv6/conf/"+l.Attrs().Name+"/accept_dad", "1")
	a := check.Value(netlink.ParseAddr(addr))(t)
	check.OK(t, netlink.AddrAdd(l, a))
	check.True(t, 10*time.Second, "duplicate address detection to fail", func() bool {
		list := check.Value(netlink.AddrList(l, netlink.FAMILY_V6))(t)
		return slices.ContainsFunc(list, func(x netlink.Addr) bool { return x.IP.Equal(a.IP) && x.Flags&unix.IFA_F_DADFAILED != 0 })
	})
}

func TestKernelIPv6SwitchedOff(t *testing.T) {
	newVeth(t, "eth0")
	sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "1")
	r, _ := kernelRig(t)
	have, err := r.Set(t.Context(), []vip.Address{addr("10.0.0.9/32", "eth0"), addr("2001:db8::9/128", "eth0")})
	check.Equal(t, fmt.Sprint(err), "address 2001:db8::9/128 on eth0: can't bind it: permission denied (IPv6 is switched off there: sysctl net.ipv6.conf.eth0.disable_ipv6)", "the error")
	check.Equal(t, text(have), "eth0 10.0.0.9/32", "have")
}

// That IPv6 is switched off on a link again and again is not told as if a program took a VIP away; that of IPv4 still is.
func TestKernelIPv6SwitchedOffIsNoFight(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	r, _ := kernelRig(t)
	four, six := addr("10.0.0.9/32", "eth0"), addr("2001:db8::9/128", "eth0")
	fights := func() map[netip.Addr]bool {
		w := vip.World{Now: time.Now()}
		r.Observe(&w)
		return w.AddressFights
	}
	for range fightTimes {
		check.Value(r.Set(t.Context(), []vip.Address{four, six}))(t)
		sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "1")
		r.await(t, "IPv6 to be off, and the VIP gone", func() bool { return r.Info().Links[0].NoIPv6 && !r.IsLocal(six.Addr) })
		check.OK(t, netlink.AddrDel(eth0, check.Value(netlink.ParseAddr("10.0.0.9/32"))(t)))
		r.await(t, "the other VIP to be gone", func() bool { return !r.IsLocal(four.Addr) })
		sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "0")
		r.await(t, "IPv6 to be on", func() bool { return !r.Info().Links[0].NoIPv6 })
	}
	if got := fights(); got[six.Addr] || !got[four.Addr] {
		t.Errorf("fights about %v; log:\n%s", got, r.log)
	}
}

// Others are told whether IPv6 is disabled on a link, also if it had no address of IPv6 by whose removal the kernel would say so.
func TestKernelFollowsIPv6SwitchedOff(t *testing.T) {
	for _, addressed := range []bool{true, false} {
		eth0 := newVeth(t, "eth0")
		if !addressed {
			check.OK(t, netlink.LinkSetIP6AddrGenMode(eth0, 1)) // IN6_ADDR_GEN_MODE_NONE
			list := check.Value(netlink.AddrList(eth0, netlink.FAMILY_V6))(t)
			for _, a := range list {
				check.OK(t, netlink.AddrDel(eth0, &a))
			}
		}
		r, stop := kernelRig(t)
		for _, off := range []string{"1", "0", "1"} {
			sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", off)
			r.await(t, "disable_ipv6="+off, func() bool { return r.Info().Links[0].NoIPv6 == (off == "1") })
		}
		sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "0")
		for _, mtu := range []int{1279, 1280} { // RFC 8200 section 5
			check.OK(t, netlink.LinkSetMTU(eth0, mtu))
			r.await(t, fmt.Sprint("an MTU of ", mtu), func() bool { return r.Info().Links[0].NoIPv6 == (mtu < 1280) })
		}
		sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "1")
		stop()
		r, stop = kernelRig(t)
		check.Equal(t, r.Info().Links[0].NoIPv6, true, "it is known at the beginning")
		// While the link is down nothing tells, but the link does when it comes up.
		check.OK(t, netlink.LinkSetDown(eth0))
		sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "0")
		check.OK(t, netlink.LinkSetUp(eth0))
		r.await(t, "IPv6", func() bool { return r.Info().Links[0].Up && !r.Info().Links[0].NoIPv6 })
		stop()
		check.OK(t, netlink.LinkDel(eth0))
	}
}

// A link that options call by an alternative name is told of by its name, and found when it gets that name later.
func TestKernelAlternativeName(t *testing.T) {
	eth0, eth1 := newVeth(t, "eth0", "10.0.0.5/24"), newVeth(t, "eth1", "10.1.0.5/24")
	check.OK(t, netlink.LinkAddAltName(eth0, "enp3s0"))
	r, _ := kernelRig(t, func(o *Options) { o.Interface, o.ServicesInterface, o.AllowNotUp = "enp3s0", "enp4s0", true })
	if text := r.log.Take(); !strings.Contains(text, "vip_servicesinterface=enp4s0: this node has no such interface") || strings.Contains(text, "enp3s0") {
		t.Errorf("log:\n%s", text)
	}
	info := r.Info()
	check.Equal(t, info.DefaultInterface, "eth0", "vip_interface")
	check.True(t, 0, "the link to be told of", func() bool { return slices.ContainsFunc(info.Links, func(l vip.Link) bool { return l.Name == "eth0" }) })
	check.OK(t, netlink.LinkAddAltName(eth1, "enp4s0"))
	r.await(t, "the other link", func() bool { return r.Info().Interface == "eth1" })
}

// The kernel's changes come faster than they are read.
func TestKernelOverrun(t *testing.T) {
	eth0 := newVeth(t, "eth0")
	k := check.Value(openNetlink())(t)
	f := check.Value(k.subscribe())(t)
	defer f.close()
	check.OK(t, f.(*netlinkSubscription).socket.SetReceiveBufferSize(4096, false))
	for i := range 100 {
		addOther(t, eth0, fmt.Sprintf("10.3.0.%d/32", i))
	}
	for {
		_, err := f.receive()
		if err == errOverrun {
			return
		}
		check.OK(t, err)
	}
}

func TestKernelDefaultRoute(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	eth1 := newVeth(t, "eth1", "10.1.0.5/24", "2001:db8:1::5/64")
	r, _ := kernelRig(t, func(o *Options) { o.Interface, o.AllowNotUp = "", true })
	check.Equal(t, r.Info().Interface, "", "interface without a default route")
	route := func(l netlink.Link, gw string, metric int) *netlink.Route {
		a, err := netlink.ParseAddr(gw + "/128")
		if !strings.Contains(gw, ":") {
			a, err = netlink.ParseAddr(gw + "/32")
		}
		check.OK(t, err)
		return &netlink.Route{LinkIndex: l.Attrs().Index, Gw: a.IP, Priority: metric}
	}
	for _, step := range []struct {
		route *netlink.Route
		want  string
	}{
		{route(eth1, "2001:db8:1::1", 100), "eth1"},
		{route(eth0, "10.0.0.1", 200), "eth0"},
		{route(eth1, "10.1.0.1", 50), "eth1"},
	} {
		other := route(eth0, "10.0.0.1", 1)
		other.Table = 100 + step.route.Priority
		check.OK(t, netlink.RouteAdd(other)) // which is for some other purpose
		check.OK(t, netlink.RouteAdd(step.route))
		r.await(t, "the interface "+step.want, func() bool { return r.Info().Interface == step.want && r.Info().DefaultInterface == step.want })
	}
	check.OK(t, netlink.LinkSetDown(eth1)) // which takes its routes along
	r.await(t, "the link to be down", func() bool {
		return slices.ContainsFunc(r.Links(), func(l vip.Link) bool { return l.Name == "eth1" && !l.Up })
	})
	check.Equal(t, r.Info().Interface, "eth1", "interface when eth1 was down")
	check.OK(t, netlink.LinkSetUp(eth1))
	check.OK(t, netlink.RouteAdd(route(eth1, "10.1.0.1", 300)))
	r.await(t, "the interface eth0", func() bool { return r.Info().Interface == "eth0" })
	// A multipath route.
	check.OK(t, netlink.RouteReplace(&netlink.Route{Priority: 10, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: make(net.IPMask, 4)}, MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: eth1.Attrs().Index, Gw: []byte{10, 1, 0, 1}}, {LinkIndex: eth0.Attrs().Index, Gw: []byte{10, 0, 0, 1}},
	}}))
	r.await(t, "the interface eth1", func() bool { return r.Info().Interface == "eth1" })
}

// An address by DHCPv6 has the network of the route on its link, which router advertisements make, and which may come after it and go before
// it. A route by a router makes no network, nor does one of a routing daemon, and each change of such costs nothing.
func TestKernelNetworkByRoute(t *testing.T) {
	eth0 := newVeth(t, "eth0")
	r, _ := kernelRig(t)
	feed := check.Value(check.Value(openNetlink())(t).subscribe())(t)
	defer feed.close()
	check.OK(t, netlink.AddrAdd(eth0, leased(t, "2001:db8::5/128")))
	check.OK(t, netlink.AddrAdd(eth0, leased(t, "2001:db8:1::5/128")))
	has := func(want string) {
		t.Helper()
		r.await(t, want, func() bool { return fmt.Sprint(r.Info().Links[0].Prefixes) == want })
	}
	has("[2001:db8::5/128 2001:db8:1::5/128]")
	route := func(network string, protocol int, gw string) *netlink.Route {
		return &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: check.Value(netlink.ParseIPNet(network))(t), Protocol: netlink.RouteProtocol(protocol), Gw: net.ParseIP(gw)}
	}
	const bird = 12
	byRA, byKernel := route("2001:db8::/64", unix.RTPROT_RA, ""), route("2001:db8:1::/56", unix.RTPROT_KERNEL, "")
	for _, other := range []*netlink.Route{route("2001:db8:1::/64", bird, ""), route("2001:db8:1::/60", unix.RTPROT_RA, "fe80::1"), route("2001:db8:1::5/128", unix.RTPROT_KERNEL, "")} {
		check.OK(t, netlink.RouteAdd(other))
	}
	check.OK(t, netlink.RouteAdd(byRA))
	has("[2001:db8::5/64]")
	check.OK(t, netlink.RouteAdd(byKernel))
	has("[2001:db8::5/64 2001:db8:1::5/56]")
	r2, _ := kernelRig(t)
	check.Equal(t, fmt.Sprint(r2.Info().Links[0].Prefixes), "[2001:db8::5/64 2001:db8:1::5/56]", "addresses at the beginning")
	check.OK(t, netlink.RouteDel(byRA))
	has("[2001:db8:1::5/56]")
	addOther(t, eth0, "10.0.0.5/32")
	for reads, end := 0, false; !end; {
		for _, c := range check.Value(feed.receive())(t) {
			if end = end || c.address != nil && c.address.prefix.Addr().Is4(); c.routes {
				reads++
			}
		}
		if end {
			check.Equal(t, reads, 3, "messages for which routes are read")
		}
	}
}

// leased is an address with a lifetime, as a DHCP client adds it.
func leased(t *testing.T, addr string) *netlink.Addr {
	t.Helper()
	a := check.Value(netlink.ParseAddr(addr))(t)
	a.Flags, a.ValidLft, a.PreferedLft = unix.IFA_F_NODAD, 600, 600
	return a
}

// Changes of a bridge's ports are sent in messages of the bridge's own, which are not about the link as such.
func TestKernelBridgePort(t *testing.T) {
	eth0 := newVeth(t, "eth0")
	br := addBridge(t, "br0")
	check.OK(t, netlink.LinkSetUp(br))
	addOther(t, br, "10.0.0.5/24")
	r, _ := kernelRig(t, func(o *Options) { o.Interface = "br0"; o.AllowNotUp = true })
	listed := func(name string) bool { return strings.Contains(describeInfo(r.Info()), "\n"+name+" ") }
	addOther(t, eth0, "10.7.0.5/24")
	r.await(t, "eth0 to be listed", func() bool { return listed("eth0") })
	check.OK(t, netlink.LinkSetMaster(eth0, br))
	r.await(t, "eth0 to be a port", func() bool { return !listed("eth0") && listed("br0") })
	check.OK(t, netlink.LinkSetNoMaster(eth0))
	r.await(t, "eth0 to be listed again", func() bool { return listed("eth0") })
	check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.9/32", "eth0")}))(t)
}

// Where the kernel doesn't keep IFA_PROTO, the label is the mark, if it fits.
func TestKernelLabel(t *testing.T) {
	newVeth(t, "eth0")
	newVeth(t, "longerlink0")
	k := check.Value(openNetlink())(t)
	k.proto = false
	p := check.Value(k.read())(t)
	for link, want := range map[string]string{"eth0": "eth0:herald", "longerlink0": "longerlink0"} {
		check.OK(t, errors.Join(k.bind([]bindRequest{{addressKey: addressKey{p.index[link], addr("10.0.0.9/32", link).Prefix()}, linkName: link, seconds: 3}})...))
		l := check.Value(netlink.LinkByName(link))(t)
		list := check.Value(netlink.AddrList(l, netlink.FAMILY_V4))(t)
		if len(list) != 1 || list[0].Label != want {
			t.Errorf("%s: got %v, want the label %s", link, list, want)
		}
	}
	check.OK(t, errors.Join(k.bind([]bindRequest{{addressKey: addressKey{p.index["eth0"], addr("2001:db8::9/128", "eth0").Prefix()}, linkName: "eth0", seconds: 3}})...))
}

// Many are asked for at once, and each error is about the one that it belongs to.
func TestKernelBindsMany(t *testing.T) {
	newVeth(t, "eth0")
	k := check.Value(openNetlink())(t)
	p := check.Value(k.read())(t)
	list := make([]bindRequest, 5)
	for i := range list {
		list[i] = bindRequest{addressKey: addressKey{p.index["eth0"], addr(fmt.Sprintf("10.0.0.%d/32", i+1), "eth0").Prefix()}, linkName: "eth0", seconds: 3}
	}
	list[1].addressKey.link, list[4].addressKey.link = 99999, 99999 // in the midst, and the last, which is always answered
	for range 2 {
		for i, err := range k.bind(list) {
			if gone := i == 1 || i == 4; gone != errors.Is(err, unix.ENODEV) || !gone && err != nil {
				t.Errorf("%s: %v", list[i].prefix, err)
			}
		}
	}
	p = check.Value(k.read())(t)
	for i, b := range list {
		if _, there := p.addresses[b.addressKey]; there != (i != 1 && i != 4) {
			t.Errorf("%s is there: %v", b.prefix, there)
		}
	}
	check.Equal(t, len(k.bind(nil)), 0, "errors for nothing")
}

// A subscription receives what other processes do to an address and what is new, but not this process's renewals of IPv4 addresses.
func TestKernelOmitsRenewals(t *testing.T) {
	newVeth(t, "eth0")
	k := check.Value(openNetlink())(t)
	other := check.Value(openNetlink())(t)
	p := check.Value(k.read())(t)
	feed := check.Value(k.subscribe())(t)
	defer feed.close()
	at := func(a string) []bindRequest {
		return []bindRequest{{addressKey: addressKey{p.index["eth0"], addr(a, "eth0").Prefix()}, linkName: "eth0", seconds: 3}}
	}
	one, two, six := at("10.0.0.1/32"), at("10.0.0.2/32"), at("2001:db8::1/128")
	check.OK(t, errors.Join(k.bind(one)...))
	for range 3 {
		check.OK(t, errors.Join(k.renew(one)...))
	}
	check.OK(t, errors.Join(k.bind(two)...))
	check.OK(t, errors.Join(other.renew(one)...))
	check.OK(t, errors.Join(k.bind(six)...))
	check.OK(t, errors.Join(k.renew(six)...))
	check.OK(t, k.unbind(one[0].addressKey))
	var got []string
	for len(got) < 6 {
		changes := check.Value(feed.receive())(t)
		for _, c := range changes {
			if c.address != nil {
				got = append(got, fmt.Sprint(c.address.prefix, " gone ", c.gone))
			}
		}
	}
	want := []string{
		"10.0.0.1/32 gone false", "10.0.0.2/32 gone false", "10.0.0.1/32 gone false", "10.0.0.1/32 gone true",
		"2001:db8::1/128 gone false", "2001:db8::1/128 gone false",
	}
	// IPv6 sends them from a work queue (addrconf_dad_work), at any time after the request.
	slices.SortStableFunc(got, func(a, b string) int { return strings.Index(a, ":") - strings.Index(b, ":") })
	check.Same(t, want, got, "received")
}

// What is to be removed may be gone, and its link, too.
func TestKernelUnbindsWhatIsGone(t *testing.T) {
	newVeth(t, "eth0")
	k := check.Value(openNetlink())(t)
	p := check.Value(k.read())(t)
	for _, a := range []string{"10.0.0.9/32", "2001:db8::9/128"} {
		check.OK(t, k.unbind(addressKey{p.index["eth0"], addr(a, "eth0").Prefix()}))
		check.OK(t, k.unbind(addressKey{99999, addr(a, "eth0").Prefix()}))
	}
}

func TestKernelLinkState(t *testing.T) {
	newVeth(t, "eth0")
	addBridge(t, "br0")
	k := check.Value(openNetlink())(t)
	up := func(name string) bool {
		p := check.Value(k.read())(t)
		l, ok := p.linkNamed(name)
		return ok && l.up
	}
	if !up("eth0") || up("br0") {
		t.Errorf("eth0 is up: %v, br0 is up: %v, want only eth0", up("eth0"), up("br0"))
	}
	peer := check.Value(netlink.LinkByName("eth0p"))(t)
	check.OK(t, netlink.LinkSetDown(peer))
	check.True(t, 10*time.Second, "eth0 to have lost its carrier", func() bool { return !up("eth0") })
}

// With an address the kernel removes those of the same network that were added after it, unless promote_secondaries is set. Other VIPs are there
// when Set returns, and an address of the node stays: also when the VIP's lifetime ends, since Herald was killed.
func TestKernelSecondaries(t *testing.T) {
	first, second, third := addr("10.9.0.1/24", "eth0"), addr("10.9.0.2/24", "eth0"), addr("10.9.0.3/24", "eth0")
	for how, promote := range map[string]string{"promoted": "1", "removed": "0", "taken back": "0", "taken back for the last": "0", "expired": "0"} {
		t.Run(how, func(t *testing.T) {
			eth0 := newVeth(t, "eth0")
			sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", promote)
			r, stop := kernelRig(t)
			defer func() { stop() }()
			check.Value(r.Set(t.Context(), []vip.Address{first, second, third}))(t)
			if how == "taken back" { // by another program
				sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", "0")
			}
			have, err := r.Set(t.Context(), []vip.Address{second, third})
			if got := addresses(t, "eth0"); err != nil || len(have) != 2 || !strings.Contains(got, "10.9.0.2/24") || !strings.Contains(got, "10.9.0.3/24") {
				t.Errorf("%v, %v; the kernel has\n%s", have, err, got)
			}
			addOther(t, eth0, "10.9.0.5/24")
			r.await(t, "the node's own address", func() bool { return r.IsLocal(addr("10.9.0.5/24", "eth0").Addr) })
			if how == "taken back for the last" { // no VIP is wanted on the link then
				sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", "0")
			}
			if how != "expired" {
				check.Value(r.Set(t.Context(), nil))(t)
			}
			stop()
			stop = func() {}
			check.True(t, 10*time.Second, "the VIPs to be gone", func() bool { return !strings.Contains(addresses(t, "eth0"), "proto=v") })
			check.Equal(t, addresses(t, "eth0"), "eth0 10.9.0.5/24 permanent", "the kernel without VIPs")
		})
	}
}
