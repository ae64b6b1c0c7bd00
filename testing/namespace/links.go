package namespace

import (
	"net"

	"github.com/heraldvip/herald/pkg/vip"
)

// Links is the links of this process's network namespace as package netif publishes them, but
// for their addresses; none if the kernel's list can't be read.
func Links() []vip.Link {
	var list []vip.Link
	all, _ := net.Interfaces()
	for _, i := range all {
		list = append(list,
			vip.Link{Index: i.Index, Name: i.Name, Up: i.Flags&net.FlagRunning != 0, MAC: i.HardwareAddr.String()})
	}
	return list
}
