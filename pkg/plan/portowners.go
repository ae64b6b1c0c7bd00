package plan

import "github.com/heraldvip/herald/pkg/vip"

// portOwners is which Service has each port of one address: arrays, not a map, for there may be thousands. The zero
// value is empty.
type portOwners struct {
	tcp, udp, sctp []*service // by port number, 65536 each or none; nil where no Service has the port
}

func (o *portOwners) of(p vip.Port) *service {
	if owners := *o.owners(p.Protocol); owners != nil {
		return owners[p.Port]
	}
	return nil
}

// set stores that s has the ports; nil frees them.
func (o *portOwners) set(ports []vip.Port, s *service) {
	for _, p := range ports {
		owners := o.owners(p.Protocol)
		if *owners == nil {
			*owners = make([]*service, 1<<16)
		}
		(*owners)[p.Port] = s
	}
}

// owners returns where the Services by port of a protocol are.
func (o *portOwners) owners(protocol string) *[]*service {
	switch protocol {
	case "UDP":
		return &o.udp
	case "SCTP":
		return &o.sctp
	}
	return &o.tcp
}
