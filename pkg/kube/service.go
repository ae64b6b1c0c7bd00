package kube

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A record is what is kept of a Service.
type record struct {
	vip.Service
	version    string // metadata.resourceVersion
	hosted     bool   // it has the annotation kube-vip.io/vipHost, be it empty
	leasing    bool   // it has the annotation heraldvip.io/dhcp-lease, be it unreadable
	clusterIPs []netip.Addr
}

// listed reports whether the World is told of the Service at all: it is of type
// LoadBalancer, or it was.
func (r *record) listed() bool { return r.LoadBalancer || r.VIPHost != "" }

// readService turns a Service into what is kept of it. Its endpoints are in its
// EndpointSlices.
func readService(o *corev1.Service) *record {
	r := &record{version: o.ResourceVersion}
	r.Key = vip.Key{Namespace: o.Namespace, Name: o.Name}
	r.UID = string(o.UID)
	r.Created = o.CreationTimestamp.UTC()
	r.LoadBalancer = o.Spec.Type == corev1.ServiceTypeLoadBalancer
	_, r.hosted = o.Annotations[hostKey]
	_, r.leasing = o.Annotations[leasesKey]
	if o.Spec.LoadBalancerClass != nil {
		r.HasClass, r.Class = true, *o.Spec.LoadBalancerClass
	}
	for _, f := range o.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			r.Families = append(r.Families, vip.IPv4)
		case corev1.IPv6Protocol:
			r.Families = append(r.Families, vip.IPv6)
		}
	}
	for _, p := range o.Spec.Ports {
		r.Ports = append(r.Ports, vip.Port{Protocol: string(p.Protocol), Port: uint16(p.Port)})
	}
	r.Local = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	r.HealthCheckNodePort = uint16(o.Spec.HealthCheckNodePort)
	for _, text := range o.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil { // it may be "None"
			r.clusterIPs = append(r.clusterIPs, a.Unmap())
		}
	}
	r.Ingress = readIngress(o.Status.LoadBalancer.Ingress)
	annotate(&r.Service, o.Annotations)
	if r.Source == "" {
		r.fallBack(o.Spec.LoadBalancerIP)
	}
	if !r.LoadBalancer {
		r.Invalid = nil // nobody asked
	}
	return r
}

// fallBack takes the addresses from where they are if no annotation names them.
func (r *record) fallBack(loadBalancerIP string) {
	const field = "spec.loadBalancerIP"
	if loadBalancerIP != "" {
		r.Source = field
		a, why := address(loadBalancerIP)
		if why != "" {
			r.Invalid = append(r.Invalid, fmt.Sprintf("%s: %s; write one IP address, or use the annotation %s.", field, why, addressesKey))
			return
		}
		r.Addresses = []netip.Addr{a}
		return
	}
	vips := slices.ContainsFunc(r.Ingress, func(i vip.Ingress) bool { return i.IPMode != vip.ModeProxy })
	for _, i := range r.Ingress {
		if vips && i.IPMode == vip.ModeProxy {
			continue // a gateway's external address, which stands behind the VIPs
		}
		if i.Addr.IsValid() {
			r.Source = "status.loadBalancer.ingress"
			r.Addresses = appendNew(r.Addresses, i.Addr)
		}
	}
}

func readIngress(list []corev1.LoadBalancerIngress) []vip.Ingress {
	var out []vip.Ingress
	for _, i := range list {
		v := vip.Ingress{Hostname: i.Hostname}
		if a, err := netip.ParseAddr(i.IP); err == nil {
			v.Addr = a.Unmap()
		} else if i.IP != "" && v.Hostname == "" {
			v.Hostname = i.IP // so that it is seen not to be what it should be
		}
		if i.IPMode != nil {
			v.IPMode = vip.IPMode(*i.IPMode)
		}
		for _, p := range i.Ports {
			v.Ports = append(v.Ports, vip.Port{Protocol: string(p.Protocol), Port: uint16(p.Port)})
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
			mode := corev1.LoadBalancerIPMode(v.IPMode)
			i.IPMode = &mode
		}
		for _, p := range v.Ports {
			i.Ports = append(i.Ports, corev1.PortStatus{Port: int32(p.Port), Protocol: corev1.Protocol(p.Protocol)})
		}
		out = append(out, i)
	}
	return out
}
