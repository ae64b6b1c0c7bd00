package lease

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// vipLease is a VIP lease a that n1 has claimed in epoch 1, in a version.
func vipLease(version, claim string) *record {
	node, _, _ := strings.Cut(claim, "@")
	return parseRecord(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a", ResourceVersion: version, Annotations: map[string]string{ClaimAnnotation: claim}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node},
	})
}

// to is one VIP lease, a in a version, that goes to a claim.
func to(version uint64, claim string) transferred {
	return transferred{digest: digestOf(lk("a"), version), to: claim, at: 1}
}

func TestFollowTransfers(t *testing.T) {
	tests := []struct {
		name  string
		x     *record
		nodes map[string][]transferred
		want  string
	}{
		{"none", vipLease("7", "n1@1"), nil, "n1@1"},
		{"to another node", vipLease("7", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5")}}, "n2@5 unwritten, after [n1]"},
		{"the lease was written since", vipLease("8", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5")}}, "n1@1"},
		{"of another node's lease", vipLease("7", "n1@1"), map[string][]transferred{"n2": {to(7, "n3@5")}}, "n1@1"},
		{"and on to a third", vipLease("7", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5")}, "n2": {to(7, "n3@2")}}, "n3@2 unwritten, after [n2 n1]"},
		{"and back, in a later epoch", vipLease("7", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5")}, "n2": {to(7, "n2@6")}}, "@0 unwritten, after []"},
		{"in a circle", vipLease("7", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5")}, "n2": {to(7, "n1@2")}}, "@0 unwritten, after []"},
		{"two for one lease", vipLease("7", "n1@1"), map[string][]transferred{"n1": {to(7, "n2@5"), to(7, "n3@5")}}, "n1@1"},
		{"another program's", vipLease("7", "x"), map[string][]transferred{"x": {to(7, "n2@5")}}, "x@0"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			of := func(node string) *transfers { return parseTransfers(transfersText(c.nodes[node])) }
			o := followTransfers(c.x, of)
			got := o.claimText()
			if o.unwritten {
				got += fmt.Sprintf(" unwritten, after %v", o.before)
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// What does not fit is left out, and what fits is read again as it was written.
func TestTransfersText(t *testing.T) {
	var all []transferred
	for i := range 2 * maxTransferred {
		k := vip.Key{Namespace: "default", Name: fmt.Sprint("kubevip-", i)}
		all = append(all, transferred{digestOf(k, uint64(i+1)), fmt.Sprintf("n%d@%d", i%4, 1), 17, "n9: it is dead"})
	}
	text := transfersText(all)
	read := parseTransfers(text)
	if read == nil || len(read.index) != maxTransferred || len(read.all) != 4 {
		t.Fatalf("%d bytes are read as %v", len(text), read)
	}
	if each := len(text) / maxTransferred; each > 11 {
		t.Errorf("%d bytes for each lease, want 11 at most", each)
	}
	for i, x := range all[:maxTransferred] {
		if got := read.find(x.digest); got == nil || got.To != x.to || got.At != x.at || got.Cause != x.cause {
			t.Fatalf("lease %d: %v, want %v", i, got, x)
		}
	}
	for i := range all {
		all[i].cause = strings.Repeat("\x01", 200) + fmt.Sprint(i) // a transfer each
	}
	if text = transfersText(all); len(text) > maxTransfersText || parseTransfers(text) == nil {
		t.Errorf("%d bytes are not read", len(text))
	}
	if text := transfersText(nil); text != "" {
		t.Errorf("of none: %q", text)
	}
}

func FuzzParseTransfers(f *testing.F) {
	f.Add(transfersText([]transferred{to(1, "n1@2"), to(2, "n2@3")}))
	f.Add(`[{"to":"n1@2","at":-1,"leases":"AAAAAAAAAAE="},{"to":"n1@2","leases":"AAAAAAAAAAE="}]`)
	f.Add(`[{"to":"@","leases":"AAA="}]`)
	f.Fuzz(func(t *testing.T, text string) {
		all := parseTransfers(text)
		if all == nil {
			return
		}
		var again []transferred
		for i := range all.all {
			x := &all.all[i]
			if x.node == "" || x.epoch <= 0 {
				t.Errorf("%q goes to %q", text, x.To)
			}
			for _, d := range x.digests() {
				again = append(again, transferred{d, x.To, x.At, x.Cause})
			}
		}
		if len(again) > 0 && transfersText(again) != "" && parseTransfers(transfersText(again)) == nil {
			t.Errorf("%q can't be written again", text)
		}
		o := followTransfers(vipLease("1", "n1@1"), func(string) *transfers { return all })
		if o.unwritten && o.node == "" && o.epoch != 0 {
			t.Errorf("%v", o)
		}
	})
}
