package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An Explanation says what becomes of a Service, and why.
type Explanation struct {
	Service    vip.Key           `json:"service"`
	Reason     vip.Reason        `json:"reason"`  // of its verdict
	Message    string            `json:"message"` // of its verdict
	Advice     string            `json:"advice,omitempty"`
	Addresses  []AddressOrigin   `json:"addresses,omitempty"`
	Lease      string            `json:"lease,omitempty"` // namespace/name of its unit in the table
	Owner      string            `json:"owner,omitempty"`
	Since      time.Time         `json:"since,omitzero"`      // when Owner got it, by the clock of the writer
	MovedFrom  string            `json:"movedFrom,omitempty"` // the node that had it before
	MoveCause  string            `json:"moveCause,omitempty"` // why Owner has it
	SharesWith []vip.Key         `json:"sharesWith,omitempty"`
	Nodes      []NodeSuitability `json:"nodes,omitempty"` // sorted by name
	Endpoints  vip.Endpoints     `json:"endpoints"`
	Local      bool              `json:"externalTrafficPolicyLocal,omitempty"`
	IPModes    []vip.IPMode      `json:"ipModes,omitempty"` // of the entries of its status
}

// An AddressOrigin is an address that a Service asks for, or has, and where that comes from.
type AddressOrigin struct {
	Address  netip.Addr `json:"address"`
	Origin   string     `json:"origin"`   // in words
	InStatus bool       `json:"inStatus"` // kubectl get service shows it
	Refused  bool       `json:"refused,omitempty"`
}

// A NodeSuitability says whether a node may carry a Service.
type NodeSuitability struct {
	Node  string `json:"node"`
	Owner bool   `json:"owner,omitempty"`
	Able  bool   `json:"able"`          // it is alive and eligible
	Why   string `json:"why,omitempty"` // why it is not able, or comes after others
}

// Explain explains a LoadBalancer of w, to an observer if w.Self is "", or is not ok.
func Explain(r Rules, w vip.World, name vip.Key) (e Explanation, ok bool) {
	p := run(&r, &w)
	i := slices.IndexFunc(p.all, func(s *service) bool { return s.Key == name && s.LoadBalancer })
	if i < 0 {
		return e, false
	}
	return p.explain(p.all[i]), true
}

func (m *actions) explain(s *service) Explanation {
	e := Explanation{
		Service: s.Key, Reason: s.verdict.Reason, Message: s.verdict.Message, Advice: Advice(s.Key, s.verdict.Reason),
		Owner: s.verdict.Owner, Local: s.Local,
		Endpoints: s.Endpoints, Addresses: s.origins(),
	}
	for _, i := range s.Ingress {
		e.IPModes = vip.AppendUnique(e.IPModes, i.IPMode)
	}
	u := s.unit
	if u == nil && len(s.addrs)+len(s.dhcpFamilies) > 0 {
		u = m.unitOfOne(s) // without endpoints it is in none
	}
	if u == nil {
		if need := m.requirementsOf(s); need != nil {
			e.Nodes = m.suitability(need, "")
		}
		return e
	}
	for _, o := range u.services {
		if o != s {
			e.SharesWith = append(e.SharesWith, o.Key)
		}
	}
	claim := m.Claims[u.lease]
	e.Lease, e.Owner = u.lease.String(), cmp.Or(e.Owner, u.claim.Holder)
	if e.Owner != "" && claim.Holder == e.Owner {
		e.Since, e.MovedFrom, e.MoveCause = claim.AcquiredAt, claim.PreviousHolder, claim.Cause
	}
	e.Nodes = m.suitability(&u.requirements, e.Owner)
	return e
}

// requirementsOf returns what s requires of a node, or nil.
func (p *facts) requirementsOf(s *service) *requirements {
	switch {
	case s.unit != nil:
		return &s.unit.requirements
	case s.everyNodeAdvertises && s.verdict.Owner != "":
		return p.routeRequirements(s)
	}
	return nil
}

