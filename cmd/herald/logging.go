package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/heraldvip/herald/pkg/config"
)

// newLog makes the log of the manager, in the format that the options name.
func newLog(w io.Writer, c config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.Format != config.JSON {
		return slog.New(slog.NewTextHandler(w, o))
	}
	o.ReplaceAttr = forJSON
	return slog.New(slog.NewJSONHandler(w, o))
}

// warnOfOptions logs the warnings about options, in the format that the options name, and whatever their level is: it
// may be the one that is wrong.
func warnOfOptions(w io.Writer, c config.Log, warnings []string) {
	log := newLog(w, config.Log{Format: c.Format})
	for _, text := range warnings {
		log.Warn(text)
	}
}

// forJSON has durations be a number of seconds, which encoding/json would make nanoseconds, and what has a text but
// no form of its own in JSON, such as a MAC address, be that text.
func forJSON(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error, json.Marshaler, encoding.TextMarshaler:
		case fmt.Stringer:
			a.Value = slog.StringValue(v.String())
		}
	}
	return a
}
