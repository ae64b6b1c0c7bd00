package lab

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// writeImage writes an image that is made of one static program, in
// /usr/local/bin, as an OCI image layout in a tar archive. names are its names; it runs the program with args.
func writeImage(out, program string, args []string, names ...string) error {
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	layer := &layerWriter{program: program, size: info.Size()}
	layerDigest, layerSize, err := layer.measure()
	if err != nil {
		return err
	}
	type object = map[string]any
	blob := func(v any) (string, []byte) {
		text, _ := json.Marshal(v) // strings and numbers only
		sum := sha256.Sum256(text)
		return hex.EncodeToString(sum[:]), text
	}
	point := func(kind, digest string, size int64) object {
		return object{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": size}
	}
	configDigest, config := blob(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": []string{"PATH=/usr/local/bin"}, "Entrypoint": append([]string{"/usr/local/bin/" + filepath.Base(program)}, args...)},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + layerDigest}},
	})
	manifestDigest, manifest := blob(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": point("config.v1+json", configDigest, int64(len(config))),
		"layers": []object{point("layer.v1.tar", layerDigest, layerSize)},
	})
	var all []object
	for _, name := range names {
		d := point("manifest.v1+json", manifestDigest, int64(len(manifest)))
		d["annotations"] = object{"io.containerd.image.name": name}
		d["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
		all = append(all, d)
	}
	_, index := blob(object{"schemaVersion": 2, "manifests": all})

	f, err := os.Create(out)
	if err != nil {
		return err
	}
	t := tar.NewWriter(f)
	put := func(name string, text []byte) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err := t.Write(text)
		return err
	}
	err = errors.Join(
		put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), put("index.json", index),
		put("blobs/sha256/"+configDigest, config), put("blobs/sha256/"+manifestDigest, manifest),
		t.WriteHeader(&tar.Header{Name: "blobs/sha256/" + layerDigest, Mode: 0o644, Size: layerSize}),
	)
	if err == nil {
		err = layer.write(t)
	}
	if err = errors.Join(err, t.Close(), f.Close()); err != nil {
		return fmt.Errorf("image of %s: %w", program, err)
	}
	return nil
}

// A layerWriter writes the layer of such an image: the same each time.
type layerWriter struct {
	program string
	size    int64
}

func (l *layerWriter) write(w io.Writer) error {
	f, err := os.Open(l.program)
	if err != nil {
		return err
	}
	defer f.Close()
	t := tar.NewWriter(w)
	for _, dir := range []string{"etc/", "tmp/", "usr/", "usr/local/", "usr/local/bin/"} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return err
		}
	}
	if err := t.WriteHeader(&tar.Header{Name: "usr/local/bin/" + filepath.Base(l.program), Mode: 0o755, Size: l.size}); err != nil {
		return err
	}
	if _, err := io.Copy(t, f); err != nil {
		return err
	}
	return t.Close()
}

// measure is the layer's SHA-256 and size.
func (l *layerWriter) measure() (digest string, size int64, err error) {
	h := sha256.New()
	n := &counter{Writer: h}
	err = l.write(n)
	return hex.EncodeToString(h.Sum(nil)), n.n, err
}

type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}
