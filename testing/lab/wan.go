package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// AddWAN gives a host of the LAN a second link, wan0, with the address wan, and a host at its other end: the namespace
// "far-<router>", with the address after wan. The host routes between, like a home router, until undo.
func (l *Lab) AddWAN(router string, wan netip.Prefix) (undo func() error, err error) {
	far := "far-" + router
	undo = func() error {
		return errors.Join(
			// Before the namespace, whose links the kernel removes in its own time.
			withNetlink(router, func(nl *netlink.Handle) error {
				if l, err := nl.LinkByName("wan0"); err == nil {
					return nl.LinkDel(l) // the other end goes with it
				}
				return nil
			}),
			deleteNetns(far),
			inNamespace(router, func() error { return setSysctls("net/ipv4/ip_forward=0", "net/ipv6/conf/all/forwarding=0") }))
	}
	if err := createNetns(far, hostSysctls...); err != nil {
		return nil, err
	}
	if err := l.connectWAN(router, far, wan); err != nil {
		return nil, errors.Join(fmt.Errorf("far side of %s: %w", router, err), undo())
	}
	return undo, nil
}

func (l *Lab) connectWAN(router, far string, wan netip.Prefix) error {
	peer, err := netns.GetFromPath(netnsPath(far))
	if err != nil {
		return err
	}
	defer peer.Close()
	if err := withNetlink(router, func(nl *netlink.Handle) error {
		veth := netlink.NewVeth(linkAttrs("wan0"))
		veth.PeerName, veth.PeerNamespace = "wan0", netlink.NsFd(peer)
		if err := nl.LinkAdd(veth); err != nil {
			return err
		}
		return configure(nl, "wan0", wan)
	}); err != nil {
		return err
	}
	if err := inNamespace(router,
		func() error { return setSysctls("net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1") }); err != nil {
		return err
	}
	return withNetlink(far, func(nl *netlink.Handle) error {
		return configure(nl, "wan0", netip.PrefixFrom(wan.Addr().Next(), wan.Bits()))
	})
}
