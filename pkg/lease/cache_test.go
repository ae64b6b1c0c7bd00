package lease

import (
	"strconv"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
