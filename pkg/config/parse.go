package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Sources is all that options are read from.
type Sources struct {
	Flags     *pflag.FlagSet                    // parsed, with the flags of AddFlags; may be nil
	Env       []string                          // as of os.Environ
	ReadFile  func(name string) ([]byte, error) // as os.ReadFile
	Hostname  string                            // the node's name if none is given
	Namespace string                            // the pod's own namespace, which wins over cp_namespace; "" if not known
	// Elsewhere: the options are for other hosts, where the files with BGP passwords are.
	Elsewhere bool
}

// podNamespace is where a pod with a ServiceAccount finds its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ProcessSources returns the Sources of this process, with its flags.
func ProcessSources(flags *pflag.FlagSet) Sources {
	src := Sources{Flags: flags, Env: os.Environ(), ReadFile: os.ReadFile}
	src.Hostname, _ = os.Hostname() // none is an error of vip_nodename, unless that is set
	if ns, err := os.ReadFile(podNamespace); err == nil {
		src.Namespace = strings.TrimSpace(string(ns))
	}
	return src
}

// A Setting is an option with a value.
type Setting struct {
	Option Option
	Value  string
	From   Origin
	where  string // the value was found, for messages
	name   string // the option's name as it was spelled there
}

// String returns name, value unless secret, and origin.
func (s Setting) String() string {
	if s.Option.Secret {
		return fmt.Sprintf("%s (%s)", s.name, s.where)
	}
	return fmt.Sprintf("%s=%q (%s)", s.name, s.Value, s.where)
}

// An Error is all that is wrong with the options, by lines; a command ends with status 2.
type Error struct{ error }

// NewError makes an Error, for a wrong argument of a command.
func NewError(err error) error { return &Error{err} }

// Unwrap returns why a file can't be read.
func (e *Error) Unwrap() error { return e.error }

// Parse reads and checks all options. It returns sentences about what has no effect, and one *Error, a line for each
// fault with variable, value, origin, and what is right. Then the Config is empty.
func Parse(src Sources) (Config, []string, error) {
	given, warnings, err := collect(src)
	p := parser{src: src, given: given, warnings: warnings, errs: []error{err}, wrong: map[string]bool{}}
	for _, o := range Options {
		if o.Supported() {
			s := p.setting(o.Env)
			p.failIf(s, o.set(&p.config, s.Value))
		} else {
			p.checkUnsupported(o)
		}
	}
	p.check()
	if err := errors.Join(p.errs...); err != nil {
		return Config{}, p.warnings, &Error{err}
	}
	return p.config, p.warnings, nil
}

// Given returns supported settings that differ from the default, and those of derived, in the table's order, as the
// environment has them: "off" for an empty flag. Its error is of unreadable sources; values are not checked.
func Given(src Sources) ([]Setting, error) {
	given, _, err := collect(src)
	if err != nil {
		return nil, &Error{err}
	}
	var settings []Setting
	for _, o := range Options {
		if s, ok := given[o.Env]; ok && o.Supported() && (!isDefault(o, s.Value) || slices.Contains(derived, o.Env)) {
			if s.Value == "" && !slices.Contains(o.Empty, FromEnv) {
				s.Value = off
			}
			settings = append(settings, s)
		}
	}
	return settings, nil
}

func (s Sources) passwordReader() func(name string) ([]byte, error) {
	if s.Elsewhere {
		return func(string) ([]byte, error) { return []byte("not read"), nil }
	}
	return s.ReadFile
}

// isDefault reports whether v means what holds without it.
func isDefault(o Option, v string) bool {
	if o.Type == Bool {
		have, err := strconv.ParseBool(v)
		want, _ := strconv.ParseBool(o.Default)
		return err == nil && have == want
	}
	return v == o.Default || strings.HasSuffix(o.Env, "*") && v == "false"
}

type parser struct {
	src      Sources
	given    map[string]Setting // by Option.Env, or by the name itself where that is a pattern
	config   Config
	warnings []string
	errs     []error
	wrong    map[string]bool // by Option.Env: fail was called for it
}

func (p *parser) setting(env string) Setting {
	if s, ok := p.given[env]; ok {
		return s
	}
	o, _ := byName(env)
	s := Setting{Option: o, Value: o.Default, name: o.Env, where: "default"}
	if env == "vip_nodename" {
		s.Value, s.where = p.src.Hostname, "the host's name"
	}
	return s
}

// valid reports whether fail was called for none of these options.
func (p *parser) valid(envs ...string) bool {
	return !slices.ContainsFunc(envs, func(env string) bool { return p.wrong[env] })
}

