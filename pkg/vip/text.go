package vip

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// AppendUnique appends those of values that list lacks.
func AppendUnique[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// TakeTurns returns the first of each namespace, then the second of each, and so on: many of one delay others little.
func TakeTurns[T any](all []T, namespace func(T) string) []T {
	var turns [][]T
	next := make(map[string]int)
	for _, x := range all {
		n := next[namespace(x)]
		if next[namespace(x)]++; n == len(turns) {
			turns = append(turns, nil)
		}
		turns[n] = append(turns[n], x)
	}
	return slices.Concat(turns...)
}

// Share returns n of all in order, each namespace with equally many, if possible: many of one hide no other's.
func Share[T any](all []T, n int, namespace func(T) string) (kept []T) {
	if len(all) <= n {
		return all
	}
	numbers := make([]int, len(all))
	for i := range all {
		numbers[i] = i
	}
	numbers = TakeTurns(numbers, func(i int) string { return namespace(all[i]) })[:n]
	slices.Sort(numbers)
	for _, i := range numbers {
		kept = append(kept, all[i])
	}
	return kept
}

// AtMost returns the first n of texts, and how many more there are.
func AtMost(texts []string, n int) []string {
	if more := len(texts) - n; more > 0 {
		return append(texts[:n:n], fmt.Sprintf("and %d more", more))
	}
	return texts
}

// JoinAddrs writes addresses with a separator between them.
func JoinAddrs(addrs []netip.Addr, separator string) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, separator)
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// RawHint is what the process lacks if err is a kernel's refusal of a socket for packets, or "".
func RawHint(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return " (the process needs the capability NET_RAW)"
	}
	return ""
}

const maxErrors = 10

// JoinErrors joins up to ten errors, without nil ones, and says how many more there are.
func JoinErrors(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// Truncate returns up to limit bytes, cut between characters; if longer, a copy.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return strings.Clone(text[:limit])
}

// Shorten returns up to limit bytes, with "..." at the end if longer.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return Truncate(text, limit-len("...")) + "..."
}

// Quote quotes a foreign value, cut after 60 bytes.
func Quote(value string) string {
	if short := Truncate(value, 60); short != value {
		return strconv.Quote(short) + "..."
	}
	return strconv.Quote(value)
}

// IsLinkName is dev_valid_name() in the kernel's net/core/dev.c; IFNAMSIZ is 16.
func IsLinkName(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\v\f\r\x00")
}
