package lease

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// TransfersAnnotation is, on a node lease, a JSON array of transfers: VIP leases that go from that node to
// others without being written. A fence names in it who has from then on what the fenced node had, so that one write moves all
// (docs/ownership.md, docs/why.md, "The lease decides").
const TransfersAnnotation = "heraldvip.io/transfers"

// Limits of TransfersAnnotation. Kubernetes takes 256 KiB of annotations on an object; what is beyond the limits is
// moved by a write on each VIP lease.
const (
	maxTransferred   = 8000      // VIP leases on one node lease
	maxTransfers     = 512       // transfers on one node lease: as many nodes and causes
	maxTransfersText = 200 << 10 // bytes
	maxHops          = 8         // transfers that a claim is followed through
	digestSize       = 8         // bytes
)

// A transfer is VIP leases that go to one node.
type transfer struct {
	To     string `json:"to"`              // <node>@<epoch>: their claim from then on
	At     int64  `json:"at"`              // when, in Unix microseconds by the clock of the node that wrote it
	Cause  string `json:"cause,omitempty"` // why, in words
	Leases []byte `json:"leases"`          // a digest of each, big-endian

	node  string
	epoch int64
}

// transfers are those of one node lease.
type transfers struct {
	text  string // the annotation that they were read from
	all   []transfer
	index map[uint64]int // of all, by digest; ambiguous if several have it
}

// ambiguous in transfers.index marks a digest that two transfers have: neither counts.
const ambiguous = -1

// digestOf returns the digest of a VIP lease in one version, by which a transfer names it. A lease that was written since has
// another, so that no transfer says anything about it. It is FNV-1a over namespace, name and version: two leases with one
// digest are left out (transferTexts, parseTransfers), and another node's lease can't get that of a transferred one without
// the same version, which the API server gives to no two writes.
func digestOf(k vip.Key, version uint64) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(k.Namespace+"\x00"+k.Name+"\x00"), version))
	return h.Sum64()
}

// parseTransfers returns the transfers of a TransfersAnnotation. It returns nil, so that none counts, if the text is empty, too
// long, not as it is written by transfersText, or names more than maxTransferred leases.
func parseTransfers(text string) *transfers {
	if text == "" || len(text) > maxTransfersText {
		return nil
	}
	t := &transfers{text: text, index: make(map[uint64]int)}
	if json.Unmarshal([]byte(text), &t.all) != nil || len(t.all) > maxTransfers {
		return nil
	}
	for i := range t.all {
		x := &t.all[i]
		node, epoch, ok := parseClaimText(x.To)
		if !ok || node == "" || epoch <= 0 || len(x.Leases)%digestSize != 0 {
			return nil
		}
		x.node, x.epoch, x.Cause = node, epoch, truncateCause(x.Cause)
		for _, d := range x.digests() {
			if _, twice := t.index[d]; twice {
				t.index[d] = ambiguous
			} else {
				t.index[d] = i
			}
		}
		if len(t.index) > maxTransferred {
			return nil
		}
	}
	return t
}

// digests returns the digests of x, as uint64.
func (x *transfer) digests() []uint64 {
	all := make([]uint64, 0, len(x.Leases)/digestSize)
	for b := range slices.Chunk(x.Leases, digestSize) {
		all = append(all, binary.BigEndian.Uint64(b))
	}
	return all
}

// list returns all that t transfers; nil if t is nil.
func (t *transfers) list() (all []transferred) {
	if t == nil {
		return nil
	}
	for _, x := range t.all {
		for _, digest := range x.digests() {
			all = append(all, transferred{digest, x.To, x.At, x.Cause})
		}
	}
	return all
}

// find returns the transfer that has the digest; nil if none or more than one has, or t is nil.
func (t *transfers) find(digest uint64) *transfer {
	if t == nil {
		return nil
	}
	if i, ok := t.index[digest]; ok && i != ambiguous {
		return &t.all[i]
	}
	return nil
}

// A transferred lease is one that transfersText writes down.
type transferred struct {
	digest uint64
	to     string // <node>@<epoch>
	at     int64
	cause  string
}

