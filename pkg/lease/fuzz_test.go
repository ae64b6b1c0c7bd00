package lease

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// forgedLease is a Lease that somebody wrote: annotations of Herald and what the spec can hold.
func forgedLease(namespace, name, holder, claim, fenced, info string, transitions, seconds int32) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
		ClaimAnnotation: claim, FencedAnnotation: fenced, NodeAnnotation: info}}}
	l.Spec.HolderIdentity, l.Spec.LeaseTransitions, l.Spec.LeaseDurationSeconds = &holder, &transitions, &seconds
	return l
}

// FuzzParseLease: whatever a Lease says, its claim is a Herald's only if it names the holder, its
// times are positive, and what Herald writes of a NodeInfo that it could read is read as the same.
func FuzzParseLease(f *testing.F) {
	info := `{"interface":"eth0","defaultInterface":"eth0","links":[{"name":"eth0","up":true,"mac":"02:00:00:00:00:01","prefixes":["10.0.0.1/24"]}],"heartbeatKeys":["a"],"bgpSessions":[{}]}`
	f.Add("n1", "n1@7", "7", info, int32(7), int32(8))
	f.Add("n1", "n1@9223372036854775808", "9223372036854775807", "null", int32(-1), int32(-1))
	f.Add("", "@", "-1", strings.Repeat("[", 20000), int32(math.MaxInt32), int32(math.MaxInt32))
	f.Add("a@b", "a@b@1", "x", `{"links":[{"prefixes":["::ffff:1.2.3.4/999"]}]}`, int32(0), int32(0))
	f.Fuzz(func(t *testing.T, holder, claim, fenced, info string, transitions, seconds int32) {
		l := forgedLease("tenant", vip.NodeLeasePrefix+"n1", holder, claim, fenced, info, transitions, seconds)
		n, ok := ParseNodeLease(l)
		if !ok || n.Name != "n1" || n.Duration <= 0 {
			t.Errorf("%+v", n)
		}
		p := &peer{}
		p.update(l, time.Unix(1e9, 0))
		if p.update(l, time.Unix(2e9, 0)) {
			t.Error("the same again is told as a change")
		}
		for _, i := range []vip.NodeInfo{n.Info, p.info} {
			written := check.Value(json.Marshal(i))(t)
			var again vip.NodeInfo
			check.OK(t, json.Unmarshal(written, &again))
			check.Equal(t, string(check.Value(json.Marshal(again))(t)), string(written), "what is read again")
		}
	})
}

// FuzzForgedLease: whatever somebody writes into a Lease of their own namespace, it makes Herald
// write no node lease but its own, at the rate at which it renews, and a VIP of another Service stays.
func FuzzForgedLease(f *testing.F) {
	f.Add("kubevip-b", "n1", "n1@1", "1", "{}", int32(1), int32(1), false)
	f.Add("kubevip-b", "n1", "n1@1", "1", "{}", int32(1), int32(1), true)
	f.Add("kubevip-b", "n2", "n2@2147483647", "", "", int32(math.MaxInt32), int32(math.MaxInt32), false)
	f.Add(vip.NodeLeasePrefix+"n1", "n1", "", "99999999999999", "{", int32(math.MaxInt32), int32(-1), false)
	f.Add(vip.NodeLeasePrefix+"n9", "n9", "n9@0", "0", `{"links":null}`, int32(0), int32(0), true)
	f.Add("kubevip-b", "", "n1@1", "", "", int32(-5), int32(1), true)
	f.Fuzz(func(t *testing.T, name, holder, claim, fenced, info string, transitions, seconds int32, deleted bool) {
		withOne(t, func(t *testing.T, s *leasetest.Server, n *node) {
			n.want("a")
			time.Sleep(time.Second)
			epoch := n.Tenure().Epoch
			before := s.Writes()
			l, err := s.Put(forgedLease("tenant", name, holder, claim, fenced, info, transitions, seconds))
			if err != nil {
				t.Skip(err)
			}
			time.Sleep(10 * time.Second)
			if deleted { // what looks like written by Herald beside a kube-vip, it has deleted itself
				if err := s.Remove(keyOf(l), l.ResourceVersion); !apierrors.IsNotFound(err) {
					check.OK(t, err)
				}
			}
			time.Sleep(10 * time.Second)
			check.Between(t, s.Writes()-before, 0, 13, "writes in 20 s, of which 11 are renewals, one each %v, and the forged one", period)
			if !n.serves("a") || n.Tenure().Epoch != epoch {
				t.Errorf("serves %v, in epoch %d after %d", n.serves("a"), n.Tenure().Epoch, epoch)
			}
			if strings.Count(s.String(), "herald-node-") > strings.Count(name, "herald-node-")+1 {
				t.Errorf("node leases were made:\n%.500s", s)
			}
		})
	})
}
