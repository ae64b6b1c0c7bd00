package peers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

func TestParseKeys(t *testing.T) {
	long, short := "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "AAECAwQFBgcICQoLDA0ODw=="
	tests := []struct {
		text string
		want string // the lengths, or part of the error
		n    []int
	}{
		{text: long, n: []int{32}},
		{text: "# new\n" + long + "\r\n\n  " + short + "  \n", n: []int{32, 16}},
		{text: "", want: "no key"},
		{text: "# nothing\n", want: "no key"},
		{text: long + "\nsecret\n", want: "line 2 is no key"},
		{text: "AAECAw==", want: "at least 16 bytes"},
		{text: strings.Repeat(long+"\n", 9), want: "more than 2"},
	}
	for _, tt := range tests {
		keys, err := ParseKeys([]byte(tt.text))
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: got %v, want %q", tt.text, err, tt.want)
			}
			continue
		}
		if err != nil || len(keys) != len(tt.n) {
			t.Errorf("%q: got %d keys, %v", tt.text, len(keys), err)
			continue
		}
		for i, n := range tt.n {
			check.Equal(t, len(keys[i]), n, "%q: bytes of key %d", tt.text, i)
		}
	}
	if keys, err := ParseKeys(NewKey()); err != nil || len(keys) != 1 || len(keys[0]) != 32 {
		t.Errorf("a new key: %v, %v", keys, err)
	}
	check.Equal(t, bytes.Equal(NewKey(), NewKey()), false, "two new keys are the same")
}

// TestKeysAreReloaded: an error is logged once, the last good keys stay, and new ones are taken over.
func TestKeysAreReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex // guards text, err and reads
		var text []byte
		err := errors.New("not allowed")
		reads := 0
		put := func(t []byte, e error) { mu.Lock(); defer mu.Unlock(); text, err = t, e }
		k := NewKeys(slog.New(slog.NewTextHandler(&log, nil)), "a file", func(context.Context) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			reads++
			return text, err
		})
		check.Run(t, k)
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

		pass(10 * time.Minute)
		if k.Get() != nil || strings.Count(log.String(), "not allowed") != 1 {
			t.Errorf("got %v; log:\n%s", k.Get(), &log)
		}
		check.Between(t, reads, 290, 310, "reads in ten minutes")
		key := NewKey()
		put(key, nil)
		pass(reloadKeys)
		first := k.Get()
		if len(first) != 1 {
			t.Fatalf("got %v", first)
		}
		put(append(NewKey(), key...), nil)
		pass(reloadKeys)
		check.Same(t, [][]byte{first[0]}, k.Get()[min(1, len(k.Get())):], "after a rotation, the second of two keys")
		put(key, nil)
		pass(reloadSeveral)
		check.Same(t, first, k.Get(), "%v after one of two keys was removed", reloadSeveral)
		put(append(NewKey(), key...), nil)
		pass(reloadKeys)
		put([]byte("nonsense"), nil)
		pass(2 * reloadKeys)
		if got := k.Get(); len(got) != 2 || strings.Count(log.String(), "is no key") != 1 {
			t.Errorf("after nonsense: %d keys; log:\n%s", len(got), &log)
		}
		if strings.Count(log.String(), "takes the lease duration") != 1 || !strings.Contains(log.String(), "goes on being used") {
			t.Errorf("the log says that there is no key although there is one:\n%s", &log)
		}
	})
}
