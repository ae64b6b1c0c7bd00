package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/health"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/upnp"
	"github.com/heraldvip/herald/pkg/vip"
)

// newSpeaker makes the node's BGP speaker; without bgp_enable it is not run.
func (n *node) newSpeaker() *bgp.Speaker {
	b := n.cfg.BGP
	list := &bgp.PeerList{Fixed: b.Peers, Log: n.log,
		ReadPassword: func(path string) (vip.Secret, error) { return config.ReadPassword(path, os.ReadFile) }}
	if b.AnnotationPrefix != "" {
		var known atomic.Bool // the Node was there
		list.Read = func() ([]vip.BGPPeer, error) {
			o := n.cluster.Node(n.cfg.Node.Name)
			if o.Name == "" && known.Load() { // its VIPs are handed over by these sessions
				return nil, fmt.Errorf("the Node %s was deleted", n.cfg.Node.Name)
			}
			known.Store(o.Name != "")
			return b.AnnotatedPeers(o.Annotations)
		}
	}
	return bgp.New(bgp.Options{
		Node: n.cfg.Node.Name, Peers: list.Peers, ReadPasswords: list.ReadPasswords,
		Links: n.links.Links, RouterID: b.RouterID, RouterInterface: b.RouterInterface, HoldTime: b.Hold,
		KeepaliveTime: b.Keepalive, RestartTime: b.RestartTime, DrainTime: b.DrainTime, TTLSecurity: b.TTLSecurity,
		Log: n.log, Poke: func() { n.agent.Poke() },
	})
}

// newTable makes the routing table of VIPs, unused without vip_routingtable.
func (n *node) newTable() *routes.Table {
	c := n.cfg.RoutingTable
	return routes.NewTable(routes.Options{
		Log: n.log, Poke: func() { n.agent.Poke() }, ID: c.ID, Type: c.Type, Protocol: c.Protocol,
		Link: func() string { info := n.links.Info(); return info.LinkFor("") },
	})
}

// newMapper makes what asks gateways for ports, unused without enable_upnp.
func (n *node) newMapper() *upnp.Mapper {
	return upnp.New(upnp.Options{
		Log: n.log, Poke: func() { n.agent.Poke() }, Links: func() []vip.Link { return n.links.Info().Links },
		Gateways: n.cfg.UPnP.Gateways,
	})
}

// newAPIServerCheck makes the check of this node's API server, which wakes leases.
func (n *node) newAPIServerCheck(servers *kube.Servers, wake mailbox.Signal) (*health.APIServerCheck, error) {
	c := n.cfg.ControlPlane
	ask, err := servers.ReadinessCheck(c.CheckURL, c.CheckCA, n.log)
	if err != nil {
		return nil, fmt.Errorf("the health check of the API server (control_plane_health_check_...): %w", err)
	}
	return health.NewAPIServerCheck(health.APIServerOptions{
		Ask: ask, Period: c.CheckPeriod, Timeout: c.CheckTimeout, FailureThreshold: c.CheckFailures, Log: n.log,
		Changed: func(ready bool) {
			servers.SetOwnReady(ready)
			wake.Send() // the node lease has it for the other nodes
			n.agent.Poke()
		},
	}), nil
}

// controlPlaneRules returns what the plan must know of the control plane's VIP.
func controlPlaneRules(cfg config.Config) *plan.ControlPlane {
	link := config.Auto
	if cfg.Link.Interface != "" { // which another node may call otherwise
		link = vip.DefaultLink
	}
	return &plan.ControlPlane{
		Addresses: cfg.ControlPlane.Addresses, Port: cfg.ControlPlane.Port, BalancedPort: cfg.ControlPlane.BalancedPort,
		Lease: cfg.ControlPlane.Lease, Interface: link,
	}
}

// ownAddresses returns this node's addresses without VIPs; nil until links are known.
func (n *node) ownAddresses() []netip.Addr {
	if n.links == nil {
		return nil
	}
	info := n.links.Info()
	return info.OwnAddresses()
}

