package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestPoolsTable(t *testing.T) {
	source := &vip.PoolSource{Data: map[string]string{"cidr-global": "10.0.0.0/24,2001:db8::/64", "range-shop": "10.0.1.1-10.0.1.9", "pool-dhcp": "0.0.0.0/32", "cidr-web": "nonsense",
		"interface-shop": "eth1", "interface-global": "eth0", "pool-edge": "10.5.0.0/24", "pool-edge.nodes": "zone=a", "pool-edge.prefer": "100 disk=ssd; 5 disk=hdd", "pool-edge.interface": "eth0.7", "pool-edge.announce": "bgp"}}
	given := serviceWith("given", "10.0.0.1", "10.0.0.1")
	given.Allocated = "cidr-global"
	moved := serviceWith("moved", "10.9.0.1", "10.9.0.1")
	moved.Allocated = "pool-old"
	beside := serviceWith("beside", "10.9.0.2 2001:db8::5", "10.9.0.2")
	beside.Allocated, beside.Own = "cidr-global", beside.Addresses[:1]
	later := withAnswer(serviceWith("later", "", ""), vip.NoPoolAddress, "no pool is offered to it")
	proxied := serviceWith("proxied", "0.0.0.0", "10.7.0.8")
	proxied.Ingress[0].IPMode = vip.ModeProxy
	s := kube.Snapshot{
		Services: []vip.Service{given, moved, beside, proxied, serviceWith("own", "10.0.0.7", ""), serviceWith("waits", "", ""), later, serviceWith("new", "", "")},
		Events:   []kube.StoredEvent{storedEvent("waits", vip.NoPoolAddress, true, "it waits for an address: none is free"), storedEvent("later", vip.NoPoolAddress, true, "none is free")},
	}
	var b strings.Builder
	check.OK(t, writePools(&b, source, s))
	matches(t, b.String(),
		`cidr-global +IPv4 +254 +2 +252 +all namespaces`,
		`cidr-global +IPv6 +18446744073709551616 +1`,
		`dhcp +IPv4 +by DHCP`,
		`POOL +FAMILY +ADDRESSES +USED +FREE +FOR +NODES +INTERFACE +BY\n`,
		`cidr-global +IPv4 .*all namespaces +all +eth0 +-\n`,
		`edge +IPv4 +254 +0 +254 +all namespaces +zone=a, rather disk=ssd \(100\), disk=hdd \(5\) +eth0\.7 +bgp\n`,
		`range-shop .* shop +all +eth1 +-\n`,
		`\nServices may ask for any address that is not reserved, and of no pool for other namespaces \(svc_addresses=any\)\.\n`,
		`range-shop +IPv4 +9 +0 +9 +the namespace shop`,
		`default/given +10\.0\.0\.1 +cidr-global +Herald\n`,
		`default/moved +10\.9\.0\.1 +- +Herald, of pool-old, which has it no more`,
		`default/beside +10\.9\.0\.2 +- +its user\n`,
		`default/beside +2001:db8::5 +cidr-global +Herald\n`,
		`default/own +10\.0\.0\.7 +cidr-global +its user`,
		`default/proxied +10\.7\.0\.8 +- +its user\n`,
		`default/waits +- +- +it waits for an address: none is free`,
		`default/later +- +- +no pool is offered to it\n`,
		`default/new +- +- +waits for an address\n`,
		`error: cidr-web: "nonsense" is neither a CIDR nor a range`,
		`warning: range-shop: no Service gets an address of it`,
	)
	for _, tt := range []struct{ n1, n2, want string }{
		{"pools", "pools", "Services may ask only for addresses of pools that are offered to their namespace (svc_addresses=pools)."},
		{"any", "any", "Services may ask for any address that is not reserved, and of no pool for other namespaces (svc_addresses=any)."},
		{"any", "pools", "The nodes differ in svc_addresses: n1 has any, n2 has pools. Set one value on all."},
	} {
		b.Reset()
		s.Leases = []*coordinationv1.Lease{nodeLease("n1", 0, `{"serviceAddresses":"`+tt.n1+`"}`), nodeLease("n2", 0, `{"serviceAddresses":"`+tt.n2+`"}`)}
		check.OK(t, writePools(&b, source, s))
		check.Contains(t, b.String(), "\n"+tt.want+"\n")
	}
}

