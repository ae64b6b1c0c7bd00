package lease

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// MovesAnnotation on the table is the last moves of units (movesText).
const MovesAnnotation = "heraldvip.io/moves"

const (
	maxMoves = 64 << 10 // how long that text may be: a thousand moves and more
	// with the table: an object's annotations may have 256 KiB
	maxAnnotations = 250 << 10
	tableTime      = "2006-01-02T15:04:05.000000Z"
)

// Moves returns the moves in the announcers' table, the oldest first, if there is one; Service is the unit.
func Moves(all []*coordinationv1.Lease, announcers string) (moves []vip.Move, ok bool) {
	for _, x := range all {
		if keyOf(x) == (vip.Key{Namespace: announcers, Name: TableName}) {
			moves = parseMoves(x.Annotations[MovesAnnotation])
			slices.Reverse(moves)
			return moves, true
		}
	}
	return nil, false
}

// Moves returns the function Moves of this node's table.
func (l *Leases) Moves() []vip.Move {
	l.mu.Lock()
	text := l.table.known.moves
	l.mu.Unlock()
	moves := parseMoves(text)
	slices.Reverse(moves)
	return moves
}

// movesText returns moves, the latest first: a line for what units share, and one for each unit.
func movesText(moves []vip.Move) string {
	var b strings.Builder
	last := ""
	for _, m := range moves {
		head := m.At.UTC().Format(tableTime)
		if m.From != "" {
			head += " from=" + m.From
		}
		if m.To != "" {
			head += " to=" + m.To
		}
		if m.Outage != nil {
			head += " outage=" + m.Outage.String()
		}
		if m.Cause != "" {
			head += " cause=" + m.Cause
		}
		if head != last {
			b.WriteString(head + "\n")
		}
		last = head
		b.WriteString("  " + m.Service.String() + "\n")
	}
	return b.String()
}

// parseMoves parses movesText, and leaves out what that does not write.
func parseMoves(text string) (moves []vip.Move) {
	var m vip.Move
	known := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if unit, isUnit := strings.CutPrefix(line, "  "); isUnit {
			namespace, name, ok := strings.Cut(unit, "/")
			if known && ok {
				m.Service = vip.Key{Namespace: namespace, Name: name}
				moves = append(moves, m)
			}
			continue
		}
		m, known = parseMove(line)
	}
	return moves
}

func parseMove(line string) (m vip.Move, ok bool) {
	line, m.Cause, _ = strings.Cut(line, " cause=")
	m.Cause = vip.Truncate(m.Cause, maxCause)
	at, line, _ := strings.Cut(line, " ")
	var err error
	m.At, err = time.Parse(time.RFC3339, at)
	for f := range strings.FieldsSeq(line) {
		switch key, value, _ := strings.Cut(f, "="); key {
		case "from":
			m.From = value
		case "to":
			m.To = value
		case "outage":
			if d, err := time.ParseDuration(value); err == nil {
				m.Outage = &d
			}
		}
	}
	return m, err == nil
}

// shortenMoves returns the latest moves that fit in so many bytes: an eighth goes at a time, the oldest. Of all
// namespaces equally many stay, so that nobody hides others' moves.
func shortenMoves(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for moves := parseMoves(text); len(text) > limit; text = movesText(moves) {
		moves = vip.Share(moves, len(moves)-len(moves)/8-1, func(m vip.Move) string { return m.Service.Namespace })
	}
	return text
}
