package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var threeTwelve = time.Date(2026, 1, 1, 3, 12, 0, 0, time.UTC)

// move is one of default/web, so many seconds after 3:12.
func move(seconds float64, from, to string) vip.Move {
	return vip.Move{At: threeTwelve.Add(time.Duration(seconds * float64(time.Second))), Service: vip.Key{Namespace: "default", Name: "web"}, From: from, To: to, Cause: "seen by others"}
}

func TestJoinHistories(t *testing.T) {
	outage := 464 * time.Millisecond
	mine := move(0.3, "n2", "n1")
	mine.Outage, mine.Cause = &outage, "n2: it is dead"
	for _, tt := range []struct {
		name string
		all  []nodeHistory
		want string
	}{
		{"nobody remembers", nil, ""},
		{"as the node that took over has it, at the time of the first", []nodeHistory{
			{Node: "n3", Moves: []vip.Move{move(0, "n2", "n1")}}, {Node: "n1", Moves: []vip.Move{mine}},
		}, "0 n2>n1 n2: it is dead 464ms\n"},
		{"its clock is ahead", []nodeHistory{{Node: "n1", Moves: []vip.Move{mine}}, {Node: "n3", Moves: []vip.Move{move(5, "n2", "n1")}}}, "0.3 n2>n1 n2: it is dead 464ms\n"},
		{"there and back and there, seen by two", []nodeHistory{
			{Node: "n1", Moves: []vip.Move{move(0, "n2", "n1"), move(2, "n1", "n2"), move(4, "n2", "n1")}},
			{Node: "n3", Moves: []vip.Move{move(0.1, "n2", "n1"), move(2.1, "n1", "n2"), move(4.1, "n2", "n1")}},
		}, "0 n2>n1 seen by others\n2 n1>n2 seen by others\n4 n2>n1 seen by others\n"},
		{"the same a minute later is another", []nodeHistory{{Node: "n1", Moves: []vip.Move{move(0, "n2", "n1")}}, {Node: "n3", Moves: []vip.Move{move(60, "n2", "n1")}}},
			"0 n2>n1 seen by others\n60 n2>n1 seen by others\n"},
	} {
		got := ""
		for _, m := range joinHistories(tt.all, nil).Moves {
			got += fmt.Sprintf("%v %s>%s %s", m.At.Sub(threeTwelve).Seconds(), m.From, m.To, m.Cause)
			if m.Outage != nil {
				got += " " + m.Outage.String()
			}
			got += "\n"
		}
		if got != tt.want {
			t.Errorf("%s: got\n%swant\n%s", tt.name, got, tt.want)
		}
	}
}

// The Pods are asked by way of kubectl; one that can't be is named with kubectl's own words, and so is one whose answer is none.
func TestHistoryByKubectl(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/history" {
			check.OK(t, json.NewEncoder(w).Encode(nodeHistory{Node: "what it says", Began: threeTwelve, Moves: []vip.Move{move(0, "n2", "n1")}}))
		}
	}))
	t.Cleanup(server.Close)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("[", 9<<20)) }))
	t.Cleanup(broken.Close)
	port := func(s *httptest.Server) string { return check.Value(url.Parse(s.URL))(t).Port() }
	dir := t.TempDir()
	script := `#!/bin/sh
case "$*" in
"get pods"*"--context=lab") printf 'n1 lb herald-1 herald\nn1 lb kube-vip-1 kube-vip-ds\nn2 kube-system herald-2 herald\nn3 lb herald-3 herald\nn1 tenant forged herald\nn4 tenant forged herald\nn5 kube-system kube-vip-n5 \nn6 kube-system kube-vip-cloud-provider-x \n' ;;
*pod/herald-1*) echo "Forwarding from 127.0.0.1:` + port(server) + ` -> 2112"; exec sleep 60 ;;
*pod/herald-3*) echo "Forwarding from 127.0.0.1:` + port(broken) + ` -> 2112"; exec sleep 60 ;;
*) echo "error: forbidden" >&2; exit 1 ;;
esac
`
	check.OK(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	k := kubectl{flags: &accessFlags{context: "lab"}, port: 2112}
	pods := check.Value(k.pods(t.Context(), "lb"))(t)
	if want := map[string]podName{"n1": {"lb", "herald-1"}, "n2": {"kube-system", "herald-2"}, "n3": {"lb", "herald-3"}, "n5": {"kube-system", "kube-vip-n5"}}; !maps.Equal(pods, want) {
		t.Errorf("Herald's Pods are %v, want %v: a tenant's may bear the label", pods, want)
	}
	answers, missing := askAll(t.Context(), pods, k.history)
	r := joinHistories(answers, missing)
	var out strings.Builder
	check.OK(t, r.write(&out, ""))
	for _, want := range []string{"2026-01-01 03:12:00.000  default/web  -    n2    n1", "n1    2026-01-01 03:12:00", "n2                      kubectl port-forward: error: forbidden", "n3                      its answer is no history"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	k.flags.context = "none"
	if _, err := k.pods(t.Context(), "lb"); err == nil || !strings.Contains(err.Error(), "error: forbidden") {
		t.Errorf("without the right to list Pods: %v", err)
	}
}

// That no move is remembered is said only if a node says so.
func TestHistoryOfNobody(t *testing.T) {
	for want, answers := range map[string][]nodeHistory{"no move is remembered": {{Node: "n1", Began: threeTwelve}}, "no node has answered": nil} {
		r := joinHistories(answers, map[string]string{"n2": "forbidden"})
		var out strings.Builder
		check.OK(t, r.write(&out, ""))
		if _, rows, _ := strings.Cut(out.String(), "\n"); !strings.HasPrefix(rows, want) {
			t.Errorf("want %q, got\n%s", want, &out)
		}
	}
}

// No more nodes are asked at a time than historyAtOnce.
func TestAskedAtOnce(t *testing.T) {
	pods := make(map[string]podName)
	for i := range 5 * historyAtOnce {
		pods[fmt.Sprint("n", i)] = podName{}
	}
	asking := make(chan struct{}, historyAtOnce)
	answers, missing := askAll(t.Context(), pods, func(context.Context, podName) (nodeHistory, error) {
		select {
		case asking <- struct{}{}:
			time.Sleep(time.Millisecond)
			<-asking
			return nodeHistory{}, nil
		default:
			return nodeHistory{}, fmt.Errorf("more than %d", historyAtOnce)
		}
	})
	if len(missing) > 0 || len(answers) != len(pods) {
		t.Errorf("%d answers, missing %v", len(answers), missing)
	}
}

// TestHistoryIsBounded: of a node that answers with more moves than any remembers the latest count.
func TestHistoryIsBounded(t *testing.T) {
	h := check.Value(readHistory(strings.NewReader(`{"moves":[{"to":"first"},` + strings.Repeat(`{},`, maxMovesOfNode-1) + `{"to":"last"}]}`)))(t)
	if n := len(h.Moves); n != maxMovesOfNode || h.Moves[0].To != "" || h.Moves[n-1].To != "last" {
		t.Errorf("%d moves, the first to %q, the last to %q", n, h.Moves[0].To, h.Moves[n-1].To)
	}
}
