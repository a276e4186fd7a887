package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// Gap is a part of a cluster that was not read, and what that means for the
// answer. The JSON form is part of every answer that has gaps.
type Gap struct {
	Resource string `json:"resource"`
	// Namespace is the only one of which it was read, "" when nothing was.
	Namespace string `json:"onlyNamespace,omitempty"`
	Forbidden bool   `json:"forbidden"` // by the user's rights; else reading failed
	Error     string `json:"error"`
	Means     string `json:"means"`
}

// Live reads a cluster with its user's rights and compiles it as Load does
// manifests.
//
// A daemon leaves an object with errors out and enforces the others, and so does
// the answer: errors that belong to an object are in Findings, and there is a
// Table all the same. The error is about everything: no answer.
func Live(ctx context.Context, config *rest.Config, opt lower.Options, node string, what kube.ReadOptions) (*Input, error) {
	objs, snap, found, missing, err := kube.Read(ctx, config, what)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	return fromCluster(opt, node, objs, snap, found, missing)
}

func fromCluster(opt lower.Options, node string, objs []*api.Object, snap *inventory.Snapshot, found diag.List, missing []kube.Missing) (*Input, error) {
	in := &Input{Objects: objs, Snapshot: snap, Findings: found, Gaps: gaps(missing), Live: true}
	in.isolate(opt)
	in.Findings.Sort()
	return in, in.compile(node)
}

// isolate lowers the objects and leaves out those with errors, as daemons do that
// have no older version of them. What several do wrong together stays an error, and
// there is no set.
func (in *Input) isolate(opt lower.Options) {
	r := assess.Run(opt, in.Objects, in.Snapshot, nil)
	in.read, in.refused = in.Objects, map[api.Ref]bool{}
	for i := range r.Refused {
		in.refused[r.Refused[i].Object.Ref()] = true
		in.Findings.Errors = append(in.Findings.Errors, r.Refused[i].Errors...)
	}
	in.take(r)
	in.Findings.Add(r.Findings)
	in.unfit = len(r.Findings.Errors) > 0
}

// take makes the objects in use and their rules those of the input.
func (in *Input) take(r assess.Result) { in.Objects, in.Set = r.Objects, r.Set }

// ReadFiles reads files and directories, or "-", that belong to a world elsewhere.
// Objects that name no namespace get the one given ("" means default), as kubectl
// does it. There is no Set and no Table yet: see Alone and WithFiles.
func ReadFiles(paths []string, namespace string, stdin io.Reader) (*Input, error) {
	objs, snap, found, err := readManifests(paths, stdin)
	if err != nil {
		return nil, err
	}
	in := &Input{unfit: true, Objects: objs, Snapshot: snap, Findings: found}
	for _, o := range in.Objects {
		meta, _ := o.Raw["metadata"].(map[string]any)
		if given, _ := meta["namespace"].(string); !o.Kind.Namespaced || given != "" || namespace == "" {
			continue
		}
		o.Namespace = namespace
		if v, ok := o.Value.(metav1.Object); ok {
			v.SetNamespace(namespace)
		}
	}
	// An object without a namespace may be another one's twin now that it has one.
	for _, d := range decode.Duplicates(in.Objects).Errors {
		if !slices.ContainsFunc(in.Findings.Errors, d.Equal) {
			in.Findings.Errors = append(in.Findings.Errors, d)
		}
	}
	in.Findings.Sort()
	return in, nil
}

// Alone compiles what ReadFiles read, with the pods that are there.
func (in *Input) Alone(opt lower.Options) error {
	set, found := opt.Build(in.Objects, in.Snapshot)
	in.Set = set
	in.Findings.Add(found)
	in.Findings.Sort()
	in.unfit = len(in.Findings.Errors) > 0
	return in.compile("")
}

// Remove makes WithFiles leave policies out that the world has.
func (in *Input) Remove(refs ...api.Ref) {
	if in.removed == nil {
		in.removed = map[api.Ref]bool{}
	}
	for _, r := range refs {
		in.removed[r] = true
	}
}

