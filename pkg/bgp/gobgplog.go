package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A gobgpLog is a slog.Handler that takes what a server of gobgp logs: it is logged as Debug, and what explains why
// there is no session becomes the peer's reason.
type gobgpLog struct{ server *gobgpServer }

// Enabled reports whether records of a level are wanted: those of level Debug, which alone have failed attempts to connect, cost too
// much while routes are sent, so only if no session is established.
func (l *gobgpLog) Enabled(_ context.Context, level slog.Level) bool {
	p := l.server.peer.Load()
	return level > slog.LevelDebug || p == nil || !p.up()
}

// WithAttrs returns l: what gobgp adds to each record is about the one peer of the server.
func (l *gobgpLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup returns l.
func (l *gobgpLog) WithGroup(string) slog.Handler { return l }

// Handle logs a record, and stores what it explains. It returns nil.
func (l *gobgpLog) Handle(ctx context.Context, r slog.Record) error {
	p := l.server.peer.Load()
	if p == nil {
		return nil
	}
	fields := make(map[string]slog.Value, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool { fields[a.Key] = a.Value; return true })
	p.log.Log(ctx, slog.LevelDebug, "gobgp: "+r.Message, "fields", fmt.Sprint(fields))
	if reason := explain(r.Message, fields); reason != "" {
		p.setReason(reason)
	}
	return nil
}

// explain is a sentence for what gobgp logs when a session does not come up, or ends; "" for
// all else that it logs.
func explain(msg string, f map[string]slog.Value) string {
	switch msg {
	case "failed to connect":
		return connectError(f["Error"].String())
	case "outgoing connection IO error": // before the session stood; afterwards there is "Peer Down"
		return "the peer accepts the connection and closes it: it does not know this node, or has another AS number for it"
	case "state changed":
		if f["new"].String() == "BGP_FSM_IDLE" && f["old"].String() == "BGP_FSM_OPENCONFIRM" {
			return "the peer refuses what this node sent in its OPEN: it does not know this node, or has another AS number for it"
		}
	case "Peer Down":
		if r := f["Reason"].String(); r == "read-failed" || r == "write-failed" {
			return "the connection was closed or broke"
		}
	case "received notification":
		text := "the peer sent a NOTIFICATION, " + notificationOf(f)
		if why, ok := f["Communicated-Reason"]; ok && why.String() != "" {
			text += fmt.Sprintf(", saying %q", why.String())
		}
		return text
	case "sent notification":
		switch code, _ := notificationCode(f); code {
		case bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, bgp.BGP_ERROR_FSM_ERROR:
			return "what the peer sent was refused: " + notificationOf(f)
		}
	case "hold timer expired":
		return "the hold time passed without a message from the peer"
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message", "Session will be reset due to malformed BGP update message":
		return "the peer sent a malformed message"
	}
	return ""
}

// notificationCode returns code and subcode of a NOTIFICATION (RFC 4271 section 4.5) that gobgp logs.
func notificationCode(f map[string]slog.Value) (code, subcode uint8) {
	number := func(v slog.Value) uint8 {
		if v.Kind() != slog.KindInt64 {
			return 0
		}
		return uint8(v.Int64())
	}
	return number(f["Code"]), number(f["Subcode"])
}

// notificationOf names them.
func notificationOf(f map[string]slog.Value) string {
	return bgp.NewNotificationErrorCode(notificationCode(f)).String()
}

// connectError is an error of connect(2) with what it may mean for a BGP session.
func connectError(text string) string {
	switch {
	case strings.Contains(text, "timeout"):
		return "no answer to the connection attempt: the peer is down, filters, or expects another MD5 password"
	case strings.Contains(text, "refused"):
		return "the peer refuses connections: no BGP there, or it does not know this node"
	}
	return text
}
