package kube

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/heraldvip/herald/pkg/vip"
)

type cachedService struct {
	version string // metadata.resourceVersion
	vip.Service
	hasHostAnnotation  bool // kube-vip.io/vipHost, be it empty
	hasLeaseAnnotation bool // heraldvip.io/dhcp-lease, be it unreadable
	clusterIPs         []netip.Addr
	otherManager       string                            // who changed it last, but for Herald (managers)
	conditionsSince    map[vip.ConditionType]metav1.Time // lastTransitionTime of each of Conditions
}

// managers returns who else changed an object last, or "", and when Herald changed its status (managedFields).
func managers(all []metav1.ManagedFieldsEntry) (other string, written time.Time) {
	at := metav1.Time{}
	for _, e := range all {
		switch {
		case e.Time == nil:
		case e.Manager == component && e.Subresource == "status":
			written = e.Time.UTC()
		case e.Manager != "" && e.Manager != component && !e.Time.Before(&at):
			other, at = vip.Quote(strings.ToValidUTF8(e.Manager, "?")), *e.Time
		}
	}
	return other, written
}

// cleanupFinalizer keeps a deleted Service until a load balancer's part is gone
// (k8s.io/cloud-provider/service/helpers).
const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// inWorld reports whether it is a LoadBalancer, or has something of Herald's.
func (s *cachedService) inWorld() bool {
	return s != nil && (s.LoadBalancer || s.VIPHost != "" || s.Announcer != "" || len(s.Conditions) > 0)
}

// leaseKeys returns the Leases by which kube-vip may have a Service.
func (s *cachedService) leaseKeys() []vip.Key {
	if !s.inWorld() {
		return nil
	}
	return s.LeaseKeys()
}

// requestedAddrs returns what a LoadBalancer requests, and its leases.
func (s *cachedService) requestedAddrs() []netip.Addr {
	if s == nil || !s.LoadBalancer {
		return nil
	}
	return slices.Concat(s.Addresses, leasedAddrs(s.DHCP.Leases))
}

// readService converts a Service with its annotations, but without Endpoints.
func readService(o *corev1.Service) *cachedService {
	s := &cachedService{version: o.ResourceVersion}
	s.otherManager, s.Written = managers(o.ManagedFields)
	s.Key = vip.Key{Namespace: o.Namespace, Name: o.Name}
	s.UID = string(o.UID)
	s.Created = o.CreationTimestamp.UTC()
	if o.DeletionTimestamp != nil {
		s.Deleted = o.DeletionTimestamp.UTC()
	}
	s.Finalizer = slices.Contains(o.Finalizers, cleanupFinalizer)
	s.LoadBalancer = o.Spec.Type == corev1.ServiceTypeLoadBalancer
	_, s.hasHostAnnotation = o.Annotations[vipHostKey]
	_, s.hasLeaseAnnotation = o.Annotations[dhcpLeaseKey]
	if o.Spec.LoadBalancerClass != nil {
		s.HasClass, s.Class = true, *o.Spec.LoadBalancerClass
	}
	for _, f := range o.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			s.Families = append(s.Families, vip.IPv4)
		case corev1.IPv6Protocol:
			s.Families = append(s.Families, vip.IPv6)
		}
	}
	s.readPorts(o.Spec.Ports)
	s.Local = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.NoKubeProxy = leftAloneByKubeProxy(o); !s.NoKubeProxy { // else nobody answers there
		s.HealthCheckNodePort = uint16(o.Spec.HealthCheckNodePort)
	}
	s.ClientIPAffinity = o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	s.clusterIPs = parseAddrs(o.Spec.ClusterIPs) // or "None"
	s.Ingress = readIngress(o.Status.LoadBalancer.Ingress)
	s.readConditions(o.Status.Conditions)
	s.DualStack = readFamilyPolicy(o.Spec.IPFamilyPolicy)
	readAnnotations(&s.Service, o.Annotations, o.Spec.Selector, o.Spec.LoadBalancerIP)
	if !s.LoadBalancer {
		s.Invalid = nil // its annotations are not for Herald
	}
	return s
}

// maxPorts is how many of maybe tens of thousands of ports every node keeps.
const maxPorts = 10000

// readPorts fills in Ports: the first maxPorts; more are told of.
func (s *cachedService) readPorts(all []corev1.ServicePort) {
	if len(all) > maxPorts {
		s.Invalid = append(s.Invalid,
			fmt.Sprintf("spec.ports has %d ports, of which Herald sees the first %d: enable_service_security closes the "+
				"others, and no conflict with another Service is found; make several Services.", len(all), maxPorts))
		all = all[:maxPorts]
	}
	s.Ports = make([]vip.Port, len(all))
	for i, p := range all {
		s.Ports[i] = vip.Port{Protocol: protocolName(p.Protocol), Port: uint16(p.Port)}
	}
}

// protocolName returns p as a string not kept for each port.
func protocolName(p corev1.Protocol) string {
	for _, known := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		if p == known {
			return string(known)
		}
	}
	return string(p)
}

// leftAloneByKubeProxy reports whether a label keeps kube-proxy off (newProxyServer in app/server.go).
func leftAloneByKubeProxy(o *corev1.Service) bool {
	_, other := o.Labels["service.kubernetes.io/service-proxy-name"]
	_, headless := o.Labels[corev1.IsHeadlessService]
	return other || headless
}

// withoutGateways drops mode Proxy, unless all are: gateways' (UPnP).
func withoutGateways(list []vip.Ingress) []vip.Ingress {
	isProxy := func(i vip.Ingress) bool { return i.IPMode == vip.ModeProxy }
	if vips := slices.DeleteFunc(slices.Clone(list), isProxy); len(vips) > 0 {
		return vips
	}
	return list
}