// suitability returns for every node whether it may carry such a unit.
func (all *nodes) suitability(need *requirements, owner string) []NodeSuitability {
	found := make([]NodeSuitability, 0, len(all.members))
	for _, n := range all.members {
		x := NodeSuitability{Node: n.Name, Owner: n.Name == owner, Why: whyIneligible(need, n)}
		switch {
		case !n.Alive:
			x.Why = n.WhyNotAlive()
		case x.Why == "":
			x.Able, x.Why = x.Owner || !n.shuttingDown, n.whyAfterOthers(need)
		}
		found = append(found, x)
	}
	slices.SortFunc(found, func(a, b NodeSuitability) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// whyAfterOthers returns why n comes after others as an owner; "" for rankWell.
func (n *member) whyAfterOthers(need *requirements) string {
	why := ""
	switch n.rankFor(need) {
	case rankNotReady:
		why = "Kubernetes does not have it as Ready, or has its network as unavailable"
	case rankRestarting:
		why = fmt.Sprintf("its Herald was killed or crashed %d times in the last minutes", len(n.Info.Restarts))
	case rankFaulty:
		why = cmp.Or(n.Info.DataPlaneFault,
			"its Herald has not seen yet that connections to Services lead anywhere on it")
	case rankOffLink:
		why = "its link is in no network of the VIP"
	case rankNoSession:
		why = "its BGP sessions are down (herald status says why)"
	case rankUnheard:
		why = "the other nodes get no answer from it on the VIP's link (is the VLAN on all ports of the switch?)"
	case rankShuttingDown:
		why = shuttingDownFault
	case rankStalled:
		why = "its Herald does not follow the table yet"
	default:
		return ""
	}
	return "comes after others: " + why
}

// origins returns the addresses of s with their origins.
func (s *service) origins() (all []AddressOrigin) {
	inStatus := func(a netip.Addr) bool { return slices.Contains(s.StatusVIPs(), a) }
	for _, a := range s.Addresses {
		o := AddressOrigin{Address: a, InStatus: inStatus(a),
			Refused: !a.IsUnspecified() && !slices.Contains(s.verdict.Addresses, a) && !s.notOurs}
		switch {
		case a.IsUnspecified():
			o.Origin = "stands for an address that a DHCP server leases (" + s.Source + ")"
		case s.IsGiven(a):
			o.Origin = "pool " + s.Allocated
		default:
			o.Origin = cmp.Or(s.Source, "the options")
		}
		all = append(all, o)
	}
	for _, l := range s.DHCP.Leases {
		if !slices.Contains(s.Addresses, l.Addr) {
			all = append(all, AddressOrigin{Address: l.Addr, Origin: "leased by the DHCP server " + l.Server,
				InStatus: inStatus(l.Addr)})
		}
	}
	for _, a := range s.StatusVIPs() {
		if !slices.ContainsFunc(all, func(o AddressOrigin) bool { return o.Address == a }) {
			all = append(all, AddressOrigin{Address: a, Origin: "only its status names it", InStatus: true})
		}
	}
	return all
}

// A NodeExplanation says which Services a node carries, which it may not, and why.
type NodeExplanation struct {
	Node     string               `json:"node"`
	Alive    bool                 `json:"alive"`
	Why      string               `json:"why,omitempty"` // why it takes no VIP, or comes after others
	Services []ServiceSuitability `json:"services,omitempty"`
}

// A ServiceSuitability says whether a node carries a Service, or could.
type ServiceSuitability struct {
	Service   vip.Key      `json:"service"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Owner     string       `json:"owner,omitempty"`
	Able      bool         `json:"able"`
	// it is Owner, or there is none and each able node advertises it
	Carries bool   `json:"carries"`
	Why     string `json:"why,omitempty"` // why not
	Others  int    `json:"others"`        // how many other nodes are able
}

// ExplainNode explains a node; not ok if no Herald ran there.
func ExplainNode(r Rules, w vip.World, node string) (e NodeExplanation, ok bool) {
	p := run(&r, &w)
	n := p.members[node]
	if n == nil {
		return e, false
	}
	e = NodeExplanation{Node: node, Alive: n.Alive, Why: n.whyExcluded()}
	if !n.Alive {
		e.Why = n.WhyNotAlive()
	} else if e.Why == "" {
		e.Why = n.whyAfterOthers(&requirements{capabilities: &capabilities{nodeExclusion: true}})
	}
	for _, s := range p.all {
		need := p.requirementsOf(s)
		if need == nil || !s.LoadBalancer {
			continue
		}
		x := ServiceSuitability{Service: s.Key, Addresses: s.verdict.Addresses}
		if s.unit != nil {
			x.Owner = s.unit.claim.Holder
		}
		for _, o := range p.suitability(need, x.Owner) {
			switch {
			case o.Node == node:
				x.Able, x.Why = o.Able, o.Why
				x.Carries = o.Owner || s.unit == nil && o.Able
			case o.Able:
				x.Others++
			}
		}
		e.Services = append(e.Services, x)
	}
	slices.SortFunc(e.Services, func(a, b ServiceSuitability) int { return a.Service.Compare(b.Service) })
	return e, true
}
