// Command lab brings a cluster up in network namespaces, leaves it up, and gives
// access to it. Run it without arguments to see how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

const usage = `lab: a Kubernetes cluster in network namespaces of this machine

  lab up [--nodes N] [--proxy-mode nftables|iptables] [--ipv6-only] [--bare] [--wait 5m]
                             bring it up, with a Herald on every node unless --bare; wait for another lab
  lab status                 what is there
  lab kubectl ARGS...        kubectl, as admin
  lab exec HOST CMD...       run a command on n1.., w1, cl (client), rt (router), cp, pr or switch
  lab pod add NAME NODE [LABEL=VALUE...]
                             a pod whose web server answers on ports 80 and 8080; app=NAME unless labelled
  lab pod remove NAME [--grace 5s]
  lab herald stop|kill|start NODE
                             end the Herald of a node by SIGTERM, so that it hands its VIPs over, or by SIGKILL; start it again
  lab cable pull|cut|plug HOST
                             a host's cable to the VIPs' network: pull it, so that eth0 loses its carrier; cut it, so that frames
                             are lost and eth0 stays up; plug it in again after either
  lab down                   remove everything, and what a killed run left

It needs root. Its directory is .lab in the working directory, or $HERALD_LAB_DIR.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Print(usage)
		return nil
	}
	dir := os.Getenv("HERALD_LAB_DIR")
	if dir == "" {
		dir = ".lab"
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	case "up":
		return up(ctx, dir, args)
	case "down":
		return down(dir)
	}
	l, err := lab.Attach(dir)
	if err != nil {
		return err
	}
	switch {
	case name == "status":
		return status(ctx, l)
	case name == "kubectl":
		return l.ExecKubectl(args...)
	case name == "exec" && len(args) > 1:
		return l.Exec(args[0], args[1:]...)
	case name == "pod" && len(args) > 1:
		return pod(ctx, l, args[0], args[1:])
	case name == "herald" && len(args) == 2:
		return herald(ctx, l, args[0], args[1])
	case name == "cable" && len(args) == 2:
		return cable(l, args[0], args[1])
	}
	return fmt.Errorf("don't understand %q; \"lab help\" lists the commands", strings.Join(os.Args[1:], " "))
}

func up(ctx context.Context, dir string, args []string) error {
	flags := flag.NewFlagSet("lab up", flag.ContinueOnError)
	nodes := flags.Int("nodes", 3, "nodes Herald may run on")
	mode := flags.String("proxy-mode", "nftables", "kube-proxy's mode, nftables or iptables")
	ipv6Only := flags.Bool("ipv6-only", false, "no IPv4 but 127.0.0.1")
	bare := flags.Bool("bare", false, "start no Herald")
	wait := flags.Duration("wait", 0, "how long to wait for another lab on this machine to end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	opts := lab.Options{Nodes: *nodes, ProxyMode: *mode, IPv6Only: *ipv6Only, Wait: *wait, Dir: dir, Herald: "bin/herald", Log: os.Stdout, Detached: true}
	if !*bare {
		rbac, err := exec.CommandContext(ctx, opts.Herald, "manifest", "rbac").Output()
		if err != nil {
			return fmt.Errorf("%s manifest rbac: %w (build it, or say --bare)", opts.Herald, err)
		}
		opts.RBAC = string(rbac)
	}
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	if !*bare {
		for _, n := range l.Nodes() {
			if _, err := l.StartHerald(n, heraldOptions); err != nil {
				return errors.Join(err, l.Down())
			}
		}
	}
	self := os.Args[0]
	if strings.Contains(self, "/go-build") { // go run
		self = "go run ./testing/lab/cmd/lab"
	}
	fmt.Printf(`
