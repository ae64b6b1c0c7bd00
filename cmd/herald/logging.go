package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/heraldvip/herald/pkg/config"
)

func newLog(w io.Writer, c config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.Format != config.JSON {
		return slog.New(slog.NewTextHandler(w, o))
	}
	o.ReplaceAttr = forJSON
	return slog.New(slog.NewJSONHandler(w, o))
}

// warnOfOptions logs warnings at any level: the level may be the wrong option.
func warnOfOptions(w io.Writer, c config.Log, warnings []string) {
	log := newLog(w, config.Log{Format: c.Format})
	for _, text := range warnings {
		log.Warn(text)
	}
}

// forJSON writes durations as seconds, for encoding/json has nanoseconds, and what has only a text as that.
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
