package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// In an image each directory comes before what is in it, and the same files give the same image.
func TestWriteImage(t *testing.T) {
	files := map[string][]byte{"/agnhost": []byte("a"), "/usr/bin/curl": []byte("c"), "/tmp/": nil}
	var archives [2][]byte
	for i := range archives {
		out := filepath.Join(t.TempDir(), "image.tar")
		check.OK(t, lab.WriteImage(out, files, []string{"/agnhost"}, "registry.k8s.io/x:1"))
		archives[i] = check.Value(os.ReadFile(out))(t)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two images of the same files differ")
	}
	outer := readTar(t, archives[0])
	layer := readTar(t, outer["layer.tar"].text)
	want := []string{"agnhost", "tmp/", "usr/", "usr/bin/", "usr/bin/curl"}
	names := make([]string, len(layer))
	for name, f := range layer {
		names[f.index] = name
	}
	if !slices.Equal(names, want) || string(layer["usr/bin/curl"].text) != "c" {
		t.Errorf("the image has %v, want %v", names, want)
	}
	if !bytes.Contains(outer["manifest.json"].text, []byte("registry.k8s.io/x:1")) || !bytes.Contains(outer["config.json"].text, []byte(`"Entrypoint":["/agnhost"]`)) {
		t.Errorf("%s %s", outer["manifest.json"].text, outer["config.json"].text)
	}
}

type tarFile struct {
	index int
	text  []byte
}

func readTar(t *testing.T, text []byte) map[string]tarFile {
	t.Helper()
	files := make(map[string]tarFile)
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check.OK(t, err)
		files[h.Name] = tarFile{len(files), check.Value(io.ReadAll(r))(t)}
	}
}

// A program that is linked with libraries has them, and the loader.
func TestAddLibraries(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	files := make(map[string][]byte)
	check.OK(t, addLibraries(t.Context(), files, sh))
	loader, libc := false, false
	for name, text := range files {
		if len(text) == 0 {
			t.Errorf("%s is empty", name)
		}
		base := filepath.Base(name)
		loader, libc = loader || len(base) > 3 && base[:3] == "ld-", libc || len(base) > 5 && base[:5] == "libc."
	}
	if len(files) > 0 && (!loader || !libc) { // none: sh is static
		t.Errorf("sh has %d libraries, the loader: %v, libc: %v", len(files), loader, libc)
	}
}
