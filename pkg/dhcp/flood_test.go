package dhcp

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// A junkConn is a connection on whose link a host sends, a million times a second, what can't be read.
type junkConn struct {
	net.PacketConn
	until time.Time
	read  int
}

func (c *junkConn) ReadFrom([]byte) (int, net.Addr, error) {
	time.Sleep(time.Microsecond)
	if !time.Now().Before(c.until) {
		return 0, nil, os.ErrDeadlineExceeded
	}
	c.read++
	return 0, nil, errNotForUs
}

// TestFloodOfJunk: what can't be read counts for what is read in a second, and is ignored.
func TestFloodOfJunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &junkConn{until: time.Now().Add(10 * time.Second)}
		done, ignored, err := (&client{}).receive(t.Context(), c, transaction{})
		check.OK(t, err)
		if done || ignored != nil || c.read < 9*readsPerSecond || c.read > 11*readsPerSecond {
			t.Errorf("%v, %v: %d were read in ten seconds", done, ignored, c.read)
		}
	})
}