// wireOwnership wires what decides who may hold VIPs (docs/architecture.md): peers and gateway are observed, quorum
// decides, leases are written. wake runs it.
func (n *node) wireOwnership(cfg config.Config, wake mailbox.Signal, poke func()) {
	from, read := "the Secret "+cfg.Node.Namespace+"/"+kube.PeersSecret, func(ctx context.Context) ([]byte, error) {
		return n.cluster.PeersKeys(ctx, peers.NewKey)
	}
	if file := cfg.Peers.KeyFile; file != "" {
		from, read = file, func(context.Context) ([]byte, error) { return os.ReadFile(file) }
	}
	n.keys = peers.NewKeys(n.log, from, read)
	id := vip.NewProcessID()
	n.peers = peers.New(peers.Options{
		Process: id, Node: cfg.Node.Name, Port: cfg.Peers.Port, Log: n.log, Poke: wake.Send, Keys: n.keys.Get,
		Address: n.heartbeatAddress, Answers: n.answers,
		Nodes: func() map[string]netip.AddrPort {
			all := make(map[string]netip.AddrPort)
			for name, info := range n.leases.NodeInfos() {
				all[name] = netip.AddrPortFrom(info.HeartbeatAddress(), cfg.Peers.Port)
			}
			return all
		},
	})
	n.gateway = peers.NewGateway(peers.GatewayOptions{Answers: n.answers, Poke: wake.Send, Address: func() netip.Addr {
		info := n.links.Info()
		return n.links.Gateway(info.HeartbeatLink())
	}})
	n.leases = lease.New(n.cluster.Leases, lease.Options{
		Node: cfg.Node.Name, Namespace: cfg.Node.Namespace,
		NodeUID: func(name string) string { return n.cluster.Node(name).UID },
		Timing: quorum.Timing{LeaseDuration: cfg.Lease.Duration, RenewDeadline: cfg.Lease.RenewDeadline,
			RetryPeriod: cfg.Lease.RetryPeriod},
		Process: vip.ProcessInfo{ID: id.String(), Host: hostID(), Name: processName(cfg)},
		Units:   leasesElsewhere(cfg), Info: n.info, Peers: n.peers, Gateway: n.gateway.Liveness,
		Log: n.log, Wake: wake, Poke: poke,
	})
}

// linksInfo is what links say, the addresses in the network of all nodes first: heartbeats and API servers have those.
func (n *node) linksInfo() vip.NodeInfo {
	info := n.links.Info()
	info.PutFirst(n.cluster.Node(n.cfg.Node.Name).Addresses)
	return info
}

func (n *node) info() vip.NodeInfo {
	info := n.linksInfo()
	info.ServiceAddresses = n.cfg.Services.Addresses
	info.APIServerReady = n.apiServer != nil && n.apiServer.Ready()
	info.BGPSessions = n.speaker.Summary()
	info.DataPlaneFault, info.DataPlaneUnproven = n.dataPlane.Fault(), n.cfg.Services.Enable && n.dataPlane.Unproven()
	if n.agent.Stopping() {
		info.Excluded = "its Herald is stopping"
	}
	info.Unanswered = n.announcer.AddressChecks().Unanswered()
	info.LivenessOff = n.peers.Off()
	info.HeartbeatKeys = n.peers.KeyIDs()
	info.Options = n.options
	return info
}

func publishedOptions(cfg config.Config) *vip.NodeOptions {
	o := &vip.NodeOptions{
		Services: cfg.Services.Enable, ARP: cfg.ARP.Enable, BGP: cfg.BGP.Enable, RoutingTable: cfg.RoutingTable.ID,
		NoStatus: cfg.Services.ReadOnly, CommonOptions: commonOptions(cfg),
	}
	if cfg.GivesAddresses() {
		o.Pools = cfg.Pools
	}
	if cfg.ControlPlane.Enable {
		o.ControlPlane, o.ControlPlaneLease = cfg.ControlPlane.Addresses, cfg.ControlPlane.Lease
	}
	return o
}

