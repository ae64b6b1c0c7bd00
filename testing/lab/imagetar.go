package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// writeImage writes an image with one static program, in /usr/local/bin, as an archive in the
// format of docker save, which containerd imports. names are its names; it runs the program with
// args. The same program gives the same image.
func writeImage(out, program string, args []string, names ...string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	layer.Grow(len(text) + 10<<10) // with the headers
	err = writeTar(&layer, file{"etc/", nil}, file{"tmp/", nil}, file{"usr/", nil}, file{"usr/local/", nil}, file{"usr/local/bin/", nil},
		file{"usr/local/bin/" + filepath.Base(program), text})
	if err != nil {
		return err
	}
	type object = map[string]any
	config, err1 := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": []string{"PATH=/usr/local/bin"}, "Entrypoint": append([]string{"/usr/local/bin/" + filepath.Base(program)}, args...)},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
	})
	manifest, err2 := json.Marshal([]object{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	err = writeTar(f, file{"manifest.json", manifest}, file{"config.json", config}, file{"layer.tar", layer.Bytes()})
	if err := errors.Join(err1, err2, err, f.Close()); err != nil {
		return fmt.Errorf("image of %s: %w", program, err)
	}
	return nil
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
