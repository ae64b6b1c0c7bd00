package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/dhcp"
	"github.com/heraldvip/herald/pkg/health"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/l2"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/nft"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/serve"
	"github.com/heraldvip/herald/pkg/upnp"
	"github.com/heraldvip/herald/pkg/vip"
)

func managerCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "manager", Aliases: []string{"run", "service"}, Args: cobra.NoArgs,
		Short: "Carry VIPs on this node until stopped",
	}
	config.AddFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, warnings, err := config.Parse(config.ProcessSources(c.Flags()))
		if err != nil {
			for _, w := range warnings { // a misspelt name may be the reason
				c.PrintErrln("warning: " + w)
			}
			return err
		}
		log := newLog(os.Stderr, cfg.Log)
		warnOfOptions(os.Stderr, cfg.Log, warnings)
		if err := raiseCapabilities(); err != nil {
			return err
		}
		if r := checkCapabilities(os.DirFS("/")); r.Severity == unfit {
			log.Error("this node can carry no VIP: " + r.Message)
		}
		n, err := newNode(c.Context(), cfg, log)
		if c.Context().Err() != nil {
			return nil // asked to stop
		}
		if err != nil {
			return err
		}
		return n.run(c.Context())
	}
	return c
}

// A node is all rooms of one process, wired together.
type node struct {
	cluster     *kube.Cluster
	leases      *lease.Leases
	links       *netif.Interfaces
	announcer   *l2.Announcer
	checker     *health.Checker
	dataPlane   *health.DataPlane // runs with svc_enable
	dhcp        *dhcp.Clients
	waits       atomic.Bool // for another Herald on this host to end
	peers       *peers.Peers
	keys        *peers.Keys
	gateway     *peers.Gateway
	credentials *kube.CredentialsWatch
	apiServer   *health.APIServerCheck // nil without cp_enable
	mapper      *upnp.Mapper           // runs with enable_upnp
	speaker     *bgp.Speaker           // runs with bgp_enable
	table       *routes.Table          // runs with vip_routingtable
	nft         *nft.Tables
	pools       *pool.Assigner
	history     *agent.History
	agent       *agent.Agent
	server      *serve.Server
	options     *vip.NodeOptions // of cfg, published on the node lease
	cfg         config.Config
	log         *slog.Logger
}

// newNode makes all rooms. It waits for a kubeconfig, or ctx's error.
func newNode(ctx context.Context, cfg config.Config, log *slog.Logger) (*node, error) {
	kube.LogLibrary(log)
	n := &node{cfg: cfg, log: log, options: publishedOptions(cfg), history: agent.NewHistory(log)}
	wake := mailbox.NewSignal() // of the leases
	var servers *kube.Servers
	if cfg.ControlPlane.Enable {
		servers = kube.NewServers(cfg.ControlPlane.Port, n.ownAddresses)
	}
	access, where, err := kube.AwaitConfig(ctx, kube.Access{File: cfg.Kube.ConfigFile, Server: cfg.Kube.Server,
		Version: currentVersion(), Servers: servers}, log)
	if err != nil {
		return nil, err
	}
	log.Info("herald starts", "version", currentVersion(), "node", cfg.Node.Name, "api", access.Host, "by", where.Text)
	if servers != nil {
		if n.apiServer, err = n.newAPIServerCheck(servers, wake); err != nil {
			return nil, err
		}
	}
	// The agent and the leases exist before anything calls these.
	poke, pokeBoth := func() { n.agent.Poke() }, func() { n.agent.Poke(); wake.Send() }
	tenure := func() vip.Tenure { return n.leases.Tenure() }
	n.credentials = kube.NewCredentialsWatch(access, where,
		vip.Key{Namespace: cfg.Node.Namespace, Name: vip.NodeLeasePrefix + cfg.Node.Name}, tenure, log)
	if n.cluster, err = kube.New(access, n.clusterOptions(servers, poke, wake.Send)); err != nil {
		return nil, err
	}
	n.links, err = netif.New(netif.Options{
		Log: log, Poke: pokeBoth, Tenure: tenure,
		OnLinkChange: func() {
			n.speaker.LinksChanged()
			n.announcer.LinksChanged()
			n.table.LinksChanged()
			n.nft.LinksChanged()
			n.peers.LinksChanged()
		},
		Interface: cfg.Link.Interface, ServicesInterface: cfg.Link.Services, AllowNotUp: cfg.Link.AllowDown,
	})
	if err != nil {
		return nil, err
	}
	n.announcer = l2.New(l2.Options{
		Log: log, Poke: poke, PokeNow: func() { n.agent.PokeNow() }, Tenure: tenure, Rate: cfg.ARP.Period,
		Links: n.links.Links, Sysctl4: netif.Sysctl4,
	})
	n.checker = health.NewChecker(log, poke)
	n.dataPlane = health.NewDataPlane(health.DataPlaneOptions{
		APIService: n.cluster.APIService, Hosts: n.ownAddresses,
		NetworkNotReady: func() bool { return n.cluster.Node(cfg.Node.Name).NetworkNotReady },
		Checker:         n.checker, Log: log, Changed: pokeBoth,
	})
	n.dhcp = dhcp.New(dhcp.Options{Log: log, Poke: poke, Tenure: tenure, Attempts: cfg.DHCP.Attempts, Open: dhcp.Open,
		InUse: n.announcer.Resolve})
	n.wireOwnership(cfg, wake, poke)
	n.mapper, n.speaker, n.nft, n.table = n.newMapper(), n.newSpeaker(), nft.New(log), n.newTable()
	n.pools = pool.NewAssigner(addressRest, poke)
	n.agent = agent.New(n.agentOptions())
	n.newServer()
	return n, nil
}

