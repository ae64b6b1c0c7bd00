// Command logind stands in for systemd-logind on the lab's real nodes, which have no
// systemd: it has the part of org.freedesktop.login1 that delays a shutdown, as
// org.freedesktop.login1(5) and systemd-inhibit(1) describe it, on the node's own bus.
//
//	logind serve    owns the bus name org.freedesktop.login1, and of org.freedesktop.systemd1 what reloads it
//	logind reboot   announces a shutdown, as "systemctl reboot" does, and waits until the power may be cut
//
// It never shuts a machine down: where logind would have systemd stop everything, it only
// emits a signal, for the caller to act on.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	login1  = "org.freedesktop.login1"
	manager = login1 + ".Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	systemd = "org.freedesktop.systemd1"
	// dropIns is where kubelet asks for more time than the default.
	dropIns = "/etc/systemd/logind.conf.d/*.conf"
	// delayDefault is InhibitDelayMaxSec of logind.conf(5).
	delayDefault = 5 * time.Second
	// done is a signal of this program only: nothing delays the shutdown any more.
	done = "heraldvip.lab.Done"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run := map[string]func(context.Context) error{"serve": serve, "reboot": reboot}[strings.Join(os.Args[1:], " ")]
	if run == nil {
		fmt.Fprintln(os.Stderr, "logind serve | logind reboot")
		os.Exit(2)
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	d := &daemon{bus: bus, locks: map[*os.File]lock{}, freed: make(chan struct{}, 1)}
	d.properties, err = prop.Export(bus, path, prop.Map{manager: {
		"InhibitDelayMaxUSec":  {Value: uint64(0), Emit: prop.EmitFalse},
		"PreparingForShutdown": {Value: false, Emit: prop.EmitFalse},
	}})
	if err != nil {
		return err
	}
	d.reload()
	if err := bus.Export(d, path, manager); err != nil {
		return err
	}
	if err := bus.Export(units{d}, "/org/freedesktop/systemd1", systemd+".Manager"); err != nil {
		return err
	}
	for _, name := range []string{login1, systemd} {
		if got, err := bus.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || got != dbus.RequestNameReplyPrimaryOwner {
			return fmt.Errorf("own %s: %v, %w", name, got, err)
		}
	}
	// logind has it once it is up.
	if err := os.MkdirAll("/run/systemd/inhibit", 0o755); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A daemon is the part of logind that delays shutdowns. Its exported methods are D-Bus methods.
type daemon struct {
	bus        *dbus.Conn
	properties *prop.Properties
	freed      chan struct{} // gets a value when a lock is released

	mu    sync.Mutex        // guards locks
	locks map[*os.File]lock // by the end of the pipe that is kept
}

type lock struct{ what, who, why string }

// Inhibit gives the caller a lock: a file that delays shutdowns until it is closed.
func (d *daemon) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("only shutdown can be inhibited here, and only by delay: %s, %s", what, mode))
	}
	if d.properties.GetMust(manager, "PreparingForShutdown").(bool) {
		return 0, dbus.NewError(login1+".OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	keep, give, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	d.mu.Lock()
	d.locks[keep] = lock{what, who, why}
	d.mu.Unlock()
	log.Printf("%s inhibits %s: %s", who, what, why)
	fd, err := syscall.Dup(int(give.Fd())) // what is sent must be open until it is sent
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	give.Close()
	time.AfterFunc(time.Second, func() { syscall.Close(fd) })
	go func() {
		keep.Read(make([]byte, 1)) // until the last copy of the other end is closed
		d.mu.Lock()
		delete(d.locks, keep)
		d.mu.Unlock()
		keep.Close()
		log.Printf("%s inhibits %s no more", who, what)
		select {
		case d.freed <- struct{}{}:
		default:
		}
	}()
	return dbus.UnixFD(fd), nil
}

// Reboot emits PrepareForShutdown and returns. When all locks are released, or InhibitDelayMaxUSec is
// over, it emits done, with the duration and the number of locks that are left.
func (d *daemon) Reboot(bool) *dbus.Error {
	d.properties.SetMust(manager, "PreparingForShutdown", true)
	log.Print("preparing for shutdown")
	if err := d.bus.Emit(path, manager+".PrepareForShutdown", true); err != nil {
		return dbus.MakeFailedError(err)
	}
	go func() {
		limit := time.Duration(d.properties.GetMust(manager, "InhibitDelayMaxUSec").(uint64)) * time.Microsecond
		timeout := time.After(limit)
		began := time.Now()
		var left int
		for waiting := true; waiting; {
			d.mu.Lock()
			left = len(d.locks)
			d.mu.Unlock()
			if left == 0 {
				break
			}
			select {
			case <-d.freed:
			case <-timeout:
				waiting = false
			}
		}
		log.Printf("after %v %d locks are left: the power may be cut", time.Since(began).Round(time.Millisecond), left)
		if err := d.bus.Emit(path, done, int64(time.Since(began)), int32(left)); err != nil {
			log.Print(err)
		}
	}()
	return nil
}

// reload reads InhibitDelayMaxSec of logind.conf(5)'s drop-ins, and sets InhibitDelayMaxUSec.
func (d *daemon) reload() {
	delay := delayDefault
	files, _ := filepath.Glob(dropIns) // the pattern is well-formed
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			log.Print(err)
			continue
		}
		for line := range strings.Lines(string(text)) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "InhibitDelayMaxSec=")
			if !ok {
				continue
			}
			if seconds, err := strconv.ParseFloat(value, 64); err != nil {
				log.Printf("%s: %v", f, err)
			} else {
				delay = time.Duration(seconds * float64(time.Second))
			}
		}
	}
	log.Printf("a shutdown can be delayed for %v", delay)
	d.properties.SetMust(manager, "InhibitDelayMaxUSec", uint64(delay.Microseconds()))
}

// units is what of systemd's manager is needed to have logind read its configuration again.
type units struct{ d *daemon }

// KillUnit sends a signal to a unit: SIGHUP to logind.
func (u units) KillUnit(unit, _ string, number int32) *dbus.Error {
	if unit != "systemd-logind.service" || syscall.Signal(number) != syscall.SIGHUP {
		return dbus.NewError(systemd+".NoSuchUnit", []any{"Unit " + unit + " not loaded."})
	}
	u.d.reload()
	return nil
}

// reboot asks for one, and says when the power may go and what it waited for.
func reboot(ctx context.Context) error {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	signals := make(chan *dbus.Signal, 8)
	bus.Signal(signals)
	if err := bus.AddMatchSignal(dbus.WithMatchObjectPath(path)); err != nil {
		return err
	}
	if err := bus.Object(login1, path).CallWithContext(ctx, manager+".Reboot", 0, false).Err; err != nil {
		return err
	}
	for {
		select {
		case s, ok := <-signals:
			if !ok {
				return fmt.Errorf("the bus is gone")
			}
			if s.Name == done {
				var took int64
				var left int32
				if err := dbus.Store(s.Body, &took, &left); err != nil {
					return err
				}
				fmt.Println(time.Duration(took).Round(time.Millisecond), left)
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
