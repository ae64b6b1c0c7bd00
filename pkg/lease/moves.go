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
		outage := ""
		if m.Outage != nil {
			outage = m.Outage.String()
		}
		head := headText(m.At.UTC().Format(tableTime), "from", m.From, "to", m.To, "outage", outage, "cause", m.Cause)
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
	parseUnits(text, parseMove, func(m vip.Move, unit vip.Key) {
		m.Service = unit
		moves = append(moves, m)
	})
	return moves
}

func parseMove(line string) (m vip.Move, ok bool) {
	values := make(map[string]string)
	at := cutHead(line, values)
	m.From, m.To, m.Cause = values["from"], values["to"], values["cause"]
	if d, err := time.ParseDuration(values["outage"]); err == nil {
		m.Outage = &d
	}
	var err error
	m.At, err = time.Parse(time.RFC3339, at)
	return m, err == nil
}

// shortenMoves returns the latest moves that fit in so many bytes: an eighth goes at a time, the oldest. Of all
// namespaces equally many stay, so that nobody hides others' moves.
func shortenMoves(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for moves := parseMoves(text); len(text) > limit; text = movesText(moves) {
		moves = vip.Share(moves, max(0, len(moves)-len(moves)/8-1), func(m vip.Move) string { return m.Service.Namespace })
	}
	return text
}