func (p *parser) fail(s Setting, err error) {
	p.wrong[s.Option.Env] = true
	p.errs = append(p.errs, fmt.Errorf("%v: %w", s, err))
}

func (p *parser) failIf(s Setting, err error) {
	if err != nil {
		p.fail(s, err)
	}
}

// blame fails for a, or for b if only that was given. The format takes the other one.
func (p *parser) blame(a Setting, format string, b Setting, formatForB string) {
	if a.From == FromDefault && b.From != FromDefault {
		a, format, b = b, formatForB, a
	}
	p.fail(a, fmt.Errorf(format, b))
}

func (p *parser) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

// checkUnsupported checks what was given of options Herald lacks; warnings repeat no value, maybe a password.
func (p *parser) checkUnsupported(o Option) {
	for _, name := range slices.Sorted(maps.Keys(p.given)) {
		s := p.given[name]
		if s.Option.Env != o.Env {
			continue
		}
		if _, err := parseBool(s.Value); o.Type == Bool && err != nil {
			p.fail(s, err)
			continue
		}
		switch {
		case isDefault(o, s.Value):
		case o.Effect == Refused:
			p.fail(s, errors.New(o.Reason))
		case o.Effect == Unused:
			p.warn("%s (%s) has no effect: %s", s.name, s.where, o.Reason)
		}
	}
}

// check checks what options mean together, and completes dependent ones.
func (p *parser) check() {
	c := &p.config
	p.checkLeaseTimes()
	if rate := p.setting("vip_arpRate"); p.valid("vip_arpRate") {
		if n, _ := strconv.Atoi(rate.Value); n < minARPPeriod {
			p.warn("%v is less than %d ms: %d ms is used", rate, minARPPeriod, defaultARPPeriod)
		}
	}
	if level := p.setting("vip_loglevel"); c.Log.Level > slog.LevelInfo && c.Log.Level < slog.LevelError {
		// kube-vip counted as logrus before it had slog (https://github.com/kube-vip/kube-vip/pull/1043).
		p.warn("%v: what is below that level is not logged, and 0 is info, 4 warnings; older versions of kube-vip "+
			"counted otherwise, 4 being info and 5 debug: write 0 for info, -4 for debug", level)
	}
	if c.Services.Enable && !p.announces() {
		p.fail(p.setting("vip_arp"), errors.New("must be true with svc_enable, unless bgp_enable or vip_routingtable is: "+
			"else nothing announces the VIPs of Services"))
	}
	if c.Services.Enable && c.Services.Addresses == "pools" && !c.GivesAddresses() &&
		p.valid("svc_pools", "svc_namespace", "disable_service_updates") {
		p.fail(p.setting("svc_addresses"), errors.New("must be any where no pools are read: with an empty svc_pools, "+
			"with svc_namespace, or with disable_service_updates"))
	}
	if !c.Services.Enable && !c.ControlPlane.Enable && p.valid("svc_enable", "cp_enable") {
		p.warn("%v: no VIP is announced; set svc_enable=true for those of Services, cp_enable=true for the control plane's",
			p.setting("svc_enable"))
	}
	if c.Class.Legacy && c.Class.Only && c.Class.Name == "" && p.valid("lb_class_name") {
		p.warn("%v with an empty lb_class_name leaves no Service: none can carry an empty class", p.setting("lb_class_only"))
	}
	if c.Serve.HealthPort != 0 && strings.HasSuffix(c.Serve.Metrics, fmt.Sprintf(":%d", c.Serve.HealthPort)) {
		p.fail(p.setting("health_check_port"), fmt.Errorf("must be another port than that of %v, where /healthz is "+
			"served as well", p.setting("prometheus_server")))
	}
	other := p.src.Namespace != "" && c.Node.Namespace != p.src.Namespace && p.valid("cp_namespace")
	if s := p.setting("cp_namespace"); other && c.Services.Namespace == "" {
		c.Node.KubeVIP = c.Node.Namespace
	} else if other && s.From != FromDefault {
		p.warn("%v has no effect: leases are in this Pod's namespace, %s; where kube-vip has its own in the other one, set "+
			"vip_leasename=%[3]s/plndr-cp-lock and svc_leasename=%[3]s/plndr-svcs-lock", s, p.src.Namespace, c.Node.Namespace)
	}
	c.Node.Namespace = cmp.Or(p.src.Namespace, c.Node.Namespace)
	c.Link.Services = cmp.Or(c.Link.Services, c.Link.Interface)
	c.Services.Lease.Namespace = cmp.Or(c.Services.Lease.Namespace, c.Node.Namespace)
	c.ControlPlane.Lease.Namespace = cmp.Or(c.ControlPlane.Lease.Namespace, c.Node.Namespace)
	p.checkControlPlane()
	p.checkBGP()
	p.checkRoutingTable()
}

