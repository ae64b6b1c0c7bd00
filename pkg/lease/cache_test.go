package lease

import (
	"strconv"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// What this node wrote, and another program deleted before the watch showed it, is gone.
func TestWrittenAndDeletedAtOnce(t *testing.T) {
	lease := func(version int) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a", ResourceVersion: strconv.Itoa(version)}}
	}
	for _, dropped := range []int{6, 5} { // 5: the watch is behind this node's write
		c := newCache("n1", "kube-system")
		c.update([]*coordinationv1.Lease{lease(5)}, nil)
		c.setWritten(lease(6))
		_, gone := c.update(nil, []*coordinationv1.Lease{lease(dropped)})
		if is := c.version(lk("a")) == 0 && len(gone) == 1; is != (dropped == 6) {
			t.Errorf("version %d was dropped: gone is %v, want %v", dropped, is, dropped == 6)
		}
	}
}

// After etcd was restored from a backup the watch shows earlier versions than before: they count, unless this node has just written a later one.
func TestRestoredFromBackup(t *testing.T) {
	lease := func(version int) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a", ResourceVersion: strconv.Itoa(version)}}
	}
	c := newCache("n1", "kube-system")
	c.update([]*coordinationv1.Lease{lease(500)}, nil)
	if changed, _ := c.update([]*coordinationv1.Lease{lease(100)}, nil); len(changed) != 1 || c.version(lk("a")) != 100 {
		t.Errorf("version %d counts", c.version(lk("a")))
	}
	c.setWritten(lease(102))
	if changed, _ := c.update([]*coordinationv1.Lease{lease(101)}, nil); len(changed) != 0 || c.version(lk("a")) != 102 {
		t.Errorf("the watch is behind this node's write, and version %d counts", c.version(lk("a")))
	}
}

// What this node wrote or deleted before etcd was restored from a backup, and the watch has not shown, may be lost: what the watch shows counts.
func TestRestoredWithoutWrites(t *testing.T) {
	lease := func(name string, version int) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-" + name, ResourceVersion: strconv.Itoa(version)}}
	}
	c := newCache("n1", "kube-system")
	c.update([]*coordinationv1.Lease{lease("a", 490), lease("b", 491), lease("c", 500)}, nil)
	c.setWritten(lease("a", 501))
	c.setWritten(lease("new", 502))
	c.setDeleted(lease("b", 491))
	_, gone := c.update([]*coordinationv1.Lease{lease("c", 480)}, nil)
	if c.version(lk("a")) != 490 || c.version(lk("b")) != 491 || c.version(lk("new")) != 0 || len(gone) != 1 {
		t.Errorf("versions %d, %d and %d count, and %d are gone", c.version(lk("a")), c.version(lk("b")), c.version(lk("new")), len(gone))
	}
	if c.shown != 480 {
		t.Errorf("the watch has shown what was written up to version %d, want 480", c.shown)
	}
	if changed, _ := c.update([]*coordinationv1.Lease{lease("a", 495)}, nil); len(changed) != 1 || c.version(lk("a")) != 495 {
		t.Errorf("version %d of what another node has written counts", c.version(lk("a")))
	}
}

// listTransferred knows at each moment what ownerOf says, whether the VIP lease or the transfer comes or goes first.
func TestListTransferred(t *testing.T) {
	c := newCache("n9", "kube-system")
	node := func(version, transfers string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: NodePrefix + "n1", ResourceVersion: version, Annotations: map[string]string{TransfersAnnotation: transfers},
		}}
	}
	text := transfersText([]transferred{to(7, "n2@5")})
	steps := []struct {
		name string
		show *coordinationv1.Lease
		want bool
	}{
		{"the VIP lease", vipLease("6", "n1@1").Lease, false},
		{"a transfer of a later version", node("10", text), false},
		{"that version", vipLease("7", "n1@1").Lease, true},
		{"it is written", vipLease("11", "n2@5").Lease, false},
		{"the transfer goes", node("12", ""), false},
		{"the first version once more, as after a backup", vipLease("7", "n1@1").Lease, false},
		{"the transfer comes", node("13", text), true},
		{"the transfer goes again", node("14", ""), false},
	}
	for _, s := range steps {
		c.update([]*coordinationv1.Lease{s.show}, nil)
		if got := c.listTransferred()[lk("a")]; got != s.want || c.ownerOf(c.latest[lk("a")]).unwritten != s.want {
			t.Errorf("%s: transferred is %v, want %v", s.name, got, s.want)
		}
	}
	c.update([]*coordinationv1.Lease{node("15", text)}, nil)
	c.update(nil, []*coordinationv1.Lease{vipLease("7", "n1@1").Lease})
	if len(c.listTransferred()) != 0 {
		t.Error("a VIP lease that is gone is transferred")
	}
}

// A write of this node has shown that etcd was restored from a backup. What it wrote before, and the watch has not shown, counts until the watch shows anything,
// and then no more. What the watch showed of this node's own lease is older than the write.
func TestRestoredByAWrite(t *testing.T) {
	lease := func(k vip.Key, version int) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, ResourceVersion: strconv.Itoa(version)}}
	}
	own := nodeKey("n1")
	c := newCache("n1", "kube-system")
	c.update([]*coordinationv1.Lease{lease(own, 500), lease(lk("a"), 490)}, nil)
	c.setWritten(lease(lk("new"), 501))
	if isRestored(lease(own, 501), c.shown) || !isRestored(lease(own, 500), c.shown) {
		t.Error("isRestored is wrong")
	}
	c.setRestored(lease(own, 480))
	c.setWritten(lease(own, 480))
	changed, gone := c.update(nil, nil)
	if c.version(own) != 480 || c.version(lk("new")) != 501 || c.version(lk("a")) != 490 || len(changed)+len(gone) != 0 || c.shown != 0 {
		t.Errorf("versions %d, %d and %d count; %d changed, %d are gone; %d is shown", c.version(own), c.version(lk("new")), c.version(lk("a")), len(changed), len(gone), c.shown)
	}
	changed, gone = c.update([]*coordinationv1.Lease{lease(own, 480)}, nil)
	if c.version(own) != 480 || c.version(lk("new")) != 0 || len(changed) != 0 || len(gone) != 1 || c.shown != 480 {
		t.Errorf("versions %d and %d count; %d changed, %d are gone; %d is shown", c.version(own), c.version(lk("new")), len(changed), len(gone), c.shown)
	}
}
