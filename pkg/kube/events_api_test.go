package kube

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

func (r *rig) haveNotes(t testing.TB, want ...vip.Event) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		have, err := r.Notes().Set(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if len(have) == len(want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d notes said", len(have), len(want))
		}
	}
}

func TestEvents(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	first := newRig(t, "admin", Options{})
	run(t, first, first.Notes())
	first.create(t, ns, "web", "192.168.7.108")
	key := vip.Key{Namespace: ns, Name: "web"}
	first.bell.until(t, "the Service", func() bool { return first.service(key) != nil })
	id := first.service(key).UID
	announced := vip.Event{Service: key, UID: id, Reason: vip.VIPAnnounced, Message: "node n1 announces 192.168.7.108 on eth0", Occurrence: 1}
	refused := vip.Event{Service: key, UID: id, Warning: true, Reason: vip.AddressRefused, Message: strings.Repeat("ä", 2000)}
	first.haveNotes(t, announced, refused)
	first.haveNotes(t, announced, refused)

	// After a restart, or on another node: the same is not said again.
	second := newRig(t, "admin", Options{Node: "n2"})
	run(t, second.Notes())
	second.haveNotes(t, announced)
	if got := sum(t, second.Collectors(), "herald_events_total", "known"); got != 1 {
		t.Errorf("herald_events_total{known} is %v, want 1", got)
	}

	var list corev1.EventList
	if err := json.Unmarshal([]byte(api.must(t, "GET", "/api/v1/namespaces/"+ns+"/events", "")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 {
		t.Fatalf("%d Events, want 2", len(list.Items))
	}

	// It ceases to hold, and holds again.
	first.haveNotes(t)
	first.haveNotes(t, announced)
	s, err := TakeSnapshot(t.Context(), api.as("admin"), ns)
	if err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff([]vip.Event{announced, announced, refused}, got, cmpopts.SortSlices(func(a, b vip.Event) bool { return a.Reason > b.Reason })); diff != "" {
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
	out, err := exec.Command(kubectl, "--server", api.as("").Host, "--token", "admin", "--insecure-skip-tls-verify", "-n", ns, "describe", "service", "web").CombinedOutput()
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
	api.allow(t, "nobody", ns, `[{"apiGroups":[""],"resources":["services"],"verbs":["list"]}]`)
	r := newRig(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.109")
	s, err := TakeSnapshot(t.Context(), api.as("nobody"), ns)
	if err == nil || !strings.Contains(err.Error(), "leases") || !strings.Contains(err.Error(), "events") || strings.Contains(err.Error(), "list services") {
		t.Errorf("error %v, want one that names leases and events", err)
	}
	if len(s.Services) != 1 {
		t.Errorf("%d Services, want 1", len(s.Services))
	}
}
