package e2e

import (
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// A VIP is on a network other than that of heartbeats. The switch drops that network at the port of the VIP's owner, whose link stays up:
// the VIP moves to a node that is heard there, and stays there when the first one is heard again. When all nodes lose it, nothing moves.
func TestVLANDropped(t *testing.T) {
	undo := check.Value(cluster.AddVLAN(append([]string{"cl"}, cluster.Nodes()...)...))(t)
	t.Cleanup(func() { check.OK(t, undo()) })
	start(t, env())
	const vip = "10.79.0.50"
	createService(t, webService("v", vip, lab.Annotated("kube-vip.io/serviceInterface", lab.VLANLink)))
	createService(t, webService("main", "10.77.0.50"))
	owner, other := awaitOwner(t, "v"), awaitOwner(t, "main")
	awaitReachable(t, "http://"+vip+"/")
	awaitProxies(t, vip)
	time.Sleep(5 * time.Second) // nodes ask for each other each 2 s

	c := connect(t, vip+":80")
	check.OK(t, cluster.DropVLAN(owner))
	dropped := time.Now()
	next := awaitAnotherOwner(t, "v", owner, 20*time.Second)
	t.Logf("%s -> %s: owned after %v", owner, next, time.Since(dropped).Round(10*time.Millisecond))
	awaitEvent(t, "v", "VIPUnanswered", "node "+owner+" owns it")
	r := c.Stop()
	t.Logf("longest without a connection: %v", r.Outage)
	if r.Outage > 12*time.Second {
		t.Errorf("no connection for %v\n%s", r.Outage, r)
	}

	check.OK(t, cluster.RestoreVLAN(owner))
	for _, n := range cluster.Nodes() {
		check.OK(t, cluster.DropVLAN(n))
	}
	time.Sleep(15 * time.Second) // three times as long as it takes to move
	for _, n := range cluster.Nodes() {
		check.OK(t, cluster.RestoreVLAN(n))
	}
	awaitReachable(t, "http://"+vip+"/")
	if now := awaitOwner(t, "v"); now != next {
		t.Errorf("%s moved from %s to %s, although no node is heard there", vip, next, now)
	}
	if now := awaitOwner(t, "main"); now != other {
		t.Errorf("the VIP on the LAN moved from %s to %s", other, now)
	}
}