// derived are options that follow from others unless given, so their defaults may not hold.
var derived = []string{"vip_renewdeadline", "vip_retryperiod"}

// checkLeaseTimes shortens lease times not given to suit those given: any one may be alone in kube-vip's manifests.
func (p *parser) checkLeaseTimes() {
	if !p.valid("vip_leaseduration", "vip_renewdeadline", "vip_retryperiod") {
		return
	}
	l := &p.config.Lease
	duration, deadline, period := p.setting("vip_leaseduration"), p.setting("vip_renewdeadline"),
		p.setting("vip_retryperiod")
	twoThirds := l.Duration * 2 / 3
	if period.From == FromDefault {
		of := l.RenewDeadline
		if deadline.From == FromDefault {
			of = twoThirds
		}
		l.RetryPeriod = min(l.RetryPeriod, max(of/5, time.Second).Truncate(time.Second))
	}
	if deadline.From == FromDefault {
		if d := max(twoThirds, l.RetryPeriod*6/5+time.Second).Truncate(time.Second); d < l.RenewDeadline {
			l.RenewDeadline, deadline.Value, deadline.where = d, fmt.Sprint(d.Seconds()), "derived from the others"
		}
	}
	if l.RenewDeadline >= l.Duration {
		p.blame(duration, "must be more than %v", deadline, "must be less than %v")
	}
	if 10*l.RenewDeadline <= 12*l.RetryPeriod {
		p.blame(deadline, "must be more than 1.2 times %v", period, "times 1.2 must be less than %v")
	}
}

// announces reports whether any way to announce VIPs is enabled, or asked for wrongly.
func (p *parser) announces() bool {
	c := &p.config
	return c.ARP.Enable || c.BGP.Enable || c.RoutingTable.Enable || !p.valid("vip_arp", "bgp_enable", "vip_routingtable")
}

// checkControlPlane checks the options of the control plane's VIP together, and with others.
func (p *parser) checkControlPlane() {
	c, address := &p.config, p.setting("address")
	p.checkBalancing()
	if !c.ControlPlane.Enable {
		if address.From != FromDefault && p.valid("cp_enable") {
			p.warn("%v has no effect without cp_enable=true", address)
		}
		return
	}
	if len(c.ControlPlane.Addresses) == 0 && p.valid("address") {
		p.fail(address, errors.New("must name the VIP of the control plane, since cp_enable is true"))
	}
	if !p.announces() {
		p.fail(p.setting("vip_arp"), errors.New("must be true with cp_enable, or bgp_enable or vip_routingtable must: "+
			"nothing else announces its VIP"))
	}
	if s := c.Services; c.ControlPlane.Lease == s.Lease && s.Enable && !s.Election && c.ARP.Enable {
		p.warn("%v is that of Services, too: each has its own owner all the same, and no Service may have the control "+
			"plane's VIP", p.setting("vip_leasename"))
	}
}

// checkBalancing checks the options of balancing, and sets BalancedPort where they have an effect.
func (p *parser) checkBalancing() {
	c := &p.config.ControlPlane
	b, enable, port := c.balance, p.setting("lb_enable"), p.setting("lb_port")
	c.balance = balance{}
	switch {
	case !b.enable || !p.valid("cp_enable", "lb_port", "lb_fwdmethod"):
	case !c.Enable:
		p.warn("%v has no effect without cp_enable=true", enable)
	case b.method == forwardLocal:
		// docs/why.md, "The control plane's VIP": kube-vip does the same.
		p.warn("%v: with lb_fwdmethod=local connections to the VIP are not balanced, by kube-vip neither: the API server "+
			"of the node that owns the VIP answers them all", enable)
		if b.port != 0 && b.port != c.Port {
			p.warn("%v has no effect: with lb_fwdmethod=local the VIP answers at %v", port, p.setting("port"))
		}
	case b.method != forwardMasquerade:
		p.fail(p.setting("lb_fwdmethod"), fmt.Errorf("must be masquerade or local with %v: Herald balances over the API "+
			"servers by address translation only. With local the API server of the node that owns the VIP answers all "+
			"connections", enable))
	case !p.config.ARP.Enable:
		p.warn("%v has no effect without vip_arp=true: by BGP or a routing table every node whose API server is ready "+
			"has the VIP, and routers spread connections over them", enable)
	default:
		c.BalancedPort = cmp.Or(b.port, c.Port)
	}
}
