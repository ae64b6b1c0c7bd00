// Command parts is the lab's control plane: a real etcd, API server, kube-proxy and kubectl, and the controller of
// EndpointSlices, in one program by its name. So common packages are linked once. Its own module keeps Herald's lean.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	_ "time/tzdata" // the API server knows the time zones of CronJobs

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's ways to log in
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "endpointslices":
		os.Exit(cli.Run(newControllerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "kubectl":
		util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s is none of etcd, kube-apiserver, endpointslices, kube-proxy, kubectl\n", name)
		os.Exit(2)
	}
}

// newControllerCommand runs the controller of EndpointSlices alone: the others double what is compiled, and the lab
// stands in for them.
func newControllerCommand() *cobra.Command {
	var kubeconfig string
	c := &cobra.Command{Use: "endpointslices", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return control(ctx, kubeconfig)
		}}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	return c
}

func control(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	all := informers.NewSharedInformerFactory(client, 0)
	core := all.Core().V1()
	c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		all.Discovery().V1().EndpointSlices(), 100, client, 0)
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	fmt.Println("EndpointSlices are made")
	c.Run(ctx, 10)
	return nil
}
