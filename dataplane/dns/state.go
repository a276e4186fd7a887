package dns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxState bounds the file that is read.
const maxState = 64 << 20

// stateVersion is that of the file's format.
const stateVersion = 1

// state is the file: names, least recently resolved first.
type state struct {
	Version int         `json:"version"`
	Names   []stateName `json:"names"`
}

type stateName struct {
	Name  string               `json:"name"`
	Addrs map[string]time.Time `json:"addrs"` // to the end of the TTL
}

// Save writes what is known to a file, in one step, if anything changed since the
// last call.
func (n *Names) Save(path string) error {
	n.mu.Lock()
	if !n.unsaved {
		n.mu.Unlock()
		return nil
	}
	s := state{Version: stateVersion, Names: []stateName{}}
	for _, e := range n.names.Values() {
		out := stateName{e.name, make(map[string]time.Time, len(e.addrs))}
		for a, d := range e.addrs {
			out.Addrs[a.String()] = d.until.UTC().Truncate(time.Second)
		}
		s.Names = append(s.Names, out)
	}
	n.unsaved = false
	n.mu.Unlock()
	err := save(path, &s)
	if err != nil {
		n.mu.Lock()
		n.unsaved = true
		n.mu.Unlock()
		return fmt.Errorf("save the names learnt from DNS: %w", err)
	}
	return nil
}

func save(path string, s *state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Load takes in what Save wrote; call it before the first table. No file is no
// error. On error nothing is taken in. What it says is bounded like an answer: an
// address in it holds for MaxTTL at most.
func (n *Names) Load(path string) error {
	s, err := load(path)
	if err != nil {
		return fmt.Errorf("read the names learnt from DNS: %w", err)
	}
	if len(s.Names) == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	latest := n.cfg.Clock().Add(MaxTTL)
	for _, in := range s.Names[max(0, len(s.Names)-n.cfg.Total):] {
		e := &entry{name: in.Name, addrs: map[netip.Addr]*address{}}
		for text, until := range in.Addrs {
			a, err := netip.ParseAddr(text)
			if err != nil || len(e.addrs) >= n.cfg.PerName || len(appendAddr(nil, a, 0)) == 0 {
				continue
			}
			if until.After(latest) {
				until = latest
			}
			e.addrs[a] = &address{until: until}
		}
		if len(e.addrs) == 0 || n.names.Contains(e.name) {
			continue
		}
		if n.add(e) {
			n.join(e)
		}
	}
	n.changed()
	n.unsaved = false
	return nil
}

func load(path string) (s state, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return s, err
	}
	if len(b) > maxState {
		return s, fmt.Errorf("%s has more than %d bytes", path, maxState)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return state{}, fmt.Errorf("%s: %w", path, err)
	}
	if s.Version != stateVersion {
		return state{}, fmt.Errorf("%s has version %d, want %d", path, s.Version, stateVersion)
	}
	return s, nil
}

// Name is what is known of a name, for listings.
type Name struct {
	Name  string               `json:"name"`
	Sets  []string             `json:"sets"`
	Addrs map[netip.Addr]int64 `json:"addrs"` // seconds left of the TTL; negative: kept beyond it
}

// List returns what is known, sorted by name.
func (n *Names) List() []Name {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.cfg.Clock()
	all := make([]Name, 0, n.names.Len())
	for _, e := range n.names.Values() {
		out := Name{e.name, slices.Clone(e.sets), map[netip.Addr]int64{}}
		for a, d := range e.addrs {
			out.Addrs[a] = int64(d.until.Sub(now) / time.Second)
		}
		all = append(all, out)
	}
	slices.SortFunc(all, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	return all
}
