package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestReference: the pages of docs/reference follow from the code. Those of options and of RBAC
// are compared by the tests of pkg/config and pkg/manifest.
func TestReference(t *testing.T) {
	const reference = "../../docs/reference"
	known := []string{"options.md", "rbac.md"}
	annotations, events := annotationsPage(t), eventsPage(t)
	for _, a := range kube.Annotations {
		if !strings.Contains(annotations, "| `"+a.Key+"` |") {
			t.Errorf("annotations.md has no row for %s", a.Key)
		}
	}
	for _, r := range vip.Reasons {
		if !strings.Contains(events, "| `"+string(r.Reason)+"` |") {
			t.Errorf("events.md has no row for %s", r.Reason)
		}
	}
	for file, page := range map[string]string{"annotations.md": annotations, "events.md": events, "kube-vip.md": kubeVIPPage(t), "metrics.md": metricsPage(t)} {
		known = append(known, file)
		check.Golden(t, filepath.Join(reference, file), page)
	}
	for _, e := range check.Value(os.ReadDir(reference))(t) {
		check.Equal(t, slices.Contains(known, e.Name()), true, "%s/%s is known", reference, e.Name())
	}
}

// writePage returns the page of this name of testdata/reference.md.tmpl.
func writePage(t *testing.T, name string, data any) string {
	t.Helper()
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace // keeps text to one cell, and < from being taken for HTML
	pages := template.Must(template.New("").Funcs(template.FuncMap{"cell": cell}).ParseFiles("testdata/reference.md.tmpl"))
	var b strings.Builder
	check.OK(t, pages.ExecuteTemplate(&b, name, data))
	return b.String()
}

// annotationsPage returns the reference of annotations.
func annotationsPage(t *testing.T) string { return writePage(t, "annotations", kube.Annotations) }

// eventsPage returns the reference of Events and verdicts.
func eventsPage(t *testing.T) string { return writePage(t, "events", vip.Reasons) }

// metricsPage returns the reference of metrics: what the rooms of a node that is
// wired as usual, but runs nothing and reaches nobody, describe.
func metricsPage(t *testing.T) string {
	t.Helper()
	var metrics []metric
	for _, c := range idleNode(t).collectors() {
		metrics = append(metrics, check.Value(describeMetrics(c))(t)...)
	}
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.Name, b.Name) })
	return writePage(t, "metrics", metrics)
}

// TestMetricNames: names are of one kind, and each metric explains itself.
func TestMetricNames(t *testing.T) {
	for _, c := range idleNode(t).collectors() {
		for _, m := range check.Value(describeMetrics(c))(t) {
			if !strings.HasPrefix(m.Name, "herald_") || (m.Kind == "counter") != strings.HasSuffix(m.Name, "_total") {
				t.Errorf("%s is no name for a %s", m.Name, m.Kind)
			}
			if !strings.HasSuffix(m.Help, ".") {
				t.Errorf("%s: help %q is no full sentence", m.Name, m.Help)
			}
		}
	}
}

// nowhere is a kubeconfig of an API server that does not exist.
const nowhere = `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: "http://127.0.0.1:9"}}]}`

// idleNode wires a node whose API server does not exist.
func idleNode(t *testing.T) *node {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	check.OK(t, os.WriteFile(file, []byte(nowhere), 0o600))
	cfg, _, err := config.Parse(config.Sources{Hostname: "docs", Env: []string{"k8s_config_file=" + file, "vip_allow_interface_not_up=true"}})
	check.OK(t, err)
	return check.Value(newNode(t.Context(), cfg, slog.New(slog.DiscardHandler)))(t)
}

// A metric is one row of the reference.
type metric struct {
	Name, Kind, Help string
	Labels           []string
}

// What a prometheus.Desc contains, which only its String returns.
var (
	descName   = regexp.MustCompile(`fqName: ("(?:[^"\\]|\\.)*")`)
	descHelp   = regexp.MustCompile(`help: ("(?:[^"\\]|\\.)*")`)
	descLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

// describeMetrics returns the metrics of a collector. A description that can't be parsed is an error.
func describeMetrics(c prometheus.Collector) ([]metric, error) {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		c.Describe(all)
	}()
	var metrics []metric
	var errs []error
	for d := range all {
		m := metric{Kind: kindOf(c)}
		text := d.String()
		name, help, labels := descName.FindStringSubmatch(text), descHelp.FindStringSubmatch(text), descLabels.FindStringSubmatch(text)
		if name == nil || help == nil || labels == nil || m.Kind == "" {
			errs = append(errs, fmt.Errorf("can't read the description of a metric: %T %s", c, text))
			continue
		}
		m.Name, _ = strconv.Unquote(name[1])
		m.Help, _ = strconv.Unquote(help[1])
		if labels[1] != "" {
			m.Labels = strings.Split(labels[1], ",")
		}
		metrics = append(metrics, m)
	}
	return metrics, errors.Join(errs...)
}

