package lease

import (
	"cmp"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// TableName is the name of the Lease that is the table.
	TableName = "herald-table"
	// OwnersAnnotation, on the table, says who owns what (Table.text).
	OwnersAnnotation = "heraldvip.io/owners"
)

// An Entry is what the table says of a unit, a value; Former must not be changed.
type Entry struct {
	Owner       string // a node; "": nobody
	Epoch       int64  // of the owner
	Number      int64  // of the first table that said so: each change of an entry has another
	Transitions int32  // how often it went to another owner
	At          time.Time
	Former      []vip.FormerHolder // who had it before, the latest first
	Cause       string             // why it went to Owner; "": not known
}

// A Table is who owns what, a value that never changes.
type Table struct {
	Number int64 // one more with each write
	Units  map[vip.Key]Entry

	newest map[string]int64 // by claim, node@epoch: the highest Number of its entries
	digest uint64           // of the units, their owners, and nothing else
	moves  string           // the last moves, as MovesAnnotation has them
}

func newTable(number int64, units map[vip.Key]Entry) *Table {
	t := &Table{Number: number, Units: units, newest: make(map[string]int64)}
	for k, e := range units {
		claim := quorum.ClaimText(e.Owner, e.Epoch)
		t.newest[claim] = max(t.newest[claim], e.Number)
		h := fnv.New64a()
		h.Write([]byte(k.Namespace + "\x00" + k.Name + "\x00" + claim))
		t.digest += h.Sum64() // in any order
	}
	return t
}

// owns reports whether any unit is of a node, in any epoch.
func (t *Table) owns(node string) bool {
	for claim := range t.newest {
		if n, _, ok := parseClaimText(claim); ok && n == node {
			return true
		}
	}
	return false
}

// A change is what a write does to an entry of the table.
type change struct {
	unit  vip.Key
	owner string // "": nobody has it from then on
	epoch int64
	cause string
	drop  bool      // nothing is left of it: no Service has it any more
	heard time.Time // when its owner, whose claim is void, was last heard; zero: that gave it away, or it is not known
}

// with returns the next table: t with changes, made at that time.
func (t *Table) with(changes []change, now time.Time) *Table {
	units := make(map[vip.Key]Entry, len(t.Units))
	maps.Copy(units, t.Units)
	now = now.UTC().Truncate(time.Microsecond)
	var moves []vip.Move
	for _, c := range changes {
		before := units[c.unit]
		c.cause = vip.Truncate(strings.Join(strings.Fields(c.cause), " "), maxCause)
		if before.Owner != c.owner {
			m := vip.Move{At: now, Service: c.unit, From: before.Owner, To: c.owner, Cause: c.cause}
			if !c.heard.IsZero() {
				m.Outage = new(max(0, now.Sub(c.heard).Round(time.Millisecond)))
			}
			moves = append(moves, m)
		}
		if c.drop {
			delete(units, c.unit)
			continue
		}
		e := Entry{
			Owner: c.owner, Epoch: c.epoch, Number: t.Number + 1, At: now, Transitions: before.Transitions,
			Former: before.Former, Cause: c.cause,
		}
		if before.Owner != c.owner {
			if before.Owner != "" {
				e.Former = addFormerHolder(before.Former, before.Owner, now)
				e.Transitions = min(before.Transitions, math.MaxInt32-1) + 1
			}
		} else if c.owner != "" { // the same node, in another epoch
			e.At, e.Cause = before.At, before.Cause
		}
		units[c.unit] = e
	}
	next := newTable(t.Number+1, units)
	next.moves = shortenMoves(movesText(moves)+t.moves, maxMoves)
	return next
}

const (
	maxTable   = 200 << 10         // of the table's text; longer, it is told in few words
	maxNew     = 240 << 10         // with new units; the rest is for what moves
	oldNumbers = 1024              // what was not changed in so many tables is told in fewest
	lastNumber = math.MaxInt32 / 2 // nobody counts so far, so something else than Herald wrote it
)

// text is the table as written, for people too: for each owner since when, why, and from whom, then its units.
func (t *Table) text() string {
	text := textOf(t.Units)
	if len(text) > maxTable {
		text = t.briefText(t.Number-1, t.Number-oldNumbers)
	}
	if len(text) > maxNew {
		text = t.briefText(t.Number, t.Number-1)
	}
	if len(text) > maxAnnotations {
		text = t.briefText(t.Number, t.Number)
	}
	return text
}

// briefText tells in few words what has at most the first number, and in fewest what has the second.
func (t *Table) briefText(few, fewest int64) string {
	units := make(map[vip.Key]Entry, len(t.Units))
	for k, e := range t.Units {
		if e.Number <= few {
			e.At, e.Cause, e.Former, e.Transitions = time.Time{}, "", e.Former[:min(1, len(e.Former))], min(e.Transitions, 1)
		}
		if e.Number <= fewest {
			e.Number, e.Former = t.newest[quorum.ClaimText(e.Owner, e.Epoch)], nil // one for each owner
		}
		units[k] = e
	}
	return textOf(units)
}

