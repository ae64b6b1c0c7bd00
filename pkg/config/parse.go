package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Sources is all that options are read from.
type Sources struct {
	Flags     *pflag.FlagSet                    // parsed, with the flags of AddFlags; may be nil
	Env       []string                          // as of os.Environ
	ReadFile  func(name string) ([]byte, error) // as os.ReadFile
	Hostname  string                            // the node's name if none is given
	Namespace string                            // the pod's own namespace, which wins over cp_namespace; "" if not known
}

// podNamespace is where a pod with a ServiceAccount finds its own namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ProcessSources is the Sources of this process, with the flags given to it.
func ProcessSources(flags *pflag.FlagSet) Sources {
	src := Sources{Flags: flags, Env: os.Environ(), ReadFile: os.ReadFile}
	src.Hostname, _ = os.Hostname() // none is an error of vip_nodename, unless that is set
	if ns, err := os.ReadFile(podNamespace); err == nil {
		src.Namespace = strings.TrimSpace(string(ns))
	}
	return src
}

// A Setting is an option to which somebody gave a value.
type Setting struct {
	Option Option
	Value  string
	From   Origin
	place  string // where the value was found, for messages
	name   string // the option's name as it was spelled there
}

func (s Setting) String() string {
	if s.Option.Secret {
		return fmt.Sprintf("%s (%s)", s.name, s.place)
	}
	return fmt.Sprintf("%s=%q (%s)", s.name, s.Value, s.place)
}

// An Error is all that is wrong with the options, a line for each. A command
// ends with status 2 for it.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }

// Unwrap is what lies behind it: for a file that can't be read, why.
func (e *Error) Unwrap() error { return e.err }

// Parse reads all options and checks them. It returns warnings, each a
// sentence, about what has no effect, and one *Error for all that is wrong:
// each line names the variable, its value, where that is from, and what would
// be right.
func Parse(src Sources) (Config, []string, error) {
	given, warnings, err := collect(src)
	p := parser{given: given, warnings: warnings, errs: []error{err}, bad: map[string]bool{}}
	for _, o := range Options {
		p.option(o, src)
	}
	p.check(src)
	if err := errors.Join(p.errs...); err != nil {
		return Config{}, p.warnings, &Error{err}
	}
	return p.config, p.warnings, nil
}

// Given returns the settings that differ from the default, of options this
// version supports, in the order of the table. Its error is of sources that
// can't be read; values are for Parse to check.
func Given(src Sources) ([]Setting, error) {
	given, _, err := collect(src)
	var settings []Setting
	for _, o := range Options {
		if s, ok := given[o.Env]; ok && o.Supported() && !harmless(o, s.Value) {
			settings = append(settings, s)
		}
	}
	if err != nil {
		return nil, &Error{err}
	}
	return settings, nil
}

// A parser is the state of one Parse.
type parser struct {
	given    map[string]Setting // by Option.Env, or by the name itself where that is a pattern
	config   Config
	warnings []string
	errs     []error
	bad      map[string]bool // by Option.Env
}

func (p *parser) fail(s Setting, err error) {
	p.bad[s.Option.Env] = true
	p.errs = append(p.errs, fmt.Errorf("%v: %w", s, err))
}

func (p *parser) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

// setting is what holds of o: what was given, or the default.
func (p *parser) setting(o Option, src Sources) Setting {
	if s, ok := p.given[o.Env]; ok {
		return s
	}
	s := Setting{Option: o, Value: o.Default, name: o.Env, place: "default"}
	if o.Env == "vip_nodename" {
		s.Value, s.place = src.Hostname, "the host's name"
	}
	return s
}

func (p *parser) option(o Option, src Sources) {
	if !o.Supported() {
		for _, s := range p.matching(o) {
			p.missing(s)
		}
		return
	}
	s := p.setting(o, src)
	if err := o.set(&p.config, s.Value); err != nil {
		p.fail(s, err)
	}
}

// matching is what was given of an option, or of all that its pattern stands for.
func (p *parser) matching(o Option) []Setting {
	var settings []Setting
	for _, s := range p.given {
		if s.Option.Env == o.Env {
			settings = append(settings, s)
		}
	}
	slices.SortFunc(settings, func(a, b Setting) int { return strings.Compare(a.name, b.name) })
	return settings
}

