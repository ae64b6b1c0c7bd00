package lab

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
)

const vlanBridge = "vlan"

// VLANLink is the link of hosts on the second network.
const VLANLink = "vlan0"

// AddVLAN gives hosts VLANLink on a second network, with 10.79.0.N/24 for the host 10.77.0.N. undo takes it away.
func (l *Lab) AddVLAN(names ...string) (undo func() error, err error) {
	undo = func() error {
		return withNetlink("switch", func(nl *netlink.Handle) error {
			var errs []error
			for _, port := range append([]string{vlanBridge}, ports(names)...) {
				if link, err := nl.LinkByName(port); err == nil {
					errs = append(errs, nl.LinkDel(link)) // the host's end goes with it
				}
			}
			return errors.Join(errs...)
		})
	}
	snoop := false
	err = withNetlink("switch", func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: linkAttrs(vlanBridge), MulticastSnooping: &snoop})
	})
	for _, name := range names {
		if err == nil {
			h := l.host(name)
			err = plug(h, vlanBridge, VLANLink, 0x79, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 79, 0, byte(h.octet)}), 24))
		}
	}
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

func ports(names []string) (all []string) {
	for _, n := range names {
		all = append(all, vlanBridge+"-"+n)
	}
	return all
}

// DropVLAN has the switch drop a host's frames on the second network both ways. The link stays up.
func (l *Lab) DropVLAN(name string) error {
	return l.onSwitchPort(vlanBridge, name,
		func(nl *netlink.Handle, p netlink.Link) error { return nl.LinkSetNoMaster(p) })
}

// RestoreVLAN undoes DropVLAN.
func (l *Lab) RestoreVLAN(name string) error { return l.reconnect(vlanBridge, name) }
