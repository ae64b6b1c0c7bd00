package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/manifest"
)

// pages are the pages of docs/reference, each written by the room that knows.
var pages = []struct {
	file  string
	write func(io.Writer) error
}{
	{"options.md", config.Markdown},
	{"annotations.md", annotationsPage},
	{"events.md", eventsPage},
	{"metrics.md", metricsPage},
	{"rbac.md", manifest.Markdown},
}

// derived are the files of manifests/ that go with what the code says, beside those
// that "herald manifest" prints. Each is made of what it was.
var derived = []struct {
	file  string
	write func(old []byte) ([]byte, error)
}{
	{"base/rbac.yaml", func([]byte) ([]byte, error) { return manifest.BaseRBAC() }},
	{"base/daemonset.yaml", func([]byte) ([]byte, error) { return manifest.BaseDaemonSet() }},
	{"helm/herald/templates/rbac.yaml", func([]byte) ([]byte, error) { return manifest.ChartRBAC() }},
	{"helm/herald/values.schema.json", manifest.ChartSchema},
}

// The README's table of options stands between these lines.
const (
	summaryBegin = "<!-- options, written by \"herald docs\" -->\n"
	summaryEnd   = "<!-- end of options -->\n"
)

// docsCommand is "herald docs", which writes the reference. It is hidden: who
// runs Herald has no use for it.
func docsCommand() *cobra.Command {
	c := &cobra.Command{Use: "docs", Short: "Write the reference pages", Args: cobra.NoArgs, Hidden: true, SilenceUsage: true}
	dir := c.Flags().String("dir", "docs/reference", "Directory of the pages")
	manifests := c.Flags().String("manifests", "manifests", "Directory of the manifests; empty for none")
	readme := c.Flags().String("readme", "README.md", "File whose table of options is renewed; empty for none")
	c.RunE = func(*cobra.Command, []string) error {
		for _, p := range pages {
			var b bytes.Buffer
			if err := p.write(&b); err != nil {
				return fmt.Errorf("can't make %s: %w", p.file, err)
			}
			if err := os.WriteFile(filepath.Join(*dir, p.file), b.Bytes(), 0o644); err != nil {
				return err
			}
		}
		if err := derive(*manifests); err != nil {
			return err
		}
		if *readme == "" {
			return nil
		}
		have, err := os.ReadFile(*readme)
		if err != nil {
			return err
		}
		want, err := withSummary(have)
		if err != nil {
			return fmt.Errorf("%s: %w", *readme, err)
		}
		return os.WriteFile(*readme, want, 0o644)
	}
	return c
}

// derive renews the derived files below dir.
func derive(dir string) error {
	for _, d := range derived {
		if dir == "" {
			return nil
		}
		file := filepath.Join(dir, d.file)
		old, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text, err := d.write(old)
		if err != nil {
			return fmt.Errorf("can't make %s: %w", d.file, err)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withSummary is a README with the table of options as it is now.
func withSummary(readme []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(readme, []byte(summaryBegin))
	_, after, end := bytes.Cut(rest, []byte(summaryEnd))
	if !ok || !end {
		return nil, fmt.Errorf("has no place for the table of options: it goes between the lines %q and %q", summaryBegin, summaryEnd)
	}
	b := bytes.NewBuffer(bytes.Clone(before))
	b.WriteString(summaryBegin)
	if err := config.Summary(b); err != nil {
		return nil, err
	}
	b.WriteString(summaryEnd)
	b.Write(after)
	return b.Bytes(), nil
}
