package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A kubectl runs kubectl against the API server that the flags name.
type kubectl struct {
	flags *accessFlags
	port  int // of Herald's pages in its Pod
}

// A podName is the name of a Pod.
type podName struct{ namespace, name string }

// command makes a kubectl that ends with ctx.
func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	if k.flags.kubeconfig != "" {
		args = append(args, "--kubeconfig="+k.flags.kubeconfig)
	}
	if k.flags.context != "" {
		args = append(args, "--context="+k.flags.context)
	}
	return exec.CommandContext(ctx, "kubectl", args...)
}

// pods returns the running Pods of Herald, by node: those in the namespace of the announcers and in kube-system,
// where static Pods are. In another one any user can run a Pod with Herald's label. Where kube-vip's manifest runs
// Herald, its Pods are called kube-vip-..., and a static one has no label: such a Pod is taken on a node that has no
// other.
func (k kubectl) pods(ctx context.Context, namespace string) (map[string]podName, error) {
	labelled, named := make(map[string]podName), make(map[string]podName)
	for _, ns := range slices.Compact([]string{"kube-system", namespace}) { // the second wins
		cmd := k.command(ctx, "get", "pods", "--namespace="+ns, "--field-selector=status.phase=Running",
			`--output=jsonpath={range .items[*]}{.spec.nodeName}{" "}{.metadata.namespace}{" "}{.metadata.name}{" "}`+
				`{.metadata.labels.app\.kubernetes\.io/name}{"\n"}{end}`)
		var out, problem bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &problem
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("kubectl get pods: %w: %s", err, strings.TrimSpace(problem.String()))
		}
		for line := range strings.Lines(out.String()) {
			f := strings.Fields(line)
			switch {
			case len(f) < 3 || f[1] != ns:
			case len(f) == 4 && f[3] == "herald":
				labelled[f[0]] = podName{f[1], f[2]}
			case strings.HasPrefix(f[2], "kube-vip-") && !strings.HasPrefix(f[2], "kube-vip-cloud-provider-"):
				named[f[0]] = podName{f[1], f[2]}
			}
		}
	}
	maps.Copy(named, labelled)
	return named, nil
}

// forwarding matches what kubectl port-forward prints once it listens.
var forwarding = regexp.MustCompile(`^Forwarding from 127\.0\.0\.1:(\d+) ->`)

// history asks a Pod for its history, by a port that kubectl forwards to it meanwhile.
func (k kubectl) history(ctx context.Context, pod podName) (h nodeHistory, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends kubectl
	cmd := k.command(ctx, "port-forward", "--address=127.0.0.1", "--namespace="+pod.namespace, "pod/"+pod.name,
		":"+strconv.Itoa(k.port))
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		return h, err
	}
	if err := cmd.Start(); err != nil {
		return h, err
	}
	defer func() { cancel(); _ = cmd.Wait() }() // it was killed
	line, err := bufio.NewReader(out).ReadString('\n')
	m := forwarding.FindStringSubmatch(line)
	if m == nil {
		cancel()
		_ = cmd.Wait() // or problem would still be written
		return h, errors.Join(errors.New("kubectl port-forward: "+strings.TrimSpace(line+problem.String())), err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+m[1]+"/history", http.NoBody)
	if err != nil {
		return h, err
	}
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return h, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return h, fmt.Errorf("it answers %s: is its Herald of this version?", r.Status)
	}
	return readHistory(r.Body)
}