// clusterOptions returns what the API server's client reads; servers is nil without cp_enable.
func (n *node) clusterOptions(servers *kube.Servers, poke, pokeLeases func()) kube.Options {
	cfg := n.cfg
	leases := append(namedLeases(cfg), vip.Key{Namespace: cfg.Node.Namespace, Name: lease.TableName})
	leases = slices.AppendSeq(leases, maps.Keys(leasesElsewhere(cfg)))
	var pools vip.Key
	if cfg.GivesAddresses() {
		pools = cfg.Pools
	}
	return kube.Options{
		Pools: pools, Namespace: cfg.Services.Namespace, NodeLeaseNamespace: cfg.Node.Namespace,
		Leases: leases, Node: cfg.Node.Name, NoUpdates: cfg.Services.ReadOnly, NoServices: !cfg.Services.Enable,
		Egress: cfg.Egress.Enable, Annotations: cfg.BGP.AnnotationPrefix, Servers: servers, Log: n.log,
		Poke: poke, PokeLeases: pokeLeases,
	}
}

// leasesElsewhere returns the units of Leases that kube-vip, up to v1.0, has in cp_namespace, with cp_enable.
func leasesElsewhere(cfg config.Config) map[vip.Key]vip.Key {
	units := make(map[vip.Key]vip.Key)
	if ns := cfg.Node.KubeVIP; ns != "" && cfg.ControlPlane.Enable {
		units[vip.Key{Namespace: ns, Name: cfg.ControlPlane.Lease.Name}] = cfg.ControlPlane.Lease
		if !cfg.Services.Election {
			units[vip.Key{Namespace: ns, Name: cfg.Services.Lease.Name}] = cfg.Services.Lease
		}
	}
	return units
}

func namedLeases(cfg config.Config) (leases []vip.Key) {
	if !cfg.Services.Election {
		leases = append(leases, cfg.Services.Lease)
	}
	if cfg.ControlPlane.Enable {
		leases = append(leases, cfg.ControlPlane.Lease)
	}
	if cfg.GivesAddresses() {
		leases = append(leases, poolsLease(cfg), providerLease)
	}
	return leases
}

// agentOptions hands rooms only if enabled, but egress always: an earlier process may have left some.
func (n *node) agentOptions() agent.Options {
	o := agent.Options{
		Self: n.cfg.Node.Name, Log: n.log, Passed: n.history.Record, Plan: planner(n.cfg),
		Observers: []agent.Observer{n.cluster, n.cluster.Statuses, n.leases, n.links, n.announcer, n.checker, n.dataPlane,
			n.dhcp, n.nft},
		FormerOwners: n.nft.FormerOwners, Translations: n.nft.Translations, OpenPorts: n.nft.OpenPorts,
		Invalid: n.nft.Invalid, Balanced: n.nft.Balanced, Egress: n.nft.Egress,
		EgressRoutes: routes.NewEgress(vip.EgressMark), Addresses: n.links, Advertised: n.links,
		Announcements: n.announcer, HealthChecks: n.checker, AddressChecks: n.announcer.AddressChecks(),
		Macvlans: n.links.Macvlans(), Senders: (*netif.Senders)(n.links), DHCP: n.dhcp, Leases: n.leases,
		Statuses: n.cluster.Statuses, Events: n.cluster.Events,
	}
	if n.cfg.GivesAddresses() {
		o.Observers, o.Pools, o.Assignments = append(o.Observers, n.pools), n.pools, n.cluster.Assignments
	}
	if n.cfg.UPnP.Enable {
		o.Observers, o.Mappings = append(o.Observers, n.mapper), n.mapper
	}
	if n.cfg.BGP.Enable {
		o.Observers, o.Routes = append(o.Observers, n.speaker), n.speaker
	}
	if n.cfg.RoutingTable.Enable { // after BGP, which sets RoutesDraining
		o.Observers, o.RoutingTable = append(o.Observers, n.table), n.table
	}
	return o
}

