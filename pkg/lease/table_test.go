package lease

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// began is when the tables of these tests begin.
var began = time.Date(2026, 11, 28, 6, 0, 0, 0, time.UTC)

// leaseOf is the Lease of a table with that text.
func leaseOf(number int64, text string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{OwnersAnnotation: text}},
		Spec:       coordinationv1.LeaseSpec{LeaseTransitions: new(int32(number))},
	}
}

// units is the names of what a node has in an epoch, sorted.
func (t *Table) units(node string, epoch int64) (all []string) {
	for k, e := range t.Units {
		if e.Owner == node && e.Epoch == epoch {
			all = append(all, k.Name)
		}
	}
	slices.Sort(all)
	return all
}

// TestTableText: what a person reads in the table, and that it says all of it.
func TestTableText(t *testing.T) {
	table := newTable(0, nil).with([]change{
		{unit: lk("b"), owner: "n1", epoch: 7, cause: "it is the\n best node"},
		{unit: lk("a"), owner: "n1", epoch: 7, cause: "it is the best node"},
	}, began)
	table = table.with([]change{{unit: lk("c"), owner: "n1", epoch: 7}}, began.Add(time.Second))
	table = table.with([]change{
		{unit: lk("b"), owner: "n2", epoch: 8, cause: "n1 is drained cause=x"}, {unit: lk("d"), owner: "n2", epoch: 9},
	}, began.Add(time.Minute))
	table = table.with([]change{{unit: lk("c")}}, began.Add(time.Hour+time.Millisecond))
	const want = `n1@7 number=1 since=2026-11-28T06:00:00.000000Z cause=it is the best node
  default/kubevip-a
n2@8 number=3 since=2026-11-28T06:01:00.000000Z moves=1 before=n1@1795845660 cause=n1 is drained cause=x
  default/kubevip-b
n2@9 number=3 since=2026-11-28T06:01:00.000000Z
  default/kubevip-d
nobody number=4 since=2026-11-28T07:00:00.001000Z moves=1 before=n1@1795849200
  default/kubevip-c
`
	check.Same(t, want, table.text(), "the text")
	read := check.Value(parseTable(table.lease(nil, "kube-system", "n1", began)))(t)
	if d := cmp.Diff(table, read, cmp.AllowUnexported(Table{}), cmpopts.EquateApproxTime(time.Second)); d != "" {
		t.Errorf("read again -want +got:\n%s", d)
	}
	if !read.owns("n1") || !read.owns("n2") || read.owns("n3") {
		t.Error("owns is wrong")
	}
}

// TestTableWith: what a change makes of an entry.
func TestTableWith(t *testing.T) {
	before := []vip.FormerHolder{{Node: "n2", Until: time.Unix(90, 0)}, {Node: "n1", Until: time.Unix(80, 0)}}
	had := Entry{Owner: "n1", Epoch: 7, Number: 4, Transitions: 2, At: began, Former: before, Cause: "because"}
	free := Entry{Number: 4, Transitions: 2, At: began, Former: before}
	now := began.Add(time.Minute)
	lost := vip.FormerHolder{Node: "n1", Until: now}
	for _, tt := range []struct {
		name   string
		before Entry
		change change
		want   Entry
	}{
		{"another owner", had, change{owner: "n3", epoch: 9, cause: "why"},
			Entry{"n3", 9, 6, 3, now, []vip.FormerHolder{lost, before[0]}, "why"}},
		{"back to the one before", had, change{owner: "n2", epoch: 9},
			Entry{"n2", 9, 6, 3, now, []vip.FormerHolder{lost, before[0]}, ""}},
		{"nobody", had, change{}, Entry{"", 0, 6, 3, now, []vip.FormerHolder{lost, before[0]}, ""}},
		{"the same in another epoch", had, change{owner: "n1", epoch: 8, cause: "x"}, Entry{"n1", 8, 6, 2, began, before, "because"}},
		{"from nobody", free, change{owner: "n1", epoch: 8}, Entry{"n1", 8, 6, 2, now, before, ""}},
		{"still nobody", free, change{}, Entry{"", 0, 6, 2, now, before, ""}},
		{"the count ends", Entry{Owner: "n1", Transitions: math.MaxInt32}, change{owner: "n2"},
			Entry{"n2", 0, 6, math.MaxInt32, now, []vip.FormerHolder{lost}, ""}},
		{"a long cause", free, change{owner: "n1", cause: strings.Repeat("é", maxCause)},
			Entry{"n1", 0, 6, 2, now, before, strings.Repeat("é", maxCause/2)}},
	} {
		table := newTable(5, map[vip.Key]Entry{lk("a"): tt.before, lk("b"): had})
		tt.change.unit = lk("a")
		next := table.with([]change{tt.change}, now)
		check.Same(t, tt.want, next.Units[lk("a")], "%s", tt.name)
		if d := cmp.Diff(had, next.Units[lk("b")]); d != "" || next.Number != 6 || !cmp.Equal(table.Units[lk("a")], tt.before) {
			t.Errorf("%s: number %d, and the others change, or the table before: %s", tt.name, next.Number, d)
		}
	}
	dropped := newTable(5, map[vip.Key]Entry{lk("a"): had}).with([]change{{unit: lk("a"), drop: true}}, now)
	if len(dropped.Units) > 0 || dropped.Number != 6 {
		t.Errorf("dropped: %+v", dropped)
	}
}

