// Package kube is Herald's only way to the Kubernetes API server, but for what
// Leases mean. It watches Services, EndpointSlices, Nodes, ServiceCIDRs and
// Leases; what they say it turns into the values of package vip once, when it
// arrives, so that a pass of the agent only picks them up. It writes the status
// of Services and Events.
//
//	API server -> feed (list, watch) -> caches -> Observe -> World
//	Plan -> Statuses.Set, Notes.Set -> their Run -> API server
//
// Leases are handed on as they are: package lease knows what they mean. They are
// written over a connection of their own, so that a renewal never waits behind
// anything else.
package kube