func (n *node) collectors() []prometheus.Collector {
	all := []prometheus.Collector{buildInfo()}
	for _, room := range []interface{ Collectors() []prometheus.Collector }{n.agent, n.cluster, n.leases, n.links,
		n.announcer, n.dataPlane, n.dhcp, n.peers, n.mapper, n.speaker, n.table, n.nft, n.server, n.pools, n.history} {
		all = append(all, room.Collectors()...)
	}
	return all
}

// newServer makes n.server, which serves its own metrics, too.
func (n *node) newServer() {
	metrics := prometheus.NewRegistry()
	n.server = serve.New(serve.Options{
		Metrics: n.cfg.Serve.Metrics, HealthPort: n.cfg.Serve.HealthPort, Pages: n.pages(metrics),
		IsLocal: n.links.IsLocal, IsVIP: n.links.IsVIP, Log: n.log,
	})
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics.MustRegister(n.collectors()...)
}

func (n *node) pages(metrics prometheus.Gatherer) serve.Pages {
	return serve.Pages{
		Metrics: metrics,
		Healthy: func() error {
			if n.agent.Hangs() {
				return errors.New("a pass of the agent has been under way for too long")
			}
			return nil
		},
		Ready: func() error {
			if n.waits.Load() {
				return errors.New(otherHerald)
			}
			if !n.cluster.Synced() {
				return errors.New("the caches of the API server have not been filled yet")
			}
			if err := n.leases.Ready(); err != nil {
				return err
			}
			if n.cfg.BGP.RequireSession && !slices.ContainsFunc(n.speaker.Sessions(), vip.BGPSession.Up) {
				return errors.New("no BGP session is established")
			}
			return nil
		},
		Plan: n.lastPass, Explain: n.explain, Overview: serve.NewHandler(n.overview, n.log),
	}
}

// lastPass returns the last World and Plan, the verdicts first, or nil.
func (n *node) lastPass() any {
	pass := n.agent.Last()
	if pass == nil {
		return nil
	}
	return struct {
		Verdicts []vip.Verdict
		*agent.Pass
	}{pass.Plan.Verdicts, pass}
}

// explain explains the Service namespace/name by the last World.
func (n *node) explain(service string) (any, bool) {
	pass := n.agent.Last()
	if pass == nil {
		return nil, false
	}
	namespace, name, _ := strings.Cut(service, "/")
	return plan.Explain(planRules(n.cfg), pass.World, vip.Key{Namespace: namespace, Name: name})
}

func commonOptions(cfg config.Config) vip.CommonOptions {
	o := vip.CommonOptions{Election: cfg.Services.Election, Class: cfg.Class.Name, ClassOnly: cfg.Class.Only,
		ClassStrict: !cfg.Class.Legacy}
	if !o.Election {
		if o.SharedLease = cfg.Services.Lease; o.SharedLease == cfg.ControlPlane.Lease { // the VIP needs a ready API server
			o.SharedLease.Name = commonLeasePrefix + o.SharedLease.Name
		}
	}
	return o
}

// commonLeasePrefix begins the name of Services' unit where one Lease is for the control plane's VIP, too.
const commonLeasePrefix = "services-"

// shareForeign has a kube-vip that has such a Lease have Services, too.
func shareForeign(claims map[vip.Key]vip.Claim, services vip.Key) {
	name, common := strings.CutPrefix(services.Name, commonLeasePrefix)
	if c := claims[vip.Key{Namespace: services.Namespace, Name: name}]; common && c.Foreign {
		claims[services] = c
	}
}

// planner returns what makes plans.
func planner(cfg config.Config) func(vip.World) vip.Plan {
	r := planRules(cfg)
	return func(w vip.World) vip.Plan {
		shareForeign(w.Claims, r.SharedLease)
		return plan.Make(r, w)
	}
}