The lab stays up. VIPs are taken from 10.77.0.0/24 and fd77::/64, for example 10.77.0.50.

  %[1]s kubectl get nodes -o wide
  %[1]s pod add web w1
  %[1]s kubectl expose pod web --port=80 --type=LoadBalancer --load-balancer-ip=10.77.0.50
  %[1]s kubectl wait --for=condition=heraldvip.io/Announced service/web
  %[1]s exec cl curl -s http://10.77.0.50
  %[1]s exec w1 bin/herald status       # or explain web, drain n1, undrain n1
  %[1]s exec n1 ip address show eth0
  %[1]s herald stop n1                  # hands its VIPs over; kill is a crash
  %[1]s exec n2 curl -s http://127.0.0.1:2112/history   # what n2 has seen move; / is its page
  %[1]s herald start n1
  %[1]s cable pull n2                   # its link goes down; cut loses frames unnoticed
  %[1]s cable plug n2
  %[1]s status                          # processes, by host
  tail -f %[2]s/logs/herald-n*.log
  %[1]s down
`, self, l.Dir())
	return nil
}

// heraldOptions are those of the lab's Heralds. With them the rights that herald manifest rbac gives are enough.
var heraldOptions = map[string]string{"vip_arp": "true", "svc_enable": "true", "svc_election": "true", "svc_leasenamespace": "announcers"}

// herald ends or starts the Herald of a node.
func herald(ctx context.Context, l *lab.Lab, verb, node string) error {
	switch verb {
	case "stop":
		return l.EndHerald(ctx, node, syscall.SIGTERM)
	case "kill":
		return l.EndHerald(ctx, node, syscall.SIGKILL)
	case "start":
		running, err := lab.Heralds(node)
		if err != nil {
			return err
		}
		if len(running) > 0 {
			return fmt.Errorf("a Herald runs on %s already, with pid %d", node, running[0])
		}
		_, err = l.StartHerald(node, heraldOptions)
		return err
	}
	return errors.New("want: lab herald stop|kill|start NODE")
}

// cable pulls, cuts or plugs in the cable of a host to the VIPs' network.
func cable(l *lab.Lab, verb, host string) error {
	switch verb {
	case "pull":
		return l.Unplug(host)
	case "cut":
		return l.Cut(host)
	case "plug":
		return l.Reconnect(host)
	}
	return errors.New("want: lab cable pull|cut|plug HOST")
}

func down(dir string) error {
	l, err := lab.Attach(dir)
	if errors.Is(err, os.ErrNotExist) {
		return lab.Sweep()
	}
	if err != nil {
		return err
	}
	return l.Down()
}

func status(ctx context.Context, l *lab.Lab) error {
	fmt.Printf("up for %v in %s\n\n", time.Since(l.Since()).Round(time.Second), l.Dir())
	list, err := lab.NamespaceProcesses()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "HOST\tPID\tPROCESS")
	for _, r := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\n", r.Namespace, r.Pid, r.Command)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	out, err := l.Kubectl(ctx, "get", "nodes,pods,services", "--all-namespaces", "--output=wide")
	fmt.Printf("\n%s", out)
	return err
}

func pod(ctx context.Context, l *lab.Lab, verb string, args []string) error {
	p := lab.Pod{Name: args[0], Labels: map[string]string{}}
	switch {
	case verb == "add" && len(args) > 1:
		p.Node = args[1]
		for _, kv := range args[2:] {
			k, v, ok := strings.Cut(kv, "=")
			if !ok {
				return fmt.Errorf("label %q: want LABEL=VALUE", kv)
			}
			p.Labels[k] = v
		}
		if len(p.Labels) == 0 {
			p.Labels["app"] = p.Name
		}
		return l.AddPod(ctx, p)
	case verb == "remove":
		flags := flag.NewFlagSet("lab pod remove", flag.ContinueOnError)
		grace := flags.Duration("grace", 0, "how long it is terminating")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return l.DeletePod(ctx, p, *grace)
	}
	return errors.New("want: lab pod add NAME NODE [LABEL=VALUE...], or: lab pod remove NAME [--grace 5s]")
}
