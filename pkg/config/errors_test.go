package config

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// errorTests are wrong values, each with the one line of its error.
var errorTests = []struct {
	env  string // variables with spaces between
	want string
}{
	{"herald_log_format=xml", `herald_log_format="xml" (environment): must be text or json`},
	{"vip_loglevel=debug", `vip_loglevel="debug" (environment): must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors`},
	{"vip_loglevel=3000000000", `vip_loglevel="3000000000" (environment): must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors`},
	{"vip_nodename=node_1", `vip_nodename="node_1" (environment): must be the node's name: letters, digits, dots and dashes (RFC 1123), at most 241 of them`},
	{"vip_nodename=-a", `vip_nodename="-a" (environment): must be the node's name: letters, digits, dots and dashes (RFC 1123), at most 241 of them`},
	{"vip_nodename=" + strings.Repeat("a", 242), `vip_nodename="` + strings.Repeat("a", 242) + `" (environment): must be the node's name: letters, digits, dots and dashes (RFC 1123), at most 241 of them`},
	{"cp_namespace=a/b", `cp_namespace="a/b" (environment): must be one namespace: lower-case letters, digits and dashes, at most 63 of them`},
	{"herald_config=/etc/herald.yaml", `herald_config="/etc/herald.yaml" (environment): must be a file that can be read: file does not exist`},
	{"vip_interface=a-much-too-long-name", `vip_interface="a-much-too-long-name" (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"vip_interface=eth0/1", `vip_interface="eth0/1" (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"vip_interface=auto", `vip_interface="auto" (environment): must be the name of a link, or empty for that of the default route; auto is a value of vip_servicesinterface`},
	{"vip_servicesinterface=eth0:1", `vip_servicesinterface="eth0:1" (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"vip_servicesinterface=..", `vip_servicesinterface=".." (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"vip_subnet=0", `vip_subnet="0" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_subnet=129", `vip_subnet="129" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_subnet=64,24", `vip_subnet="64,24" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_subnet=24,64,1", `vip_subnet="24,64,1" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_subnet=24,", `vip_subnet="24," (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_subnet=255.255.255.0", `vip_subnet="255.255.255.0" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`},
	{"vip_allow_interface_not_up=yes", `vip_allow_interface_not_up="yes" (environment): must be true or false`},
	{"vip_leaseduration=15s", `vip_leaseduration="15s" (environment): must be a whole number of seconds from 3 to 86400`},
	{"vip_leaseduration=2", `vip_leaseduration="2" (environment): must be a whole number of seconds from 3 to 86400`},
	{"vip_leaseduration=10 vip_renewdeadline=10", `vip_leaseduration="10" (environment): must be more than vip_renewdeadline="10" (environment)`},
	{"vip_leaseduration=5 vip_retryperiod=4", `vip_leaseduration="5" (environment): must be more than vip_renewdeadline="5" (derived from the others)`},
	{"vip_leaseduration=86401", `vip_leaseduration="86401" (environment): must be a whole number of seconds from 3 to 86400`},
	{"vip_renewdeadline=1", `vip_renewdeadline="1" (environment): must be a whole number of seconds from 2 to 86400`},
	{"vip_renewdeadline=15", `vip_renewdeadline="15" (environment): must be less than vip_leaseduration="15" (default)`},
	{"vip_leaseduration=20 vip_renewdeadline=20", `vip_leaseduration="20" (environment): must be more than vip_renewdeadline="20" (environment)`},
	{"vip_renewdeadline=2 vip_retryperiod=2", `vip_renewdeadline="2" (environment): must be more than 1.2 times vip_retryperiod="2" (environment)`},
	{"vip_renewdeadline=6 vip_retryperiod=5", `vip_renewdeadline="6" (environment): must be more than 1.2 times vip_retryperiod="5" (environment)`},
	{"vip_retryperiod=9", `vip_retryperiod="9" (environment): times 1.2 must be less than vip_renewdeadline="10" (default)`},
	{"vip_retryperiod=1.5", `vip_retryperiod="1.5" (environment): must be a whole number of seconds from 1 to 86400`},
	{"herald_peers_port=gossip", `herald_peers_port="gossip" (environment): must be a port from 1 to 65535, or 0 for none`},
	{"herald_peers_port=65536", `herald_peers_port="65536" (environment): must be a port from 1 to 65535, or 0 for none`},
	{"herald_peers_key=a\x00b", `herald_peers_key="a\x00b" (environment): must be the path of a file with a key`},
	{"svc_enable=maybe", `svc_enable="maybe" (environment): must be true or false`},
	{"svc_election=on", `svc_election="on" (environment): must be true or false`},
	{"vip_rebalance=on", `vip_rebalance="on" (environment): must be true or false`},
	{"herald_keep_connections=1h", `herald_keep_connections="1h" (environment): must be a whole number of seconds from 0 to 86400`},
	{"svc_namespace=a,b", `svc_namespace="a,b" (environment): must be one namespace: lower-case letters, digits and dashes, at most 63 of them`},
	{"svc_leasename=a/b/c", `svc_leasename="a/b/c" (environment): must be the name of a Lease, or namespace/name`},
	{"svc_leasename=/a", `svc_leasename="/a" (environment): must be the name of a Lease, or namespace/name`},
	{"svc_leasename=A", `svc_leasename="A" (environment): must be the name of a Lease, or namespace/name`},
	{"egress_enable=perhaps", `egress_enable="perhaps" (environment): must be true or false`},
	{"egress_podcidr=10.0.0.0/33", `egress_podcidr="10.0.0.0/33" (environment): must be IP addresses or prefixes with commas between, such as 10.244.0.0/16,192.168.0.1`},
	{"egress_servicecidr=x", `egress_servicecidr="x" (environment): must be IP addresses or prefixes with commas between, such as 10.244.0.0/16,192.168.0.1`},
	{"svc_reserved=10.0.0.0/33", `svc_reserved="10.0.0.0/33" (environment): must be IP addresses or prefixes with commas between, such as 10.244.0.0/16,192.168.0.1`},
	{"svc_addresses=none", `svc_addresses="none" (environment): must be any or pools`},
	{"svc_addresses=pools svc_enable=true vip_arp=true svc_namespace=web", `svc_addresses="pools" (environment): must be any where no pools are read: with an empty svc_pools, with svc_namespace, or with disable_service_updates`},
	{"enable_service_security=x", `enable_service_security="x" (environment): must be true or false`},
	{"svc_ipmode=DSR", `svc_ipmode="DSR" (environment): must be VIP or Proxy`},
	{"disable_service_updates=2", `disable_service_updates="2" (environment): must be true or false`},
	{"svc_pools=a/b", `svc_pools="a/b" (environment): must be the name of a ConfigMap, or empty`},
	{"svc_pools_namespace=Kube", `svc_pools_namespace="Kube" (environment): must be one namespace: lower-case letters, digits and dashes, at most 63 of them`},
	{"lb_class_name=a/b/c", `lb_class_name="a/b/c" (environment): must be a load balancer class such as example.com/internal, or empty`},
	{"lb_class_name=Example/b", `lb_class_name="Example/b" (environment): must be a load balancer class such as example.com/internal, or empty`},
	{"lb_class_name=example.com/", `lb_class_name="example.com/" (environment): must be a load balancer class such as example.com/internal, or empty`},
	{"lb_class_only=x", `lb_class_only="x" (environment): must be true or false`},
	{"lb_class_legacy_handling=x", `lb_class_legacy_handling="x" (environment): must be true or false`},
	{"LoadBalancerClassLegacyHandling=x", `LoadBalancerClassLegacyHandling="x" (environment): must be true or false`},
	{"vip_arp=x", `vip_arp="x" (environment): must be true or false`},
	{"vip_arp=false svc_enable=true", `vip_arp="false" (environment): must be true with svc_enable, unless bgp_enable or vip_routingtable is: else nothing announces the VIPs of Services`},
	{"vip_arpRate=3s", `vip_arpRate="3s" (environment): must be a whole number of milliseconds from 500 to 86400000`},
	{"vip_arpRate=86400001", `vip_arpRate="86400001" (environment): must be a whole number of milliseconds from 500 to 86400000`},
	{"vip_skipdad=x", `vip_skipdad="x" (environment): must be true or false`},
	{"control_plane_health_check_ca_path=a\x00b", `control_plane_health_check_ca_path="a\x00b" (environment): must be the path of a file with CA certificates`},
	{"k8s_config_file=a\x00b", `k8s_config_file="a\x00b" (environment): must be the path of a kubeconfig file`},
	{"kubernetes_addr=ftp://192.0.2.1", `kubernetes_addr="ftp://192.0.2.1" (environment): must be the URL of an API server, such as https://192.0.2.1:6443`},
	{"kubernetes_addr=https://:6443", `kubernetes_addr="https://:6443" (environment): must be the URL of an API server, such as https://192.0.2.1:6443`},
	{"kubernetes_addr=https://a?b", `kubernetes_addr="https://a?b" (environment): must be the URL of an API server, such as https://192.0.2.1:6443`},
	{"prometheus_server=2112", `prometheus_server="2112" (environment): must be host:port, :port, or off`},
	{"prometheus_server=:0", `prometheus_server=":0" (environment): must be host:port, :port, or off`},
	{"prometheus_server=:http", `prometheus_server=":http" (environment): must be host:port, :port, or off`},
	{"prometheus_server=::1:2112", `prometheus_server="::1:2112" (environment): must be host:port, :port, or off`},
	{"cp_enable=perhaps", `cp_enable="perhaps" (environment): must be true or false`},
	{"address=vip.example.com cp_enable=true", `address="vip.example.com" (environment): must be an IP address, or one of each family with a comma between; names are not looked up: write what the name resolves to`},
	{"cp_enable=true address=192.0.2.1,192.0.2.2", `address="192.0.2.1,192.0.2.2" (environment): must be an IP address, or one of each family with a comma between; names are not looked up: write what the name resolves to`},
	{"cp_enable=true address=fe80::1%eth0", `address="fe80::1%eth0" (environment): must be an IP address, or one of each family with a comma between; names are not looked up: write what the name resolves to`},
	{"cp_enable=true address=127.0.0.1", `address="127.0.0.1" (environment): must be a unicast address, neither loopback nor link-local`},
	{"address= cp_enable=true", `address="" (default): must name the VIP of the control plane, since cp_enable is true`},
	{"port=0", `port="0" (environment): must be a port from 1 to 65535`},
	{"vip_leasename=a/b/c", `vip_leasename="a/b/c" (environment): must be the name of a Lease, or namespace/name`},
	{"lb_enable=x", `lb_enable="x" (environment): must be true or false`},
	{"lb_port=0", `lb_port="0" (environment): must be a port from 1 to 65535`},
	{"lb_fwdmethod=masq lb_enable=true cp_enable=true address=192.0.2.1", `lb_fwdmethod="masq" (environment): must be local, masquerade, tunnel, directroute or bypass`},
	{"lb_fwdmethod=tunnel lb_enable=true cp_enable=true address=192.0.2.1", `lb_fwdmethod="tunnel" (environment): must be masquerade or local with lb_enable="true" (environment): Herald balances over the API servers by address translation only. With local the API server of the node that owns the VIP answers all connections`},
	{"control_plane_health_check_address=localhost:6443", `control_plane_health_check_address="localhost:6443" (environment): must be a URL such as https://127.0.0.1:6443/readyz`},
	{"control_plane_health_check_period_seconds=0", `control_plane_health_check_period_seconds="0" (environment): must be a whole number of seconds from 1 to 86400`},
	{"control_plane_health_check_timeout_seconds=0", `control_plane_health_check_timeout_seconds="0" (environment): must be a whole number of seconds from 1 to 86400`},
	{"control_plane_health_check_failure_threshold=0", `control_plane_health_check_failure_threshold="0" (environment): must be a whole number from 1 to 100`},
	{"dhcp_backoff_attempts=-1", `dhcp_backoff_attempts="-1" (environment): must be a whole number of tries, or 0 for no end of them`},
	{"dhcp_macvlan_prefixes=herald-,", `dhcp_macvlan_prefixes="herald-," (environment): must be the beginnings of names of interfaces, of at most 14 characters, with commas between`},
	{"dhcp_mode=both", `dhcp_mode="both" (environment): must be ipv4, ipv6 or dual`},
	{"enable_upnp=x", `enable_upnp="x" (environment): must be true or false`},
	{"upnp_status=x", `upnp_status="x" (environment): must be true or false`},
	{"upnp_namespaces=a,,b", `upnp_namespaces="a,,b" (environment): must be namespaces with commas between: lower-case letters, digits and dashes, at most 63 of them`},
	{"upnp_ports=80,443-80", `upnp_ports="80,443-80" (environment): must be ports and ranges of ports with commas between, such as 80,443,30000-32767`},
	{"upnp_ports=0", `upnp_ports="0" (environment): must be ports and ranges of ports with commas between, such as 80,443,30000-32767`},
	{"upnp_gateways=router.lan", `upnp_gateways="router.lan" (environment): must be IP addresses with commas between, such as 192.168.1.1,fd00::1`},
	{"vip_routingtable=x", `vip_routingtable="x" (environment): must be true or false`},
	{"vip_routingtableid=254 vip_routingtable=true", `vip_routingtableid="254" (environment): must be a whole number from 1 to 2147483647, and that of no table of the kernel's own (253 to 255) or of egress (19800 to 20055)`},
	{"vip_routingtableid=20055 vip_routingtable=true", `vip_routingtableid="20055" (environment): must be a whole number from 1 to 2147483647, and that of no table of the kernel's own (253 to 255) or of egress (19800 to 20055)`},
	{"vip_routingtabletype=3 vip_routingtable=true", `vip_routingtabletype="3" (environment): must be 1 (unicast), 2 (local), 6 (blackhole), 7 (unreachable) or 8 (prohibit)`},
	{"vip_routingprotocol=4 vip_routingtable=true", `vip_routingprotocol="4" (environment): must be a whole number from 5 to 255`},
	{"health_check_port=65536", `health_check_port="65536" (environment): must be a port from 1 to 65535, or 0 for none`},
	{"health_check_port=2112", `health_check_port="2112" (environment): must be another port than that of prometheus_server=":2112" (default), where /healthz is served as well`},
}

func TestErrors(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range slices.Concat(errorTests, bgpErrorTests) {
		t.Run(tt.env, func(t *testing.T) {
			env := append(append([]string{}, baseEnv...), strings.Split(tt.env, " ")...)
			c, _, err := Parse(Sources{Env: env, Hostname: "n1", ReadFile: noFiles})
			if err == nil {
				t.Fatal("no error")
			}
			check.Equal(t, err.Error(), tt.want, "the error")
			if !errors.As(err, new(*Error)) {
				t.Errorf("%T, want an *Error", err)
			}
			if !reflect.DeepEqual(c, Config{}) {
				t.Errorf("a Config beside an error: %+v", c)
			}
		})
		name, _, _ := strings.Cut(tt.env, "=")
		seen[name] = true
	}
	for _, o := range Options {
		if o.Supported() && !seen[o.Env] {
			t.Errorf("no case for %s", o.Env)
		}
	}
}

// TestNothingToAnnounceBy: a host without a name needs vip_nodename, and VIPs need a way to be announced.
func TestNothingToAnnounceBy(t *testing.T) {
	const name = `vip_nodename="" (the host's name): must be the node's name: letters, digits, dots and dashes (RFC 1123), at most 241 of them`
	const services = `vip_arp="false" (default): must be true with svc_enable, unless bgp_enable or vip_routingtable is: else nothing announces the VIPs of Services`
	const controlPlane = `vip_arp="false" (default): must be true with cp_enable, or bgp_enable or vip_routingtable must: nothing else announces its VIP`
	for _, tt := range []struct{ hostname, env, want string }{
		{"", "", name}, {"n1", "svc_enable=true", services}, {"n1", "cp_enable=true address=192.0.2.1", controlPlane},
	} {
		if _, _, err := Parse(Sources{Env: strings.Fields(tt.env), Hostname: tt.hostname}); err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

// TestAllErrorsAtOnce, from every source, in the order of the table.
func TestAllErrorsAtOnce(t *testing.T) {
	_, _, err := Parse(Sources{
		Flags: parsed(t, "--log=x", "--config", "/etc/herald.yaml", "--leaseRetry=-1", "--enableUPNP"),
		Env:   []string{"svc_ipmode=x", "enableUPNP=0", "bgp_as=0", "vip_subnet=x"},
		ReadFile: func(name string) ([]byte, error) {
			if name != "/etc/herald.yaml" {
				return nil, os.ErrNotExist
			}
			return []byte("vip_subnet: [32]\nvip_arp: perhaps\nvip_apr: true\nherald_config: /b\negress_thing: 10.0.0.0/8\n"), nil
		},
		Hostname: "n1",
	})
	want := []string{
		`herald_config (file /etc/herald.yaml): a file can't name another`,
		`vip_apr (file /etc/herald.yaml) is not known; did you mean vip_arp?`,
		`vip_subnet (file /etc/herald.yaml): must be one value: text, a number, true or false`,
		`vip_loglevel="x" (flag --log): must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors`,
		`vip_subnet="x" (environment): must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto`,
		`vip_retryperiod="-1" (flag --leaseRetry): must be a whole number of seconds from 1 to 86400`,
		`svc_ipmode="x" (environment): must be VIP or Proxy`,
		`vip_arp="perhaps" (file /etc/herald.yaml): must be true or false`,
		`bgp_as="0" (environment): must be an AS number: a whole number from 1 to 4294967294, not 23456`,
		`egress_thing="10.0.0.0/8" (file /etc/herald.yaml): ` + reasonOf("egress_*"),
	}
	if err == nil {
		t.Fatal("no error")
	}
	same(t, "", want, strings.Split(err.Error(), "\n"))
}

// TestArpRateTooFast: a rate that is too fast becomes the default.
func TestArpRateTooFast(t *testing.T) {
	for _, rate := range []string{"499", "0", "-1"} {
		c, _, err := Parse(Sources{Env: append([]string{"vip_arpRate=" + rate}, baseEnv...), Hostname: "n1"})
		if err != nil || c.ARP.Period != 3*time.Second {
			t.Errorf("vip_arpRate=%s: %v, %v, want 3s", rate, c.ARP.Period, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	tests := []struct {
		env  string
		want []string
	}{
		{"vip_arpRate=100", []string{`vip_arpRate="100" (environment) is less than 500 ms: 3000 ms is used`}},
		{"vip_arpRate=-1", []string{`vip_arpRate="-1" (environment) is less than 500 ms: 3000 ms is used`}},
		{"lb_class_only=true lb_class_name=", []string{`lb_class_only="true" (environment) with an empty lb_class_name leaves no Service: none can carry an empty class`}},
		{"lb_class_only=true lb_class_name= lb_class_legacy_handling=false", nil},
		{"bgp_peerpass=secret bgp_peers=192.0.2.1:65000:secret:false", []string{
			`bgp_peers (environment) has no effect without bgp_enable=true`,
			`bgp_peerpass (environment) has no effect without bgp_enable=true`,
		}},
		{"address=192.0.2.1 vip_leaderelection=true", []string{`address="192.0.2.1" (environment) has no effect without cp_enable=true`}},
		{"cp_enable=false vip_address=192.0.2.1", []string{`vip_address="192.0.2.1" (environment) has no effect without cp_enable=true`}},
		{"zebra_b=1 vip_packetproject=p vip_packet=true vip_loseleadership=true vip_loseleadership_timeout_seconds=4", []string{
			`zebra_b (environment) is not known`,
			`vip_packet (environment) has no effect: Herald does not use Equinix Metal's API`,
			`vip_packetproject (environment) has no effect: Herald does not use Equinix Metal's API`,
		}},
		{"lb_enable=true cp_enable=true address=192.0.2.1 lb_port=7443", []string{warnLocal, `lb_port="7443" (environment) has no effect: with lb_fwdmethod=local the VIP answers at port="6443" (default)`}},
		{"lb_enable=true cp_enable=true address=192.0.2.1 lb_port=6443", []string{warnLocal}},
		{"lb_enable=true lb_fwdmethod=masquerade", []string{warnNoCP}},
		{"address=vip.example.com", []string{`address="vip.example.com" (environment) has no effect without cp_enable=true`}},
		{"cp_enable=false vip_address=127.0.0.1", []string{`vip_address="127.0.0.1" (environment) has no effect without cp_enable=true`}},
		{"lb_fwdmethod=masq", nil},
		{"lb_fwdmethod=masq cp_enable=true address=192.0.2.1", nil},
		{"lb_fwdmethod=masq lb_enable=true", []string{warnNoCP}},
		{"lb_port=7443 lb_fwdmethod=masquerade", nil},
		{"egress_thing=false egress_other=", nil},
		{"vip_routingtableid=254 vip_routingtabletype=3 vip_routingprotocol=4", []string{
			`vip_routingtableid (environment) has no effect without vip_routingtable=true`,
			`vip_routingtabletype (environment) has no effect without vip_routingtable=true`,
			`vip_routingprotocol (environment) has no effect without vip_routingtable=true`,
		}},
		{"vip_inteface=eth0", []string{`vip_inteface (environment) is not known; did you mean vip_interface?`}},
		{"svc_elections=true", []string{`svc_elections (environment) is not known; did you mean svc_election?`}},
		{"lb_classname=a", []string{`lb_classname (environment) is not known; did you mean lb_class_name?`}},
		{"cp_enabled=a", []string{`cp_enabled (environment) is not known; did you mean cp_enable?`}},
		{"bgp_sa=1", []string{`bgp_sa (environment) is not known; did you mean bgp_as?`}},
		{"egres_podcidr=1 http_proxy=a no_proxy=b ports=1 addresses=1 disable_service_update=true", []string{
			`egres_podcidr (environment) is not known; did you mean egress_podcidr?`,
			`disable_service_update (environment) is not known; did you mean disable_service_updates?`,
		}},
		{"prometeus_server=:1 PROMETEUS_SERVER=:1 k8s_config_fil=x", []string{
			`prometeus_server (environment) is not known; did you mean prometheus_server?`,
			`k8s_config_fil (environment) is not known; did you mean k8s_config_file?`,
		}},
		{"svc_namespace=web bgp_enable=true annotation=example.com", []string{
			`annotation="example.com" (environment) has no effect with svc_namespace="web" (environment): Herald then sees no Nodes`}},
		{"vip_leasename=plndr-svcs-lock cp_enable=true address=192.0.2.1", []string{
			`vip_leasename="plndr-svcs-lock" (environment) is that of Services, too: each has its own owner all the same, and no Service may have the control plane's VIP`}},
		{"vip_leasename=a svc_leasename=kube-system/a cp_enable=true address=192.0.2.1 svc_election=true", nil},
		{"vip_leasename=a svc_leasename=a", nil},
		{"vip_something_else_altogether=1", []string{`vip_something_else_altogether (environment) is not known`}},
		{"VIP_ARP=true", []string{`VIP_ARP (environment) is not known: vip_arp is written in lower case`}},
		{"VIP_ARPRATE=1 PORT=80 ADDRESS=x HOME=/root vip=1 LB_PORT=tcp://10.96.0.1:80", nil},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			_, got, err := Parse(Sources{Env: append(strings.Fields(tt.env), baseEnv...), Hostname: "n1"})
			check.OK(t, err)
			same(t, "", tt.want, got)
		})
	}
}

// TestUnsupportedOptions gives every option that isn't supported its default, an empty value, and another one.
func TestUnsupportedOptions(t *testing.T) {
	for _, o := range Options {
		if o.Supported() {
			continue
		}
		t.Run(o.Env, func(t *testing.T) {
			name := strings.Replace(o.Env, "*", "thing", 1)
			for _, value := range []string{o.Default, ""} {
				if warnings, err := parse(name + "=" + value); err != nil || len(warnings) > 0 {
					t.Errorf("%s=%s: warnings %q, error %v, want neither", name, value, warnings, err)
				}
			}
			value := "1"
			if o.Default == "1" {
				value = "2"
			}
			warnings, err := parse(name + "=" + value)
			switch {
			case (err != nil) != (o.Effect == Refused):
				t.Errorf("%s=%s: error %v, effect is %s", name, value, err, o.Effect)
			case err != nil && err.Error() != name+`="`+value+`" (environment): `+o.Reason:
				t.Errorf("%s=%s: error %v", name, value, err)
			case (len(warnings) == 1) != (o.Effect == Unused):
				t.Errorf("%s=%s: warnings %q, effect is %s", name, value, warnings, o.Effect)
			case len(warnings) == 1 && warnings[0] != name+` (environment) has no effect: `+o.Reason:
				t.Errorf("%s=%s: warning %q", name, value, warnings[0])
			}
			if o.Type == Bool {
				want := name + `="maybe" (environment): must be true or false`
				if _, err := parse(name + "=maybe"); err == nil || err.Error() != want {
					t.Errorf("%s=maybe: error %v, want %s", name, err, want)
				}
				if warnings, err := parse(name + "=F"); o.Default == "false" && (err != nil || len(warnings) > 0) {
					t.Errorf("%s=F: warnings %q, error %v, want neither", name, warnings, err)
				}
			}
		})
	}
}

func parse(env ...string) ([]string, error) {
	_, warnings, err := Parse(Sources{Env: append(env, baseEnv...), Hostname: "n1"})
	return warnings, err
}

// TestBalancedByRouters: without ARP there is nothing for Herald to balance.
func TestBalancedByRouters(t *testing.T) {
	env := strings.Fields("lb_enable=true lb_fwdmethod=masquerade cp_enable=true address=192.0.2.1 vip_routingtable=true")
	c, warnings, err := Parse(Sources{Env: env, Hostname: "n1"})
	check.OK(t, err)
	want := []string{`lb_enable="true" (environment) has no effect without vip_arp=true: by BGP or a routing table every node whose API server is ready has the VIP, and routers spread connections over them`}
	if !slices.Equal(warnings, want) || c.ControlPlane.BalancedPort != 0 {
		t.Errorf("port %d, warnings %q, want %q", c.ControlPlane.BalancedPort, warnings, want)
	}
}

// reasonOf says why Herald lacks an option.
func reasonOf(env string) string {
	o, _ := byName(env)
	return o.Reason
}
