package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/heraldvip/herald/pkg/vip"
)

// A cachedSlice is what is kept of an EndpointSlice.
type cachedSlice struct {
	service vip.Key // to which it belongs
	vip.Endpoints
	addrs []netip.Addr // of pods, or of API servers
}

// kubernetesService is the Service of the API servers; its endpoints are their addresses.
var kubernetesService = vip.Key{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}

// mirroringController is the value of the label endpointslice.kubernetes.io/managed-by
// on copies of Endpoints.
const mirroringController = "endpointslicemirroring-controller.k8s.io"

// readSlice converts an EndpointSlice. It returns nil if that belongs to no Service or
// contains host names.
func readSlice(o *discoveryv1.EndpointSlice) *cachedSlice {
	name := o.Labels[discoveryv1.LabelServiceName]
	if name == "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &cachedSlice{service: vip.Key{Namespace: o.Namespace, Name: name}}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		s.addEndpoint(e)
		// What a user wrote into Endpoints may be anything, even somebody else's VIP,
		// and must not take it from them: only what names its pod counts as a pod's.
		pod := e.TargetRef != nil && e.TargetRef.Kind == "Pod" && o.Labels[discoveryv1.LabelManagedBy] != mirroringController
		if pod || s.service == kubernetesService {
			s.addrs = append(s.addrs, parseAddrs(e.Addresses)...)
		}
	}
	s.Ready, s.Terminating = sortedUnique(s.Ready), sortedUnique(s.Terminating)
	return s
}

// addEndpoint adds the node of an endpoint that is ready, or is terminating and still
// serving, to Ready or Terminating; if its node is not known it sets WithoutNode.
// A condition ready that is unset means true, serving means as ready, terminating
// means false (EndpointConditions of discovery/v1).
func (s *cachedSlice) addEndpoint(e *discoveryv1.Endpoint) {
	ready := ptr.Deref(e.Conditions.Ready, true)
	serving := ptr.Deref(e.Conditions.Serving, ready)
	terminating := ptr.Deref(e.Conditions.Terminating, false)
	node := ptr.Deref(e.NodeName, "")
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

// mergeEndpoints is the Endpoints of a Service with these slices, of both families.
func mergeEndpoints(all map[vip.Key]*cachedSlice) vip.Endpoints {
	var e vip.Endpoints
	for _, s := range all {
		e.Ready = append(e.Ready, s.Ready...)
		e.Terminating = append(e.Terminating, s.Terminating...)
		e.WithoutNode = e.WithoutNode || s.WithoutNode
	}
	e.Ready, e.Terminating = sortedUnique(e.Ready), sortedUnique(e.Terminating)
	return e
}

// sortedUnique sorts names in place and drops duplicates and spare capacity.
func sortedUnique(names []string) []string {
	slices.Sort(names)
	return slices.Clip(slices.Compact(names))
}
