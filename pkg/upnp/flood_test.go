package upnp

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// TestFloodOfAnnouncements: of a flood of announcements a bounded number is read.
func TestFloodOfAnnouncements(t *testing.T) {
	check.OK(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	c := check.Value(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer c.Close()
	check.OK(t, c.SetReadDeadline(time.Now().Add(time.Second)))
	from := check.Value(net.DialUDP("udp4", nil, c.LocalAddr().(*net.UDPAddr)))(t)
	defer from.Close()
	sent, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		for began := time.Now(); time.Since(began) < time.Second; sent++ {
			_, _ = from.Write([]byte("NOTIFY * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nNT: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\nNTS: ssdp:alive\r\n\r\n"))
		}
	}()
	found := 0
	_ = readNotifies(c, func() { found++ }) // the deadline
	<-ended
	if found < 20 || found > notifiesPerSecond*3/2 || sent < 10*notifiesPerSecond {
		t.Errorf("%d of %d announcements were read in a second", found, sent)
	}
}