// TestTableDigest: two tables of the same owners have one digest, whatever else they say; others have another.
func TestTableDigest(t *testing.T) {
	of := func(number int64, owner string, epoch int64, unit string) uint64 {
		e := Entry{Owner: owner, Epoch: epoch, Number: number, Cause: fmt.Sprint(number)}
		return newTable(number, map[vip.Key]Entry{lk(unit): e, lk("z"): {Owner: "n9"}}).digest
	}
	one := of(1, "n1", 1, "a")
	check.Equal(t, of(2, "n1", 1, "a"), one, "the digest with another number")
	if of(1, "n2", 1, "a") == one || of(1, "n1", 2, "a") == one || of(1, "n1", 1, "b") == one || newTable(1, nil).digest == one {
		t.Error("tables of other owners have the same digest")
	}
}

// TestFormerHolders: who had a unit before, and how much of it is kept.
func TestFormerHolders(t *testing.T) {
	now := time.Unix(100, 0)
	var long []string
	for i := range 100 {
		long = append(long, fmt.Sprintf("x%d@1", i))
	}
	for _, tt := range []struct{ name, holder, before, want string }{
		{"the first", "n1", "", "n1@100"},
		{"another again", "n2", "n1@90", "n2@100,n1@90"},
		{"and back", "n1", "n2@95,n1@90", "n1@100,n2@95"},
		{"each once", "n2", "n3@95,n2@90,n4@80", "n2@100,n3@95,n4@80"},
		{"what somebody wrote", "n1", "n3,@5,n4@x,=@,n5@7", "n1@100,n5@7"},
		{"a circle that somebody wrote", "n1", "n2@95,n1@90,n2@80,n3@70,n2@60", "n1@100,n2@95,n3@70"},
		{"no more than eight", "n1", strings.Join(long, ","), "n1@100," + strings.Join(long[:7], ",")},
	} {
		got := formerHoldersText(addFormerHolder(parseFormerHolders(tt.before), tt.holder, now))
		check.Equal(t, got, tt.want, "%s", tt.name)
	}
}

