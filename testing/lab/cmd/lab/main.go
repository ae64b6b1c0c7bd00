// Command lab brings up a cluster in network namespaces, with a Herald on every node, takes commands until its input
// ends, and then removes it.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

const commands = `VIPs are taken from 10.77.0.0/24 and fd77::/64, for example 10.77.0.50.
Commands, of which these work as they stand:

  kubectl get nodes -o wide
  pod add web w1                     # a web server on ports 80 and 8080; labels as KEY=VALUE, else app=web
  kubectl expose pod web --port=80 --type=LoadBalancer --load-balancer-ip=10.77.0.50
  kubectl wait --for=condition=heraldvip.io/Announced service/web
  exec cl curl -s --retry 9 --retry-connrefused http://10.77.0.50   # on n1.., w1, cl (client), rt, cp, pr, switch
  exec w1 bin/herald status          # or explain web, drain n1, undrain n1
  exec n1 ip address show eth0
  herald stop n1                     # hands its VIPs over; kill is a crash
  herald start n1
  cable pull n2                      # its link goes down; cut loses frames unnoticed
  cable plug n2
  status                             # processes, by host
  pod remove web
  help

Ctrl-D or Ctrl-C removes everything. In another terminal: ip netns exec hl-n1 bash, and tail -f %s/logs/herald-n*.log
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	opts := lab.Options{Dir: ".lab", Herald: "bin/herald", Log: os.Stdout}
	flags.StringVar(&opts.Dir, "dir", opts.Dir, "where logs are written to")
	flags.IntVar(&opts.Nodes, "nodes", 3, "nodes Herald may run on")
	flags.StringVar(&opts.ProxyMode, "proxy-mode", "nftables", "kube-proxy's mode, nftables or iptables")
	flags.BoolVar(&opts.IPv6Only, "ipv6-only", false, "no IPv4 but 127.0.0.1")
	flags.DurationVar(&opts.Wait, "wait", 0, "how long to wait for another lab on this machine to end")
	bare := flags.Bool("bare", false, "start no Herald")
	sweep := flags.Bool("sweep", false, "only remove what a killed lab left")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return errors.Join(err, errors.New("commands are read from standard input"))
	}
	if *sweep {
		return lab.Sweep()
	}
	if !*bare {
		rbac, err := exec.CommandContext(ctx, opts.Herald, "manifest", "rbac").Output()
		if err != nil {
			return fmt.Errorf("%s manifest rbac: %w (build it, or say -bare)", opts.Herald, err)
		}
		opts.RBAC = string(rbac)
	}
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	for _, n := range l.Nodes() {
		if *bare {
			break
		}
		// With these options the rights that herald manifest rbac gives are enough.
		options := map[string]string{"vip_arp": "true", "svc_enable": "true", "svc_election": "true"}
		if _, err := l.StartHerald(n, options); err != nil {
			return err
		}
	}
	fmt.Printf("\n"+commands, l.Dir())
	return read(ctx, l, os.Stdin)
}

// read carries out the commands of in, a line each, until that or ctx ends; unless typed, the first failure ends it.
func read(ctx context.Context, l *lab.Lab, in *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return err
	}
	typed := info.Mode()&os.ModeCharDevice != 0
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		if typed {
			fmt.Print("lab> ")
		}
		select {
		case <-ctx.Done():
			return nil
		case line, more := <-lines:
			if !more {
				return nil
			}
			line, _, _ = strings.Cut(line, "#")
			if err := command(ctx, l, os.Stdout, strings.Fields(line)); err != nil {
				if err = fmt.Errorf("%s: %w", strings.TrimSpace(line), err); !typed {
					return err
				}
				fmt.Fprintln(os.Stderr, "lab:", err)
			}
		}
	}
}

func command(ctx context.Context, l *lab.Lab, out io.Writer, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case args[0] == "help":
		fmt.Fprintf(out, commands, l.Dir())
		return nil
	case args[0] == "status":
		return status(ctx, l, out)
	case args[0] == "kubectl":
		text, err := l.Kubectl(ctx, args[1:]...)
		fmt.Fprint(out, text)
		return err
	case args[0] == "exec" && len(args) > 2:
		config, err := l.Kubeconfig(ctx, "admin")
		if err != nil {
			return err
		}
		text, err := l.Run(ctx, args[1], append([]string{"env", "KUBECONFIG=" + config}, args[2:]...)...)
		fmt.Fprint(out, text)
		return err
	case args[0] == "pod" && len(args) > 2:
		return pod(ctx, l, args[1], args[2:])
	case args[0] == "herald" && len(args) == 3:
		return herald(ctx, l, args[1], args[2])
	case args[0] == "cable" && len(args) == 3:
		if fn, ok := map[string]func(string) error{"pull": l.Unplug, "cut": l.Cut, "plug": l.Reconnect}[args[1]]; ok {
			return fn(args[2])
		}
	}
	return errors.New(`it is not understood; "help" lists the commands`)
}

func herald(ctx context.Context, l *lab.Lab, verb, node string) error {
	p := l.Herald(node)
	running := p != nil && p.Running()
	switch {
	case p == nil:
		return fmt.Errorf("%s never had a Herald", node)
	case verb == "start" && running:
		return fmt.Errorf("it runs already, with pid %d", p.Pid)
	case verb == "start":
		return l.StartHeraldAgain(ctx, node)
	case verb == "stop" && running:
		return errors.Join(p.Signal(syscall.SIGTERM), p.Wait(ctx))
	case verb == "kill" && running:
		p.Kill()
		return nil
	}
	return errors.New("want herald stop, kill or start, and for the first two one that runs")
}

func status(ctx context.Context, l *lab.Lab, out io.Writer) error {
	fmt.Fprintf(out, "up for %v in %s\n\n", time.Since(l.Since()).Round(time.Second), l.Dir())
	list, err := lab.NamespaceProcesses()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "HOST\tPID\tPROCESS")
	for _, r := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\n", r.Namespace, r.Pid, r.Command)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text, err := l.Kubectl(ctx, "get", "nodes,pods,services", "--all-namespaces", "--output=wide")
	fmt.Fprintf(out, "\n%s", text)
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
		return l.DeletePod(ctx, p, 0)
	}
	return errors.New("want pod add NAME NODE [LABEL=VALUE...], or pod remove NAME")
}
