package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// writeImage writes an image with one static program, in /usr/local/bin, run with args, like WriteImage.
func writeImage(out, program string, args []string, names ...string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	inside := "/usr/local/bin/" + filepath.Base(program)
	return WriteImage(out, map[string][]byte{inside: text, "/etc/": nil, "/tmp/": nil}, append([]string{inside}, args...),
		names...)
}

// WriteImage writes an image as docker save does, for containerd. files are executables by absolute path, and
// directories, with a slash at the end; parents need not be given. It runs entrypoint. The same files give the same
// image.
func WriteImage(out string, files map[string][]byte, entrypoint []string, names ...string) error {
	var layer bytes.Buffer
	if err := writeTar(&layer, withDirectories(files)...); err != nil {
		return err
	}
	type object = map[string]any
	config, err1 := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, "Entrypoint": entrypoint},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
	})
	manifest, err2 := json.Marshal([]object{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	err = writeTar(f, file{"manifest.json", manifest}, file{"config.json", config}, file{"layer.tar", layer.Bytes()})
	if err := errors.Join(err1, err2, err, f.Close()); err != nil {
		return fmt.Errorf("image of %s: %w", entrypoint[0], err)
	}
	return nil
}

// withDirectories returns files and their directories, each before what is in it.
func withDirectories(files map[string][]byte) []file {
	all := map[string][]byte{}
	for name, text := range files {
		all[strings.TrimPrefix(name, "/")] = text
		for dir := path.Dir(strings.TrimSuffix(name, "/")); dir != "/"; dir = path.Dir(dir) {
			all[strings.TrimPrefix(dir, "/")+"/"] = nil
		}
	}
	var list []file
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, file{name, all[name]})
	}
	return list
}

// A file is an executable file of a tar archive, or a directory if its name ends with a slash.
type file struct {
	name string
	text []byte
}

func writeTar(w io.Writer, files ...file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := t.Write(f.text); err != nil {
			return err
		}
	}
	return t.Close()
}
