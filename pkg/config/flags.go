package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// AddFlags adds a flag, for Parse to check, for every option that has one; other spellings and unsupported ones hidden.
func AddFlags(fs *pflag.FlagSet) {
	for _, o := range Options {
		for i, name := range flagNames(o) {
			f := &pflag.Flag{
				Name: name, Usage: usage(o), Hidden: i > 0 || !o.Supported(),
				Value: &flagValue{text: o.Default, kind: o.Type}, DefValue: o.Default,
			}
			if i == 0 {
				f.Shorthand = o.Short
			}
			if o.Type == Bool {
				f.NoOptDefVal = "true"
			}
			fs.AddFlag(f)
		}
	}
}

// FlagError makes an *Error of an error of fs.Parse; to an unknown flag it adds the nearest.
func FlagError(fs *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return &Error{err}
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return &Error{fmt.Errorf("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), names))}
}

func flagNames(o Option) []string {
	if o.Flag == "" {
		return nil
	}
	return append([]string{o.Flag}, o.FlagAliases...)
}

// usage is the meaning's first sentence, unmarked, and the variable.
func usage(o Option) string {
	text, _, _ := strings.Cut(o.Meaning, ". ")
	return strings.ReplaceAll(strings.TrimSuffix(text, "."), "`", "'") + " [" + o.Env + "]"
}

// A flagValue takes any text. A repeated list is added to, after a comma.
type flagValue struct {
	text  string
	kind  Type
	given bool
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return string(v.kind) }

func (v *flagValue) Set(s string) error {
	if v.kind == List && v.given && v.text != "" && s != "" {
		s = v.text + "," + s
	}
	v.text, v.given = s, true
	return nil
}
