package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// noFiles is a machine without files.
func noFiles(string) ([]byte, error) { return nil, fs.ErrNotExist }

// readsAs is a machine on which every file reads text.
func readsAs(text string) func(string) ([]byte, error) {
	return func(string) ([]byte, error) { return []byte(text), nil }
}

// baseConfig is what holds with svc_enable and vip_arp, and nothing else given.
func baseConfig() Config {
	return Config{
		Log:   Log{Format: Text},
		Node:  Node{Name: "n1", Namespace: "kube-system"},
		Link:  Link{Bits4: 32, Bits6: 128},
		Lease: Lease{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second},
		Peers: Peers{Port: 7947},
		Services: Services{
			Enable: true, Lease: vip.Key{Namespace: "kube-system", Name: "plndr-svcs-lock"}, KeepConnections: time.Hour, IPMode: "VIP", Addresses: "any",
		},
		Egress: Egress{Enable: true},
		Class:  Class{Name: "kube-vip.io/kube-vip-class", Legacy: true},
		Pools:  vip.Key{Namespace: "kube-system", Name: "kubevip"},
		ARP:    ARP{Enable: true, Period: 3 * time.Second},
		Serve:  Serve{Metrics: ":2112"},
		UPnP:   UPnP{Status: true},
		DHCP:   DHCP{Attempts: 3, Mode: "ipv4", MacvlanPrefixes: []string{"herald-"}},
		ControlPlane: ControlPlane{
			Port: 6443, Lease: vip.Key{Namespace: "kube-system", Name: "plndr-cp-lock"},
			CheckPeriod: time.Second, CheckTimeout: 2 * time.Second, CheckFailures: 3,
		},
	}
}

// addresses has go-cmp compare them by value, and leave out what BGP and ControlPlane are made of.
var addresses = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreUnexported(BGP{}, ControlPlane{})}

// same fails the test, with what they are, if two values differ.
func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, addresses); diff != "" {
		t.Errorf("%s -want +got:\n%s", what, diff)
	}
}

// baseEnv are the variables that make baseConfig.
var baseEnv = []string{"svc_enable=true", "vip_arp=true"}

