package serve

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"time"
)

//go:embed page.html
var source string

//go:embed page.css
var assets embed.FS

// A View is what the page shows. The template escapes all texts: they may be users'.
type View struct {
	Node, Version string
	Now           time.Time
	Problems      []Problem
	MoreProblems  int // that are not in Problems
	Services      []ServiceRow
	ServiceCount  int // of all
	MoreServices  int // that are not in Services
	Nodes         []NodeRow
	Pools         []PoolRow
	Moves         []MoveRow // the latest first
}

// A Problem is something that an operator should mend.
type Problem struct {
	Subject string // a Service or a node
	Message string
	Advice  string // what to do, or ""
}

// A ServiceRow is a row of the table of Services.
type ServiceRow struct {
	Service, VIPs, Owner string
	Since                time.Time // when Owner got it; zero if nobody has it
	How                  string    // by what means it is announced
	Reason, Message      string
	Class                string // "", "warn" or "bad"
}

// A NodeRow is a row of the table of nodes.
type NodeRow struct {
	Node     string
	Services int // that it owns
	State    string
	Class    string // "", "warn" or "bad"
}

// A PoolRow is a row of the table of pools.
type PoolRow struct {
	Pool, Family, Used, Size string
	Class                    string // "", "warn" or "bad"
}

// A MoveRow is a row of the list of moves.
type MoveRow struct {
	At                             time.Time
	Service, VIPs, From, To, Cause string
	Outage                         string // in words; "" if it is not known
	Class                          string // of its dot: "", "warn" or "bad"
}

// Title begins with how many problems there are.
func (v View) Title() string {
	title := "Herald on " + v.Node
	if n := len(v.Problems) + v.MoreProblems; n > 0 {
		title = fmt.Sprintf("(%d) %s", n, title)
	}
	return title
}

const hours = 6

// A Dot is a move on the timeline; a tick is an hour.
type Dot struct {
	X, Y  int
	Label string
	Class string
}

// Hours is how many hours the timeline shows.
func (v View) Hours() int { return hours }

// x returns where t is on the timeline, of 1000, if it is.
func (v View) x(t time.Time) (x int, ok bool) {
	age := v.Now.Sub(t)
	return int(1000 * (hours*time.Hour - age) / (hours * time.Hour)), age >= 0 && age < hours*time.Hour
}

// Dots returns the last hours' moves. Of those that would cover each other up to three, above each other.
func (v View) Dots() (dots []Dot) {
	const width = 8
	at := make(map[int]int)
	for _, m := range v.Moves {
		x, ok := v.x(m.At)
		n := at[x/width]
		if at[x/width]++; !ok || n > 2 {
			continue
		}
		dots = append(dots,
			Dot{X: x, Y: 40 - 12*n, Label: m.At.UTC().Format(time.TimeOnly) + " " + m.Service + ": " + m.From + " → " + m.To,
				Class: m.Class})
	}
	return dots
}

// Ticks returns the full hours on the timeline.
func (v View) Ticks() (ticks []Dot) {
	for t := v.Now.UTC().Truncate(time.Hour); ; t = t.Add(-time.Hour) {
		x, ok := v.x(t)
		if !ok {
			return ticks
		}
		ticks = append(ticks, Dot{X: x, Label: t.Format("15:04")})
	}
}

var pageTemplate = template.Must(template.New("page").Parse(source))

func render(v View) ([]byte, error) {
	var b bytes.Buffer
	err := pageTemplate.ExecuteTemplate(&b, "page", v)
	return b.Bytes(), err
}

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

// pageAge is how old other hosts' pages may be.
const pageAge = time.Second

// A renderer serves a costly page. It makes one at a time, and gives other hosts one up to pageAge old, however often
// they read. Requests over loopback get a new one.
type renderer struct {
	page http.Handler
	last chan *answer // holds the last page, nil before the first, but for while a new one is made
}

func newRenderer(page http.Handler) *renderer {
	r := &renderer{page: page, last: make(chan *answer, 1)}
	r.last <- nil
	return r
}

func (r *renderer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p := r.recent(overLoopback(req))
	maps.Copy(w.Header(), p.header)
	w.WriteHeader(p.code)
	_, _ = w.Write(p.body.Bytes()) // fails only if the client went away
}

// recent returns the last page, or, if that is too old or fresh is true, a new one, for requests without headers: one
// form for all.
func (r *renderer) recent(fresh bool) *answer {
	p := <-r.last
	defer func() { r.last <- p }() // even after a panic
	if fresh || p == nil || time.Since(p.at) > pageAge {
		next := &answer{header: http.Header{}, code: http.StatusOK}
		r.page.ServeHTTP(next, &http.Request{Method: http.MethodGet, Header: http.Header{}})
		next.at, p = time.Now(), next
	}
	return p
}

// An answer is a http.ResponseWriter that keeps what is written.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
	at     time.Time // when it was complete
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
