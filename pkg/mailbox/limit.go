package mailbox

import "time"

const limitWindow = 100 * time.Millisecond

// A Limit bounds how many packets a goroutine reads, so that a flood costs little: others wait in the receive buffer,
// or are dropped.
type Limit struct {
	PerSecond int // how many packets may be read; at least 10

	began time.Time // of the window
	read  int       // in the window
}

// Read counts a packet, and reports whether it waited for the window's end: packets may be lost.
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