// TestLogLevelOfLogrus: levels as older versions of kube-vip counted them, which make Herald silent, are a warning.
func TestLogLevelOfLogrus(t *testing.T) {
	for level, warns := range map[string]bool{"-4": false, "0": false, "1": true, "4": true, "5": true, "7": true, "8": false} {
		c, warnings, err := Parse(Sources{Env: append([]string{"vip_loglevel=" + level}, baseEnv...), Hostname: "n1"})
		check.OK(t, err)
		var want []string
		if warns {
			want = []string{`vip_loglevel="` + level + `" (environment): what is below that level is not logged, and 0 is info, 4 warnings; older versions of kube-vip counted otherwise, 4 being info and 5 debug: write 0 for info, -4 for debug`}
		}
		if !slices.Equal(warnings, want) || fmt.Sprint(int(c.Log.Level)) != level {
			t.Errorf("level %d, warnings %q, want %s and %q", c.Log.Level, warnings, level, want)
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		env  string // variables with spaces between
		want func(c *Config)
	}{
		{"", func(*Config) {}},
		{"vip_loglevel=-4", func(c *Config) { c.Log.Level = slog.LevelDebug }},
		{"vip_routingtable=true vip_routingtabletype=0", func(c *Config) { c.RoutingTable = RoutingTable{Enable: true, ID: 198, Type: 1, Protocol: 248} }},
		{"vip_loglevel=8", func(c *Config) { c.Log.Level = slog.LevelError }},
		{"enable_upnp=true upnp_ports=80,30000-32767 upnp_namespaces=a,b upnp_gateways=192.168.1.1", func(c *Config) {
			c.UPnP = UPnP{Enable: true, Status: true, Namespaces: []string{"a", "b"}, Ports: [][2]uint16{{80, 80}, {30000, 32767}}, Gateways: []netip.Addr{netip.MustParseAddr("192.168.1.1")}}
		}},
		{"vip_loglevel=", func(*Config) {}},
		{"herald_log_format=JSON", func(c *Config) { c.Log.Format = JSON }},
		{"vip_nodename=Worker-1.Example.com", func(c *Config) { c.Node.Name = "worker-1.example.com" }},
		{"cp_namespace=lb", func(c *Config) {
			c.Node.Namespace, c.Services.Lease.Namespace, c.ControlPlane.Lease.Namespace = "lb", "lb", "lb"
		}},
		{"vip_interface=eth0", func(c *Config) { c.Link.Interface, c.Link.Services = "eth0", "eth0" }},
		{"vip_interface=bond0.100@x", func(c *Config) { c.Link.Interface, c.Link.Services = "bond0.100@x", "bond0.100@x" }},
		{"vip_interface=abcdefghijklmno", func(c *Config) { c.Link.Interface, c.Link.Services = "abcdefghijklmno", "abcdefghijklmno" }},
		{"vip_interface=eth0 vip_servicesinterface=auto", func(c *Config) { c.Link.Interface, c.Link.Services = "eth0", Auto }},
		{"vip_servicesinterface=eth1", func(c *Config) { c.Link.Services = "eth1" }},
		{"vip_subnet=24,64", func(c *Config) { c.Link.Bits4, c.Link.Bits6 = 24, 64 }},
		{"vip_cidr=24", func(c *Config) { c.Link.Bits4 = 24 }}, // the name of vip_subnet before kube-vip 0.9
		{"vip_cidr=24 vip_subnet=16", func(c *Config) { c.Link.Bits4 = 16 }},
		{"vip_subnet=/24,/64", func(c *Config) { c.Link.Bits4, c.Link.Bits6 = 24, 64 }},
		{"vip_subnet=24", func(c *Config) { c.Link.Bits4 = 24 }},
		{"vip_subnet=/32", func(*Config) {}},
		{"vip_subnet=32,32", func(c *Config) { c.Link.Bits6 = 32 }},
		{"vip_subnet=64", func(c *Config) { c.Link.Bits6 = 64 }},
		{"vip_subnet=auto", func(c *Config) { c.Link.Bits4, c.Link.Bits6 = AutoBits, AutoBits }},
		{"vip_subnet=auto,128", func(c *Config) { c.Link.Bits4 = AutoBits }},
		{"vip_subnet=24,auto", func(c *Config) { c.Link.Bits4, c.Link.Bits6 = 24, AutoBits }},
		{"vip_allow_interface_not_up=1", func(c *Config) { c.Link.AllowDown = true }},
		{"vip_leaseduration=5 vip_renewdeadline=3 vip_retryperiod=1", func(c *Config) {
			c.Lease = Lease{Duration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second}
		}},
		{"enableServicesElection=true", func(c *Config) { c.Services.Election = true }},
		{"lb_port=7443 lb_fwdmethod=Masquerade", func(c *Config) {}},
		{"lb_enable=true lb_port=7443 lb_fwdmethod=masquerade cp_enable=true address=192.0.2.1", func(c *Config) {
			c.ControlPlane.Enable, c.ControlPlane.Addresses = true, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			c.ControlPlane.BalancedPort = 7443
		}},
		{"lb_enable=true lb_fwdmethod=masquerade cp_enable=true address=192.0.2.1", func(c *Config) {
			c.ControlPlane.Enable, c.ControlPlane.Addresses = true, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			c.ControlPlane.BalancedPort = 6443
		}},
		{"svc_election=T", func(c *Config) { c.Services.Election = true }},
		{"svc_namespace=web", func(c *Config) { c.Services.Namespace = "web" }},
		{"svc_leasename=lock", func(c *Config) { c.Services.Lease.Name = "lock" }},
		{"svc_leasename=lb/lock.1", func(c *Config) { c.Services.Lease.Namespace, c.Services.Lease.Name = "lb", "lock.1" }},
		{"svc_ipmode=proxy", func(c *Config) { c.Services.IPMode = "Proxy" }},
		{"svc_reserved=10.244.3.0/16,192.168.0.1,fd00::/8", func(c *Config) {
			c.Services.Reserved = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("192.168.0.1/32"), netip.MustParsePrefix("fd00::/8")}
		}},
		{"egress_enable=false", func(c *Config) { c.Egress.Enable = false }},
		{"egress_podcidr=10.244.0.0/16,fd00::/8", func(c *Config) {
			c.Egress.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/8")}
		}},
		{"egress_servicecidr=10.96.0.0/12", func(c *Config) { c.Egress.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")} }},
		{"svc_addresses=Pools", func(c *Config) { c.Services.Addresses = "pools" }},
		{"enable_service_security=true", func(c *Config) { c.Services.LimitPorts = true }},
		{"disable_service_updates=true", func(c *Config) { c.Services.ReadOnly = true }},
		{"lb_class_name=example.com/lb", func(c *Config) { c.Class.Name = "example.com/lb" }},
		{"LoadBalancerClassName=example.com/lb", func(c *Config) { c.Class.Name = "example.com/lb" }},
		{"lb_class_name=", func(c *Config) { c.Class.Name = "" }},
		{"lb_class_only=true", func(c *Config) { c.Class.Only = true }},
		{"lb_class_legacy_handling=false", func(c *Config) { c.Class.Legacy = false }},
		{"LoadBalancerClassLegacyHandling=false", func(c *Config) { c.Class.Legacy = false }},
		{"LoadBalancerClassLegacyHandling=false lb_class_legacy_handling=true", func(*Config) {}}, // the proper name wins
		{"lb_class_legacy_handling=true LoadBalancerClassLegacyHandling=false", func(*Config) {}}, // in any order
		{"vip_arpRate=500", func(c *Config) { c.ARP.Period = 500 * time.Millisecond }},
		{"dhcp_backoff_attempts=0", func(c *Config) { c.DHCP.Attempts = 0 }},
		{"dhcp_macvlan_prefixes=herald-,lan", func(c *Config) { c.DHCP.MacvlanPrefixes = []string{"herald-", "lan"} }},
		{"dhcp_mode=dual", func(c *Config) { c.DHCP.Mode = "dual" }},
		{"vip_skipdad=true", func(c *Config) { c.ARP.SkipDAD = true }},
		{"k8s_config_file=/etc/k3s.yaml", func(c *Config) { c.Kube.ConfigFile = "/etc/k3s.yaml" }},
		{"kubernetes_addr=https://[2001:db8::1]:6443", func(c *Config) { c.Kube.Server = "https://[2001:db8::1]:6443" }},
		{"kubernetes_addr=192.0.2.1:6443", func(c *Config) { c.Kube.Server = "https://192.0.2.1:6443" }},
		{"prometheus_server=127.0.0.1:9000", func(c *Config) { c.Serve.Metrics = "127.0.0.1:9000" }},
		{"prometheus_server=", func(*Config) {}}, // empty in the environment is "not set"
		{"prometheus_server=off", func(c *Config) { c.Serve.Metrics = "" }},
		{"prometheus_server=off health_check_port=2112", func(c *Config) { c.Serve = Serve{HealthPort: 2112} }},
		{"prometheus_server=:12112 health_check_port=2112", func(c *Config) { c.Serve = Serve{Metrics: ":12112", HealthPort: 2112} }},
		{"health_check_port=8080", func(c *Config) { c.Serve.HealthPort = 8080 }},
		{"cp_enable=true address=192.0.2.1", func(c *Config) {
			c.ControlPlane.Enable, c.ControlPlane.Addresses = true, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}},
		{"cp_enable=true vip_address=2001:db8::1,192.0.2.1 address=192.0.2.1,2001:db8::1 port=443", func(c *Config) {
			c.ControlPlane.Enable, c.ControlPlane.Port = true, 443
			c.ControlPlane.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		}},
		{"vip_leasename=lb/lock", func(c *Config) { c.ControlPlane.Lease.Namespace, c.ControlPlane.Lease.Name = "lb", "lock" }},
		{"control_plane_health_check_address=https://localhost:6443/livez", func(c *Config) { c.ControlPlane.CheckURL = "https://localhost:6443/livez" }},
		{"control_plane_health_check_period_seconds=5 control_plane_health_check_timeout_seconds=3", func(c *Config) {
			c.ControlPlane.CheckPeriod, c.ControlPlane.CheckTimeout = 5*time.Second, 3*time.Second
		}},
		{"control_plane_health_check_failure_threshold=1", func(c *Config) { c.ControlPlane.CheckFailures = 1 }},
		{"vip_leaderelection=true bgp_enable=false cp_enable=0 PATH=/bin", func(*Config) {}},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			want := baseConfig()
			tt.want(&want)
			got, warnings, err := Parse(Sources{Env: append(strings.Fields(tt.env), baseEnv...), Hostname: "n1", ReadFile: noFiles})
			check.OK(t, err)
			same(t, "", want, got)
			if len(warnings) > 0 {
				t.Errorf("warnings %q, want none", warnings)
			}
		})
	}
}

