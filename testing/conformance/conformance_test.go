package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/heraldvip/herald/testing/check"
)

const (
	affinity = "[sig-network] LoadBalancers [Feature:LoadBalancer] should be able to switch session affinity for LoadBalancer service with Local traffic policy [Slow] [LinuxOnly]"
	fromPods = "[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should work from pods"
)

func TestTable(t *testing.T) {
	all := []result{
		{spec: fromPods, mode: "arp", passed: true, took: 61 * time.Second},
		{spec: affinity, mode: "arp", took: 200 * time.Second, failure: "Affinity shouldn't hold but did."},
		{spec: affinity, mode: "bgp", passed: true, took: 20 * time.Second},
	}
	want := `
| test | ARP | BGP, ECMP per flow |
|---|---|---|
| LoadBalancers ExternalTrafficPolicy: Local should work from pods | passed, 1m1s | not run |
| LoadBalancers should be able to switch session affinity for LoadBalancer service with Local traffic policy | failed as expected, 3m20s | passed, 20s |
| passed, of 2 | 1 | 1 |

`
	if got := table(modes, all); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	check.OK(t, unexpected(all))
	for _, wrong := range []result{
		{spec: fromPods, mode: "arp"}, {spec: affinity, mode: "arp", passed: true}, {spec: affinity, mode: "bgp"},
	} {
		if err := unexpected(append(all, wrong)); err == nil || !strings.Contains(err.Error(), short(wrong.spec)) {
			t.Errorf("%v: %v, want an error that names it", wrong, err)
		}
	}
}

// Ginkgo reports every test there is, most of them as skipped, and beside them what runs before and after all.
func TestReadReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	check.OK(t, os.WriteFile(file, []byte(`[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig-network] LoadBalancers"], "LeafNodeType": "It", "LeafNodeText": "a", "State": "failed", "Failure": {"Message": "why"}},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "skipped"}
	]}]`), 0o600))
	got := check.Value(readReport(file))(t)
	if len(got) != 1 || got[0].name() != "[sig-network] LoadBalancers a" || got[0].Failure.Message != "why" {
		t.Errorf("got %+v", got)
	}
	check.OK(t, os.WriteFile(file, []byte(`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed"}]}]`), 0o600))
	if got := check.Value(readReport(file))(t); len(got) != 1 {
		t.Errorf("got %+v, want what kept the tests from running", got)
	}
}

func TestAnswer(t *testing.T) {
	lookup := func(ns, name string) (netip.Addr, bool) {
		return netip.MustParseAddr("10.112.0.7"), ns == "shop" && name == "web"
	}
	for _, row := range []struct {
		name  string
		typ   dnsmessage.Type
		rcode dnsmessage.RCode
		ips   int
	}{
		{"web.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"WEB.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"web.shop.svc.cluster.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0},
		{"db.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"web.shop.svc.cluster.local.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"web.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
	} {
		question := dnsmessage.Question{Name: dnsmessage.MustNewName(row.name), Type: row.typ, Class: dnsmessage.ClassINET}
		query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{question}}
		text := check.Value(answer(check.Value(query.Pack())(t), lookup))(t)
		var reply dnsmessage.Message
		check.OK(t, reply.Unpack(text))
		if reply.ID != 7 || !reply.Response || reply.RCode != row.rcode || len(reply.Answers) != row.ips || reply.Questions[0] != question {
			t.Errorf("%s %v: %+v", row.name, row.typ, reply)
		}
	}
	if _, err := answer([]byte{1, 2}, lookup); err == nil {
		t.Error("half a header was answered")
	}
}

// docs/conformance.md says of just the tests that are expected to fail that they can't pass, and of no more than two.
func TestExpectedFailuresAreDocumented(t *testing.T) {
	text := string(check.Value(os.ReadFile("../../docs/conformance.md"))(t))
	documented := map[string]int{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") {
			continue
		}
		for i, mode := range []string{"arp", "bgp"} {
			cannot := strings.Contains(cells[i+1], "can't pass")
			if cannot {
				documented[mode]++
			}
			if why := expected(mode, cells[0]); (why != "") != cannot {
				t.Errorf("%s,%s: the page says%s, and the command expects a failure because %q", mode, cells[0], cells[i+1], why)
			}
		}
	}
	for mode, specs := range expectedFailures {
		if len(specs) > 2 || len(specs) != documented[mode] {
			t.Errorf("%s: %d tests are expected to fail, %d by the page, want at most two", mode, len(specs), documented[mode])
		}
	}
}
