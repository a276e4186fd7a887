package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Size limits in bytes, for a daemon. A file is read whole, and reading YAML takes tens
// of times its size in memory. Offline tools have none: see [Loader].Offline.
const (
	MaxFile  = 8 << 20
	MaxTotal = 64 << 20
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// Loader loads manifests. Set Kinds; the other fields are optional.
type Loader struct {
	Kinds []api.Kind // the policy kinds, as the dialects list them
	// Inventory is for the offline tools; leave it zero in a daemon.
	Inventory inventory.Options
	// Offline is for what a person reads by hand: input of any size, pipes given as a
	// path, and one warning for all objects that policies have no use for.
	Offline bool
	Stdin   io.Reader // read for path [Stdin]; nil is os.Stdin
}

// Load is [Loader.Load] with nothing but kinds.
func Load(path string, kinds []api.Kind) ([]*api.Object, *inventory.Snapshot, diag.List) {
	return Loader{Kinds: kinds}.Load(path)
}

// Load reads directories, files and standard input as if all were in one
// directory, and returns the policy objects in the order read, the world, and all
// findings, sorted. With error findings the rest is incomplete: good for more
// findings, not for use. The snapshot is never nil.
func (l Loader) Load(paths ...string) ([]*api.Object, *inventory.Snapshot, diag.List) {
	r := run{dec: decode.Decoder{Kinds: l.Kinds, Workloads: l.Inventory.Workloads}, offline: l.Offline}
	for i, path := range paths {
		switch {
		case path != Stdin:
			r.path(path)
		case slices.Contains(paths[:i], Stdin):
			r.fail("stdin", "standard input is given twice", "it can be read once: give - once")
		case l.Stdin != nil:
			r.read("stdin", l.Stdin)
		default:
			r.read("stdin", os.Stdin)
		}
	}
	r.found.Add(decode.Duplicates(r.objs))
	snap, found := inventory.Build(r.objs, l.Inventory)
	r.found.Add(found)
	if l.Offline {
		decode.SumIgnored(&r.found)
	}
	r.found.Sort()
	policies := make([]*api.Object, 0, len(r.objs))
	for _, o := range r.objs {
		if !decode.IsCluster(o) {
			policies = append(policies, o)
		}
	}
	return policies, snap, r.found
}

// run is one call of Load.
type run struct {
	dec   decode.Decoder
	objs  []*api.Object
	found diag.List
	total int64

	offline bool
	given   string // the path that is being read
}

// path reads a directory or a file.
func (r *run) path(path string) {
	files := 0
	r.given = path
	err := walk(path, func(file string, info fs.FileInfo) {
		files++
		r.file(file, info)
	}, nil)
	switch {
	case err != nil:
		r.walkErrors(path, err)
	case files == 0:
		r.fail(path, "the directory has no manifest", "put *.yaml, *.yml or *.json files there")
	}
}

func (r *run) fail(file, message, hint string) {
	r.found.Errors = append(r.found.Errors, diag.Diagnostic{File: file, Message: message, Hint: hint})
}

// walkErrors reports what walk joined, one finding each.
func (r *run) walkErrors(path string, err error) {
	list := []error{err}
	if j := interface{ Unwrap() []error }(nil); errors.As(err, &j) {
		list = j.Unwrap()
	}
	for _, e := range list {
		file, message := path, e.Error()
		var pe *fs.PathError
		if errors.As(e, &pe) {
			file, message = pe.Path, pe.Err.Error()
		}
		r.fail(file, "cannot be read: "+message, "see that the user who runs this may read it")
	}
}

func (r *run) file(path string, info fs.FileInfo) {
	switch {
	case r.offline && path == r.given: // a pipe that somebody names is meant to be read
	case !info.Mode().IsRegular():
		r.fail(path, "not a regular file", "put plain files into the directory") // reading a pipe would wait forever
		return
	case info.Size() > MaxFile && !r.offline:
		r.tooLarge(path, fmt.Sprintf("the file has %d bytes", info.Size()))
		return
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return // removed since the directory was read: its removal is the next change
	}
	if err != nil {
		r.walkErrors(path, err)
		return
	}
	defer f.Close()
	r.read(path, f)
}

func (r *run) tooLarge(path, what string) {
	r.fail(path, fmt.Sprintf("%s, the limit is %d (%d MiB)", what, MaxFile, MaxFile>>20), "split it into several files")
}

// read decodes one input.
func (r *run) read(name string, in io.Reader) {
	if r.offline {
		objs, found, n, err := r.dec.DecodeReader(name, in)
		if err != nil {
			r.walkErrors(name, err)
		}
		r.add(name, objs, found, n == 0)
		return
	}
	data, err := io.ReadAll(io.LimitReader(in, MaxFile+1))
	if err != nil {
		r.walkErrors(name, err)
		return
	}
	if len(data) > MaxFile {
		r.tooLarge(name, "the input is larger than allowed")
		return
	}
	if r.total += int64(len(data)); r.total > MaxTotal {
		if r.total-int64(len(data)) <= MaxTotal { // say it once
			r.fail(name, fmt.Sprintf("all files together exceed the limit of %d MiB; this and later ones are not read", MaxTotal>>20), "move what is not policy elsewhere")
		}
		return
	}
	objs, found := r.dec.Decode(name, data)
	r.add(name, objs, found, len(bytes.TrimSpace(data)) == 0)
}

// add keeps what a file has. A file of nothing is an error if it is empty.
func (r *run) add(name string, objs []*api.Object, found diag.List, empty bool) {
	r.objs = append(r.objs, objs...)
	r.found.Add(found)
	if len(objs) > 0 || len(found.Errors) > 0 || len(found.Warnings) > 0 {
		return
	}
	none := diag.Diagnostic{File: name, Message: "the file has no objects"}
	if !empty {
		none.Hint = "remove the file if that is meant"
		r.found.Warnings = append(r.found.Warnings, none)
		return
	}
	none.Hint = "the file is empty; was it written completely?"
	r.found.Errors = append(r.found.Errors, none)
}
