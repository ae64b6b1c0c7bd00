package serve

import (
	"bytes"
	"maps"
	"net/http"
	"time"
)

// pageAge is how old other hosts' pages may be.
const pageAge = time.Second

// A renderer serves a costly page. It makes one at a time, and gives other hosts one up to pageAge old, however often
// they read. Requests over loopback get a new one.
type renderer struct {
	page http.Handler
	last chan rendered // holds the last page, but for while a new one is made
}

type rendered struct {
	at     time.Time
	header http.Header
	code   int
	body   []byte
}

func newRenderer(page http.Handler) *renderer {
	r := &renderer{page: page, last: make(chan rendered, 1)}
	r.last <- rendered{}
	return r
}

func (r *renderer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	select {
	case p := <-r.last:
		p = r.recent(p, overLoopback(req))
		maps.Copy(w.Header(), p.header)
		w.WriteHeader(p.code)
		_, _ = w.Write(p.body) // fails only if the client went away
	case <-req.Context().Done():
	}
}

// recent returns p, or a new page if that is too old or fresh is true, and leaves it in last, even after a panic.
func (r *renderer) recent(p rendered, fresh bool) rendered {
	defer func() { r.last <- p }()
	if fresh || p.at.IsZero() || time.Since(p.at) > pageAge {
		p = r.render()
	}
	return p
}

// render makes the page for requests without headers: one form for all.
func (r *renderer) render() rendered {
	b := answer{header: http.Header{}, code: http.StatusOK}
	r.page.ServeHTTP(&b, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	return rendered{at: time.Now(), header: b.header, code: b.code, body: b.body.Bytes()}
}

// An answer is a http.ResponseWriter that keeps what is written.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
