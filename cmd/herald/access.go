package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
)

// accessFlags say which API server to ask, and about what, as kubectl has them.
type accessFlags struct {
	kubeconfig, context string
	namespace           string
	all                 bool
}

// addAccessFlags adds --kubeconfig, --context, --namespace and --all-namespaces.
func addAccessFlags(c *cobra.Command) *accessFlags {
	a := addConnectFlags(c)
	c.Flags().StringVarP(&a.namespace, "namespace", "n", "", "Only Services of this namespace")
	c.Flags().BoolVarP(&a.all, "all-namespaces", "A", false, "Services of all namespaces, which is the default")
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

// service returns namespace and name of args[0], [NAMESPACE/]NAME; without arguments the namespace, "" for all. A bare
// name is one of --namespace, or of default.
func (a *accessFlags) service(c *cobra.Command, args []string) (namespace, name string, err error) {
	if a.all && a.namespace != "" {
		return "", "", config.NewError(errors.New("--namespace and --all-namespaces exclude each other"))
	}
	if len(args) == 0 {
		return a.namespace, "", nil
	}
	text := strings.TrimPrefix(strings.TrimPrefix(args[0], "service/"), "svc/")
	namespace, name, found := strings.Cut(text, "/")
	switch {
	case !found:
		namespace, name = a.namespace, text
		if namespace == "" {
			namespace = "default"
		}
	case a.namespace != "" && a.namespace != namespace:
		return "", "",
			config.NewError(fmt.Errorf("--namespace is %s, but the Service is named as one of %s", a.namespace, namespace))
	}
	if name == "" || namespace == "" {
		return "", "", config.NewError(fmt.Errorf("%q names no Service; write [NAMESPACE/]NAME", args[0]))
	}
	return namespace, name, nil
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
