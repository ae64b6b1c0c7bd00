package l2

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
)

// A silence is whether the kernel may leave a link's ARP requests unanswered.
type silence struct {
	yes bool
	at  time.Time
}

// answer replies to an ARP request for a VIP here where the kernel may not.
func (a *Announcer) answer(link string, m neighborMessage, now time.Time) {
	if !m.asks.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := newTarget(m.asks, link)
	x, tenure := a.announcements[t], a.opts.Tenure()
	if x == nil || x.want.ListenOnly || !x.ok || !tenure.Confirmed || !tenure.Holds(now) || !a.kernelIsSilent(link, now) {
		return
	}
	_ = a.transmit(t, now, a.metrics.sent, func(mac net.HardwareAddr) ([][]byte, error) { // who gets no reply asks again
		frame, err := replyFrame(m, mac)
		return [][]byte{frame}, err
	})
}

// kernelIsSilent reports whether a link's arp_ignore or arp_filter keeps the kernel from answering. a.mu is held.
func (a *Announcer) kernelIsSilent(link string, now time.Time) bool {
	s := a.silent[link]
	if now.Sub(s.at) >= time.Second {
		s = silence{max(a.conf("all", "arp_ignore"), a.conf(link, "arp_ignore")) > 1 || a.conf("all", "arp_filter")+
			a.conf(link, "arp_filter") > 0, now}
		a.silent[link] = s
	}
	return s.yes
}

// readConf reads net.ipv4.conf.<link>.<name>; 0 if it can't.
func readConf(link, name string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/" + name)
	if err != nil {
		return 0
	}
	v, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return v
}

// replyFrame returns the ARP reply to a request: what it asks for is at mac.
func replyFrame(m neighborMessage, mac net.HardwareAddr) ([]byte, error) {
	asker := m.addr
	if m.kind == messageProbe {
		asker = netip.IPv4Unspecified()
	}
	p, err := arp.NewPacket(arp.OperationReply, mac, m.asks, m.mac[:], asker)
	if err != nil {
		return nil, err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return ethernetFrame(m.mac[:], mac, ethernet.EtherTypeARP, payload)
}