// parseAddrs leaves out what is no IP address, or has a zone.
func parseAddrs(texts []string) (addrs []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// parsePrefixes leaves out what is no CIDR prefix.
func parsePrefixes(texts []string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes
}

func readIngress(list []corev1.LoadBalancerIngress) []vip.Ingress {
	var out []vip.Ingress
	for _, i := range list {
		v := vip.Ingress{Hostname: i.Hostname}
		if a, err := netip.ParseAddr(i.IP); err == nil {
			v.Addr = a.Unmap()
		} else {
			v.Hostname = cmp.Or(v.Hostname, i.IP) // so that the entry differs from what is wanted
		}
		if i.IPMode != nil {
			v.IPMode = vip.IPMode(*i.IPMode)
		}
		for _, p := range i.Ports {
			v.Ports = append(v.Ports, vip.Port{Protocol: protocolName(p.Protocol), Port: uint16(p.Port)})
		}
		out = append(out, v)
	}
	return out
}

func writeIngress(list []vip.Ingress) []corev1.LoadBalancerIngress {
	out := make([]corev1.LoadBalancerIngress, 0, len(list))
	for _, v := range list {
		i := corev1.LoadBalancerIngress{Hostname: v.Hostname}
		if v.Addr.IsValid() {
			i.IP = v.Addr.String()
		}
		if v.IPMode != "" {
			i.IPMode = new(corev1.LoadBalancerIPMode(v.IPMode))
		}
		for _, p := range v.Ports {
			i.Ports = append(i.Ports, corev1.PortStatus{Port: int32(p.Port), Protocol: corev1.Protocol(p.Protocol)})
		}
		out = append(out, i)
	}
	return out
}

type cachedSlice struct {
	service vip.Key // to which it belongs
	family  vip.Family
	vip.Endpoints
	addrs []netip.Addr // of pods, or of API servers
	port  uint16       // of API servers; 0 for pods
}

// kubernetesService is the Service of the API servers, its endpoints.
var kubernetesService = vip.Key{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}

// mirroringController is the label endpointslice.kubernetes.io/managed-by on copies of Endpoints.
const mirroringController = "endpointslicemirroring-controller.k8s.io"

// readSlice converts an EndpointSlice; nil without a Service, or with host names.
func readSlice(o *discoveryv1.EndpointSlice) *cachedSlice {
	name := o.Labels[discoveryv1.LabelServiceName]
	if name == "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &cachedSlice{service: vip.Key{Namespace: o.Namespace, Name: name}, family: vip.IPv4}
	if o.AddressType == discoveryv1.AddressTypeIPv6 {
		s.family = vip.IPv6
	}
	if s.service == kubernetesService && len(o.Ports) > 0 {
		s.port = uint16(ptr.Deref(o.Ports[0].Port, 0))
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		s.addEndpoint(e)
		// Endpoints may name anything, even another's VIP: only what names its pod is a pod's, and that, too, may be forged
		// (ReservedRange.FromSlice).
		pod := e.TargetRef != nil && e.TargetRef.Kind == "Pod" && o.Labels[discoveryv1.LabelManagedBy] != mirroringController
		if pod || s.service == kubernetesService {
			// the others mean nothing (discovery/v1)
			s.addrs = append(s.addrs, parseAddrs(e.Addresses[:min(len(e.Addresses), 1)])...)
		}
	}
	s.Ready, s.Terminating = sortedUnique(s.Ready), sortedUnique(s.Terminating)
	return s
}

// addEndpoint adds an endpoint's node, if ready or still serving.
func (s *cachedSlice) addEndpoint(e *discoveryv1.Endpoint) {
	ready := ptr.Deref(e.Conditions.Ready, true)
	serving := ptr.Deref(e.Conditions.Serving, true)
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

// mergeEndpoints is the Endpoints of s for the families of its VIPs: kube-proxy serves each with its own. Under Local
// they are of nodes that serve both families, if any do.
func mergeEndpoints(all iter.Seq[*cachedSlice], s *vip.Service) vip.Endpoints {
	families := slices.DeleteFunc(slices.Clone(s.Families), func(f vip.Family) bool {
		has := func(a netip.Addr) bool { return vip.FamilyOf(a) == f }
		return len(s.Addresses) > 0 && !slices.ContainsFunc(s.Addresses, has)
	})
	e := endpointsOf(all, families...)
	if s.Local && len(families) == 2 {
		common := within(endpointsOf(all, families[0]).Local(), endpointsOf(all, families[1]).Local())
		if len(common) > 0 {
			e.Ready, e.Terminating = within(e.Ready, common), within(e.Terminating, common)
		}
	}
	return e
}

// endpointsOf is the Endpoints of families; without any, all.
func endpointsOf(all iter.Seq[*cachedSlice], families ...vip.Family) (e vip.Endpoints) {
	for s := range all {
		if len(families) == 0 || slices.Contains(families, s.family) {
			e.Ready = append(e.Ready, s.Ready...)
			e.Terminating = append(e.Terminating, s.Terminating...)
			e.WithoutNode = e.WithoutNode || s.WithoutNode
		}
	}
	e.Ready, e.Terminating = sortedUnique(e.Ready), sortedUnique(e.Terminating)
	return e
}

// within keeps those of names that sorted others have, too.
func within(names, others []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { _, has := slices.BinarySearch(others, n); return !has })
}

// sortedUnique sorts names in place and drops duplicates and spare capacity.
func sortedUnique(names []string) []string {
	slices.Sort(names)
	return slices.Clip(slices.Compact(names))
}
