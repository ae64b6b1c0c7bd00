package peers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

const (
	minKeyLen = 16 // bytes
	maxKeys   = 2  // the new one, and the one that it replaces
)

// NewKey returns one random key of 32 bytes, as text for ParseKeys.
func NewKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return []byte(base64.StdEncoding.EncodeToString(key) + "\n")
}

// ParseKeys reads one or two keys: one per line, in base64, at least 16 bytes each; empty lines and # are ignored. The
// last encrypts, all decrypt. An error contains no key.
func ParseKeys(text []byte) ([][]byte, error) {
	var keys [][]byte
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(key) < minKeyLen {
			return nil, fmt.Errorf("line %d is no key: it must be base64 of at least %d bytes, as of \"head -c 32 "+
				"/dev/urandom | base64\"", n, minKeyLen)
		}
		keys = append(keys, key)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("there is no key in it")
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	return keys, nil
}

// Keys reads the cluster's keys again and again.
type Keys struct {
	log    *slog.Logger
	source string
	read   func(context.Context) ([]byte, error)
	keys   *mailbox.Mailbox[[][]byte]
}

// Keys are read each reloadKeys; several, being replaced, each reloadSeveral; none each retryKeys.
const (
	reloadKeys    = 30 * time.Second
	reloadSeveral = 5 * time.Second
	retryKeys     = 2 * time.Second
)

// NewKeys makes Keys for Run. read returns text for ParseKeys; source names its origin.
func NewKeys(log *slog.Logger, source string, read func(context.Context) ([]byte, error)) *Keys {
	return &Keys{log: log, source: source, read: read, keys: mailbox.New[[][]byte]()}
}

// Get returns the keys read last, or nil, not to be changed.
func (k *Keys) Get() [][]byte { return k.keys.Get() }

func (k *Keys) logFailure(err error) {
	if k.Get() != nil {
		k.log.Info("whether the key of the heartbeats has changed can't be read at present; the one that this node has "+
			"goes on being used", "from", k.source, "err", err)
		return
	}
	k.log.Warn("the key of the heartbeats can't be read, and is tried again. Without it the failover of a dead node "+
		"takes the lease duration",
		"from", k.source, "err", err)
}

// Run reads the keys until ctx ends. After a failure Get returns the last ones.
func (k *Keys) Run(ctx context.Context) error {
	logged := ""
	for {
		text, err := k.read(ctx)
		var keys [][]byte
		if err == nil {
			keys, err = ParseKeys(text)
		}
		if ctx.Err() != nil {
			return nil
		}
		pause := reloadKeys
		if err == nil {
			if logged != "" {
				k.log.Info("the key of the heartbeats can be read again", "from", k.source)
			}
			logged = ""
			k.keys.Put(keys)
			if len(keys) > 1 {
				pause = reloadSeveral
			}
		} else {
			if logged != err.Error() {
				logged = err.Error()
				k.logFailure(err)
			}
			if k.Get() == nil {
				pause = retryKeys
			}
		}
		if !mailbox.Sleep(ctx, pause) {
			return nil
		}
	}
}