// missing judges a value of an option that this version does not support.
// Messages about options without effect do not repeat the value: it may be a password.
func (p *parser) missing(s Setting) {
	o := s.Option
	if o.Type == Bool {
		if _, err := strconv.ParseBool(s.Value); err != nil {
			p.fail(s, errors.New("must be true or false"))
			return
		}
	}
	if harmless(o, s.Value) {
		return
	}
	switch o.Effect {
	case Refused:
		p.fail(s, fmt.Errorf("this version of Herald does not support %s yet; remove it", o.Missing))
	case Unused:
		p.warn("%s (%s) has no effect: this version of Herald does not support %s", s.name, s.place, o.Missing)
	}
}

// harmless reports whether v is what holds anyway.
func harmless(o Option, v string) bool {
	if o.Type == Bool {
		have, err := strconv.ParseBool(v)
		want, _ := strconv.ParseBool(o.Default)
		return err == nil && have == want
	}
	if strings.HasSuffix(o.Env, "*") && v == "false" {
		return true
	}
	return v == o.Default
}

// relate blames the one of two settings that somebody gave; of two, the first.
func (p *parser) relate(a Setting, say string, b Setting, sayOfB string) {
	if a.From == FromDefault && b.From != FromDefault {
		a, say, b = b, sayOfB, a
	}
	p.fail(a, fmt.Errorf(say, b))
}

// check is about what options say together.
func (p *parser) check(src Sources) {
	by := func(env string) Setting {
		o, _ := byName(env)
		return p.setting(o, src)
	}
	c := &p.config
	duration, deadline, period := by("vip_leaseduration"), by("vip_renewdeadline"), by("vip_retryperiod")
	if !p.bad[duration.Option.Env] && !p.bad[deadline.Option.Env] && c.Lease.RenewDeadline >= c.Lease.Duration {
		p.relate(duration, "must be more than %v", deadline, "must be less than %v")
	}
	if !p.bad[deadline.Option.Env] && !p.bad[period.Option.Env] && 10*c.Lease.RenewDeadline <= 12*c.Lease.RetryPeriod {
		p.relate(deadline, "must be more than 1.2 times %v", period, "times 1.2 must be less than %v")
	}
	if rate := by("vip_arpRate"); rate.From != FromDefault && !p.bad["vip_arpRate"] {
		if n, _ := strconv.Atoi(rate.Value); n < minArpRate {
			p.warn("%v is less than %d ms: %d ms is used", rate, minArpRate, defaultArpRate)
		}
	}
	if arp := by("vip_arp"); c.Services.Enable && !c.ARP.Enable && !c.BGP.Enable && !p.bad["vip_arp"] && !p.bad["bgp_enable"] {
		p.fail(arp, errors.New("must be true with svc_enable, unless bgp_enable is: else nothing announces the VIPs of Services"))
	}
	if !c.Services.Enable && !c.ControlPlane.Enable && !p.bad["svc_enable"] && !p.bad["cp_enable"] {
		p.warn("%v: no VIP is announced; set svc_enable=true for those of Services, cp_enable=true for the control plane's", by("svc_enable"))
	}
	if c.Class.Legacy && c.Class.Only && c.Class.Name == "" && !p.bad["lb_class_name"] {
		p.warn("%v with an empty lb_class_name leaves no Service: none can carry an empty class", by("lb_class_only"))
	}
	if c.Serve.HealthPort != 0 && strings.HasSuffix(c.Serve.Metrics, fmt.Sprintf(":%d", c.Serve.HealthPort)) {
		p.fail(by("health_check_port"), fmt.Errorf("must be another port than that of %v, where /healthz is served as well", by("prometheus_server")))
	}
	if src.Namespace != "" {
		c.Node.Namespace = src.Namespace
	}
	if c.Link.Services == "" {
		c.Link.Services = c.Link.Interface
	}
	if c.Services.LeaseNamespace == "" {
		c.Services.LeaseNamespace = c.Node.Namespace
	}
	p.controlPlane(by)
	p.bgp(by, src)
}
