package l2

import (
	"net/netip"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	sent     *prometheus.CounterVec
	errors   *prometheus.CounterVec
	heard    prometheus.Counter
	requests *prometheus.CounterVec
	problems *prometheus.GaugeVec
}

var problems = []string{"in_use", "conflict", "unanswered", "node_unanswered", "foreign_mac", "former_owner"}

// newMetrics makes the metrics, with each value of their labels at 0.
func newMetrics() metrics {
	byFamily := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"family"})
		v.WithLabelValues("ipv4")
		v.WithLabelValues("ipv6")
		return v
	}
	m := metrics{
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "herald_vip_problems",
			Help: "VIPs with a problem that this node has found by ARP or neighbor discovery: in_use (another host has an " +
				"address that is to be used for the first time), conflict (this node has it, and another host claims it, too), " +
				"unanswered (its owner, another node, does not reply), node_unanswered (not a VIP: another node does not reply " +
				"for an address of its own on a link with VIPs), foreign_mac (a host other than its owner, another node, " +
				"replies), former_owner (this node owns it, and does not bind it, since a node that has lost its claims goes " +
				"on to reply, or can't be asked).",
		}, []string{"problem"}),
		sent: byFamily("herald_announcements_sent_total", "Frames that announced a VIP: gratuitous ARP (ipv4) and "+
			"unsolicited neighbor advertisements (ipv6)."),
		errors: byFamily("herald_announcement_errors_total", "Announcements of a VIP that could not be sent. Each is "+
			"tried again after about a second."),
		requests: byFamily("herald_neighbor_requests_sent_total", "ARP requests and neighbor solicitations sent: for "+
			"other nodes and the gateway, for VIPs that other nodes own, and for VIPs before they are used for the first time."),
		heard: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "herald_announcements_heard_total",
			Help: "Announcements by other hosts of a VIP that this node announces, or has just handed to another node.",
		}),
	}
	for _, p := range problems {
		m.problems.WithLabelValues(p)
	}
	return m
}

func familyLabel(a netip.Addr) string { return strings.ToLower(vip.FamilyOf(a).String()) }
