package upnp

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// Error codes of WANIPConnection (version 2, section 2.5.24) and WANIPv6FirewallControl that Herald acts on.
const (
	codeNotAuthorized      = 606
	codeInvalidAction      = 401
	codeNotImplemented     = 602
	codeInvalidArgs        = 402
	codeActionFailed       = 501
	codeNoPinhole          = 704
	codeNoSuchIndex        = 713
	codeNoMapping          = 714
	codeOnlyPermanentLease = 725
)

// faultMeanings is what refusals mean, and what to change.
var faultMeanings = map[int]string{
	401: "it does not know the request; UPnP on the router may be incomplete or out of date",
	402: "it does not accept the values of the request; another " + leaseKey + ", such as 0, may help",
	403: "it refuses; allow UPnP, and mappings below port 1024, on the router",
	501: "it failed to do it; restart UPnP on the router, or look into its log",
	602: "it has not implemented the request",
	605: "it does not accept a description of that length",
	606: "it refuses (not authorized): turn secure mode off on the router, or allow this port and host there; many " +
		"routers open no port below 1024 for other than themselves",
	701: "the pinhole's table is full",
	702: "its IPv6 firewall is off, so there is nothing to open",
	703: "it does not allow pinholes in its IPv6 firewall; allow UPnP for IPv6 on the router",
	705: "it does not accept the protocol",
	706: "it does not accept the internal port; it wants one above 1024",
	708: "it needs the internal address; this is a fault of Herald's",
	713: "it has no such entry",
	716: "it does not accept an external port of 0",
	718: "it refuses because of a conflict: another host has the port, or the router is in secure mode, in which a " +
		"host may open ports for its own address only; turn secure mode off on the router",
	724: "it wants the external port to be equal to the Service's port; remove " + portKey,
	726: "it wants no remote host; this is a fault of Herald's",
	727: "it opens all ports of an address, or none",
	728: "it has no room for more mappings; remove some on the router",
	729: "the port is in use by the router itself, or by another way to open ports; choose another by " + portKey,
	732: "it does not accept an internal port of 0",
}

// The annotations that messages name.
const (
	leaseKey = "kube-vip.io/upnp-lease-duration"
	portKey  = "heraldvip.io/upnp-external-port"
)

// A refusal is the error code of a SOAP fault.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("UPnP error %d", int(r)) }

// faultCode is the error code of a refusal, else 0.
func faultCode(err error) int {
	code, _ := errors.AsType[refusal](err)
	return int(code)
}

// explain is why a request failed, stable while the reason is, some 300 printable characters.
func explain(err error) string {
	if c := faultCode(err); c != 0 {
		if m := faultMeanings[c]; m != "" {
			return fmt.Sprintf("%s (UPnP error %d)", m, c)
		}
		return fmt.Sprintf("it refuses with UPnP error %d", c)
	}
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("it does not answer within %v", requestTimeout)
	case errors.Is(err, errRedirect):
		return errRedirect.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return "it can't be reached: " + op.Err.Error()
	}
	return printable(err.Error(), 300)
}
