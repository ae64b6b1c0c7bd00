package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// newImage makes the image of one platform: a layer of what is below each directory, in this order.
func newImage(platform v1.Platform, labels map[string]string, when time.Time, dirs ...string) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{
		Created: v1.Time{Time: when}, Architecture: platform.Architecture, OS: platform.OS,
		Config: v1.Config{Env: []string{"PATH=/"}, Entrypoint: []string{"/herald"}, Cmd: []string{"manager"},
			WorkingDir: "/", Labels: labels},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		raw, err := archive(dir, when)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(raw)),
				nil
		},
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression),
			tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image,
			mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: when}, CreatedBy: "github.com/heraldvip/herald/manifests/image"}})
		if err != nil {
			return nil, err
		}
	}
	return mutate.Annotations(image, labels).(v1.Image), nil
}

// writeArchive writes images, the same for several platforms, as an OCI image layout in a tar archive (OCI image-spec,
// image-layout.md), which gives them every one of names. It returns the digest of their index.
func writeArchive(out string, images []mutate.IndexAddendum, names []string, labels map[string]string,
	when time.Time) (string, error) {
	index := mutate.Annotations(mutate.AppendManifests(empty.Index, images...), labels).(v1.ImageIndex)
	top := v1.ImageIndex(empty.Index)
	for _, name := range names {
		top = mutate.AppendManifests(top,
			mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{
				"io.containerd.image.name":          name, // containerd wants the whole name
				"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
			}}})
	}
	dir, err := os.MkdirTemp(filepath.Dir(out), ".herald-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, top); err != nil {
		return "", err
	}
	text, err := archive(dir, when)
	if err != nil {
		return "", err
	}
	// An interrupted build leaves no half image.
	if err := os.WriteFile(out+".new", text, 0o644); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), os.Rename(out+".new", out)
}
