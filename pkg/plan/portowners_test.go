package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Many Services with thousands of ports each, on the same sixteen addresses, are compared without a map of all ports
// for each address: that took every node seconds a pass, which held up the VIPs of all others.
func TestManyPortsOnSharedAddresses(t *testing.T) {
	var addrs []string
	for i := range 16 {
		addrs = append(addrs, fmt.Sprintf("10.77.0.%d", 50+i))
	}
	w := world()
	for i := range 48 {
		s := svc(fmt.Sprintf("s%02d", i), strings.Join(addrs, ","), written("n1"))
		s.Ports = nil
		for p := range 4000 {
			s.Ports = append(s.Ports, vip.Port{Protocol: []string{"TCP", "UDP", "SCTP"}[i%3], Port: uint16(1 + p + 4000*(i/3))})
		}
		for j := range s.Ingress {
			s.Ingress[j].Ports = s.Ports[:64]
		}
		w.Services = append(w.Services, s)
	}
	w = held(w, "s00", "n1")
	check.Allocates(t, 16<<20, func() {
		check.Equal(t, len(Make(rules(), w).Addresses), 16, "how many addresses are bound")
	})
}
