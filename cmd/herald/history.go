package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// A historyReport is the moves in the table; its JSON is for programs.
type historyReport struct {
	Moves []vip.Move `json:"moves"` // the oldest first
}

func historyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "history [[NAMESPACE/]SERVICE]",
		Short: "Show which VIPs have moved, when, why, and for how long nobody answered",
		Long: "Show the last moves of VIPs, a thousand or more, as the Lease " + lease.TableName + " has them. It survives " +
			"restarts.\n" +
			"Times are UTC, by the clock of the node that wrote. OUTAGE: for how long the node before was not heard when " +
			"another was\n" +
			"written in its place; - if the node gave the VIP away itself, or it is not known.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := addAccessFlags(c, "json", "yaml")
	since := c.Flags().Duration("since", 24*time.Hour, "Only moves that are not older")
	c.RunE = func(c *cobra.Command, args []string) error {
		of, err := flags.service(args)
		if err != nil {
			return err
		}
		if *since <= 0 {
			return config.NewError(errors.New("--since must be a duration greater than 0"))
		}
		cfg, err := flags.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), snapshotTimeout)
		defer cancel()
		s, err := kube.TakeAllowedSnapshot(ctx, cfg, of.Namespace)
		if err != nil {
			return err
		}
		r, err := newHistoryReport(s, *since)
		if err != nil {
			return err
		}
		r.Moves = slices.DeleteFunc(r.Moves, func(m vip.Move) bool { return !isOf(m.Service, of) })
		if of.Name != "" && len(r.Moves) == 0 { // of one that was deleted there may be some
			if err := checkExists(s.Services, of); err != nil {
				return err
			}
		}
		return r.write(c.OutOrStdout(), flags.format)
	}
	return c
}

// newHistoryReport returns the moves in a cluster's table, if readable, that are not older than since.
func newHistoryReport(s kube.Snapshot, since time.Duration) (r historyReport, err error) {
	v := newStatusView(s, s.At)
	units, ok := lease.Moves(s.Leases, v.announcers)
	if !ok {
		return r, errors.New("the Lease " + lease.TableName + ", which has the moves, is not there or can't be read" +
			strings.Join(append([]string{""}, s.Missing...), "; missing: "))
	}
	units = slices.DeleteFunc(units, func(m vip.Move) bool { return m.At.Before(s.At.Add(-since)) })
	r.Moves = serviceMoves(units, s.Services, v.options().CommonOptions, v.controlPlaneLease())
	return r, nil
}

// serviceMoves returns moves of units as of their Services, and the control plane's; a removed Service's unit keeps its
// name.
func serviceMoves(units []vip.Move, services []vip.Service, o vip.CommonOptions, controlPlane vip.Key) []vip.Move {
	byUnit := make(map[vip.Key][]*vip.Service)
	for i := range services {
		s := &services[i]
		for _, k := range s.LeaseKeys() {
			byUnit[k] = append(byUnit[k], s)
		}
		if !s.Ignore && o.Serve(s) {
			byUnit[o.SharedLease] = append(byUnit[o.SharedLease], s)
		}
	}
	all := make([]vip.Move, 0, len(units))
	for _, m := range units {
		of := byUnit[m.Service]
		switch {
		case m.Service == controlPlane:
			m.Service = vip.Key{Name: controlPlaneName}
			all = append(all, m)
		case len(of) == 0 && m.Service.Name != poolsLeaseName:
			m.Service.Name = strings.TrimPrefix(m.Service.Name, "kubevip-")
			all = append(all, m)
		}
		for _, s := range of {
			m.Service, m.Addresses = s.Key, s.StatusVIPs()
			all = append(all, m)
		}
	}
	return all
}

func (r *historyReport) write(w io.Writer, format string) error {
	if format != "" {
		return encode(w, format, r)
	}
	var rows []string
	for _, m := range r.Moves {
		x := overviewMove(m)
		rows = append(rows, row(m.At.UTC().Format(time.DateTime+".000"), x.Service, x.VIPs, x.From, x.To,
			dash(x.Outage), dash(x.Cause)))
	}
	if len(rows) == 0 {
		rows = []string{"nothing has moved in this time"}
	}
	return writeTable(w, "WHEN (UTC)\tSERVICE\tVIP\tFROM\tTO\tOUTAGE\tWHY", rows)
}
