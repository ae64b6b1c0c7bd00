package plan

import "github.com/heraldvip/herald/pkg/vip"

// portOwners is which Service has each port of one address, by protocol and port number (65536, nil where none has it):
// arrays, not a map of ports, for there may be thousands.
type portOwners map[string][]*service

func (o portOwners) of(p vip.Port) *service {
	if owners := o[p.Protocol]; owners != nil {
		return owners[p.Port]
	}
	return nil
}

// set stores that s has the ports; nil frees them.
func (o portOwners) set(ports []vip.Port, s *service) {
	for _, p := range ports {
		if o[p.Protocol] == nil {
			o[p.Protocol] = make([]*service, 1<<16)
		}
		o[p.Protocol][p.Port] = s
	}
}
