package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

func (e *serviceExplanation) write(w io.Writer, format string, now time.Time) error {
	if format != "" {
		return encode(w, format, e)
	}
	lines := e.lines(now)
	for i, l := range lines {
		lines[i] = row(l)
	}
	var events []string
	for _, v := range e.Events {
		kind := "Normal"
		if v.Warning {
			kind = "Warning"
		}
		events = append(events, row(age(v.At, now), dash(v.Node), kind, string(v.Reason), v.Message))
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return errors.Join(err,
		writeTable(w, "\nADDRESS\tFROM\tIN ITS STATUS", e.addressRows()),
		writeTable(w, "\nNODE\tMAY CARRY IT\tWHY", e.nodeRows()),
		writeTable(w, "\nAGE\tBY\tTYPE\tREASON\tMESSAGE", events),
		writeTable(w, "\nMAY NOT BE READ", e.Missing),
	)
}

// lines returns what is said before the tables.
func (e *serviceExplanation) lines(now time.Time) []string {
	lines := []string{e.Service.String() + ": " + e.headline()}
	if e.Advice != "" {
		lines = append(lines, "What to do: "+e.Advice)
	}
	if e.Owner != "" {
		owner := "Owner: " + e.Owner
		if !e.Since.IsZero() {
			owner += fmt.Sprintf(", for %s (since %s)", age(e.Since, now), e.Since.UTC().Format(time.RFC3339))
		}
		if e.MovedFrom != "" && e.MovedFrom != e.Owner {
			owner += "; before that " + e.MovedFrom
		}
		lines = append(lines, owner)
		if e.MoveCause != "" {
			lines = append(lines, "It moved since "+e.MoveCause)
		}
	}
	if e.Lease != "" {
		lines = append(lines, "In the table herald-table: "+e.Lease)
	}
	if len(e.SharesWith) > 0 {
		var names []string
		for _, k := range e.SharesWith {
			names = append(names, k.String())
		}
		lines = append(lines, "Shares its address or lease with: "+abbreviate(names))
	}
	lines = append(lines, e.endpointsLine(), "ipMode: "+e.ipMode())
	for _, a := range e.service.StatusVIPs() {
		if a.Is4() {
			return append(lines, fmt.Sprintf("Who answers: arping -c 3 -I LINK %s, on a host of the VIP's network", a))
		}
	}
	return lines
}

// headline says in one sentence how things are.
func (e *serviceExplanation) headline() string {
	switch {
	case e.Problem != "":
		return e.Problem
	case e.Reason == vip.VIPElsewhere:
		return "announced by node " + e.Owner
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

func (e *serviceExplanation) endpointsLine() string {
	var parts []string
	if len(e.Endpoints.Ready) > 0 {
		parts = append(parts, "ready on "+abbreviate(append([]string{}, e.Endpoints.Ready...)))
	}
	if len(e.Endpoints.Terminating) > 0 {
		parts = append(parts, "terminating on "+abbreviate(append([]string{}, e.Endpoints.Terminating...)))
	}
	if e.Endpoints.WithoutNode {
		parts = append(parts, "one or more that name no node")
	}
	text := "Endpoints: " + cmp.Or(strings.Join(parts, "; "), "none that is ready")
	if e.Local {
		text += " (externalTrafficPolicy Local: only a node with one may carry it)"
	}
	return text
}

// ipMode says what kube-proxy makes of the address.
func (e *serviceExplanation) ipMode() string {
	var texts []string
	for _, m := range e.IPModes {
		switch m {
		case vip.ModeVIP:
			texts = append(texts, "VIP (kube-proxy serves the address on every node: what Pods and nodes send to it leaves "+
				"no node)")
		case vip.ModeProxy:
			texts = append(texts, "Proxy (kube-proxy leaves the address alone: what Pods and nodes send to it goes by way "+
				"of its owner)")
		default:
			texts = append(texts, "not said (the API server is older than 1.29: kube-proxy serves the address on every node)")
		}
	}
	if len(texts) == 0 {
		return "none yet: its status has no address"
	}
	return strings.Join(texts, "; ")
}

func (e *serviceExplanation) addressRows() (rows []string) {
	for _, a := range e.Addresses {
		shown := "no"
		switch {
		case a.InStatus:
			shown = "yes"
		case a.Refused:
			shown = "no: it may not have it"
		}
		rows = append(rows, row(a.Address.String(), a.Origin, shown))
	}
	return rows
}

func (e *serviceExplanation) nodeRows() (rows []string) {
	for _, n := range e.Nodes {
		able := "no"
		switch {
		case n.Owner && n.Able:
			able = "owner"
		case n.Owner:
			able = "owner, but it may not"
		case n.Able:
			able = "yes"
		}
		rows = append(rows, row(n.Node, able, n.Why))
	}
	return rows
}

func joinAddresses(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return dash(strings.Join(texts, ", "))
}