// planRules returns what the plan depends on beside the World.
func planRules(cfg config.Config) plan.Rules {
	r := plan.Rules{
		CommonOptions: commonOptions(cfg),
		Enabled:       cfg.Services.Enable, ARP: cfg.ARP.Enable, Bits4: cfg.Link.Bits4, Bits6: cfg.Link.Bits6,
		IPMode: vip.IPMode(cfg.Services.IPMode), Announcer: cfg.Node.Namespace,
		Rebalance: cfg.Services.Rebalance, KeepConnections: cfg.Services.KeepConnections,
		NoStatus: cfg.Services.ReadOnly, LimitPorts: cfg.Services.LimitPorts, Reserved: cfg.Services.Reserved,
		ProbeNew: !cfg.ARP.SkipDAD, RoutingTable: cfg.RoutingTable.ID,
		DHCPMode: cfg.DHCP.Mode, MacvlanPrefixes: cfg.DHCP.MacvlanPrefixes,
	}
	if b := cfg.BGP; b.Enable {
		r.BGP = &plan.BGP{Attributes: b.Attributes, Aggregates: b.Aggregates, Keep: b.RestartTime > 0}
	}
	if u := cfg.UPnP; u.Enable {
		r.Forwarding = &plan.Forwarding{Namespaces: u.Namespaces, Status: u.Status, Ports: u.Ports}
	}
	if cfg.Egress.Enable {
		r.Egress = &plan.Egress{Internal: slices.Concat(cfg.Egress.Pods, cfg.Egress.Services)}
	}
	if cfg.ControlPlane.Enable {
		r.ControlPlane = controlPlaneRules(cfg)
	}
	r.PoolsOnly = cfg.Services.Addresses == "pools"
	if cfg.GivesAddresses() {
		r.Allocation = &plan.Allocation{Lease: poolsLease(cfg), Provider: providerLease}
	}
	return r
}

// run runs the node, once it is alone on this host, until ctx ends, or a task fails.
func (n *node) run(ctx context.Context) error {
	lock, err := n.awaitHost(ctx)
	if err != nil {
		return nil // asked to stop
	}
	if lock != nil {
		defer lock.Close() // when all else has ended
	}
	nft.WarnOfHostPorts(n.log)
	return tasks{readers: n.readers(), awaitName: n.awaitName, others: n.others(), leases: n.leases,
		agent: n.agent}.run(ctx, n.log)
}

// readers returns the tasks that change nothing before a Plan.
func (n *node) readers() []task {
	tasks := []task{n.server, n.cluster, n.links, n.credentials}
	if n.peers.Off() != peers.NoPort {
		tasks = append(tasks, n.keys)
	}
	if n.apiServer != nil {
		tasks = append(tasks, n.apiServer)
	}
	return tasks
}

func (n *node) others() []task {
	tasks := []task{n.cluster.Statuses, n.cluster.Events, n.announcer, n.checker, n.dhcp, n.peers,
		n.gateway}
	if n.cfg.Services.Enable {
		tasks = append(tasks, n.dataPlane)
	}
	if n.cfg.UPnP.Enable {
		tasks = append(tasks, n.mapper)
	}
	if n.cfg.BGP.Enable {
		tasks = append(tasks, n.speaker)
	}
	if n.cfg.RoutingTable.Enable {
		tasks = append(tasks, n.table)
	}
	return tasks
}

type task interface {
	Run(ctx context.Context) error
}

type tasks struct {
	readers []task // change nothing before the agent has made a Plan
	// blocks until no other process has this node's name, or ctx ends; an error: another one lives
	awaitName func(context.Context) error
	others    []task // begin when it has returned nil, as do the leases and the agent
	leases    task
	agent     task
}

// run runs the tasks until ctx ends, or one fails, and returns the first error. Until the name is its own only readers
// run. The agent ends first: its handover needs the others. The readers end last, after the leases are released. But if
// the leases fail, all end at once: another process has the name.
func (x tasks) run(ctx context.Context, log *slog.Logger) error {
	var group errgroup.Group
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	rest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	start := func(ctx context.Context, tasks ...task) {
		for _, t := range tasks {
			group.Go(func() error {
				err := t.Run(ctx)
				if err != nil {
					cancel()
				}
				return err
			})
		}
	}
	start(reading, x.readers...)
	if err := x.awaitName(first); err != nil {
		stopReading()
		failed := group.Wait()
		if first.Err() != nil { // asked to stop, or a reader has failed
			return failed
		}
		return err
	}
	start(rest, x.others...)
	group.Go(func() error {
		defer cancel()
		defer stop()
		defer stopReading() // they release by what the caches show
		return x.leases.Run(rest)
	})
	group.Go(func() error {
		defer stop()
		began := time.Now()
		err := x.agent.Run(first)
		log.Info("herald stops: this node carries no VIP any more", "ran", time.Since(began).Round(time.Second))
		return err
	})
	return group.Wait()
}
