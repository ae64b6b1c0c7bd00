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

// pages are the pages of docs/reference, with the functions that write them.
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

// derived are the files of manifests/ that are made from the code, beside those that "herald manifest"
// prints. Each function gets the file as it is.
var derived = []struct {
	file  string
	write func(old []byte) ([]byte, error)
}{
	{"base/rbac.yaml", func([]byte) ([]byte, error) { return manifest.BaseRBAC() }},
	{"base/daemonset.yaml", func([]byte) ([]byte, error) { return manifest.BaseDaemonSet() }},
	{"helm/herald/templates/rbac.yaml", func([]byte) ([]byte, error) { return manifest.ChartRBAC() }},
	{"helm/herald/values.schema.json", manifest.ChartSchema},
}

// docsCommand is "herald docs", which writes the reference. It is hidden:
// only developers of Herald need it.
func docsCommand() *cobra.Command {
	c := &cobra.Command{Use: "docs", Short: "Write the reference pages", Args: cobra.NoArgs, Hidden: true, SilenceUsage: true}
	dir := c.Flags().String("dir", "docs/reference", "Directory of the pages")
	manifests := c.Flags().String("manifests", "manifests", "Directory of the manifests; empty for none")
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
		return derive(*manifests)
	}
	return c
}

// derive writes the derived files below dir; none if dir is empty.
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
