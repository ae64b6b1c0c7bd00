package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A slice is what is kept of an EndpointSlice.
type slice struct {
	service vip.Key // whose it is
	vip.Endpoints
	addrs []netip.Addr // of pods, or of API servers
}

// apiService is the Service of the API servers; its endpoints are their addresses.
var apiService = vip.Key{Namespace: metaDefault, Name: "kubernetes"}

const metaDefault = corev1.NamespaceDefault

// mirrored is the value of the label endpointslice.kubernetes.io/managed-by on
// copies of Endpoints.
const mirrored = "endpointslicemirroring-controller.k8s.io"

// readSlice turns an EndpointSlice into what is kept of it, or into nil if it
// belongs to no Service or lists no addresses.
func readSlice(o *discoveryv1.EndpointSlice) *slice {
	name := o.Labels[discoveryv1.LabelServiceName]
	if name == "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &slice{service: vip.Key{Namespace: o.Namespace, Name: name}}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		s.count(e)
		// What a user wrote into Endpoints may be anything, even somebody else's VIP,
		// and must not take it from them: only what names its pod counts as a pod's.
		pod := e.TargetRef != nil && e.TargetRef.Kind == "Pod" && o.Labels[discoveryv1.LabelManagedBy] != mirrored
		if !pod && s.service != apiService {
			continue
		}
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				s.addrs = append(s.addrs, a.Unmap())
			}
		}
	}
	s.Ready, s.Terminating = set(s.Ready), set(s.Terminating)
	return s
}

// count takes account of one endpoint. In its conditions, ready unset means
// true, serving unset means as ready, terminating unset means false
// (discovery/v1 EndpointConditions).
func (s *slice) count(e *discoveryv1.Endpoint) {
	ready := e.Conditions.Ready == nil || *e.Conditions.Ready
	serving := ready
	if e.Conditions.Serving != nil {
		serving = *e.Conditions.Serving
	}
	terminating := e.Conditions.Terminating != nil && *e.Conditions.Terminating
	node := ""
	if e.NodeName != nil {
		node = *e.NodeName
	}
	switch {
	case !ready && !(serving && terminating):
	case node == "":
		s.WithoutNode = true
	case ready:
		s.Ready = append(s.Ready, node)
	default:
		s.Terminating = append(s.Terminating, node)
	}
}

// union is the Endpoints of a Service: all its slices, of both families.
func union(parts map[vip.Key]*slice) vip.Endpoints {
	var e vip.Endpoints
	for _, s := range parts {
		e.Ready = append(e.Ready, s.Ready...)
		e.Terminating = append(e.Terminating, s.Terminating...)
		e.WithoutNode = e.WithoutNode || s.WithoutNode
	}
	e.Ready, e.Terminating = set(e.Ready), set(e.Terminating)
	return e
}

// set sorts names and drops repetitions.
func set(names []string) []string {
	slices.Sort(names)
	return slices.Clip(slices.Compact(names))
}