// TestLeaseTimes: of the three times any may be missing. What is missing follows from the others where the default is too long for them, so
// that every time that kube-vip takes alone (its defaults are 5, 3 and 1 s) is taken. Each of them that was given is kept by manifests, but for
// the default of vip_leaseduration, which follows from no other.
func TestLeaseTimes(t *testing.T) {
	for given, want := range map[string][3]int{
		"":                     {15, 10, 2},
		"vip_leaseduration=3":  {3, 2, 1}, // the shortest that Herald takes
		"vip_leaseduration=4":  {4, 2, 1}, // and kube-vip
		"vip_leaseduration=5":  {5, 3, 1},
		"vip_leaseduration=10": {10, 6, 1},
		"vip_leaseduration=14": {14, 9, 1},
		"vip_leaseduration=15": {15, 10, 2},
		"vip_leaseduration=60": {60, 10, 2},
		"vip_renewdeadline=2":  {15, 2, 1},
		"vip_renewdeadline=3":  {15, 3, 1},
		"vip_renewdeadline=4":  {15, 4, 1},
		"vip_renewdeadline=14": {15, 14, 2},
		"vip_retryperiod=1":    {15, 10, 1},
		"vip_retryperiod=2":    {15, 10, 2},
		"vip_retryperiod=8":    {15, 10, 8},

		"vip_leaseduration=4 vip_retryperiod=2":                      {4, 3, 2},
		"vip_leaseduration=5 vip_renewdeadline=4":                    {5, 4, 1},
		"vip_leaseduration=12 vip_renewdeadline=10":                  {12, 10, 2},
		"vip_renewdeadline=3 vip_retryperiod=2":                      {15, 3, 2},
		"vip_leaseduration=5 vip_renewdeadline=3 vip_retryperiod=1":  {5, 3, 1},
		"vip_leaseduration=11 vip_renewdeadline=10":                  {11, 10, 2},
		"vip_leaseduration=20 vip_renewdeadline=3 vip_retryperiod=2": {20, 3, 2},
	} {
		src := Sources{Env: append(strings.Fields(given), baseEnv...), Hostname: "n1"}
		c, warnings, err := Parse(src)
		second := func(n int) time.Duration { return time.Duration(n) * time.Second }
		if want := (Lease{second(want[0]), second(want[1]), second(want[2])}); err != nil || len(warnings) > 0 || c.Lease != want {
			t.Errorf("%s: %v, warnings %q, error %v, want %v", given, c.Lease, warnings, err, want)
		}
		settings := check.Value(Given(src))(t)
		for _, text := range strings.Fields(given) {
			if text != "vip_leaseduration=15" && !slices.ContainsFunc(settings, func(s Setting) bool { return s.Option.Env+"="+s.Value == text }) {
				t.Errorf("%s: manifests would have %v", given, settings)
			}
		}
	}
}

