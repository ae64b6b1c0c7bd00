package dhcp

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// The two capabilities that Herald has in a container (pkg/manifest) are enough to open a link.
func TestOpenNeedsTwoCapabilities(t *testing.T) {
	l := lan(t)
	for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
		opened := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			both := uint32(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW)
			sets := [2]unix.CapUserData{{Effective: both, Permitted: both}} // of capabilities 0 to 31, and 32 to 63
			err := unix.Capset(&header, &sets[0])
			if err == nil {
				c, failed := Open(vip.DHCPRequest{Link: l.link, Family: family})
				if err = failed; err == nil {
					c.Close()
				}
			}
			opened <- err
		}()
		if err := <-opened; err != nil {
			t.Errorf("%v: %v", family, err)
		}
	}
}