// WithFiles puts the policies of files into a world, in the place of those of the
// same names: what applying them would make of it. Findings are
// those about the files, errors on other policies that the files cause, and what
// several policies do wrong together; what the cluster had before is not repeated.
func (in *Input) WithFiles(files *Input, opt lower.Options) (*Input, error) {
	written := maps.Clone(files.removed)
	if written == nil {
		written = map[api.Ref]bool{}
	}
	for _, o := range files.Objects {
		written[o.Ref()] = true
	}
	var objs []*api.Object
	for _, o := range in.read {
		if !written[o.Ref()] {
			objs = append(objs, o)
		}
	}
	objs = append(objs, files.Objects...)
	out := &Input{Snapshot: in.Snapshot, Gaps: in.Gaps, Live: in.Live, Findings: files.Findings, files: len(files.Objects)}
	// What a file overrides is about the file, too (S0-67).
	about := func(d diag.Diagnostic) bool {
		return d.File != "" || d.Object.IsZero() || len(d.Among) > 0 || written[d.Object] || written[d.Override.By]
	}
	r := assess.Run(opt, objs, out.Snapshot, nil)
	for i := range r.Refused {
		if ref := r.Refused[i].Object.Ref(); written[ref] || !in.refused[ref] {
			out.Findings.Errors = append(out.Findings.Errors, r.Refused[i].Errors...)
		}
	}
	for _, d := range r.Findings.Errors {
		if about(d) {
			out.Findings.Errors = append(out.Findings.Errors, d)
		}
	}
	for _, d := range r.Findings.Warnings {
		if about(d) {
			out.Findings.Warnings = append(out.Findings.Warnings, d)
		}
	}
	out.take(r)
	out.only = about
	out.unfit = len(out.Findings.Errors)+len(r.Findings.Errors) > 0
	out.Findings.Sort()
	return out, out.compile("")
}

// gaps explains what could not be read.
func gaps(missing []kube.Missing) []Gap {
	out := make([]Gap, 0, len(missing))
	for _, m := range missing {
		g := Gap{Resource: m.Resource, Namespace: m.Read, Forbidden: apierrors.IsForbidden(m.Err), Means: means(m.Resource, m.Read)}
		if m.Err != nil {
			g.Error = m.Err.Error()
		}
		out = append(out, g)
	}
	return out
}

// means says what not knowing a resource does to an answer.
func means(resource, only string) string {
	name, group, _ := strings.Cut(resource, ".")
	elsewhere := ""
	if only != "" {
		elsewhere = " of other namespaces"
	}
	switch {
	case group == "" && name == "pods":
		if only == "" {
			return "no pod is known: nothing can be asked by name"
		}
		return "pods of other namespaces count as addresses outside, and rules that select them match nobody"
	case group == "" && name == "namespaces":
		if only != "" {
			return "labels of other namespaces are not known: rules that select by them match nobody there"
		}
		return "labels of namespaces are not known: rules that select by them match nobody"
	case group == "" && name == "nodes":
		return "addresses of nodes and ranges of pods are not known: both count as outside"
	case group == "" && name == "services":
		return "Services" + elsewhere + " cannot be asked about"
	case group == "discovery.k8s.io":
		return "backends of Services" + elsewhere + " are the pods they select that are ready"
	case group == "apiextensions.k8s.io":
		return "which policy APIs are installed was found by discovery only"
	case strings.HasSuffix(name, "tiers"), strings.HasSuffix(name, "groups"):
		return "policies that use them are left out"
	}
	return "policies of this kind" + elsewhere + " are not in the answer: they may allow or deny what it shows otherwise"
}

// WriteGaps tells what was not read, for people; nothing without gaps.
func (in *Input) WriteGaps(w io.Writer, s Style) error {
	if len(in.Gaps) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(s.Yellow("incomplete") + ": the answer holds for what could be read of the cluster\n")
	// One line for all of one kind of gap: a user of one namespace has many.
	type kind struct{ namespace, means, why string }
	var order []kind
	byKind := map[kind][]string{}
	for _, g := range EscapeAll(in.Gaps) {
		k := kind{g.Namespace, g.Means, "forbidden"}
		if !g.Forbidden {
			k.why = g.Error
		}
		if byKind[k] == nil {
			order = append(order, k)
		}
		byKind[k] = append(byKind[k], g.Resource)
	}
	for _, k := range order {
		where := "not read"
		if k.namespace != "" {
			where = "read in namespace " + k.namespace + " only"
		}
		fmt.Fprintf(&b, "  %s: %s (%s): %s\n", strings.Join(byKind[k], ", "), where, k.why, k.means)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteFindings prints the findings; as JSON with what was not read.
func (in *Input) WriteFindings(w io.Writer, s Style, asJSON bool) error {
	if !asJSON || len(in.Gaps) == 0 {
		return WriteFindings(w, s, asJSON, &in.Findings)
	}
	return WriteJSON(w, struct {
		Findings
		Incomplete []Gap `json:"incomplete"`
	}{FindingsOf(&in.Findings), in.Gaps})
}
