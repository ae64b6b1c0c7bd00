package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// state is what a detached lab leaves for those who attach to it.
type state struct {
	Nodes     int
	ProxyMode string
	Parts     string
	Herald    string
	Since     time.Time
	Pods      map[string]*backend
}

func (l *Lab) saveState() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.MarshalIndent(state{l.opts.Nodes, l.opts.ProxyMode, l.opts.Parts, l.opts.Herald, l.began, l.pods}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, "lab.json")
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // never half a file
}

// Attach finds the detached lab whose directory is dir. It can do everything but
// stop and start the API server.
func Attach(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no lab is up in %s: run \"lab up\"", dir)
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "lab.json"), err)
	}
	l := &Lab{dir: dir, hosts: hosts(s.Nodes), pods: s.Pods, began: s.Since}
	l.opts, err = Options{Nodes: s.Nodes, ProxyMode: s.ProxyMode, Dir: dir, Parts: s.Parts, Herald: s.Herald, Detached: true}.withDefaults()
	if err != nil {
		return nil, err
	}
	if l.ca, err = os.ReadFile(l.pki("ca.crt")); err != nil {
		return nil, err
	}
	return l, l.connect()
}