// transfersText returns the TransfersAnnotation for leases, without those whose digest occurs twice, and with as
// many of the rest as the limits allow; "" for none.
func transfersText(leases []transferred) string {
	count := make(map[uint64]int, len(leases))
	for _, x := range leases {
		count[x.digest]++
	}
	type group struct {
		to, cause string
		at        int64
	}
	var all []transfer
	index := make(map[group]int)
	n, size := 0, len("[]")
	for _, x := range leases {
		x.cause = truncateCause(x.cause)
		g := group{x.to, x.cause, x.at}
		i, ok := index[g]
		need := digestSize * 3 / 2 // in base64, rounded up
		if !ok {
			need += 6*len(x.cause) + len(x.to) + 100 // what JSON escapes at most, and the names of the fields
		}
		if count[x.digest] > 1 || n >= maxTransferred || size+need > maxTransfersText || !ok && len(all) >= maxTransfers {
			continue
		}
		if !ok {
			i = len(all)
			index[g], all = i, append(all, transfer{To: x.to, At: x.at, Cause: x.cause})
		}
		all[i].Leases = binary.BigEndian.AppendUint64(all[i].Leases, x.digest)
		n, size = n+1, size+need
	}
	if n == 0 {
		return ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		return ""
	}
	return string(text)
}

// An owner is who has a VIP lease, by what the lease and the transfers of node leases say. Whether its claim is valid
// is another question.
type owner struct {
	node  string
	epoch int64
	// unwritten: the claim is another node's as the lease is written, and was transferred to this one.
	unwritten bool
	at        time.Time // of the transfer
	cause     string    // likewise
	before    []string  // the nodes that had it before, the latest first: the one that the lease names is the last
}

// followTransfers returns the owner of a VIP lease in the version x: the node in whose name it is written, or, if the node lease of that has
// a transfer of x in this version, the node that it went to, and so on. of returns the transfers of a node. The owner has no
// node, so that the lease is free, if there are more than maxHops. Only claims that a Herald wrote are followed.
func followTransfers(x *record, of func(node string) *transfers) owner {
	o := owner{node: x.holder, epoch: x.epoch}
	if !x.ours || x.version == 0 {
		return o
	}
	for range maxHops {
		t := of(o.node).find(x.digest)
		if t == nil {
			return o
		}
		o.before = slices.Insert(o.before, 0, o.node)
		o.node, o.epoch, o.unwritten, o.at, o.cause = t.node, t.epoch, true, time.UnixMicro(t.At), t.Cause
	}
	if of(o.node).find(x.digest) == nil {
		return o
	}
	return owner{unwritten: true}
}

// movedOwner returns the owner of a VIP lease that was moved by m, without the API server, from o.
func movedOwner(o owner, m quorum.Move) owner {
	return owner{node: m.Holder, epoch: m.Epoch, unwritten: true, at: time.Now(), before: slices.Insert(slices.Clone(o.before), 0, o.node)}
}

// formerHolders returns the nodes that had x before its owner o, the latest first, as parseFormerHolders does.
func (o *owner) formerHolders(x *record) []vip.FormerHolder {
	all := x.said.FormerHolders
	for _, node := range slices.Backward(o.before) {
		all = addFormerHolder(all, node, o.at)
	}
	return all[:min(len(all), maxFormerHolders)]
}

// claimText returns the claim of the owner, as ClaimAnnotation has it.
func (o *owner) claimText() string { return quorum.ClaimText(o.node, o.epoch) }

// writtenOn returns a copy of the VIP lease x with the claim of its owner o, to which it was transferred.
func (o *owner) writtenOn(x *coordinationv1.Lease) *coordinationv1.Lease {
	x = x.DeepCopy()
	if o.node == "" {
		x.Spec.HolderIdentity = new("")
		annotate(x, ClaimAnnotation, "")
		return x
	}
	x.Spec.HolderIdentity, x.Spec.AcquireTime = &o.node, new(metav1.NewMicroTime(o.at))
	annotate(x, ClaimAnnotation, o.claimText())
	annotate(x, FromAnnotation, o.before[0])
	annotate(x, CauseAnnotation, o.cause)
	return x
}