// TestNoOptions: Herald starts, and warns that it has nothing to do.
func TestNoOptions(t *testing.T) {
	want := baseConfig()
	want.Services.Enable, want.ARP.Enable = false, false
	got, warnings, err := Parse(Sources{Hostname: "n1"})
	check.OK(t, err)
	same(t, "", want, got)
	wantWarnings := []string{`svc_enable="false" (default): no VIP is announced; set svc_enable=true for those of Services, cp_enable=true for the control plane's`}
	same(t, "", wantWarnings, warnings)
}

// TestPrecedence: flag < file < environment.
func TestPrecedence(t *testing.T) {
	const config = "--config=/etc/herald.yaml"
	tests := []struct {
		name string
		src  Sources
		want string // svc_namespace
		from Origin
	}{
		{"flag", Sources{Flags: parsed(t, "--serviceNamespace=flag")}, "flag", FromFlag},
		{"file over flag", Sources{Flags: parsed(t, "--serviceNamespace=flag", config), ReadFile: readsAs("svc_namespace: file")}, "file", FromFile},
		{"an empty value of the file does not count", Sources{Flags: parsed(t, "--serviceNamespace=flag", config), ReadFile: readsAs("svc_namespace: ''")}, "flag", FromFlag},
		{"nor does null", Sources{Flags: parsed(t, "--serviceNamespace=flag", config), ReadFile: readsAs("svc_namespace:")}, "flag", FromFlag},
		{"environment over file", Sources{Flags: parsed(t, config), ReadFile: readsAs("svc_namespace: file"), Env: []string{"svc_namespace=env"}}, "env", FromEnv},
		{"environment over flag", Sources{Flags: parsed(t, "--serviceNamespace=flag"), Env: []string{"svc_namespace=env"}}, "env", FromEnv},
		{"an empty variable does not count", Sources{Flags: parsed(t, "--serviceNamespace=flag"), Env: []string{"svc_namespace="}}, "flag", FromFlag},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.src.Hostname = "n1"
			c, _, err := Parse(tt.src)
			check.OK(t, err)
			check.Equal(t, c.Services.Namespace, tt.want, "svc_namespace")
			given, err := Given(tt.src)
			if err != nil || len(given) != 1 && len(given) != 2 { // herald_config is one of them
				t.Fatalf("Given = %v, %v", given, err)
			}
			if last := given[len(given)-1]; last.Value != tt.want || last.From != tt.from {
				t.Errorf("Given = %v from %d, want %q from %d", last, last.From, tt.want, tt.from)
			}
		})
	}
}

