package migrate

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever the objects say, From returns, and what it writes has no line breaks in keys, and no addresses that are none.
func FuzzFrom(f *testing.F) {
	f.Add("metallb", metalLB("IPAddressPool", "a", `"addresses":["10.0.0.0/28","fd00::1-fd00::2"],"serviceAllocation":{"priority":1,"namespaces":["x"]}`), loadBalancer("s", "", "10.0.0.1"))
	f.Add("metallb", metalLB("IPAddressPool", "cidr-A.b", `"addresses":["255.255.255.255/32"]`), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchLabels":{"a":"1"}}],"interfaces":["eth0"]`))
	f.Add("cilium", `{"kind":"CiliumLoadBalancerIPPool","metadata":{"name":"p"},"spec":{"allowFirstLastIPs":"No","blocks":[{"cidr":"255.255.255.255/32"},{"start":"::"},{"cidr":"0.0.0.0/0"}]}}`, "{}")
	f.Add("kube-vip", `{"kind":"ConfigMap","data":{"cidr-global":"10.0.0.0/8,0.0.0.0/32"}}`, loadBalancer("s", `"kube-vip.io/loadbalancerIPs":"0.0.0.0"`, "10.0.0.1"))
	f.Fuzz(func(t *testing.T, source, first, second string) {
		if !json.Valid([]byte(first)) || !json.Valid([]byte(second)) {
			return
		}
		r, err := From(source, []json.RawMessage{json.RawMessage(first), json.RawMessage(second)})
		if err != nil || source == "kube-vip" {
			return
		}
		for k, v := range r.Data {
			if strings.ContainsAny(k, "\n ") || strings.Contains(v, "invalid IP") {
				t.Errorf("%q: %q", k, v)
			}
		}
	})
}
