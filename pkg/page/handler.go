package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

const (
	maxStreams   = 8                // streams of events at a time
	lookEvery    = time.Second      // how often what the page shows is made again for streams
	commentEvery = 10 * time.Second // a stream without news gets a comment, so that both ends know that the other lives
	writeLimit   = 5 * time.Second  // how long a client may take to read an event
)

// A Handler serves the page, its assets, and /events.
type Handler struct {
	view    func() View // called for each page, and each second while there is a stream
	log     *slog.Logger
	streams chan struct{} // holds one for each stream that is open
}

// NewHandler makes a Handler. view is called by any goroutine, and must not block.
func NewHandler(view func() View, log *slog.Logger) *Handler {
	return &Handler{view: view, log: log, streams: make(chan struct{}, maxStreams)}
}

// policy has a browser load nothing from elsewhere, and run no script and no style but those of the files.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	switch r.URL.Path {
	case "/":
		text, err := render(h.view(), true)
		if err != nil {
			h.log.Warn("the page can't be rendered", "err", err)
			http.Error(w, "the page can't be rendered", http.StatusInternalServerError)
			return
		}
		header.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(text) // fails only if the client went away
	case "/page.css", "/page.js":
		http.ServeFileFS(w, r, assets, r.URL.Path[1:])
	case "/events":
		h.serveEvents(w, r)
	default:
		http.NotFound(w, r)
	}
}

// serveEvents sends what the page shows whenever it has changed, until the client goes away.
func (h *Handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are open already", maxStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := stream{w: w, c: http.NewResponseController(w)}
	if err := s.c.SetReadDeadline(time.Time{}); err != nil { // the limit for a request would end the stream
		http.Error(w, "this connection can't be streamed on", http.StatusInternalServerError)
		return
	}
	if err := h.follow(r.Context(), &s); err != nil && r.Context().Err() == nil {
		h.log.Debug("a stream of events has ended", "err", err)
	}
}

// A stream is a client that follows the page.
type stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// send writes and flushes text within writeLimit.
func (s *stream) send(text string) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.c.Flush()
}

// follow sends an event whenever the page has changed but for its time, until ctx ends, whose error it returns.
func (h *Handler) follow(ctx context.Context, s *stream) error {
	var last []byte
	for sent := time.Now(); ; {
		v := h.view()
		now := v.Now
		v.Now = now.Truncate(time.Minute) // the time alone is no news but once a minute, for the timeline
		text, err := render(v, false)
		if err != nil {
			return err
		}
		switch {
		case !bytes.Equal(text, last):
			last = text
			encoded, err := json.Marshal(map[string]string{"main": string(text), "title": v.Title()}) // one line
			if err != nil {
				return err
			}
			if err := s.send("data: " + string(encoded) + "\n\n"); err != nil {
				return err
			}
			sent = time.Now()
		case time.Since(sent) > commentEvery:
			if err := s.send(": nothing new\n\n"); err != nil {
				return err
			}
			sent = time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}