// TestPodNamespace: what the pod knows of itself is right, cp_namespace is a guess.
func TestPodNamespace(t *testing.T) {
	c, warnings, err := Parse(Sources{Env: append([]string{"cp_namespace=guess", "svc_namespace=web"}, baseEnv...), Namespace: "pods-own", Hostname: "n1"})
	check.OK(t, err)
	want := []string{`cp_namespace="guess" (environment) has no effect: leases are in this Pod's namespace, pods-own; where kube-vip has its own in the other one, set vip_leasename=guess/plndr-cp-lock and svc_leasename=guess/plndr-svcs-lock`}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
	if c.Node.Namespace != "pods-own" || c.Services.Lease.Namespace != "pods-own" {
		t.Errorf("Namespace = %q, lease in %q, want pods-own", c.Node.Namespace, c.Services.Lease.Namespace)
	}
	for env, elsewhere := range map[string]string{"cp_namespace=pods-own": "", "cp_namespace=guess": "guess", "cp_namespace=": "kube-system", "port=6443": "kube-system"} {
		c, warnings, err := Parse(Sources{Env: append([]string{env}, baseEnv...), Namespace: "pods-own", Hostname: "n1"})
		if err != nil || len(warnings) > 0 || c.Node.KubeVIP != elsewhere {
			t.Errorf("%s: warnings %q, error %v, want neither; leases of kube-vip in %q, want %q", env, warnings, err, c.Node.KubeVIP, elsewhere)
		}
	}
}

func TestProcess(t *testing.T) {
	t.Setenv("svc_namespace", "of-the-process")
	src := ProcessSources(parsed(t, "--arp"))
	c, _, err := Parse(src)
	check.OK(t, err)
	if c.Services.Namespace != "of-the-process" || !c.ARP.Enable || c.Node.Name != strings.ToLower(src.Hostname) {
		t.Errorf("got %+v", c)
	}
	if _, err := src.ReadFile("/does/not/exist"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestGiven: only what differs from the default, only what is supported, in the order of the table.
func TestGiven(t *testing.T) {
	given, err := Given(Sources{
		Flags: parsed(t, "--services", "--arp=true", "--leaderElection", "--namespace=kube-system", "--lbClassName=", "--log=0"),
		Env:   []string{"zebra_version=5", "vip_arpRate=5000", "svc_election=0"},
	})
	check.OK(t, err)
	var got []string
	for _, s := range given {
		got = append(got, s.Option.Env+"="+s.Value)
	}
	want := []string{"svc_enable=true", "lb_class_name=", "vip_arp=true", "vip_arpRate=5000"}
	same(t, "", want, got)
}

// TestCommonLease: one name for the control plane's VIP and for Services is no fault, and nothing where one of them has no owner.
func TestCommonLease(t *testing.T) {
	for _, env := range []string{"vip_arp=true", "vip_routingtable=true svc_enable=true"} {
		all := strings.Fields("vip_leasename=a svc_leasename=a cp_enable=true address=192.0.2.1 " + env)
		if _, warnings, err := Parse(Sources{Env: all, Hostname: "n1"}); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, warnings %q", env, err, warnings)
		}
	}
}
