package l2

import (
	"net/netip"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

// meters are the room's metrics.
type meters struct {
	sent   *prometheus.CounterVec
	errors *prometheus.CounterVec
	heard  prometheus.Counter
	asked  *prometheus.CounterVec
	wrong  *prometheus.GaugeVec
}

// wrongs is what may be wrong with a VIP on the wire.
var wrongs = []string{"in_use", "contested", "unanswered", "foreign"}

func newMeters() meters {
	byFamily := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"family"})
		v.WithLabelValues("ipv4")
		v.WithLabelValues("ipv6")
		return v
	}
	wrong := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "herald_vips_wrong",
		Help: "VIPs that this node finds wrong on the wire: in_use (another host has an address that is to be used for the first time), contested (this node has it, and another host says so, too), unanswered (its owner, another node, does not answer for it), foreign (somebody beside its owner, another node, answers for it).",
	}, []string{"what"})
	for _, what := range wrongs {
		wrong.WithLabelValues(what)
	}
	return meters{
		wrong:  wrong,
		sent:   byFamily("herald_announcements_sent_total", "Frames that announced a VIP: gratuitous ARP (ipv4) and unsolicited neighbor advertisements (ipv6)."),
		errors: byFamily("herald_announcement_errors_total", "Announcements of a VIP that could not be sent. Each is tried again after about a second."),
		asked:  byFamily("herald_questions_sent_total", "ARP requests and neighbor solicitations that asked for an address: of other nodes, of VIPs that other nodes own, and of VIPs before they are used for the first time."),
		heard: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "herald_announcements_heard_total",
			Help: "Announcements by other hosts of a VIP that this node announces, or has just handed to another node.",
		}),
	}
}

func (m meters) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.sent, m.errors, m.heard, m.asked, m.wrong}
}

// family is the label of a's family.
func family(a netip.Addr) string { return strings.ToLower(vip.FamilyOf(a).String()) }
