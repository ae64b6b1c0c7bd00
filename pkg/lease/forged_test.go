package lease

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// forge writes a Lease with the claim node@epoch, as anybody may in a namespace of theirs.
func forge(t *testing.T, s *leasetest.Server, name, node string, epoch int64) {
	t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, Annotations: map[string]string{ClaimAnnotation: fmt.Sprintf("%s@%d", node, epoch)}}}
	l.Spec.HolderIdentity = &node
	check.Value(s.Put(l))(t)
}

// What VIP leases claim for nodes that do not exist, or in epochs that a node has not had, causes no
// write, ever: no node lease is made or fenced.
func TestForgedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		for i := range 100 {
			forge(t, s, fmt.Sprintf("ghost-%d", i), fmt.Sprintf("ghost%d", i), 1)
		}
		forge(t, s, "forged-3", "n3", math.MaxInt32)
		forge(t, s, "forged-2", "n2", math.MaxInt64)
		before := s.Writes()
		time.Sleep(time.Minute)
		if got := s.Writes() - before; got > 62 {
			t.Errorf("%d writes in a minute, want 60: those of two nodes that renew", got)
		}
		if strings.Contains(s.String(), NodePrefix+"ghost") || strings.Contains(s.String(), NodePrefix+"n3") {
			t.Errorf("node leases were made:\n%.300s", s)
		}
		if !a.serves("a") || b.serves("a") {
			t.Error("something moved")
		}
		c := start(t, s, "n3")
		c.want("c")
		time.Sleep(2 * time.Second)
		if !c.serves("c") {
			t.Errorf("n3 does not serve, in epoch %d", c.Tenure().Epoch)
		}
	})
}

// A claim in an epoch that the node has not reached, or of a node that has no node lease,
// counts for a lease duration after it was written; then another node may acquire the VIP.
func TestUnprovenClaim(t *testing.T) {
	for _, holder := range []string{"n2", "ghost"} {
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			start(t, s, "n2")
			a := start(t, s, "n1")
			time.Sleep(time.Second)
			forge(t, s, "kubevip-a", holder, 1<<30)
			l := check.Value(s.Put(func() *coordinationv1.Lease {
				l := s.Lease(vip.Key{Namespace: "tenant", Name: "kubevip-a"}).DeepCopy()
				l.Namespace, l.ResourceVersion = "default", ""
				return l
			}()))(t)
			a.want("a")
			written := time.Now()
			for !a.serves("a") && time.Since(written) < time.Minute {
				time.Sleep(50 * time.Millisecond)
			}
			if took := time.Since(written); took < leaseDuration-time.Second || took > leaseDuration+time.Second {
				t.Errorf("%s: acquired after %v, want %v\n%s", *l.Spec.HolderIdentity, took, leaseDuration, s)
			}
		})
	}
}

// An epoch at the end of the 32 bits that it has on a node lease is left for one that can be counted from.
func TestNextEpoch(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := now.Unix() - time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	at := func(epoch int32, fenced string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseTransitions: &epoch}}
		annotate(l, FencedAnnotation, fenced)
		return l
	}
	for _, tt := range []struct {
		name  string
		known *coordinationv1.Lease
		own   int64
		over  bool
		now   time.Time
		want  int64
	}{
		{name: "the first", want: first},
		{name: "the first, with a clock far ahead", now: now.AddDate(200, 0, 0), want: lastEpoch / 2},
		{name: "the first, with a clock behind 2020", now: time.Unix(0, 0), want: 1},
		{name: "adopted", known: at(7, ""), want: 7},
		{name: "fenced", known: at(7, "7"), want: 8},
		{name: "without an epoch", known: at(0, ""), want: first},
		{name: "without an epoch, and fenced", known: at(0, "1"), want: first},
		{name: "its own is over", known: at(7, ""), own: 7, over: true, want: 8},
		{name: "at the end", known: at(math.MaxInt32, ""), want: first},
		{name: "fenced at the end", known: at(math.MaxInt32, "2147483647"), want: first},
		{name: "fenced beyond the end", known: at(7, "9223372036854775807"), want: first},
		{name: "at the end, beside a running process", known: at(math.MaxInt32, ""), own: first + 5, want: first + 6},
		{name: "own at the end", known: at(math.MaxInt32-1, ""), own: math.MaxInt32 - 1, want: first},
	} {
		if tt.now.IsZero() {
			tt.now = now
		}
		if got := nextEpoch(tt.known, tt.own, tt.over, tt.now); got != tt.want {
			t.Errorf("%s: epoch %d, want %d", tt.name, got, tt.want)
		}
	}
}
