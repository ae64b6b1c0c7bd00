package lease

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
)

// A node that was fenced begins a new epoch, though the tombstone is deleted before its watch shows that.
func TestFencedAndDeletedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		n1.want("a")
		time.Sleep(5 * time.Second)
		for range 20 {
			before := n1.Tenure().Epoch
			annotateLease(t, s, nodeKey("n1"), FencedAnnotation, strconv.FormatInt(before, 10))
			if err := s.Remove(nodeKey("n1"), ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*time.Second + 50*time.Millisecond)
			if got := n1.Tenure().Epoch; got <= before {
				t.Fatalf("epoch %d goes on as %d", before, got)
			}
		}
	})
}
