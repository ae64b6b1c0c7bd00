package bfd

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in a network namespace of their own.
func TestMain(m *testing.M) {
	if !namespace.Inside() {
		namespace.Enter()
	}
	os.Exit(m.Run())
}

// Packets arrive from neighbors with a TTL or hop limit of 255, and from nobody else; what is sent has a source port of RFC 5881.
func TestKernel(t *testing.T) {
	for _, l := range strings.Split("link set lo up,addr add 192.0.2.1/32 dev lo,addr add 192.0.2.2/32 dev lo,addr add 192.0.2.3/32 dev lo,"+
		"addr add 2001:db8::1/128 dev lo nodad,addr add 2001:db8::2/128 dev lo nodad,addr add 2001:db8::3/128 dev lo nodad", ",") {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", l, err, out)
		}
	}
	for i, prefix := range []string{"192.0.2.", "2001:db8::"} {
		address := func(n string) netip.Addr { return netip.MustParseAddr(prefix + n) }
		var k kernel
		got := make(chan received, 10)
		other := Config{Neighbor: address("1"), Source: address("3")}
		near := Config{Neighbor: address("1"), Source: address("2")}
		check.OK(t, k.listen(i == 1, []netip.Addr{address("9"), address("2")}, func(x received) { got <- x }))
		if err := (&kernel{}).listen(i == 1, []netip.Addr{address("2")}, nil); err == nil || !strings.Contains(err.Error(), "another program") {
			t.Errorf("a second one: %v", err)
		}
		from := func(c Config, state State) sender {
			s := check.Value(k.dial(c))(t)
			t.Cleanup(s.close)
			check.OK(t, s.send(packet{state: state, multiplier: 1, mine: 1, yours: 1}.marshal()))
			return s
		}
		from(other, Init)
		far := check.Value(net.DialUDP("udp", &net.UDPAddr{IP: near.Source.AsSlice()}, &net.UDPAddr{IP: near.Neighbor.AsSlice(), Port: port}))(t)
		defer far.Close()
		check.Value(far.Write(packet{state: Init, multiplier: 1, mine: 1, yours: 1}.marshal()))(t) // with the kernel's own TTL, 64
		check.Value(far.Write([]byte("x")))(t)
		if p := from(near, Up).(udpSender).conn.LocalAddr().(*net.UDPAddr).Port; p < firstPort {
			t.Errorf("source port %d", p)
		}
		next := func() received {
			t.Helper()
			select {
			case x := <-got:
				return x
			case <-time.After(10 * time.Second):
				t.Fatalf("nothing arrived of %s", prefix)
				return received{}
			}
		}
		if x := next(); x.from != near.Source || x.packet.state != Up {
			t.Errorf("the first to arrive is %+v", x)
		}
		check.OK(t, k.listen(i == 1, []netip.Addr{address("3")}, nil)) // another neighbor
		from(near, Init)
		from(other, Up)
		if x := next(); x.from != other.Source {
			t.Errorf("with other neighbors %+v arrived", x)
		}
		check.OK(t, k.listen(i == 1, nil, nil))
		from(other, Up) // is refused, which is no error
		check.OK(t, from(other, Up).send(good.marshal()))
	}
}
