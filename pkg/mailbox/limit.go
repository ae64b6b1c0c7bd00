package mailbox

import "time"

// limitWindow is the time for which a Limit counts packets.
const limitWindow = 100 * time.Millisecond

// A Limit bounds how many packets one goroutine reads from a socket, so that a flood costs little of a core. What
// arrives meanwhile waits in the socket's receive buffer, and the kernel drops what that has no room for.
type Limit struct {
	PerSecond int // how many packets may be read; at least 10

	began time.Time // of the window
	read  int       // in the window
}

// Read counts a packet, and reports whether it had to wait for the end of the window: packets may be lost.
func (l *Limit) Read() (waited bool) {
	now := time.Now()
	if now.Sub(l.began) >= limitWindow {
		l.began, l.read = now, 0
	}
	if l.read++; l.read < l.PerSecond/int(time.Second/limitWindow) {
		return false
	}
	time.Sleep(limitWindow - now.Sub(l.began))
	return true
}
