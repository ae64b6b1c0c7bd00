package peers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// keyLen is the shortest key that is taken, in bytes.
const keyLen = 16

// NewKey makes the text of one random key, as ParseKeys reads it.
func NewKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return []byte(base64.StdEncoding.EncodeToString(key) + "\n")
}

// ParseKeys reads keys: one per line, in base64, at least 16 bytes each. What is
// sent is sealed with the first that the receiver has as well; what comes in may be
// sealed with any. Empty lines, and those that begin with #, say nothing.
// An error does not tell the key.
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
		if err != nil || len(key) < keyLen {
			return nil, fmt.Errorf("line %d is no key: it must be base64 of at least %d bytes, as of \"head -c 32 /dev/urandom | base64\"", n, keyLen)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in it")
	}
	if len(keys) > 8 {
		return nil, errors.New("more than 8 keys")
	}
	return keys, nil
}

// Keys follows the keys of the cluster, wherever they are kept.
type Keys struct {
	log   *slog.Logger
	where string
	read  func(context.Context) ([]byte, error)

	mu   sync.Mutex
	keys [][]byte
}

// How often the keys are read: each minute; while there are none, first after
// retryKeys, and then after twice as long each time.
const (
	rereadKeys = time.Minute
	retryKeys  = time.Second
)

// NewKeys makes Keys that read (see ParseKeys) returns. where names the place in messages.
func NewKeys(log *slog.Logger, where string, read func(context.Context) ([]byte, error)) *Keys {
	return &Keys{log: log, where: where, read: read}
}

// String names the task.
func (k *Keys) String() string { return "peers: keys" }

// Get is the keys read last; none if none could be read yet. It must not be changed.
func (k *Keys) Get() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys
}

// Run reads the keys until ctx ends. What can't be read is said once, and the
// last good keys stay.
func (k *Keys) Run(ctx context.Context) error {
	said, retry := "", retryKeys
	for {
		text, err := k.read(ctx)
		var keys [][]byte
		if err == nil {
			keys, err = ParseKeys(text)
		}
		if ctx.Err() != nil {
			return nil
		}
		wait := rereadKeys
		if err != nil {
			if said != err.Error() {
				said = err.Error()
				k.log.Warn("the key by which nodes watch each other can't be read; trying on. Without it the failover of a dead node takes the lease duration",
					"from", k.where, "err", err)
			}
			if k.Get() == nil {
				wait, retry = retry, min(2*retry, rereadKeys)
			}
		} else {
			if said != "" {
				k.log.Info("the key by which nodes watch each other can be read again", "from", k.where)
			}
			said = ""
			k.mu.Lock()
			k.keys = keys
			k.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}
