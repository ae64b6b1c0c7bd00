package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/osrg/gobgp/v3/pkg/log"
)

// A listener takes what gobgp logs: all of it is Debug here, and what explains
// why there is no session is remembered.
type listener struct {
	of atomic.Pointer[peer] // whom it is about; nil: nobody
	// connecting: no session stands, so that failed attempts to connect are told. gobgp
	// tells of them at its debug level only, which costs too much while routes are sent.
	connecting atomic.Bool
}

func (l *listener) Panic(msg string, f log.Fields) { l.tell(slog.LevelError, msg, f) }
func (l *listener) Fatal(msg string, f log.Fields) { l.tell(slog.LevelError, msg, f) }
func (l *listener) Error(msg string, f log.Fields) { l.tell(slog.LevelDebug, msg, f) }
func (l *listener) Warn(msg string, f log.Fields)  { l.tell(slog.LevelDebug, msg, f) }
func (l *listener) Info(msg string, f log.Fields)  { l.tell(slog.LevelDebug, msg, f) }
func (l *listener) Debug(msg string, f log.Fields) {
	if l.connecting.Load() {
		l.tell(slog.LevelDebug, msg, f)
	}
}
func (l *listener) SetLevel(log.LogLevel) {}
func (l *listener) GetLevel() log.LogLevel {
	if l.connecting.Load() {
		return log.DebugLevel
	}
	return log.InfoLevel
}

func (l *listener) tell(level slog.Level, msg string, f log.Fields) {
	p := l.of.Load()
	if p == nil {
		return
	}
	p.log.Log(context.Background(), level, "gobgp: "+msg, "fields", fmt.Sprint(map[string]any(f)))
	if reason := explain(msg, f); reason != "" {
		p.learn(reason)
	}
}

// explain makes a sentence of what gobgp logs when a session does not come up, or ends.
func explain(msg string, f log.Fields) string {
	switch msg {
	case "failed to connect":
		if err, ok := f["Error"].(error); ok {
			return connectError(err)
		}
	case "state changed":
		// Before the session stood; afterwards it is "Peer Down" that tells.
		if fmt.Sprint(f["new"]) == "BGP_FSM_IDLE" && fmt.Sprint(f["reason"]) == "read-failed" {
			return "the peer accepts the connection and closes it: it does not know this node, or has another AS number for it"
		}
	case "Peer Down":
		if r := fmt.Sprint(f["Reason"]); r == "read-failed" || r == "write-failed" {
			return "the connection was closed or broke"
		}
	case "received notification":
		text := "the peer sent " + notification(f)
		if words, _ := f["Communicated-Reason"].(string); words != "" {
			text += fmt.Sprintf(", saying %q", words)
		}
		return text
	case "sent notification":
		if err, ok := f["Data"].(error); ok {
			return "what the peer sent was refused: " + err.Error()
		}
	case "hold timer expired":
		return "the hold time passed without a word from the peer"
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message", "Session will be reset due to malformed BGP update message":
		return "the peer sent a malformed message"
	}
	return ""
}

// connectError says of an error of connect(2) what it may mean.
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

// names of NOTIFICATION codes (RFC 4271 section 4.5, RFC 4486, RFC 8538).
var codes = map[uint8]string{1: "Message Header Error", 2: "OPEN Message Error", 3: "UPDATE Message Error", 4: "Hold Timer Expired", 5: "Finite State Machine Error", 6: "Cease"}

var subcodes = map[[2]uint8]string{
	{2, 1}: "Unsupported Version Number", {2, 2}: "Bad Peer AS", {2, 3}: "Bad BGP Identifier", {2, 6}: "Unacceptable Hold Time", {2, 7}: "Unsupported Capability",
	{6, 1}: "Maximum Number of Prefixes Reached", {6, 2}: "Administrative Shutdown", {6, 3}: "Peer De-configured", {6, 4}: "Administrative Reset",
	{6, 5}: "Connection Rejected", {6, 6}: "Other Configuration Change", {6, 7}: "Connection Collision Resolution", {6, 8}: "Out of Resources", {6, 9}: "Hard Reset",
}

func notification(f log.Fields) string {
	code, _ := f["Code"].(uint8)
	sub, _ := f["Subcode"].(uint8)
	text := codes[code]
	if text == "" {
		return fmt.Sprintf("NOTIFICATION %d/%d", code, sub)
	}
	if s := subcodes[[2]uint8{code, sub}]; s != "" {
		text += ": " + s
	}
	return fmt.Sprintf("%s (%d/%d)", text, code, sub)
}
