package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// A gobgpLog takes what a server of gobgp logs: it is logged as Debug, and what explains why
// there is no session becomes the peer's reason.
type gobgpLog struct{ server *gobgpServer }

// connecting reports whether no session is established. Only then gobgp logs at its debug level,
// which alone has failed attempts to connect, and costs too much while routes are sent.
func (l *gobgpLog) connecting() bool {
	p := l.server.peer.Load()
	return p == nil || !p.up()
}

func (l *gobgpLog) Panic(msg string, f log.Fields) { l.write(slog.LevelError, msg, f) }
func (l *gobgpLog) Fatal(msg string, f log.Fields) { l.write(slog.LevelError, msg, f) }
func (l *gobgpLog) Error(msg string, f log.Fields) { l.write(slog.LevelDebug, msg, f) }
func (l *gobgpLog) Warn(msg string, f log.Fields)  { l.write(slog.LevelDebug, msg, f) }
func (l *gobgpLog) Info(msg string, f log.Fields)  { l.write(slog.LevelDebug, msg, f) }
func (l *gobgpLog) Debug(msg string, f log.Fields) {
	if l.connecting() {
		l.write(slog.LevelDebug, msg, f)
	}
}
func (l *gobgpLog) SetLevel(log.LogLevel) {}
func (l *gobgpLog) GetLevel() log.LogLevel {
	if l.connecting() {
		return log.DebugLevel
	}
	return log.InfoLevel
}

func (l *gobgpLog) write(level slog.Level, msg string, f log.Fields) {
	p := l.server.peer.Load()
	if p == nil {
		return
	}
	p.log.Log(context.Background(), level, "gobgp: "+msg, "fields", fmt.Sprint(map[string]any(f)))
	if reason := explain(msg, f); reason != "" {
		p.setReason(reason)
	}
}

// explain is a sentence for what gobgp logs when a session does not come up, or ends; "" for
// all else that it logs.
func explain(msg string, f log.Fields) string {
	switch msg {
	case "failed to connect":
		if err, ok := f["Error"].(error); ok {
			return connectError(err)
		}
	case "state changed":
		// Before the session stood; afterwards there is "Peer Down".
		if fmt.Sprint(f["new"]) == "BGP_FSM_IDLE" && fmt.Sprint(f["reason"]) == "read-failed" {
			return "the peer accepts the connection and closes it: it does not know this node, or has another AS number for it"
		}
	case "Peer Down":
		if r := fmt.Sprint(f["Reason"]); r == "read-failed" || r == "write-failed" {
			return "the connection was closed or broke"
		}
	case "received notification":
		code, _ := f["Code"].(uint8)
		sub, _ := f["Subcode"].(uint8)
		text := fmt.Sprintf("the peer sent a NOTIFICATION, %s", bgp.NewNotificationErrorCode(code, sub))
		if why, _ := f["Communicated-Reason"].(string); why != "" {
			text += fmt.Sprintf(", saying %q", why)
		}
		return text
	case "sent notification":
		if err, ok := f["Data"].(error); ok {
			return "what the peer sent was refused: " + err.Error()
		}
	case "hold timer expired":
		return "the hold time passed without a message from the peer"
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message", "Session will be reset due to malformed BGP update message":
		return "the peer sent a malformed message"
	}
	return ""
}

// connectError is an error of connect(2) with what it may mean for a BGP session.
func connectError(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "timeout"):
		return "no answer to the connection attempt: the peer is down, filters, or expects another MD5 password"
	case strings.Contains(text, "refused"):
		return "the peer refuses connections: no BGP there, or it does not know this node"
	}
	return text
}
