package dhcp

import (
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	leases   *prometheus.GaugeVec
	sent     *prometheus.CounterVec
	renewals *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// Kinds of failure.
const (
	failNoAnswer = "no_answer"
	failRefused  = "refused"  // DHCPNAK, or a status that means it
	failExpired  = "expired"  // the lease ended
	failDeclined = "declined" // the address is in use, or not for a VIP
	failInvalid  = "invalid"  // an answer that was not accepted
	failLink     = "link"     // the link or the socket
)

func newMetrics() metrics {
	m := metrics{
		leases: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "herald_dhcp_leases", Help: "Addresses that this node holds a DHCP lease for, by family.",
		}, []string{"family"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_messages_sent_total", Help: "Messages sent to DHCP servers, by type as the RFCs name it.",
		}, []string{"type"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_renewals_total", Help: "DHCP leases that a server has renewed, by family.",
		}, []string{"family"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_failures_total", Help: "What went wrong with DHCP, by family and kind: no_answer, refused " +
				"(DHCPNAK and the like), expired, declined (the address is in use, or not for a VIP), invalid (an answer that " +
				"was not accepted), link (the link or the socket).",
		}, []string{"family", "kind"}),
	}
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		m.leases.WithLabelValues(f.String())
		m.renewals.WithLabelValues(f.String())
		for _, kind := range []string{failNoAnswer, failRefused, failExpired, failDeclined, failInvalid, failLink} {
			m.failures.WithLabelValues(f.String(), kind)
		}
	}
	return m
}

// Collectors are the room's metrics.
func (c *Clients) Collectors() []prometheus.Collector {
	m := c.metrics
	return []prometheus.Collector{m.leases, m.sent, m.renewals, m.failures}
}
