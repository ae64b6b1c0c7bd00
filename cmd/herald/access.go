package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
)

// accessFlags say which API server to ask, and about what, as kubectl has them.
type accessFlags struct {
	kubeconfig, context string
	namespace           string
	all                 bool
	format              string
	formats             []string // that format may be
}

// addAccessFlags adds --kubeconfig, --context, --namespace, --all-namespaces and --output, with names of Services.
func addAccessFlags(c *cobra.Command, formats ...string) *accessFlags {
	a := addConnectFlags(c)
	c.Flags().StringVarP(&a.namespace, "namespace", "n", "", "Only Services of this namespace")
	c.Flags().BoolVarP(&a.all, "all-namespaces", "A", false, "Services of all namespaces, which is the default")
	last := len(formats) - 1
	c.Flags().StringVarP(&a.format, "output", "o", "", "Format: "+strings.Join(formats[:last], ", ")+" or "+formats[last])
	a.formats = formats
	c.ValidArgsFunction = completeServices(a)
	return a
}

// addConnectFlags adds --kubeconfig and --context.
func addConnectFlags(c *cobra.Command) *accessFlags {
	a := &accessFlags{}
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", "Kubeconfig to use; without it the usual places, KUBECONFIG "+
		"among them")
	c.Flags().StringVar(&a.context, "context", "", "The context of the kubeconfig to use")
	return a
}

func (a *accessFlags) connect() (*rest.Config, error) {
	return kube.ConnectUser(a.kubeconfig, a.context, currentVersion())
}

// service returns the Service args[0], [NAMESPACE/]NAME; without arguments its namespace alone, "" for all. A bare name
// is one of --namespace, or of default.
func (a *accessFlags) service(args []string) (k vip.Key, err error) {
	switch {
	case a.format != "" && !slices.Contains(a.formats, a.format):
		return k, config.NewError(fmt.Errorf("--output=%s is not known; write %s", a.format, strings.Join(a.formats, ", ")))
	case a.all && a.namespace != "":
		return k, config.NewError(errors.New("--namespace and --all-namespaces exclude each other"))
	case len(args) == 0:
		return vip.Key{Namespace: a.namespace}, nil
	}
	text := strings.TrimPrefix(strings.TrimPrefix(args[0], "service/"), "svc/")
	namespace, name, found := strings.Cut(text, "/")
	switch {
	case !found:
		namespace, name = cmp.Or(a.namespace, "default"), text
	case a.namespace != "" && a.namespace != namespace:
		return k, config.NewError(fmt.Errorf("--namespace is %s, but the Service is named as one of %s", a.namespace,
			namespace))
	}
	if name == "" || namespace == "" {
		return k, config.NewError(fmt.Errorf("%q names no Service; write [NAMESPACE/]NAME", args[0]))
	}
	return vip.Key{Namespace: namespace, Name: name}, nil
}

// completionTimeout is how long a shell may wait for names.
const completionTimeout = 2 * time.Second

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete makes a completion of the first argument by what names returns.
func complete(a *accessFlags, names func(kube.Snapshot) []string) completion {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		cfg, err := a.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
		defer cancel()
		s, _ := kube.TakeSnapshot(ctx, cfg, a.namespace) // what could be read is enough
		all := slices.DeleteFunc(names(s), func(n string) bool { return !strings.HasPrefix(n, prefix) })
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeServices(a *accessFlags) completion {
	return complete(a, func(s kube.Snapshot) (all []string) {
		for _, x := range s.Services {
			if x.Key.Namespace == a.namespace {
				all = append(all, x.Key.Name)
			} else {
				all = append(all, x.Key.String())
			}
		}
		return all
	})
}

func completeNodes(a *accessFlags) completion {
	return complete(a, func(s kube.Snapshot) (all []string) {
		for _, n := range nodeLeases(s) {
			all = append(all, n.Name)
		}
		return all
	})
}

func encode(w io.Writer, format string, v any) error {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		_, writeErr := w.Write(text)
		return errors.Join(err, writeErr)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// isTerminal reports whether w is a terminal that wants colors (https://no-color.org).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// row is a row of a table; unprintable characters, maybe users', become spaces.
func row(cells ...string) string {
	printable := func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}
	for i, c := range cells {
		cells[i] = strings.Map(printable, c)
	}
	return strings.Join(cells, "\t")
}

// writeTable writes rows of cells between tabs below a header, or nothing.
func writeTable(w io.Writer, header string, rows []string) error {
	if len(rows) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for _, row := range rows {
		fmt.Fprintln(t, row)
	}
	return t.Flush()
}