func textOf(units map[vip.Key]Entry) string {
	byHead := make(map[string][]string)
	numbers := make(map[string]int64)
	for k, e := range units {
		head := e.text()
		byHead[head] = append(byHead[head], k.String())
		numbers[head] = e.Number
	}
	heads := slices.SortedFunc(maps.Keys(byHead), func(a, b string) int {
		ownerA, _, _ := strings.Cut(a, " ")
		ownerB, _, _ := strings.Cut(b, " ")
		return cmp.Or(cmp.Compare(ownerA, ownerB), cmp.Compare(numbers[a], numbers[b]), cmp.Compare(a, b))
	})
	var b strings.Builder
	for _, head := range heads {
		slices.Sort(byHead[head])
		b.WriteString(head + "\n  " + strings.Join(byHead[head], "\n  ") + "\n")
	}
	return b.String()
}

const nobody = "nobody"

func (e *Entry) text() string {
	owner, since, moves := nobody, "", ""
	if e.Owner != "" {
		owner = quorum.ClaimText(e.Owner, e.Epoch)
	}
	if !e.At.IsZero() {
		since = e.At.UTC().Format(tableTime)
	}
	if e.Transitions > 0 {
		moves = strconv.Itoa(int(e.Transitions))
	}
	return headText(owner, "number", strconv.FormatInt(e.Number, 10), "since", since, "moves", moves,
		"before", formerHoldersText(e.Former), "cause", e.Cause)
}

var errTable = errors.New("the annotation " + OwnersAnnotation + " can't be read")

// parseTable parses the table's Lease; lines not Herald's are an error.
func parseTable(l *coordinationv1.Lease) (*Table, error) {
	text, ok := l.Annotations[OwnersAnnotation]
	number := transitions(l)
	if !ok || number < 0 || number >= lastNumber {
		return nil, errTable
	}
	units := make(map[vip.Key]Entry)
	if !parseUnits(text, parseEntry, func(e Entry, unit vip.Key) {
		e.Number = min(max(0, e.Number), number)
		units[unit] = e
	}) {
		return nil, errTable
	}
	t := newTable(number, units)
	t.moves = l.Annotations[MovesAnnotation]
	return t, nil
}

func parseEntry(line string) (e Entry, ok bool) {
	values := map[string]string{"number": "0", "moves": "0", "since": "0001-01-01T00:00:00Z"}
	owner := cutHead(line, values)
	if owner != nobody {
		if e.Owner, e.Epoch, ok = parseClaimText(owner); !ok || e.Owner == "" {
			return e, false
		}
	}
	moves, err := strconv.ParseInt(values["moves"], 10, 32)
	var err2, err3 error
	e.Number, err2 = strconv.ParseInt(values["number"], 10, 64)
	e.At, err3 = time.Parse(time.RFC3339, values["since"])
	e.Transitions, e.Former, e.Cause = int32(moves), parseFormerHolders(values["before"]), values["cause"]
	return e, cmp.Or(err, err2, err3) == nil
}

// headText returns a line above units: a word, then keys and values in turn, without empty values.
func headText(word string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			word += " " + pairs[i] + "=" + pairs[i+1]
		}
	}
	return word
}

// cutHead reads headText, whose last key is cause: it puts the keys of line into values, and returns the word.
func cutHead(line string, values map[string]string) string {
	line, cause, _ := strings.Cut(line, " cause=")
	word, line, _ := strings.Cut(line, " ")
	for f := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(f, "=")
		values[key] = value
	}
	values["cause"] = vip.Truncate(strings.Join(strings.Fields(cause), " "), maxCause)
	return word
}

// parseUnits calls add with what parse makes of a head, for each unit below it. It leaves out what can't be read, and
// reports whether all could be.
func parseUnits[H any](text string, parse func(line string) (H, bool), add func(head H, unit vip.Key)) (all bool) {
	var head H
	known, all := false, true
	for line := range strings.Lines(text) {
		unit, isUnit := strings.CutPrefix(strings.TrimRight(line, "\n"), "  ")
		namespace, name, _ := strings.Cut(unit, "/")
		switch {
		case !isUnit:
			head, known = parse(unit)
			all = all && known
		case known && namespace != "" && name != "":
			add(head, vip.Key{Namespace: namespace, Name: name})
		default:
			all = false
		}
	}
	return all
}

// lease returns the Lease of t over a copy of known (nil: none).
func (t *Table) lease(known *coordinationv1.Lease, namespace, writer string, now time.Time) *coordinationv1.Lease {
	next, at, text := nextLease(known, namespace, TableName), metav1.NewMicroTime(now), t.text()
	annotate(next, MovesAnnotation, shortenMoves(t.moves, max(0, min(maxMoves, maxAnnotations-len(text)))))
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, OwnersAnnotation, text) // even if it is empty
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions, next.Spec.RenewTime = &writer, new(int32(t.Number)), &at
	return next
}

// claim returns the plan's Claim of a unit; Valid is not set.
func (e *Entry) claim() vip.Claim {
	c := vip.Claim{Holder: e.Owner, FormerHolders: e.Former, Transitions: e.Transitions, Cause: e.Cause, AcquiredAt: e.At}
	for _, f := range e.Former {
		if f.Node != e.Owner {
			c.PreviousHolder = f.Node
			break
		}
	}
	return c
}
