package serve

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// A browser runs Chromium.
type browser struct {
	program string
	t       *testing.T
}

// start returns a command that runs Chromium on a page, and the directory of its profile. Chromium's other processes write into that for a moment
// after the first one was killed: all are killed, and it is removed once nothing is added any more.
func (b browser) start(url string, options ...string) (cmd *exec.Cmd, profile string) {
	profile = check.Value(os.MkdirTemp("", "herald-page-"))(b.t)
	b.t.Cleanup(func() {
		check.True(b.t, time.Minute, "the profile is removed", func() bool { return os.RemoveAll(profile) == nil })
	})
	options = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--user-data-dir=" + profile}, options...)
	cmd = exec.CommandContext(b.t.Context(), b.program, append(options, url)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd, profile
}

// title runs Chromium on a page and returns a function that asks it for the title.
func (b browser) title(url string) func() string {
	cmd, profile := b.start(url, "--remote-debugging-port=0")
	check.OK(b.t, cmd.Start())
	b.t.Cleanup(func() {
		_ = cmd.Cancel() // fails only if they have ended
		_ = cmd.Wait()   // says that it was killed
	})
	return func() string {
		port, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		line, _, _ := strings.Cut(string(port), "\n")
		if err != nil {
			return ""
		}
		r, err := http.Get("http://127.0.0.1:" + line + "/json/list")
		if err != nil {
			return ""
		}
		defer r.Body.Close()
		var pages []struct{ Title, URL string }
		if json.NewDecoder(r.Body).Decode(&pages) != nil {
			return ""
		}
		if i := slices.IndexFunc(pages, func(p struct{ Title, URL string }) bool { return strings.HasPrefix(p.URL, url) }); i >= 0 {
			return pages[i].Title
		}
		return ""
	}
}

// TestInBrowser: the page in Chromium follows what happens: it reloads itself. What users wrote runs nothing and
// has nothing loaded. With HERALD_SCREENSHOTS, a directory, it leaves pictures there.
func TestInBrowser(t *testing.T) {
	b := browser{check.Program(t, "chromium"), t}
	var view atomic.Pointer[View]
	var asked atomic.Pointer[string] // what the browser should not have asked for
	h := newHandler(func() View { return *view.Load() })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains([]string{"/", "/page.css", "/favicon.ico"}, r.URL.Path) {
			asked.Store(&r.URL.Path)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	show := func(v View) { view.Store(&v) }

	show(View{Node: "n1", Now: noon})
	title := b.title(s.URL)
	check.True(t, time.Minute, "the page is there", func() bool { return title() == "Herald on n1" })
	show(sample())
	check.True(t, time.Minute, "it is live", func() bool { return title() == "(2) Herald on n1" })
	forged := evilView()
	forged.Node = "n1"
	show(forged)
	check.True(t, time.Minute, "what users wrote is shown", func() bool { return title() == "(1) Herald on n1" })
	show(sample())
	check.True(t, time.Minute, "and has done nothing", func() bool { return title() == "(2) Herald on n1" })
	if path := asked.Load(); path != nil {
		t.Errorf("the browser has asked for %s", *path)
	}
	if dir := os.Getenv("HERALD_SCREENSHOTS"); dir != "" {
		for name, options := range map[string][]string{
			"desk": {"--window-size=1200,1500"}, "phone": {"--window-size=500,2400"}, "dark": {"--window-size=1200,1500", "--force-dark-mode"},
		} {
			cmd, _ := b.start(s.URL, append(options, "--timeout=3000", "--screenshot="+filepath.Join(dir, name+".png"))...)
			check.OK(t, cmd.Run())
		}
	}
}
