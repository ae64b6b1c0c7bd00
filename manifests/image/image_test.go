package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// root is Herald's repository.
const root = "../.."

// build builds the image for this machine, and returns the archive and the digest.
func build(t *testing.T) (archive, digest string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "herald.oci.tar")
	d, err := run(root, out, "v9.9.9", []string{"example.com/herald:v9.9.9", "example.com/herald:latest"}, []string{"linux/" + runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	return out, d
}

// read is the files of a tar archive; of a symbolic link what it points to.
func read(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for a := tar.NewReader(r); ; {
		h, err := a.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.IsZero() {
			t.Errorf("%s is of %d:%d (%s), %v", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime)
		}
		// NET_ADMIN and NET_RAW are 12 and 13.
		if got, want := []byte(h.PAXRecords["SCHILY.xattr.security.capability"]), []byte{3: 0x02, 5: 0x30, 19: 0}; h.Name == "herald" && !bytes.Equal(got, want) {
			t.Errorf("the program has the file capabilities %x, want %x", got, want)
		}
		text, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			text = []byte(h.Linkname)
		}
		files[h.Name] = text
	}
}

func digest(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }

// TestSameTwice: two builds, as different as one machine allows, are the same file.
func TestSameTwice(t *testing.T) {
	first, d1 := build(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("HOSTNAME", "elsewhere")
	second, d2 := build(t)
	if d1 != d2 {
		t.Errorf("digests %s and %s", d1, d2)
	}
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("the archives differ")
	}
}

// TestLayout follows every pointer of the archive, as an importer does.
func TestLayout(t *testing.T) {
	out, d := build(t)
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := read(t, f)
	follow := func(d v1.Descriptor, into any) []byte {
		t.Helper()
		text, ok := files["blobs/"+strings.Replace(d.Digest.String(), ":", "/", 1)]
		if !ok || int64(len(text)) != d.Size || digest(text) != d.Digest.String() {
			t.Fatalf("%s: there %v, %d bytes, want %d", d.Digest, ok, len(text), d.Size)
		}
		if into != nil {
			if err := json.Unmarshal(text, into); err != nil {
				t.Fatal(err)
			}
		}
		return text
	}
	var top, all v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	if strings.Join(strings.Fields(string(files["oci-layout"])), "") != `{"imageLayoutVersion":"1.0.0"}` || len(top.Manifests) != 2 {
		t.Fatalf("layout %s, %d names", files["oci-layout"], len(top.Manifests))
	}
	for i, want := range []string{"example.com/herald:v9.9.9", "example.com/herald:latest"} {
		if got := top.Manifests[i]; got.Digest.String() != d || got.MediaType != types.OCIImageIndex || got.Annotations["io.containerd.image.name"] != want {
			t.Errorf("name %v of %s, want %s of %s", got.Annotations, got.Digest, want, d)
		}
	}
	follow(top.Manifests[0], &all)
	if p := all.Manifests[0].Platform; p == nil || p.String() != "linux/"+runtime.GOARCH {
		t.Errorf("an image for %v", p)
	}
	var m v1.Manifest
	follow(all.Manifests[0], &m)
	var c v1.ConfigFile
	follow(m.Config, &c)
	if m.MediaType != types.OCIManifestSchema1 || m.Config.MediaType != types.OCIConfigJSON {
		t.Errorf("a manifest of type %s, a configuration of type %s", m.MediaType, m.Config.MediaType)
	}
	if len(m.Layers) != 2 || len(c.RootFS.DiffIDs) != 2 || c.Architecture != runtime.GOARCH || c.Config.Labels["org.opencontainers.image.version"] != "v9.9.9" {
		t.Errorf("%d layers, configuration %+v", len(m.Layers), c)
	}
	content := map[string][]byte{}
	for i, l := range m.Layers {
		z, err := gzip.NewReader(bytes.NewReader(follow(l, nil)))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if l.MediaType != types.OCILayer || digest(raw) != c.RootFS.DiffIDs[i].String() {
			t.Errorf("layer %d is %s, the configuration says %s", i, digest(raw), c.RootFS.DiffIDs[i])
		}
		for name, text := range read(t, bytes.NewReader(raw)) {
			content[name] = text
		}
	}
	for _, want := range []string{"herald", "etc/passwd", "etc/group", "licenses/LICENSE"} {
		if len(content[want]) == 0 {
			t.Errorf("the image has no %s", want)
		}
	}
	// Manifests for kube-vip name it: command: ["/kube-vip", "manager"].
	if got := string(content["kube-vip"]); got != "herald" {
		t.Errorf("kube-vip is %q, want a link to herald", got)
	}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content["herald"], []byte(here+"/")) {
		t.Errorf("the program names the path it was built in, %s", here)
	}
}

// TestWrongPlatform: what can't be built is an error.
func TestWrongPlatform(t *testing.T) {
	for _, p := range []string{"amd64", "windows/amd64", "linux/vax"} {
		if _, err := run(root, filepath.Join(t.TempDir(), "x"), "v1", []string{"x:y"}, []string{p}); err == nil {
			t.Errorf("an image for %s", p)
		}
	}
}