// kindOf returns the type of a collector's metrics, or "" if it is none of ours.
func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case prometheus.Gauge, *prometheus.GaugeVec: // before Counter, whose methods a Gauge has as well
		return "gauge"
	case prometheus.Counter, *prometheus.CounterVec:
		return "counter"
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	}
	return ""
}

// An answer is what Herald does with something that kube-vip reads.
type answer struct{ Name, Flags, Does, Why string }

// namesOfKubeVIP returns the variables, flags and annotations of testdata/kube-vip.txt. A flag for which kube-vip has no variable is among the variables, too.
func namesOfKubeVIP(t *testing.T) (variables, flags, annotations []string) {
	t.Helper()
	for line := range strings.Lines(string(check.Value(os.ReadFile("testdata/kube-vip.txt"))(t))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, name := range strings.Fields(line) {
			switch {
			case strings.HasPrefix(name, "--"):
				if flags = append(flags, name); slices.ContainsFunc(config.Options, func(o config.Option) bool { return o.Env == name }) {
					variables = append(variables, name)
				}
			case strings.Contains(name, "/"):
				annotations = append(annotations, name)
			default:
				variables = append(variables, name)
			}
		}
	}
	return variables, flags, annotations
}

// optionOf returns the option that a variable sets; one whose name ends in * for all names that begin so, if there is no other.
func optionOf(name string) (found config.Option, ok bool) {
	for _, o := range config.Options {
		if o.Env == name || slices.Contains(o.Aliases, name) {
			return o, true
		}
		if prefix, pattern := strings.CutSuffix(o.Env, "*"); pattern && strings.HasPrefix(name, prefix) {
			found, ok = o, true
		}
	}
	return found, ok
}

// differences says what Herald does otherwise with options and annotations that it has. The reference of options has all that is the same.
var differences = map[string]string{
	"enable_service_security":                    "By nftables instead of iptables; reconciled; a VIP that can't be limited is not bound.",
	"lb_enable":                                  "By nftables instead of ip_vs. A warning with `lb_fwdmethod=local`, by which kube-vip does not balance either, and without `cp_enable` or `vip_arp`.",
	"lb_fwdmethod":                               "`masquerade` and `local`; with all others, `lb_enable` and `cp_enable` Herald does not start.",
	"lb_port":                                    "With `lb_fwdmethod=local` the VIP answers at `port`: a warning if they differ.",
	"vip_routingtable":                           "Beside BGP or ARP, too. For the control plane's VIP on every node whose API server is ready; without `svc_election` for those of Services on every node that can serve them, also with `vip_leaderelection`, by which kube-vip elects one node for all. Other routes are kept by their protocol number.",
	"vip_routingtableid":                         "With `vip_routingtable` neither 253 to 255 nor 19800 to 20055.",
	"vip_routingprotocol":                        "With `vip_routingtable` from 5.",
	"kube-vip.io/serviceVLAN":                    "kube-vip makes the VLAN's link, Herald does not.",
	"kube-vip.io/macvlanName":                    "Must begin with `herald-`, or as `dhcp_macvlan_prefixes` says.",
	"kube-vip.io/loadbalancerIPs":                "IP addresses only, no names.",
	"kube-vip.io/leaseName":                      "In the Service's own namespace only, and not the control plane's.",
	"kube-vip.io/rp_filter":                      "2 if not set, with kube-vip 0.",
	"kube-vip.io/hwaddr":                         "Locally administered or 00:00:6c.",
	"vip_loglevel":                               "Versions of kube-vip with logrus counted otherwise, 4 being info and 5 debug: 1 to 7 are a warning.",
	"health_check_port":                          "Connections from other hosts are closed: kubelet on the node can ask, a load balancer outside can't.",
	"egress_podcidr":                             "Known from Nodes without it; several ranges of both families.",
	"egress_servicecidr":                         "Known from ServiceCIDRs without it; several ranges of both families.",
	"bgp_enable":                                 "Beside ARP, too. kube-vip does one of them (new versions ARP): turn the other off. For the control plane's VIP, without `vip_arp`, from every node whose API server is ready.",
	"bgp_peers":                                  "BFD with the defaults 300, 300 and 3. With multihop BFD options are read, and warned of.",
	"control_plane_health_check_address":         "By ARP, too. Without it `/readyz` of the node's own API server is asked.",
	"control_plane_health_check_period_seconds":  "1 if not set, with kube-vip 5.",
	"control_plane_health_check_timeout_seconds": "2 if not set, with kube-vip 3.",
	"port":                   "Also with a ServiceAccount: it must be the API servers', such as 16443 (MicroK8s).",
	"address":                "IP addresses only. With a name and `cp_enable` Herald does not start: write what it resolves to.",
	"cp_namespace":           "In a Pod with a ServiceAccount only kube-vip's leases are looked for there, with `cp_enable`.",
	"vip_arpRate":            "For 30 s after a change; then at most 10 frames a second with up to 1200 VIPs. Less than 500 is 3000, with a warning.",
	"vip_skipdad":            "Also for IPv4 (RFC 5227).",
	"vip_leaseduration":      "15 if not set, with kube-vip 5. Dead nodes are replaced much earlier, by heartbeats.",
	"vip_renewdeadline":      "10 if not set, with kube-vip 3; less with a short `vip_leaseduration`.",
	"vip_retryperiod":        "2 if not set, with kube-vip 1; 1 where `vip_renewdeadline` is less than 10.",
	"vip_leasename":          "That of `svc_leasename` is a warning: no Service may have the control plane's VIP.",
	"svc_leasename":          "`name`, or `namespace/name`.",
	"bgp_keepalive_interval": "An error if it is not less than `bgp_hold_time`.",
}