// TestParseTable: a table that Herald has not written is read, or is none.
func TestParseTable(t *testing.T) {
	at := Entry{Owner: "n1", Epoch: 7, Number: 3}
	for _, tt := range []struct {
		name, text string
		want       map[vip.Key]Entry // nil: it can't be read
	}{
		{"empty", "", map[vip.Key]Entry{}},
		{"one", "n1@7 number=3\n  a/b\n", map[vip.Key]Entry{{Namespace: "a", Name: "b"}: at}},
		{"without an end of line", "n1@7 number=3\n  a/b", map[vip.Key]Entry{{Namespace: "a", Name: "b"}: at}},
		{"an owner of nothing", "n1@7 number=3\n", map[vip.Key]Entry{}},
		{"what a later version adds", "n1@7 number=3 weight=9\n  a/b\n", map[vip.Key]Entry{{Namespace: "a", Name: "b"}: at}},
		{"twice", "n1@7\n  a/b\nn1@7 number=3\n  a/b\n", map[vip.Key]Entry{{Namespace: "a", Name: "b"}: at}},
		{"a unit without an owner", "  a/b\n", nil},
		{"a unit without a namespace", "n1@7\n  b\n", nil},
		{"an empty line", "n1@7\n\n  a/b\n", nil},
		{"no epoch", "n1\n  a/b\n", nil},
		{"an epoch that is none", "n1@x\n  a/b\n", nil},
		{"no node", "@7\n  a/b\n", nil},
		{"a number that is none", "n1@7 number=x\n  a/b\n", nil},
		{"a number beyond 64 bits", "n1@7 number=9223372036854775808\n  a/b\n", nil},
		{"a time that is none", "n1@7 since=yesterday\n  a/b\n", nil},
		{"moves beyond 32 bits", "n1@7 moves=2147483648\n  a/b\n", nil},
		{"a tab", "n1@7\n\ta/b\n", nil},
	} {
		got, err := parseTable(leaseOf(3, tt.text))
		switch {
		case tt.want == nil:
			if err == nil {
				t.Errorf("%s: read as %+v", tt.name, got.Units)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		default:
			if d := cmp.Diff(tt.want, got.Units); d != "" || got.Number != 3 {
				t.Errorf("%s: number %d, -want +got:\n%s", tt.name, got.Number, d)
			}
		}
	}
	if _, err := parseTable(&coordinationv1.Lease{}); err == nil {
		t.Error("a Lease that is no table is read as one")
	}
}

// TestLargeTable: with 5000 units of long names, which have all moved at different times, the text has room on an object,
// and says who has what; and it says all of what has changed last.
func TestLargeTable(t *testing.T) {
	units := make(map[vip.Key]Entry)
	for i := range 5000 {
		k := vip.Key{Namespace: "ns-" + fmt.Sprint(i%50), Name: fmt.Sprintf("kubevip-service-%04d", i)}
		units[k] = Entry{
			Owner: "n" + fmt.Sprint(i%30), Epoch: 216500000, Number: int64(i + 1), At: began.Add(time.Duration(i) * time.Second),
			Former: []vip.FormerHolder{{Node: "n31", Until: began}, {Node: "n32", Until: began}}, Cause: "a cause of its own " + fmt.Sprint(i),
		}
	}
	table := newTable(6000, units)
	moved := vip.Key{Namespace: "ns-0", Name: "kubevip-service-0000"}
	table = table.with([]change{{unit: moved, owner: "n5", epoch: 216500001, cause: "it is drained"}}, began.Add(time.Hour))
	text := table.text()
	check.Between(t, len(text), 0, 256<<10-10<<10, "bytes")
	read := check.Value(parseTable(table.lease(nil, "kube-system", "n1", began)))(t)
	if read.digest != table.digest || len(read.Units) != 5000 {
		t.Errorf("%d units are read, digests %x and %x", len(read.Units), read.digest, table.digest)
	}
	check.Same(t, table.Units[moved], read.Units[moved], "what changed last")
	for k, e := range read.Units {
		if e.Number <= 0 || e.Number > table.Number {
			t.Fatalf("%s has number %d of %d", k, e.Number, table.Number)
		}
	}
}

// TestTableLease: the object keeps what is not Herald's.
func TestTableLease(t *testing.T) {
	table := newTable(0, nil).with([]change{{unit: lk("a"), owner: "n1", epoch: 1}}, began)
	known := leaseOf(0, "")
	known.ResourceVersion, known.Labels = "5", map[string]string{"mine": "yes", "app.kubernetes.io/managed-by": "x"}
	known.Annotations["mine"] = "yes"
	x := table.lease(known, "kube-system", "n1", began)
	if x.ResourceVersion != "5" || x.Labels["mine"] != "yes" || x.Annotations["mine"] != "yes" {
		t.Errorf("%+v", x.ObjectMeta)
	}
	if x.Labels["app.kubernetes.io/managed-by"] != "herald" || holder(x) != "n1" || transitions(x) != 1 || !renewTime(x).Equal(began) {
		t.Errorf("%+v %+v", x.Labels, x.Spec)
	}
	if known.Annotations[OwnersAnnotation] != "" || known.Spec.HolderIdentity != nil {
		t.Error("the object that is known has changed")
	}
}

// FuzzParseTable: whatever the annotation says, what is read of it is written and read as the same, and few former owners
// of a unit are kept, each once.
func FuzzParseTable(f *testing.F) {
	f.Add(int32(4), "n1@7 number=1 since=2026-11-28T06:00:00.000000Z moves=1 before=n2@90,n3@80 cause=x\n  a/b\nnobody number=4\n  a/c\n")
	f.Add(int32(-1), "n1@9223372036854775807 number=-9223372036854775808 moves=-2147483648\n  /\n")
	f.Add(int32(math.MaxInt32), "n1@1 before=a@1,b@1,a@2,@3,x@y,n@9223372036854775807 cause= \n  a/b/c d\n")
	f.Add(int32(0), "n@1@2 since=9999-12-31T23:59:59.999999999+14:00\n  a/b\n a/b")
	f.Add(int32(0), strings.Repeat("nobody\n  a/b\n", 1000))
	f.Fuzz(func(t *testing.T, number int32, text string) {
		table, err := parseTable(leaseOf(int64(number), text))
		if err != nil {
			return
		}
		for k, e := range table.Units {
			seen := make(map[string]bool)
			for _, h := range e.Former {
				if h.Node == "" || seen[h.Node] {
					t.Errorf("%s was of %v", k, e.Former)
				}
				seen[h.Node] = true
			}
			if len(e.Former) > maxFormerHolders || len(e.Cause) > maxCause {
				t.Errorf("%s: %d former owners, a cause of %d bytes", k, len(e.Former), len(e.Cause))
			}
		}
		again, err := parseTable(leaseOf(table.Number, table.text()))
		if err != nil {
			t.Fatalf("what is written can't be read: %q", table.text())
		}
		if d := cmp.Diff(table.Units, again.Units, cmpopts.EquateApproxTime(time.Microsecond)); d != "" && len(text) < maxTable/2 {
			t.Errorf("-want +got:\n%s", d)
		}
		check.Equal(t, again.digest, table.digest, "the digest of what is written again")
	})
}

// TestMovesText: what a person reads of moves, and that it says all of it.
func TestMovesText(t *testing.T) {
	table := newTable(0, nil).with([]change{{unit: lk("a"), owner: "n1", epoch: 7}, {unit: lk("b"), owner: "n1", epoch: 7}, {unit: lk("c")}}, began)
	table = table.with([]change{{unit: lk("a"), owner: "n1", epoch: 8}}, began.Add(time.Second)) // no move
	table = table.with([]change{
		{unit: lk("a"), owner: "n2", epoch: 9, cause: "n1: it is\n dead", heard: began.Add(59 * time.Second)}, {unit: lk("b"), drop: true, cause: "gone"},
	}, began.Add(time.Minute))
	const want = `2026-11-28T06:01:00.000000Z from=n1 to=n2 outage=1s cause=n1: it is dead
  default/kubevip-a
2026-11-28T06:01:00.000000Z from=n1 cause=gone
  default/kubevip-b
2026-11-28T06:00:00.000000Z to=n1
  default/kubevip-a
  default/kubevip-b
`
	written := table.lease(nil, "kube-system", "n1", began)
	check.Same(t, want, written.Annotations[MovesAnnotation], "the text")
	moves, ok := Moves([]*coordinationv1.Lease{written}, "kube-system")
	slices.Reverse(moves)
	if got := movesText(moves); got != want || !ok || *moves[0].Outage != time.Second || moves[1].Outage != nil {
		t.Errorf("read again it is\n%s", got)
	}
	if _, ok := Moves([]*coordinationv1.Lease{written}, "tenant"); ok {
		t.Error("a table of another namespace counts")
	}
	for _, text := range []string{"", "x\n  default/a\n", "2026-11-28T06:01:00Z to=n1\ndefault/a\n", "\n\n"} {
		check.Equal(t, len(parseMoves(text)), 0, "moves in %q", text)
	}
	check.Equal(t, shortenMoves("what is that?\n", 3), "", "what no line of is a move, shortened")
}

// TestTableIsBounded: whatever Services are called, the API server takes the table; one namespace leaves half of it to
// others, of which none waits for another; and what is there moves as ever.
func TestTableIsBounded(t *testing.T) {
	l := &Leases{o: Options{Log: slog.New(slog.DiscardHandler)}}
	base := newTable(0, nil)
	place := func(all []change) {
		t.Helper()
		_, base = l.fit(base, all, began)
		size := 0
		for key, value := range base.lease(nil, "kube-system", "n1", began).Annotations {
			size += len(key) + len(value)
		}
		if size > 256<<10 {
			t.Fatalf("%d bytes of annotations for %d units", size, len(base.Units))
		}
	}
	units := func(namespace string, number, length int) (all []change) {
		for i := range number {
			name := fmt.Sprintf("%04d%s", i, strings.Repeat("x", length-4))
			all = append(all, change{unit: vip.Key{Namespace: namespace, Name: name}, owner: "n1", epoch: 7, cause: "it is new"})
		}
		return all
	}
	for _, c := range units("hog", 600, 253) { // one by one: each has a number of its own
		place([]change{c})
	}
	hogs := len(base.Units)
	for range 5 {
		place(slices.Concat(units("also", 400, 253), units("shop", 100, 20), units("zoo", 100, 20)))
	}
	have := make(map[string]int)
	for k := range base.Units {
		have[k.Namespace]++
	}
	if have["hog"] != hogs || hogs < 300 || have["shop"] != 100 || have["zoo"] != 100 || have["also"] < 250 {
		t.Errorf("units: %v, of the first %d before", have, hogs)
	}
	var all []change
	for step := range 2 { // at last from a hundred owners to a hundred
		all = nil
		for i, k := range slices.SortedFunc(maps.Keys(base.Units), vip.Key.Compare) {
			all = append(all, change{unit: k, owner: fmt.Sprintf("node-%d.example.com", i/(1+99*step)%100), epoch: 1795857165, cause: strings.Repeat("silent ", 30)})
		}
		place(all)
	}
	for k, e := range check.Value(parseTable(base.lease(nil, "kube-system", "n1", began)))(t).Units {
		if e.Number < base.newest[quorum.ClaimText(e.Owner, e.Epoch)] {
			t.Fatalf("%s has number %d: nobody would see whether its owner knows", k, e.Number)
		}
	}
	if base.Units[all[0].unit].Owner != all[0].owner {
		t.Error("what is there does not move")
	}
}

// TestMovesAreBounded: 2000 Services have room for a move each; the moves of a namespace that flaps make nobody forget
// those of another; a table that needs the room has it.
func TestMovesAreBounded(t *testing.T) {
	var all []change
	for i := range 2000 {
		all = append(all, change{unit: vip.Key{Namespace: "shop", Name: fmt.Sprint("kubevip-web-", i)}, owner: "n1", epoch: 1})
	}
	table := newTable(0, nil).with(append(all, change{unit: lk("quiet"), owner: "n1"}), began)
	check.Equal(t, len(parseMoves(table.moves)), 2001, "moves, one of each Service")
	moves := table.moves
	table = newTable(1, nil)
	table.moves = moves
	for i := range 3000 {
		table = table.with([]change{{unit: all[0].unit, owner: fmt.Sprint("n", 2+i%2), epoch: 1, cause: "it flaps"}}, began.Add(time.Duration(i)*time.Second))
		if len(table.moves) > maxMoves {
			t.Fatalf("%d bytes of moves", len(table.moves))
		}
	}
	read := parseMoves(table.moves)
	if last := read[len(read)-1]; last.Service != lk("quiet") || read[0].To != "n3" || len(read) < 400 {
		t.Errorf("of %d moves the first is %+v, the last %+v", len(read), read[0], last)
	}
	for i := range all {
		all[i].owner = fmt.Sprint("node-with-a-long-name-", i)
	}
	x := table.with(all, began).lease(nil, "kube-system", "n1", began)
	left := maxAnnotations - len(x.Annotations[OwnersAnnotation])
	if n := len(x.Annotations[MovesAnnotation]); left > maxMoves || left < 1000 || n > left || n < left/2 {
		t.Errorf("%d bytes of moves, where %d are left", n, left)
	}
}
