package kube

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// putEvents puts Events and waits until they are written.
func (r *clusterTest) putEvents(t testing.TB, want ...vip.Event) {
	t.Helper()
	check.True(t, 20*time.Second, "Events are written", func() bool { return len(putWritten(r.Events, want...)) == len(want) })
}

func TestEvents(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	first := newClusterTest(t, "admin", Options{})
	check.Run(t, first)
	check.Run(t, first.Events)
	first.create(t, ns, "web", "192.168.7.108")
	key := vip.Key{Namespace: ns, Name: "web"}
	first.poked.until(t, "the Service", func() bool { return first.service(key) != nil })
	id := first.service(key).UID
	announced := vip.Event{Service: key, UID: id, Reason: vip.VIPAnnounced,
		Message: "node n1 announces 192.168.7.108 on eth0", Occurrence: 1}
	refused := vip.Event{Service: key, UID: id, Warning: true, Reason: vip.AddressRefused, Message: strings.Repeat("ä", 2000)}
	first.putEvents(t, announced, refused)
	first.putEvents(t, announced, refused)

	// After a restart, or on another node: the same is not written again.
	second := newClusterTest(t, "admin", Options{Node: "n2"})
	check.Run(t, second.Events)
	second.putEvents(t, announced)
	if got := sum(t, second.Collectors(), "herald_events_total", "already_exists"); got != 1 {
		t.Errorf("herald_events_total{already_exists} is %v, want 1", got)
	}

	var list corev1.EventList
	check.OK(t, json.Unmarshal([]byte(api.must(t, "GET", "/api/v1/namespaces/"+ns+"/events", "")), &list))
	if len(list.Items) != 2 {
		t.Fatalf("%d Events, want 2", len(list.Items))
	}

	// It ceases to hold, and holds again.
	first.putEvents(t)
	first.putEvents(t, announced)
	s, err := TakeSnapshot(t.Context(), api.as("admin"), ns)
	check.OK(t, err)
	var got []vip.Event
	for _, e := range s.Events {
		if e.Node != "n1" || time.Since(e.At) > time.Minute {
			t.Errorf("Event by %q at %v", e.Node, e.At)
		}
		e.Occurrence = 0 // is not kept
		got = append(got, e.Event)
	}
	announced.Occurrence = 0
	refused.Message = strings.Repeat("ä", 510) + "..."
	if diff := cmp.Diff([]vip.Event{announced, announced, refused}, got,
		cmpopts.SortSlices(func(a, b vip.Event) bool { return a.Reason > b.Reason })); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if len(s.Services) != 1 || s.Services[0].Key != key {
		t.Errorf("Services: %v", s.Services)
	}
	describeByKubectl(t, api, ns)
}

func describeByKubectl(t testing.TB, api *apiServer, ns string) {
	t.Helper()
	kubectl := filepath.Join(api.bin, "kubectl")
	out, err := exec.Command(kubectl, "--server", api.as("").Host, "--token", "admin", "--insecure-skip-tls-verify", "-n",
		ns, "describe", "service", "web").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"VIPAnnounced", "AddressRefused", "herald", "node n1 announces 192.168.7.108 on eth0"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("kubectl describe does not show %q:\n%s", want, out)
		}
	}
}

func TestSnapshotOfWhatMayBeRead(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.allow(t, "nobody", ns,
		`[{"apiGroups":[""],"resources":["services"],"verbs":["list"]},{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list"]}]`)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.109")
	s, err := TakeSnapshot(t.Context(), api.as("nobody"), ns)
	if err != nil || len(s.Missing) != 3 || !strings.Contains(fmt.Sprint(s.Missing), "Leases of other namespaces") ||
		!strings.Contains(fmt.Sprint(s.Missing), "Events") {
		t.Errorf("%v, missing %q, want Leases of other namespaces, Nodes and Events", err, s.Missing)
	}
	// Without Leases nothing can be said about owners.
	if _, err := TakeSnapshot(t.Context(), api.as("nobody"), "default"); err == nil || !strings.Contains(err.Error(), "leases") {
		t.Errorf("error %v, want one that names leases", err)
	}
	if len(s.Services) != 1 {
		t.Errorf("%d Services, want 1", len(s.Services))
	}
}

// TestSnapshotOfOneNamespace: who may read all namespaces gets the Services and leases of all, others those of the one that they may read.
func TestSnapshotOfOneNamespace(t *testing.T) {
	api := startAPI(t)
	ns, other := api.namespace(t), api.namespace(t)
	api.allow(t, "nobody", ns, `[{"apiGroups":["","coordination.k8s.io"],"resources":["services","leases","events"],"verbs":["list"]}]`)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.110")
	r.create(t, other, "web", "192.168.7.111")
	for user, sees := range map[string]bool{"admin": true, "nobody": false} {
		var s Snapshot
		check.Until(t, 10*time.Second, "the API server's authorizer has read the Role", func() (err error) {
			s, err = TakeAllowedSnapshot(t.Context(), api.as(user), ns)
			return err
		})
		has := func(ns string) bool {
			return slices.ContainsFunc(s.Services, func(s vip.Service) bool { return s.Key.Namespace == ns })
		}
		if !has(ns) || has(other) != sees {
			t.Errorf("%s gets the Services %v, want those of its own namespace, and of the other one: %v", user, s.Services, sees)
		}
	}
}

// TestSnapshotOfForgedEvent: an Event that a user of another namespace has written about the UID of a Service is not the Service's.
func TestSnapshotOfForgedEvent(t *testing.T) {
	api := startAPI(t)
	ns, evil := api.namespace(t), api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.112")
	s, err := TakeSnapshot(t.Context(), api.as("admin"), ns)
	check.OK(t, err)
	uid := s.Services[0].UID
	for _, in := range []string{ns, evil} {
		api.must(t, "POST", "/api/v1/namespaces/"+in+"/events", `{"metadata":{"name":"e"},"type":"Warning","reason":"VIPForeignMAC","message":"written in `+in+`","source":{"component":"herald"},
			"involvedObject":{"kind":"Service","namespace":"`+in+`","name":"web","uid":"`+uid+`"}}`)
	}
	s, err = TakeSnapshot(t.Context(), api.as("admin"), "")
	check.OK(t, err)
	var got []string
	for _, e := range s.Events {
		if e.UID == uid {
			got = append(got, e.Message)
		}
	}
	if len(got) != 1 || got[0] != "written in "+ns {
		t.Errorf("the Events of the Service are %q", got)
	}
}