// TestPoolsFree: what nodes and gateways have is not free. Services of another class wait for nothing of it.
func TestPoolsFree(t *testing.T) {
	source := &vip.PoolSource{Data: map[string]string{"range-global": "10.0.0.8-10.0.0.11", "cidr-web": "10.0.0.0/24"}}
	info := strings.Replace(linkUp, `"02:00:00:00:00:01"`, `"02:00:00:00:00:01","prefixes":["10.0.0.11/24"]`, 1)
	theirs := serviceWith("theirs", "", "")
	theirs.HasClass, theirs.Class = true, "example.com/other"
	s := kube.Snapshot{At: noon, Services: []vip.Service{serviceWith("web", "10.0.0.10", "10.0.0.10"), theirs},
		Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, strings.TrimSuffix(info, "}")+`,"gateways":["10.0.0.9"],"options":{"services":true,"arp":true}}`)}}
	var b strings.Builder
	check.OK(t, writePools(&b, source, s))
	matches(t, b.String(), `range-global +IPv4 +4 +1 +1 `, `cidr-web +IPv4 +254 +1 +251 `)
	check.Equal(t, strings.Contains(b.String(), theirs.Key.Name), false, "a Service of another class waits in\n%s", b.String())
}

func TestPoolsCheck(t *testing.T) {
	for _, tt := range []struct{ text, want, err string }{
		{"kind: ConfigMap\ndata:\n  cidr-global: 10.0.0.0/30\n", "cidr-global  IPv4    3          all namespaces  all    -          -", ""},
		{`{"kind":"ConfigMap","data":{"search-order":"up"}}`, `error: search-order: "up" is not an order`, "keys that can't be read"},
		{"kind: ConfigMap\ndata:\n  cdir-global: 10.0.0.0/30\n", "warning: cdir-global: no such key", ""},
		{"kind: ConfigMap\ndata:\n  pool-a: 10.0.0.0/30\n  pool-a.namespaces: shop\n", "\nA pool names namespaces: Services of others may not ask for its addresses. What a status shows stays.\n", ""},
		{"kind: ConfigMap\n", "(no pool: the ConfigMap has no key that names addresses)", ""},
		{"kind: ConfigMap\ndata:\n  cidr-global: x\n", "cidr-global: ", "keys that can't be read"},
		{"kind: Secret\n", "", "not a ConfigMap"},
		{"kind: ConfigMap\ndata: {cidr-global: [1]}\n", "", "not the YAML of a ConfigMap"},
		{"{", "", "not the YAML of a ConfigMap"},
	} {
		var b strings.Builder
		data, err := config.ConfigMapData([]byte(tt.text))
		if err == nil {
			err = checkPools(&b, data)
		}
		if (tt.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) || !strings.Contains(b.String(), tt.want) {
			t.Errorf("%q: error %v, want %q; wrote\n%swant %s", tt.text, err, tt.err, b.String(), tt.want)
		}
	}
}

// kubeconfigOf returns the name of a kubeconfig for the API server at url.
func kubeconfigOf(t *testing.T, url string) string {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	check.OK(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":"`+url+`"}}],"contexts":[{"name":"a","context":{"cluster":"a"}}],"current-context":"a"}`), 0o600))
	return kubeconfig
}

// TestPoolsCommand: the ConfigMap that the nodes use is shown unless another is named, and one that does not exist is named.
func TestPoolsCommand(t *testing.T) {
	options := `{"options":{"services":true,"pools":"net/ours"}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/leases"):
			check.OK(t, json.NewEncoder(w).Encode(map[string]any{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": []any{nodeLease("n1", 0, options)}}))
		case path == "/api/v1/namespaces/net/configmaps" && r.URL.Query().Get("fieldSelector") == "metadata.name=ours":
			fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","items":[{"metadata":{"name":"ours","namespace":"net"},"data":{"range-global":"10.0.0.1-10.0.0.4"}}]}`)
		default:
			fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","items":[]}`)
		}
	}))
	defer s.Close()
	kubeconfig := kubeconfigOf(t, s.URL)
	const pool = "range-global  IPv4    4"
	for _, tt := range []struct{ options, args, want string }{
		{options, "", pool},
		{options, "--pools=ours --pools-namespace=net", pool},
		{options, "--pools=mine", "There is no ConfigMap kube-system/mine (--pools, --pools-namespace): Services that name no address are given none.\n"},
		{options, "--pools-namespace=net", "There is no ConfigMap net/kubevip (--pools, --pools-namespace): Services that name no address are given none.\n"},
		{"{}", "", "There is no ConfigMap kube-system/kubevip (--pools, --pools-namespace): Services that name no address are given none.\n"},
		{`{"options":{"services":true,"pools":"net/none"}}`, "", "There is no ConfigMap net/none (svc_pools): Services that name no address are given none.\n"},
	} {
		options = tt.options
		out, _, err := run(t, root(), append([]string{"pools", "--kubeconfig=" + kubeconfig}, strings.Fields(tt.args)...)...)
		if err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("%s %s: %v\n%swant %s", tt.options, tt.args, err, out, tt.want)
		}
	}
}