// processName tells this process from another of the same node name, in words.
func processName(cfg config.Config) string {
	host, _ := os.Hostname()
	name := "host " + host + ", node leases in namespace " + cfg.Node.Namespace
	if pod := os.Getenv("POD_NAME"); pod != "" {
		name += ", Pod " + pod
	}
	return name
}

// awaitHost takes the host's lock, or returns ctx's error. Meanwhile it serves what it can: probes want answers.
func (n *node) awaitHost(ctx context.Context) (net.Listener, error) {
	serving, stop := context.WithCancel(ctx)
	served := make(chan error)
	serve := sync.OnceFunc(func() {
		n.waits.Store(true)
		go func() { served <- n.server.Run(serving) }()
	})
	lock, err := awaitHostLock(ctx, hostSocket, n.log, func() {
		serve()
		go n.cluster.WriteNodeEvent(ctx, vip.NodeNameInUse, "Two processes of Herald run on one host. The one that waits "+
			"until the other ends: "+processName(n.cfg)+". End one of them")
	})
	if stop(); n.waits.Swap(false) {
		<-served // so that its ports are free
	}
	return lock, err
}

// awaitName is Leases.AwaitName; an Event has its error.
func (n *node) awaitName(ctx context.Context) error {
	err := n.leases.AwaitName(ctx)
	if err != nil && ctx.Err() == nil {
		n.cluster.WriteNodeEvent(ctx, vip.NodeNameInUse, err.Error())
	}
	return err
}

// heartbeatAddress is the source of heartbeats, link-local with its zone; or zero.
func (n *node) heartbeatAddress() netip.Addr {
	info := n.linksInfo()
	a := info.HeartbeatAddress()
	if a.Is6() && a.IsLinkLocalUnicast() {
		a = a.WithZone(info.HeartbeatLink())
	}
	return a
}

// answers asks the link of heartbeats whether anybody has an address.
func (n *node) answers(ctx context.Context, a netip.Addr) bool {
	info := n.links.Info()
	_, ok := n.announcer.Resolve(ctx, info.HeartbeatLink(), a)
	return ok
}

// hostSocket is the lock that lets one Herald work on a host: two would take away each other's addresses. An abstract
// Unix socket (unix(7)) belongs to the network namespace, as VIPs do, and ends with its process.
const hostSocket = "@heraldvip.io/herald"

// otherHerald is what a process without the lock says. Any user of the host can take the name; then Herald waits: two
// are worse than none.
const otherHerald = "another Herald has the name of this node: it runs on this host. This one waits until that ends. " +
	"End one of them (on the host, as root: ss -xap | grep heraldvip.io/herald)"

// tryHostLock takes the lock, held while the result is open; mine is false if another process has it.
func tryHostLock(name string, log *slog.Logger) (lock net.Listener, mine bool) {
	lock, err := net.Listen("unix", name)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("no lock can be made that keeps a second Herald from working on this host", "err", err)
	}
	return lock, !errors.Is(err, syscall.EADDRINUSE)
}

// awaitHostLock takes the lock once free, or returns ctx's error; it logs and calls tell at once, then each hour.
func awaitHostLock(ctx context.Context, name string, log *slog.Logger, tell func()) (net.Listener, error) {
	var said time.Time
	for {
		if lock, mine := tryHostLock(name, log); mine {
			return lock, nil
		}
		if time.Since(said) > time.Hour {
			said = time.Now()
			log.Error(otherHerald)
			tell()
		}
		if !mailbox.Sleep(ctx, 250*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// hostID identifies this host until a restart: the kernel's boot ID (random(4)), and the inode of the network
// namespace, since hosts can be containers; or "".
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ns syscall.Stat_t
	if err != nil || syscall.Stat("/proc/self/ns/net", &ns) != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), ns.Ino)
}
