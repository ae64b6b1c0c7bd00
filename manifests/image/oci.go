package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// A file of a layer.
type file struct {
	name string // without a slash in front
	text []byte
	mode int64
}

// The media types of the OCI image-spec.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// A descriptor points to a blob (OCI image-spec, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// An image is the configuration of one platform's image (OCI image-spec, config.md).
type image struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       config    `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
	History      []history `json:"history"`
}

type config struct {
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint"`
	Cmd        []string          `json:"Cmd"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// A layout is an OCI image layout in the making (OCI image-spec, image-layout.md).
type layout struct {
	when  time.Time
	blobs map[string][]byte // by digest
	top   index
}

func newLayout(when time.Time) *layout {
	return &layout{when: when, blobs: make(map[string][]byte)}
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blob adds a blob.
func (l *layout) blob(kind string, text []byte) descriptor {
	d := digest(text)
	l.blobs[d] = text
	return descriptor{MediaType: kind, Digest: d, Size: len(text)}
}

func (l *layout) document(kind string, v any) (descriptor, error) {
	text, err := json.Marshal(v) // sorts the keys of maps
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(kind, text), nil
}

// image adds the image of one platform, a layer for each of layers.
func (l *layout) image(arch string, labels map[string]string, layers ...[]file) (descriptor, error) {
	c := image{
		Created: l.when, Architecture: arch, OS: "linux",
		Config: config{Env: []string{"PATH=/"}, Entrypoint: []string{"/herald"}, Cmd: []string{"manager"}, WorkingDir: "/", Labels: labels},
		RootFS: rootFS{Type: "layers"},
	}
	m := manifest{SchemaVersion: 2, MediaType: manifestType, Annotations: labels}
	for _, files := range layers {
		raw, err := archive(files, l.when)
		if err != nil {
			return descriptor{}, err
		}
		packed, err := pack(raw)
		if err != nil {
			return descriptor{}, err
		}
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest(raw))
		c.History = append(c.History, history{l.when, "github.com/heraldvip/herald/manifests/image"})
		m.Layers = append(m.Layers, l.blob(layerType, packed))
	}
	var err error
	if m.Config, err = l.document(configType, c); err != nil {
		return descriptor{}, err
	}
	d, err := l.document(manifestType, m)
	d.Platform = &platform{arch, "linux"}
	return d, err
}

// index makes one image of those of all platforms, and gives it its names. It returns the image's digest.
func (l *layout) index(manifests []descriptor, names []string, about map[string]string) (string, error) {
	d, err := l.document(indexType, index{2, indexType, manifests, about})
	if err != nil {
		return "", err
	}
	l.top = index{SchemaVersion: 2, MediaType: indexType}
	for _, name := range names {
		// The first is for containerd, which wants the whole name.
		d.Annotations = map[string]string{
			"io.containerd.image.name":          name,
			"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
		}
		l.top.Manifests = append(l.top.Manifests, d)
	}
	return d.Digest, nil
}

// archive is a tar archive of files and of the directories they are in.
func archive(files []file, when time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{".": true}
	var mkdir func(string) error
	mkdir = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := mkdir(path.Dir(dir)); err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: when, Format: tar.FormatUSTAR})
	}
	for _, f := range files {
		if err := mkdir(path.Dir(f.name)); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: f.mode, ModTime: when, Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func pack(raw []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// write writes the layout as a tar archive.
func (l *layout) write(out string) error {
	top, err := json.Marshal(l.top)
	if err != nil {
		return err
	}
	files := []file{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}, {"index.json", top, 0o644}}
	for _, d := range slices.Sorted(maps.Keys(l.blobs)) {
		files = append(files, file{"blobs/" + strings.Replace(d, ":", "/", 1), l.blobs[d], 0o644})
	}
	text, err := archive(files, l.when)
	if err != nil {
		return err
	}
	// An interrupted build leaves no half image.
	f, err := os.Create(out + ".new")
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, bytes.NewReader(text)); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}
