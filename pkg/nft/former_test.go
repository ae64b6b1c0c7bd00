package nft

import (
	"fmt"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A connection that its owner knows stays there: what conntrack calls invalid of it is not sent on to a former owner, which would take it for the first
// packet of another connection and have the client's reset.
func TestInvalidIsNotSentOn(t *testing.T) {
	r := newRig(t)
	r.move("n1")
	r.set(New(check.Log(t)), "n2", "n1")
	r.move("n2")
	sh(t, `ip netns exec n1 sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip netns exec n2 nft add table inet guard
ip netns exec n2 nft 'add chain inet guard in { type filter hook input priority 0; }'
ip netns exec n2 nft add rule inet guard in ct state invalid counter drop`)
	for i, to := range []netip.Addr{vip4, vip6} {
		c := r.dial(to)
		c.wants(t, "n2")
		before := packets(t, "n2")
		r.sendBeyondWindow(c.Conn)
		check.Until(t, 5*time.Second, "the packet to arrive at n2", func() error {
			out := sh(t, "ip netns exec n2 nft list chain inet guard in")
			if found := regexp.MustCompile(`counter packets (\d+)`).FindStringSubmatch(out); found[1] != fmt.Sprint(i+1) {
				return fmt.Errorf("%s: %d were sent on, %s stayed", to, packets(t, "n2")-before, found[1])
			}
			return nil
		})
		c.wants(t, "n2")
	}
}

// What ends a connection of a former owner gets there, too, though conntrack calls it invalid: it does not begin to follow a connection by that.
func TestEndIsSentOn(t *testing.T) {
	r := newRig(t)
	r.move("n1")
	c := r.dial(vip4)
	c.wants(t, "n1")
	r.set(New(check.Log(t)), "n2", "n1")
	r.move("n2")
	check.OK(t, c.Close())
	check.Until(t, 5*time.Second, "n1 to know that the client has closed", func() error {
		if out := sh(t, "ip netns exec n1 ss -Htn state established sport = :8080"); out != "" {
			return fmt.Errorf("n1 has %s", out)
		}
		return nil
	})
}

// Where conntrack follows no connection of which it has not seen the beginning (nf_conntrack_tcp_loose is 0), all packets of a former owner's are invalid, and are sent on.
func TestSentOnWithoutLoose(t *testing.T) {
	r := newRig(t)
	for _, n := range []string{"n1", "n2"} {
		sh(t, "ip netns exec "+n+" sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")
	}
	r.move("n1")
	for _, to := range []netip.Addr{vip4, vip6} {
		c := r.dial(to)
		c.wants(t, "n1")
		r.set(New(check.Log(t)), "n2", "n1")
		r.move("n2")
		c.wants(t, "n1")
		r.move("n1")
	}
}

// TestForwardedFirst: n1 forwarded the first packet of a connection to the control plane's VIP, which n2 had, so its conntrack calls the next one invalid. When the VIP
// has come to n1 that packet is sent on to n2 all the same.
func TestForwardedFirst(t *testing.T) {
	r := newRig(t)
	for _, n := range []string{"n1", "n2"} {
		r.listenOn(n, fmt.Sprintf(":%d", apiPort))
	}
	resolve := func(node int) {
		sh(t, fmt.Sprintf("ip -n client neigh replace %s lladdr 02:00:00:00:00:0%d dev eth0 nud permanent", vip4, node))
	}
	sh(t, "ip netns exec n1 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0")
	r.move("n2")
	sh(t, fmt.Sprintf("ip netns exec n1 ip route add %s/32 dev eth0", vip4))
	resolve(1)
	c := check.Value(r.dialPort("client", vip4, apiPort))(t)
	resolve(2)
	c.wants(t, "n2")
	hold(t, "n1", New(check.Log(t)).FormerOwners, []vip.FormerOwner{{Addr: vip4, Port: apiPort, Link: "eth0", NextHop: own("n2")[0]}})
	sh(t, fmt.Sprintf("ip -n n1 addr add %s/32 dev eth0", vip4)) // n2, which has no translation here, keeps it, too
	resolve(1)
	c.wants(t, "n2")
}
