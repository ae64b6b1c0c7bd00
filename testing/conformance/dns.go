package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clusterDNS is the Service whose address kubeadm writes into pods' resolv.conf. Two tests ask for their
// Service by its name.
const clusterDNS = `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.112.0.10
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [%s], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}]
`

// serveDNS answers the cluster's questions for names of Services, from a socket of the node's.
func (c *cluster) serveDNS(ctx context.Context, node string) (stop io.Closer, err error) {
	address, _ := c.Addrs(node)
	var conn net.PacketConn
	err = c.InNamespace(node, func() error {
		conn, err = net.ListenPacket("udp4", net.JoinHostPort(address.String(), "53"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve DNS on %s: %w", node, err)
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			if reply, err := answer(buffer[:n],
				func(ns, name string) (netip.Addr, bool) { return c.clusterIP(ctx, ns, name) }); err == nil {
				_, _ = conn.WriteTo(reply, from) // a resolver asks again
			}
		}
	}()
	return conn, c.Apply(ctx, fmt.Sprintf(clusterDNS, address))
}

// clusterIP looks a Service up.
func (c *cluster) clusterIP(ctx context.Context, ns, name string) (netip.Addr, bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := c.Client().CoreV1().Services(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s.Spec.ClusterIP)
	return a, err == nil && a.Is4()
}

// answer is the reply to a DNS query (RFC 1035 section 4): the IPv4 address of a Service, nothing for
// another type of record, and NXDOMAIN for a name that is no Service's.
func answer(query []byte, lookup func(ns, name string) (netip.Addr, bool)) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := p.Question()
	if err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true,
			RecursionDesired: header.RecursionDesired},
		Questions: []dnsmessage.Question{question},
	}
	name, in := strings.CutSuffix(strings.ToLower(question.Name.String()), ".svc.cluster.local.")
	service, ns, _ := strings.Cut(name, ".")
	address, ok := netip.Addr{}, false
	if in && !strings.Contains(ns, ".") && ns != "" {
		address, ok = lookup(ns, service)
	}
	switch {
	case !ok:
		reply.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		reply.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: address.As4()},
		}}
	}
	return reply.Pack()
}
