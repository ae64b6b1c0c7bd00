package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// The ports of a Service are compared once with those of many that another class's controller announces at its addresses.
func TestManyPortsBesideOtherClass(t *testing.T) {
	var addrs []string
	for i := range 16 {
		addrs = append(addrs, fmt.Sprintf("10.77.0.%d", 50+i))
	}
	withPorts := func(name, protocol string, first int) vip.Service {
		s := svc(name, strings.Join(addrs, ","))
		s.Ports = nil
		for i := range 4000 {
			s.Ports = append(s.Ports, vip.Port{Protocol: protocol, Port: uint16(first + i)})
		}
		return s
	}
	w := world(withPorts("asks", "TCP", 1), withPorts("asks-in-vain", "UDP", 100))
	for i := range 16 {
		s := withPorts(fmt.Sprintf("theirs-%02d", i), "UDP", 4001+4000*i%60000)
		s.HasClass, s.Class = true, "other"
		written("")(&s)
		w.Services = append(w.Services, s)
	}
	var p vip.Plan
	within(t, 2*time.Second, func() { p = Make(rules(), w) })
	if a, b := p.Verdicts[0], p.Verdicts[1]; a.Reason != vip.VIPClaiming || b.Reason != vip.AddressConflict {
		t.Errorf("%+v, %+v", a, b)
	}
}