// variableAnswers returns the answers to variables.
func variableAnswers(t *testing.T, names []string) (all []answer) {
	t.Helper()
	first := map[string]string{} // by reason: what it is said of
	for _, name := range names {
		o, ok := optionOf(name)
		if !ok {
			t.Errorf("variable %s is not known", name)
			continue
		}
		a := answer{Name: name, Does: "has it", Why: differences[name]}
		if o.Flag != "" {
			a.Flags = "`--" + strings.Join(append([]string{o.Flag}, o.FlagAliases...), "`, `--") + "`"
		}
		switch {
		case !o.Supported():
			a.Does, a.Why = string(o.Effect), strings.ToUpper(o.Reason[:1])+o.Reason[1:]+"."
			if o.Effect == config.Refused {
				a.Does = "refuses it"
			}
			if of := first[o.Reason]; of != "" {
				a.Why = "As `" + of + "`."
			}
			first[o.Reason] = cmp.Or(first[o.Reason], name)
		case o.Env != name:
			a.Why = "An old spelling of `" + o.Env + "`."
		}
		all = append(all, a)
	}
	return all
}

// annotationAnswers returns the answers to annotations.
func annotationAnswers(t *testing.T, names []string) (all []answer) {
	t.Helper()
	for _, name := range names {
		i := slices.IndexFunc(kube.Annotations, func(a kube.Annotation) bool { return a.Key == name })
		switch {
		case i < 0 && (strings.HasPrefix(name, "kube-vip.io/active-endpoint") || name == "kube-vip.io/egress-nftables-table"):
			all = append(all, answer{Name: name, Does: "no effect", Why: "kube-vip writes it for egress."})
			continue
		case i < 0:
			t.Errorf("annotation %s is not known", name)
			continue
		}
		x := kube.Annotations[i]
		a := answer{Name: name, Does: "has it", Why: differences[name]}
		switch {
		case x.Unsupported:
			a.Does, a.Why = "no effect", strings.ToUpper(x.Instead[:1])+x.Instead[1:]+"."
		case x.Written:
			a.Does = "writes it"
		}
		all = append(all, a)
	}
	return all
}

// kubeVIPPage returns the page of what kube-vip reads.
func kubeVIPPage(t *testing.T) string {
	t.Helper()
	variables, _, annotations := namesOfKubeVIP(t)
	return writePage(t, "kube-vip", map[string]any{"Variables": variableAnswers(t, variables), "Annotations": annotationAnswers(t, annotations)})
}

// TestNamesOfKubeVIP: the page has each variable, flag and annotation of kube-vip once, and says of each what
// the parser of options does with a value that is not the default.
func TestNamesOfKubeVIP(t *testing.T) {
	variables, flags, annotations := namesOfKubeVIP(t)
	page := kubeVIPPage(t)
	for _, name := range slices.Concat(variables, annotations, flags) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s is not on the page", name)
		}
	}
	for name, why := range differences {
		if !slices.Contains(variables, name) && !slices.Contains(annotations, name) {
			t.Errorf("kube-vip has no %s", name)
		}
		if !strings.Contains(page, why+" |\n") {
			t.Errorf("the page does not say how %s differs", name)
		}
	}
	for _, a := range variableAnswers(t, variables) {
		t.Run(a.Name, func(t *testing.T) {
			o, _ := optionOf(a.Name)
			if o.Supported() {
				return // pkg/config tests what its values do
			}
			value := map[string]string{"false": "true", "true": "false"}[o.Default]
			if value == "" {
				value = "7"
			}
			_, warnings, err := config.Parse(config.Sources{Env: []string{"svc_enable=true", "vip_arp=true", a.Name + "=" + value}, Hostname: "n1"})
			got := "no effect"
			switch {
			case err != nil && strings.Contains(err.Error(), o.Reason):
				got = "refuses it"
			case err != nil:
				got = fmt.Sprintf("the error %v", err)
			case len(warnings) == 1 && strings.Contains(warnings[0], o.Reason):
				got = "warning"
			case len(warnings) > 0:
				got = fmt.Sprintf("the warnings %q", warnings)
			}
			check.Equal(t, got, a.Does, "what Herald does with the value %s", value)
		})
	}
}
