package kube

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// saved is the content of a snapshot file, JSON compressed with gzip, whose
// checksum tells a file that is damaged. Its modification time is when the API
// server last agreed.
type saved struct {
	Format  int   `json:"format"`
	Objects []any `json:"objects"` // policies as documents
	World   *inventory.Snapshot
}

const (
	savedFormat = 1
	// maxSaved bounds what is read of a file, in bytes before compression.
	maxSaved = 1 << 30
	// saveSoonest and saveQuiet: a change is written once nothing has changed for
	// saveQuiet, and writing takes at most a hundredth of the time.
	saveSoonest = 5 * time.Second
	saveQuiet   = time.Second
	saveShare   = 100
	// touchEvery is how often the file's time follows the API server's agreement.
	touchEvery = 5 * time.Minute
	// silence is how long the API server may say nothing (it sends a bookmark about
	// every minute) until it counts as away.
	silence = 3 * time.Minute
)

// restored is a snapshot in use.
type restored struct {
	objects []*api.Object
	view    *inventory.View
	pods    int
	time    time.Time
}

func (r *restored) findings() []diag.Diagnostic {
	return []diag.Diagnostic{{
		Message: fmt.Sprintf("the API server has not been read yet; a snapshot of %s is in force", r.time.UTC().Format(time.RFC3339)),
		Hint:    "see that this node reaches the API server",
	}}
}

// restoreLate uses the snapshot if the API server has not been read in time.
func (s *Source) restoreLate(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.ready:
		return
	case <-time.After(s.cfg.SnapshotWait):
	}
	r, err := readSnapshot(s.cfg.Snapshot, s.cfg.Kinds, s.cfg.SnapshotMaxAge, time.Now())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("snapshot not used", "file", s.cfg.Snapshot, "error", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced {
		return
	}
	s.log.Warn("API server not read in time, the snapshot is used", "file", s.cfg.Snapshot, "time", r.time,
		"objects", len(r.objects), "pods", r.pods, "waited", s.cfg.SnapshotWait)
	s.restored = r
	s.change++
	s.open()
	s.tell()
}

// readSnapshot reads a file that is not older than maxAge.
func readSnapshot(path string, kinds []api.Kind, maxAge time.Duration, now time.Time) (*restored, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if age := now.Sub(info.ModTime()); age > maxAge {
		return nil, fmt.Errorf("it is %s old, the limit is %s", age.Round(time.Second), maxAge)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var in saved
	if err := json.NewDecoder(io.LimitReader(z, maxSaved)).Decode(&in); err != nil {
		return nil, err
	}
	// The checksum comes after the content.
	if _, err := io.Copy(io.Discard, z); err != nil {
		return nil, err
	}
	if in.Format != savedFormat || in.World == nil {
		return nil, fmt.Errorf("format %d, want %d", in.Format, savedFormat)
	}
	r := &restored{view: inventory.ViewOf(in.World), pods: len(in.World.Pods), time: info.ModTime()}
	d := decode.Decoder{Kinds: kinds}
	for _, o := range in.Objects {
		data, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		objs, found := d.Decode("", data)
		if err := found.Err(); err != nil {
			// It was in force as another version of this program read it. A part of a
			// policy is none.
			return nil, err
		}
		r.objects = append(r.objects, objs...)
	}
	return r, nil
}

// save keeps the snapshot file up to date until ctx ends.
func (s *Source) save(ctx context.Context) {
	var due <-chan time.Time
	var earliest time.Time
	touch := time.NewTicker(touchEvery)
	defer touch.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.keep:
			if due == nil {
				due = time.After(max(saveQuiet, time.Until(earliest)))
			}
		case <-touch.C:
			if s.agrees(time.Now()) && due == nil {
				now := time.Now()
				_ = os.Chtimes(s.cfg.Snapshot, now, now) // no file yet: nothing to confirm
			}
		case <-due:
			due = nil
			s.mu.Lock()
			k := s.kept
			s.mu.Unlock()
			began := time.Now()
			err := writeSnapshot(s.cfg.Snapshot, k)
			earliest = time.Now().Add(max(saveSoonest, saveShare*time.Since(began)))
			switch {
			case err != nil && err.Error() != said:
				said = err.Error()
				s.log.Error("snapshot not written", "file", s.cfg.Snapshot, "error", err)
			case err == nil:
				said = ""
				s.log.Debug("snapshot written", "file", s.cfg.Snapshot, "elapsed", time.Since(began))
			}
		}
	}
}

// agrees reports whether the API server is there and what it says is in force.
func (s *Source) agrees(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced || s.inForce != s.change {
		return false
	}
	for _, f := range append([]*feed{s.definition}, s.feeds...) {
		if f.stats.Error != "" || now.Sub(f.stats.LastContact) > silence {
			return false
		}
	}
	return true
}

// writeSnapshot replaces the file: a reader sees the old one or the new one, and a
// machine that loses power has one of them.
func writeSnapshot(path string, k kept) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := k.write(z); err != nil {
		return err
	}
	if err := errors.Join(z.Close(), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write writes what saved is read from, one object after the other: all of it as
// one text would be some fifty megabytes.
func (k kept) write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(b)
	var err error
	text := func(s string) { _, _ = b.WriteString(s) } // the error comes again with Flush
	value := func(v any) {
		if err == nil {
			err = enc.Encode(v)
		}
	}
	between := func() func() {
		first := true
		return func() {
			if !first {
				text(",")
			}
			first = false
		}
	}
	text(`{"format":`)
	value(savedFormat)
	text(`,"objects":[`)
	comma := between()
	for _, o := range k.objects {
		comma()
		if o.Raw != nil {
			value(o.Raw) // with the difference between null and absent
		} else {
			value(o.Value)
		}
	}
	text(`],"World":{"Namespaces":`)
	value(k.world.Namespaces)
	text(`,"Nodes":`)
	value(k.world.Nodes)
	text(`,"Services":`)
	value(k.world.Services)
	text(`,"Pods":[`)
	comma = between()
	k.world.EachPod(func(p *inventory.Pod) {
		comma()
		value(p)
	})
	text("]}}\n")
	return errors.Join(err, b.Flush())
}
