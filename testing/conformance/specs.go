package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// suite matches the names of the tests that are of interest, and of no others.
const suite = `\[sig-network\] LoadBalancers`

// specTimeout is the limit for one test; a rolling update of three nodes takes a quarter of an hour.
const specTimeout = 40 * time.Minute

// A result is what became of one test in one mode.
type result struct {
	spec, mode string
	passed     bool
	took       time.Duration
	failure    string // why it failed
}

// A report is what is read of ginkgo's JSON report, which is a list of these.
type report struct {
	SpecReports []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	Failure                 struct{ Message string }
}

// name is the full name of a test, as the expression of ginkgo's focus sees it without labels.
func (r specReport) name() string {
	return strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")
}

// readReport returns what ginkgo reported of the tests that were selected.
func readReport(file string) ([]specReport, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var reports []report
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var selected []specReport
	for _, r := range reports {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == "It" && s.State != "skipped" || s.State == "failed" {
				selected = append(selected, s)
			}
		}
	}
	return selected, nil
}

// specs lists the tests to run; those that take longest come first.
func (s setup) specs(ctx context.Context) ([]string, error) {
	dir, err := os.MkdirTemp("", "herald-conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "specs.json")
	list := exec.CommandContext(ctx, filepath.Join(s.parts, "e2e.test"), "--provider=skeleton", "--kubeconfig=/dev/null",
		"--ginkgo.dry-run", "--ginkgo.no-color", "--ginkgo.focus="+suite, "--ginkgo.json-report="+file)
	list.Dir = dir
	if out, err := list.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w: %s", list.Path, err, out)
	}
	reports, err := readReport(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range reports {
		if s.focus.MatchString(r.name()) && !(s.skip != nil && s.skip.MatchString(r.name())) {
			names = append(names, r.name())
		}
	}
	slices.SortFunc(names,
		func(a, b string) int { return cmp.Or(cmp.Compare(minutes(b), minutes(a)), strings.Compare(a, b)) })
	return names, nil
}

// minutes is roughly what a test takes.
func minutes(spec string) int {
	switch {
	case strings.Contains(spec, "rolling update"):
		return 16
	case strings.Contains(spec, "change the type"), strings.Contains(spec, "source ranges"):
		return 3
	}
	return 1
}

// runSpecs runs the tests, some at the same time, each by an e2e.test of its own. The error is one of
// this program; a test that fails is a result.
func (s setup) runSpecs(ctx context.Context, c *cluster, m mode, specs []string) ([]result, error) {
	results := make([]result, len(specs))
	var g errgroup.Group
	g.SetLimit(s.parallel)
	for i, spec := range specs {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s.log("%s: begins: %s", m.name, short(spec))
			var err error
			results[i], err = c.runSpec(ctx, m, spec, i)
			if r := results[i]; err == nil {
				s.log("%s: %s after %v: %s", m.name, verdict(r), r.took.Round(time.Second), short(spec))
				if !r.passed {
					s.log("%s", indent(r.failure))
				}
			}
			return err
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(results, func(r result) bool { return !r.passed && r.failure == "" }), err
}

// runSpec runs one test from the client.
func (c *cluster) runSpec(ctx context.Context, m mode, spec string, number int) (result, error) {
	name := fmt.Sprintf("e2e-%s-%02d", m.name, number+1)
	file := filepath.Join(c.dir, name+".json")
	limited, cancel := context.WithTimeoutCause(ctx, specTimeout, fmt.Errorf("it has not ended after %v", specTimeout))
	defer cancel()
	began := time.Now()
	p, err := c.Start(client, name,
		[]string{filepath.Join(c.parts, "e2e.test"), "--provider=skeleton", "--kubeconfig=" + c.kubeconfig,
			"--kubectl-path=" + c.kubectl, "--num-nodes=3", "--dump-logs-on-failure=false", "--ginkgo.v", "--ginkgo.no-color",
			"--ginkgo.focus=" + regexp.QuoteMeta(spec), "--ginkgo.json-report=" + file}, "KUBECONFIG="+c.kubeconfig)
	if err != nil {
		return result{}, err
	}
	r := result{spec: spec, mode: m.name}
	ended := p.Wait(limited)
	r.took = time.Since(began)
	if p.Running() {
		p.Kill()
		if ctx.Err() != nil {
			return result{}, context.Cause(ctx)
		}
		r.failure = context.Cause(limited).Error()
		return r, nil
	}
	reports, err := readReport(file)
	if err == nil && len(reports) != 1 {
		err = fmt.Errorf("%d tests have run instead of one: see %s", len(reports), p.LogFile)
	}
	if err != nil {
		return r, errors.Join(ended, err)
	}
	r.passed = ended == nil && reports[0].State == "passed"
	if r.failure = strings.TrimSpace(reports[0].Failure.Message); !r.passed && r.failure == "" {
		r.failure = fmt.Sprintf("%s: %v", reports[0].State, ended)
	}
	return r, nil
}
