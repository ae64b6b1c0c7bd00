package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A namespace leaves half of the requests to others unless it is quick; one that leaves none has all of them. Of requests that have ended nothing is kept.
func TestWriteLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n := newWriteLimits(8), 0
		const goOn = -1
		for _, tt := range []struct {
			what, namespace string
			leaves          bool
			want            int           // requests begin
			took, pause     time.Duration // all that are under way end after took, unless that is goOn
		}{
			{"at first", "a", true, 4, goOn, 0},
			{"beside a", "b", true, 2, goOn, 0},
			{"beside a and b", "c", true, 1, goOn, 0},
			{"leaving none", "a", false, 1, goOn, 0},
			{"when there are no more", "a", false, 0, quickAnswer, 0},
			{"after quick ones", "a", true, 8, quickAnswer + 1, 0},
			{"after slow ones", "a", true, 4, 0, 0},
			{"soon after slow ones, though after quick ones", "a", true, 4, 0, slowFor + 1},
			{"long after any", "a", true, 4, 0, 0},
			{"long after slow ones", "a", true, 8, 0, quickFor + 1},
			{"a while after quick ones", "a", true, 4, 0, 0},
		} {
			before := len(w.requests)
			for ; w.mayBegin(tt.namespace, tt.leaves) && n < 99; n++ {
				w.begin(vip.Key{Namespace: tt.namespace, Name: fmt.Sprint(n)}, tt.namespace)
			}
			if got := len(w.requests) - before; got != tt.want || w.free() != 8-len(w.requests) {
				t.Errorf("%s: %d requests of %s begin, want %d; %d are free", tt.what, got, tt.namespace, tt.want, w.free())
			}
			if tt.took != goOn {
				time.Sleep(tt.took)
				for k := range w.requests {
					w.end(k)
					w.end(k) // none is under way any more
				}
				time.Sleep(tt.pause)
			}
		}
		if len(w.requests)+len(w.underWay) > 0 || len(w.answers) != 1 {
			t.Errorf("%v, %v and %v are kept", w.requests, w.underWay, w.answers)
		}
	})
}
