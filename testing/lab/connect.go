package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// connectTimeout is the limit for an attempt, with the response.
const connectTimeout = 2 * time.Second

// A Connect regularly opens a new connection from the host cl, makes one HTTP request over it and reads the response.
type Connect struct {
	lab    *Lab
	addr   string // IP:port
	path   string
	every  time.Duration
	began  time.Time
	stop   context.CancelFunc
	done   sync.WaitGroup
	ended  time.Time
	stalls []Stall

	mu       sync.Mutex // guards attempts
	attempts []Attempt
}

// An Attempt is one connection.
type Attempt struct {
	Began   time.Time
	Latency time.Duration // until the answer was read, or it failed
	Err     error
	Pod     string     // that answered
	Node    string     // of the pod
	Client  netip.Addr // the source address that the pod saw
}

// Connect starts to connect to to, "IP:port" or "http://IP:port/path", once per every, each attempt with 2 s, until
// Stop or ctx.
func (l *Lab) Connect(ctx context.Context, every time.Duration, to string) (*Connect, error) {
	if !strings.Contains(to, "://") {
		to = "http://" + to + "/"
	}
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = "80"
	}
	addr, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil || u.Scheme != "http" {
		return nil, fmt.Errorf("connect to %s: want IP:port or http://IP:port/path", to)
	}
	c := &Connect{lab: l, addr: addr.String(), path: u.RequestURI(), every: every, began: time.Now()}
	ctx, c.stop = context.WithCancel(ctx)
	c.done.Go(func() { c.run(ctx) })
	return c, nil
}

// A Stall is a time in which this process should have run and did not: an outage then may be its own.
type Stall struct{ From, To time.Time }

func (c *Connect) run(ctx context.Context) {
	next := c.began
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		c.done.Go(func() {
			a := c.attempt()
			c.mu.Lock()
			c.attempts = append(c.attempts, a)
			c.mu.Unlock()
		})
		select {
		case <-ctx.Done():
			c.ended = time.Now()
			return
		case <-tick.C:
		}
		next = next.Add(c.every)
		if now := time.Now(); now.Sub(next) > 5*time.Millisecond {
			c.stalls = append(c.stalls, Stall{next, now})
			next = now
		}
	}
}

// attempt makes one connection. Stop does not interrupt it.
func (c *Connect) attempt() (a Attempt) {
	a.Began = time.Now()
	defer func() { a.Latency = time.Since(a.Began) }()
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	conn, err := c.lab.DialFrom("cl")(ctx, "tcp", c.addr)
	if err != nil {
		a.Err = err
		return a
	}
	defer conn.Close()
	// A reset, no TIME_WAIT: a node that masquerades would swallow the first packet of a new connection by the same port.
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.SetDeadline(a.Began.Add(connectTimeout))
	answer, err := httpGet(conn, c.addr, c.path)
	if err != nil {
		a.Err = err
		return a
	}
	var client string
	if _, err := fmt.Sscan(answer, &a.Pod, &a.Node, &client); err != nil {
		a.Err = fmt.Errorf("unexpected answer %q", answer)
		return a
	}
	a.Client, a.Err = netip.ParseAddr(client)
	a.Client = a.Client.Unmap()
	return a
}

// httpGet sends a GET request over conn and returns the body; a status other than 200 is an error.
func httpGet(conn net.Conn, host, path string) (string, error) {
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// Stop ends the attempts, waits for those under way, and reports.
func (c *Connect) Stop() ConnectReport {
	c.stop()
	c.done.Wait()
	slices.SortFunc(c.attempts, func(a, b Attempt) int { return a.Began.Compare(b.Began) })
	r := ConnectReport{To: c.addr, Every: c.every, Began: c.began, Ended: c.ended}
	r.summarize(c.attempts, c.stalls)
	return r
}

// A ConnectReport is what a Connect has seen.
type ConnectReport struct {
	To            string
	Every         time.Duration
	Began, Ended  time.Time
	Attempts      int
	Failures      []Attempt
	P50, P99, Max time.Duration // latency of those that succeeded
	// Outage is the longest time without a success, from end to end of attempts, less this process's own stalls.
	Outage  time.Duration
	Stalled time.Duration // how long it was kept from running, in all
	Pods    map[string]int
	Clients map[netip.Addr]int // source addresses seen by the pods
}

func (r *ConnectReport) summarize(attempts []Attempt, stalls []Stall) {
	r.Attempts, r.Pods, r.Clients = len(attempts), map[string]int{}, map[netip.Addr]int{}
	var latencies []time.Duration
	var successes []time.Time
	for _, a := range attempts {
		if a.Err != nil {
			r.Failures = append(r.Failures, a)
			continue
		}
		latencies = append(latencies, a.Latency)
		successes = append(successes, a.Began.Add(a.Latency))
		r.Pods[a.Pod]++
		r.Clients[a.Client]++
	}
	slices.SortFunc(successes, time.Time.Compare)
	last := r.Began
	for _, s := range append(successes, r.Ended) {
		r.Outage = max(r.Outage, s.Sub(last)-Overlap(stalls, last, s))
		last = s
	}
	r.Stalled = Overlap(stalls, r.Began, r.Ended)
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		r.P50, r.P99, r.Max = latencies[n/2], latencies[n*99/100], latencies[n-1]
	}
}

// Instants is at how many instants, at least, something happened, if that failed connections which were under way.
func (r *ConnectReport) Instants() (n int) {
	var until time.Time // all that failed at this one were under way until here
	for _, a := range r.Failures {
		ended := a.Began.Add(a.Latency)
		if a.Began.After(until) {
			n++
			until = ended
		} else if ended.Before(until) {
			until = ended
		}
	}
	return n
}

// Overlap is how much of a time was stalled.
func Overlap(stalls []Stall, from, to time.Time) time.Duration {
	var sum time.Duration
	for _, s := range stalls {
		if s.From.Before(from) {
			s.From = from
		}
		if s.To.After(to) {
			s.To = to
		}
		sum += max(0, s.To.Sub(s.From))
	}
	return sum
}

// String lists the figures and the first ten failures.
func (r ConnectReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "connect to %s, every %v for %v: %d attempts, %d failures, p50 %s, p99 %s, max %s, longest "+
		"without a success %s\n",
		r.To, r.Every, r.Ended.Sub(r.Began).Round(time.Millisecond), r.Attempts, len(r.Failures), ms(r.P50), ms(r.P99),
		ms(r.Max), ms(r.Outage))
	if r.Stalled > 0 {
		fmt.Fprintf(&b, "  (this process was kept from running for %s of the time)\n", ms(r.Stalled))
	}
	for _, p := range slices.Sorted(maps.Keys(r.Pods)) {
		fmt.Fprintf(&b, "  %6d answered by %s\n", r.Pods[p], p)
	}
	for _, c := range slices.SortedFunc(maps.Keys(r.Clients), netip.Addr.Compare) {
		fmt.Fprintf(&b, "  %6d seen as %s\n", r.Clients[c], c)
	}
	for i, f := range r.Failures {
		if i == 10 {
			fmt.Fprintf(&b, "  and %d failures more\n", len(r.Failures)-i)
			break
		}
		fmt.Fprintf(&b, "  %+9.3fs  after %s: %v\n", f.Began.Sub(r.Began).Seconds(), ms(f.Latency), f.Err)
	}
	return b.String()
}
