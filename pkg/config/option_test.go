package config

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestOptions holds every row of the table to its form.
func TestOptions(t *testing.T) {
	names, flags := map[string]string{}, map[string]string{}
	for _, o := range Options {
		t.Run(o.Env, func(t *testing.T) {
			for _, name := range append([]string{o.Env}, o.Aliases...) {
				if other, ok := names[name]; ok {
					t.Errorf("variable %s is also one of %s", name, other)
				}
				names[name] = o.Env
			}
			for _, name := range append(flagNames(o), o.Short) {
				if other, ok := flags[name]; ok && name != "" {
					t.Errorf("flag %s is also one of %s", name, other)
				}
				flags[name] = o.Env
			}
			if !regexp.MustCompile(`^[a-z0-9]\w*\*?$`).MatchString(o.Env) {
				t.Errorf("Env = %q, want a word", o.Env)
			}
			if o.Meaning == "" || !strings.HasSuffix(o.Meaning, ".") {
				t.Errorf("Meaning = %q, want full sentences", o.Meaning)
			}
			if o.Type == "" || !slices.Contains(groups, o.Group) {
				t.Errorf("Type = %q, Group = %q, want both, and the group in groups", o.Type, o.Group)
			}
			if o.Type == Bool && o.Default != "true" && o.Default != "false" {
				t.Errorf("Default = %q, want true or false", o.Default)
			}
			if o.Supported() {
				checkSupported(t, o)
			} else {
				checkUnsupported(t, o)
			}
		})
	}
	for _, g := range groups {
		if len(inGroup(g, true))+len(inGroup(g, false)) == 0 {
			t.Errorf("group %q has no options", g)
		}
	}
}

// TestNamesOfKubeVIP lists every name that kube-vip understands. None of
// them may ever become unknown.
func TestNamesOfKubeVIP(t *testing.T) {
	const variables = `vip_loglevel vip_interface vip_servicesinterface vip_allow_interface_not_up vip_leaseduration vip_renewdeadline
		vip_retryperiod vip_nodename vip_subnet svc_enable svc_election svc_namespace svc_leasename cp_namespace lb_class_name lb_class_only
		lb_class_legacy_handling LoadBalancerClassLegacyHandling disable_service_updates vip_arp vip_arpRate vip_skipdad k8s_config_file
		kubernetes_addr prometheus_server health_check_port enable_node_labeling enable_upnp enableUPNP dhcp_backoff_attempts dhcp_mode
		dns_mode vip_ddns bgp_enable bgp_routerid bgp_routerinterface bgp_as bgp_peeraddress bgp_peeras bgp_peerpass bgp_multihop bgp_peers
		bgp_sourceif bgp_sourceip bgp_hold_time bgp_keepalive_interval mpbgp_nexthop mpbgp_ipv4 mpbgp_ipv6 annotation cp_enable address port
		vip_address vip_leaderelection vip_leasename cp_detect lb_enable lb_port lb_fwdmethod control_plane_health_check_address
		control_plane_health_check_period_seconds vip_routingtable vip_routingtableid vip_routingtabletype vip_routingprotocol
		vip_cleanroutingtable per_service_election_on_demand enable_service_security vip_preserve_on_leadership_loss vip_loseleadership
		vip_leaseannotations egress_podcidr egress_servicecidr egress_withnftables egress_clean mirror_dest_interface zebra_enable zebra_url
		zebra_version zebra_software_name vip_wireguard instance_name debounce_time enable_endpoints vip_interfaceloglobal config_file`
	for _, name := range strings.Fields(variables) {
		if _, ok := lookup(name); !ok {
			t.Errorf("variable %s is not known", name)
		}
	}
	const flags = `log interface serviceInterface leaseDuration leaseRenewDuration leaseRetry nodeName vipSubnet services servicesElection
		servicesLeaseName namespace lbClassName lbClassOnly lbClassNameLegacyHandling arp k8sConfigPath prometheusHTTPServer healthCheckPort
		vip address port wireguard table enableLoadBalancer lbPort lbForwardingMethod ddns mirrorDestInterface leaderElection leaseName bgp
		bgpRouterID sourceIF sourceIP localAS bgpHoldTimer bgpKeepAliveInterval peerAddress peerAS peerPass multihop bgppeers annotations
		zebra zebraUrl zebraVersion zebraSoftwareName tableID tableType routingProtocol cleanRoutingTable controlplane autodetectcp
		onlyAllowTrafficServicePorts enableNodeLabeling dnsMode disableServiceUpdates enableEndpoints loInterfaceGlobalScope config-file`
	fs := parsed(t)
	for _, name := range strings.Fields(flags) {
		if fs.Lookup(name) == nil {
			t.Errorf("flag --%s is not known", name)
		}
	}
}

func checkSupported(t *testing.T, o Option) {
	if o.Flag == "" || o.Since == "" || o.Effect != "" {
		t.Errorf("Flag = %q, Since = %q, Effect = %q, want the first two only", o.Flag, o.Since, o.Effect)
	}
	value := o.Default
	if o.Env == "vip_nodename" {
		value = "a-host" // its default is the host's name
	}
	if err := o.set(new(Config), value); err != nil {
		t.Errorf("the default %q: %v", value, err)
	}
}

func checkUnsupported(t *testing.T, o Option) {
	if o.set != nil || o.Since != "" || !slices.Contains([]Effect{Refused, Unused, NoEffect}, o.Effect) {
		t.Errorf("Since = %q, Effect = %q, want an effect only", o.Since, o.Effect)
	}
	if strings.HasSuffix(o.Env, "*") && o.Flag != "" {
		t.Errorf("Flag = %q for a pattern, want none", o.Flag)
	}
}

// TestEveryOptionHasSources gives every option a value by flag, and by
// environment, and looks whether it arrives.
func TestEveryOptionHasSources(t *testing.T) {
	for _, o := range Options {
		name := strings.Replace(o.Env, "*", "something", 1)
		given, _, err := collect(Sources{Env: []string{name + "=x"}, ReadFile: noFiles})
		if o.Env != "herald_config" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := given[name]; got.Value != "x" || got.From != FromEnv || got.Option.Env != o.Env {
			t.Errorf("%s=x in the environment: got %v of %s", name, got, got.Option.Env)
		}
		for _, flag := range flagNames(o) {
			given, _, _ := collect(Sources{Flags: parsed(t, "--"+flag+"=x"), ReadFile: noFiles})
			if got := given[o.Env]; got.Value != "x" || got.From != FromFlag {
				t.Errorf("--%s=x: got %v, want %s", flag, got, o.Env)
			}
		}
	}
}

// parsed is a set of all flags after it has parsed args.
func parsed(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("herald", pflag.ContinueOnError)
	AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("Parse(%q): %v", args, err)
	}
	return fs
}
