package rawio

import "time"

// limitWindow is the time for which a Limit counts packets.
const limitWindow = 100 * time.Millisecond

// A Limit bounds how many packets a goroutine reads from a socket, so that a flood costs little of a
// core. What arrives meanwhile waits in the socket's receive buffer, and the kernel drops what that has
// no room for. One goroutine at a time may use it.
type Limit struct {
	PerSecond int // how many packets may be read; at least 10

	began time.Time // of the window
	read  int       // in the window
}

// Read counts a packet that was read. If as many as PerSecond allows were read within the last 100 ms,
// it blocks until these are over, and returns true: packets may be lost.
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
