package mailbox

import (
	"testing"
	"testing/synctest"
	"time"
)

// However many packets there are, no more are read than the Limit says; and few do not wait.
func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		gap  time.Duration
		want int // in 10 s
	}{{time.Microsecond, 10000}, {2 * time.Millisecond, 5000}, {time.Second, 10}} {
		synctest.Test(t, func(t *testing.T) {
			l, began, n, waits := Limit{PerSecond: 1000}, time.Now(), 0, 0
			for ; time.Since(began) < 10*time.Second; n++ {
				time.Sleep(tt.gap)
				if l.Read() {
					waits++
				}
			}
			if n < tt.want-1 || n > tt.want+100 {
				t.Errorf("one each %v: %d were read in 10 s, want %d", tt.gap, n, tt.want)
			}
			if (waits > 0) != (tt.gap < time.Millisecond) {
				t.Errorf("one each %v: waited %d times", tt.gap, waits)
			}
		})
	}
}
