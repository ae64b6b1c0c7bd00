package upnp

import (
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What a Herald of this cluster left behind for a Service that is gone is removed, and nothing else.
func TestSweep(t *testing.T) {
	const cluster, service, other = "c0c0c0c0-2222", "0a1b2c3d-1111", "ffffffff-1111"
	r := newRouter(t)
	r.miniupnpd(t)
	of := func(port uint16, uid, cluster string) vip.Mapping {
		m := want("TCP", port)
		m.UID, m.Cluster, m.Lease = uid, cluster, 0
		return m
	}
	all := []vip.Mapping{of(80, service, cluster), of(81, service, "deadbeef-2222"), of(82, service, ""), of(83, other, cluster), of(84, service, cluster)}
	n1, n2 := newNode(t), newNode(t)
	n1.put(all...)
	for _, m := range all {
		n1.mapped("made", func(x vip.MappingState) bool { return x.Port == m.Port && made(x) })
	}
	var away []vip.Mapping
	for _, m := range all {
		away = append(away, here(m, false))
	}
	n1.put(away...)
	n1.stop()
	has := func(port, to string) {
		t.Helper()
		if !r.has(t, "TCP "+port, vip4+":"+to) {
			t.Errorf("port %s was closed", port)
		}
	}

	n2.put(away[4]) // another node has it
	began := time.Now()
	keep := []vip.ForwardedPort{{UID: other, Protocol: "TCP", Port: 83}}
	n2.Sweeps().Put([]vip.MappingSweep{{Link: "eth0", Cluster: cluster, Keep: keep}})
	check.True(t, 20*time.Second, "the port of the Service that is gone to be closed", func() bool { return !r.has(t, "TCP 80", vip4+":80") })
	if took := time.Since(began); took < 2*testTiming.sweepAfter {
		t.Errorf("closed after %v, before it was seen twice", took)
	}
	has("83", "83")
	n2.Sweeps().Put([]vip.MappingSweep{{Link: "eth0", Cluster: cluster}})
	check.True(t, 20*time.Second, "the port of the other Service to be closed, which is gone, too", func() bool { return !r.has(t, "TCP 83", vip4+":83") })
	has("81", "81")
	has("82", "82")
	has("84", "84")
}

func TestMarks(t *testing.T) {
	tests := []struct{ description, uid, cluster string }{
		{"herald default/web (0a1b2c3d c0c0c0c0)", "0a1b2c3d", "c0c0c0c0"},
		{"herald default/web (0a1b2c3d)", "", ""},
		{"herald default/web", "", ""},
		{"other default/web (0a1b2c3d c0c0c0c0)", "", ""},
		{"herald ( )", "", ""},
		{"herald )", "", ""},
		{"", "", ""},
	}
	for _, tt := range tests {
		if uid, cluster := marksOf(tt.description); uid != tt.uid || cluster != tt.cluster {
			t.Errorf("%q: %q, %q; want %q, %q", tt.description, uid, cluster, tt.uid, tt.cluster)
		}
	}
}

// FuzzMarks: a description has both marks or none, and what Herald writes has those it was given.
func FuzzMarks(f *testing.F) {
	f.Add("herald default/web (0a1b2c3d c0c0c0c0)", "default", "web")
	f.Add("herald (a b)", "", "")
	f.Fuzz(func(t *testing.T, description, namespace, name string) {
		if uid, cluster := marksOf(description); (uid == "") != (cluster == "") {
			t.Errorf("%q: %q, %q", description, uid, cluster)
		}
		m := vip.Mapping{Service: vip.Key{Namespace: namespace, Name: name}, UID: "0a1b2c3d-1111", Cluster: "c0c0c0c0-2222"}
		text := mappingDescription(m)
		if uid, cluster := marksOf(text); uid != mark(m.UID) || cluster != mark(m.Cluster) || len(text) > maxDescriptionLength {
			t.Errorf("%q: %q, %q", text, uid, cluster)
		}
	})
}
