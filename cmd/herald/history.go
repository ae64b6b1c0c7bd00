package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	historyTimeout = 20 * time.Second // for one node to answer
	historyAtOnce  = 8                // how many nodes are asked at a time
	historyBytes   = 4 << 20          // of the answer of one node
	// maxMovesOfNode is how many moves of a node count, the latest: it remembers no more.
	maxMovesOfNode = 1000
	// sameMove is how far apart nodes may note one move: they see it at different times, and their clocks differ.
	sameMove = 10 * time.Second
)

// A nodeHistory is what one node remembers; it serves it as /history, over loopback only (docs/why.md, "History").
type nodeHistory struct {
	Node  string     `json:"node"`
	Began time.Time  `json:"began"` // when its process began, so since when moves are known
	Moves []vip.Move `json:"moves"` // the oldest first
}

// A historyReport is the moves of all nodes; its JSON is for programs.
type historyReport struct {
	Moves   []vip.Move           `json:"moves"`             // the oldest first
	Since   map[string]time.Time `json:"since"`             // by node, since when it remembers moves
	Missing map[string]string    `json:"missing,omitempty"` // by node, why it was not asked or did not answer
}

// historyCommand is "herald history": what has moved, when and why, as all nodes remember it.
func historyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "history [[NAMESPACE/]SERVICE]",
		Short: "Show which VIPs have moved, when, why, and for how long nobody answered",
		Long: "Show the moves of VIPs, joined from what the Heralds of all nodes remember: at most 1000 each, since they " +
			"began. It asks each\n" +
			"Pod of Herald by kubectl port-forward, and so needs kubectl and the right to do that; a node that can't be " +
			"asked is named.\n" +
			"On a node: curl http://127.0.0.1:2112/history is what that node remembers. Times are UTC, by the clocks of the " +
			"nodes.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := addAccessFlags(c)
	since := c.Flags().Duration("since", 24*time.Hour, "Only moves that are not older")
	format := c.Flags().StringP("output", "o", "", "Format: json or yaml")
	port := c.Flags().Int("port", 2112, "The port of prometheus_server")
	c.ValidArgsFunction = completeServices(flags)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkFormat(*format, "json", "yaml"); err != nil {
			return err
		}
		namespace, name, err := flags.service(c, args)
		if err != nil {
			return err
		}
		if *since <= 0 || *port < 1 || *port > 65535 {
			return config.NewError(errors.New("--since must be a duration greater than 0, and --port 1 to 65535"))
		}
		cfg, err := flags.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), snapshotTimeout)
		defer cancel()
		s, err := kube.TakeAllowedSnapshot(ctx, cfg, namespace)
		if err != nil {
			return err
		}
		k := kubectl{flags: flags, port: *port}
		pods, err := k.pods(ctx, announcersNamespace(s.Leases))
		if err != nil {
			return err
		}
		answers, missing := askAll(c.Context(), pods, k.history)
		for _, n := range nodeLeases(s) {
			if _, ok := pods[n.Name]; !ok {
				missing[n.Name] = "no running Pod with the label app.kubernetes.io/name=herald is there, nor one called " +
					"kube-vip-...; on the node: curl http://127.0.0.1:2112/history"
			}
		}
		r := joinHistories(answers, missing)
		from := time.Now().Add(-*since)
		r.Moves = slices.DeleteFunc(r.Moves, func(m vip.Move) bool {
			return m.At.Before(from) || namespace != "" && m.Service.Namespace != namespace || name != "" &&
				m.Service.Name != name
		})
		if name != "" && len(r.Moves) == 0 { // of one that was deleted there may be some
			if err := checkExists(s.Services, vip.Key{Namespace: namespace, Name: name}); err != nil {
				return err
			}
		}
		return r.write(c.OutOrStdout(), *format)
	}
	return c
}

