package serve

import (
	"log/slog"
	"net/http"
)

// A Handler serves the page and its style sheet.
type Handler struct {
	view func() View // called for each page
	log  *slog.Logger
}

// NewHandler makes a Handler. view is called by any goroutine, and must not block.
func NewHandler(view func() View, log *slog.Logger) *Handler {
	return &Handler{view: view, log: log}
}

// policy has a browser load nothing from elsewhere, run no script, and use only the file's style.
const policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP answers with the page (http.Handler).
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	switch r.URL.Path {
	case "/":
		text, err := render(h.view())
		if err != nil {
			h.log.Warn("the page can't be rendered", "err", err)
			http.Error(w, "the page can't be rendered", http.StatusInternalServerError)
			return
		}
		header.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(text) // fails only if the client went away
	case "/page.css":
		http.ServeFileFS(w, r, assets, "page.css")
	default:
		http.NotFound(w, r)
	}
}
