package lease

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

func TestFormerHolders(t *testing.T) {
	now := time.Unix(100, 0)
	var long []string
	for i := range 100 {
		long = append(long, fmt.Sprintf("x%d@1", i))
	}
	tests := []struct{ name, holder, claim, before, next, want string }{
		{"new", "", "", "", "n1", ""},
		{"another node", "n1", "n1@1", "", "n2", "n1@100"},
		{"the same node", "n1", "n1@1", "n2@90", "n1", "n2@90"},
		{"another again", "n2", "n2@1", "n1@90", "n3", "n2@100,n1@90"},
		{"and back", "n2", "n2@1", "n1@90", "n1", "n2@100,n1@90"},
		{"each once", "n2", "n2@1", "n3@95,n2@90,n4@80", "n1", "n2@100,n3@95,n4@80"},
		{"to and fro", "n1", "n1@2", "n2@95,n1@90", "n2", "n1@100,n2@95"},
		{"free", "", "", "n1@90", "n2", "n1@90"},
		{"another program's", "x", "n1@1", "n1@90", "n2", "n1@90"},
		{"what a tenant wrote", "n1", "n1@1", "n3,@5,n4@x,=@,n5@7", "n2", "n1@100,n5@7"},
		{"no more than eight", "n1", "n1@1", strings.Join(long, ","), "n2", "n1@100," + strings.Join(long[:7], ",")},
		{"a circle that a tenant wrote", "n1", "n1@1", "n2@95,n1@90,n2@80,n3@70,n2@60", "n4", "n1@100,n2@95,n3@70"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ClaimAnnotation: tt.claim, FormerAnnotation: tt.before}}}
			l.Spec.HolderIdentity = &tt.holder
			if got := formerHolders(l, tt.next, now); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// A VIP that goes from n1 to n2, which is killed, and on to n3 leads back to both.
func TestFormerHoldersOfClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2, n3 := start(t, s, "n1"), start(t, s, "n2"), start(t, s, "n3")
		n1.want("a")
		time.Sleep(time.Second)
		n1.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.HandOver, Successor: "n2"}})
		n2.want("a")
		time.Sleep(time.Second)
		n2.kill()
		n3.want("a")
		time.Sleep(leaseDuration + 2*time.Second)
		c := n3.world().Claims[lk("a")]
		if len(c.FormerHolders) != 2 || c.FormerHolders[0].Node != "n2" || c.FormerHolders[1].Node != "n1" || c.Holder != "n3" {
			t.Fatalf("%s holds it, former holders %v, want n3, and n2, n1", c.Holder, c.FormerHolders)
		}
		if between := c.FormerHolders[0].Until.Sub(c.FormerHolders[1].Until); between < leaseDuration-period-time.Second {
			t.Errorf("n2 lost it %v after n1, want about %v", between, leaseDuration)
		}
	})
}

// FuzzFormerHolders: whatever the annotation says, few nodes are kept, each once, and what Herald writes of them is read as the same.
func FuzzFormerHolders(f *testing.F) {
	f.Add("n2@1790000000,n1@1789999990")
	f.Add("n1@1,n1@2,@3,n2@x,n3@9223372036854775807,n4@-9223372036854775808")
	f.Add(strings.Repeat("a@1,b@1,", 10000))
	f.Add("a@b@1,,@")
	f.Fuzz(func(t *testing.T, text string) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{FormerAnnotation: text}}}
		all := parseFormerHolders(l)
		seen := make(map[string]bool)
		for _, x := range all {
			if x.Node == "" || seen[x.Node] {
				t.Errorf("%q: %v", text, all)
			}
			seen[x.Node] = true
		}
		if len(all) > maxFormerHolders {
			t.Errorf("%d nodes", len(all))
		}
		l.Annotations[FormerAnnotation] = formerHoldersText(all)
		if again := parseFormerHolders(l); !slices.Equal(again, all) {
			t.Errorf("%v is read as %v", all, again)
		}
	})
}