// askAll asks the Pod of each node, some at a time, and returns the answers, and by node why there is none.
func askAll(ctx context.Context, pods map[string]podName, ask func(context.Context, podName) (nodeHistory, error)) (
	answers []nodeHistory, missing map[string]string) {
	missing = make(map[string]string)
	var mu sync.Mutex // guards answers and missing
	var all sync.WaitGroup
	turns := make(chan struct{}, historyAtOnce)
	for node, pod := range pods {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(ctx, historyTimeout)
			defer cancel()
			h, err := ask(ctx, pod)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing[node] = err.Error()
				return
			}
			h.Node = node
			answers = append(answers, h)
		})
	}
	all.Wait()
	return answers, missing
}

// readHistory decodes the answer of a node; its latest maxMovesOfNode moves count.
func readHistory(r io.Reader) (h nodeHistory, err error) {
	if err := json.NewDecoder(io.LimitReader(r, historyBytes)).Decode(&h); err != nil {
		return h, fmt.Errorf("its answer is no history: %w", err)
	}
	h.Moves = h.Moves[max(0, len(h.Moves)-maxMovesOfNode):]
	return h, nil
}

// joinHistories makes one list of what the nodes remember. A move that several have seen is in it once: as the node
// that took over has it, since that knows the outage, else as the first that saw it.
func joinHistories(all []nodeHistory, missing map[string]string) historyReport {
	type witness struct {
		vip.Move
		node string
	}
	var seen []witness
	r := historyReport{Since: make(map[string]time.Time), Missing: missing, Moves: []vip.Move{}}
	for _, h := range all {
		r.Since[h.Node] = h.Began
		for _, m := range h.Moves {
			seen = append(seen, witness{m, h.Node})
		}
	}
	slices.SortFunc(seen, func(a, b witness) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.node, b.node)) })
	by := make(map[int]map[string]bool) // of each move in r.Moves, which nodes have seen it
	for _, w := range seen {
		i := len(r.Moves) - 1
		for ; i >= 0 && w.At.Sub(r.Moves[i].At) <= sameMove; i-- {
			if m := &r.Moves[i]; m.Service == w.Service && m.To == w.To && (m.From == w.From || m.To == "") && !by[i][w.node] {
				break
			}
		}
		switch {
		case i < 0 || w.At.Sub(r.Moves[i].At) > sameMove:
			by[len(r.Moves)] = map[string]bool{w.node: true}
			r.Moves = append(r.Moves, w.Move)
		default:
			by[i][w.node] = true
			if w.Outage != nil && r.Moves[i].Outage == nil {
				at := r.Moves[i].At
				r.Moves[i] = w.Move
				r.Moves[i].At = at
			}
		}
	}
	return r
}

// write writes the moves as text, JSON or YAML.
func (r *historyReport) write(w io.Writer, format string) error {
	if format != "" {
		text, err := encode(format, r)
		_, writeErr := io.WriteString(w, text)
		return errors.Join(err, writeErr)
	}
	var rows, missing []string
	for _, m := range r.Moves {
		x := overviewMove(m)
		rows = append(rows, row(m.At.UTC().Format(time.DateTime+".000"), x.Service, x.VIPs, x.From, x.To, dash(x.Outage),
			dash(x.Cause)))
	}
	nothing := "no move is remembered"
	if len(r.Since) == 0 {
		nothing = "no node has answered, so what has moved is not known"
	}
	if len(rows) == 0 {
		rows = []string{row(nothing)}
	}
	for node, why := range r.Missing {
		missing = append(missing, row(node, why))
	}
	var since []string
	for node, t := range r.Since {
		since = append(since, row(node, t.UTC().Format(time.DateTime)))
	}
	slices.Sort(missing)
	slices.Sort(since)
	return errors.Join(
		writeTable(w, "WHEN (UTC)\tSERVICE\tVIP\tFROM\tTO\tOUTAGE\tWHY", rows),
		writeTable(w, "\nNODE\tREMEMBERS SINCE", since),
		writeTable(w, "\nNODE WITHOUT AN ANSWER\tWHY", missing))
}
