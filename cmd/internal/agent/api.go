package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/diag"
)

// withAPI adds the local interface to the handler of metrics and probes.
func (d *daemon) withAPI(h http.Handler) http.Handler {
	c := api.Config{Node: d.cfg.Node, Engine: d.engine, Hits: d.ruleHits, Logger: d.log}
	switch a := &d.cfg.Audit; {
	case a.File == "":
		c.NoAudit = "this daemon writes no audit log to a file (configuration key audit.file)"
	case a.Format != audit.JSON.String():
		c.NoAudit = fmt.Sprintf("the audit log has the format %s, and only %s can be read (configuration key audit.format)", a.Format, audit.JSON)
	default:
		c.AuditFile = a.File
	}
	started := time.Now().UTC()
	c.Status = func() api.Status { return d.apiStatus(started) }
	mux := http.NewServeMux()
	mux.Handle(api.Prefix, api.Handler(c))
	mux.Handle("/", h)
	return mux
}

// apiStatus is what the daemon says of itself.
func (d *daemon) apiStatus(started time.Time) api.Status {
	st := api.Status{
		Version: version(), Node: d.cfg.Node, Started: started, Ready: true,
		Dataplane: api.Dataplane{
			Backends: d.names, Why: d.why, FailMode: d.cfg.FailMode, Established: d.cfg.Established, Probes: d.probes(),
			Kernel: dataplane.KernelRelease(),
		},
		Source: d.apiSource(),
	}
	if err := d.ready(); err != nil {
		st.Ready, st.NotReady = false, err.Error()
	}
	p := d.control.Status()
	wrong := p.Findings.Errors
	for _, r := range p.Refused {
		wrong = append(slices.Clip(wrong), r.Errors...)
	}
	st.Policy = api.Policy{
		Generation: p.Generation, Hash: p.PolicyHash, Objects: p.Objects, Rules: p.Rules, Isolations: p.Isolations, Pods: p.Pods,
		LastAttempt: moment(p.LastAttempt), LastSuccess: moment(p.LastSuccess),
		Errors:      append([]diag.Diagnostic{}, wrong[:min(len(wrong), api.MaxFindings)]...),
		ErrorsTotal: len(wrong), WarningsTotal: len(p.Findings.Warnings),
	}
	if t := d.engine.Table(); t != nil {
		st.Policy.Staged = t.StagedPolicies()
	}
	if rules, err := d.ruleHits(); err == nil {
		unmatched, matches := 0, uint64(0)
		for i := range rules {
			matches += rules[i].Hits
			if rules[i].Hits == 0 {
				unmatched++
			}
		}
		st.Policy.Unmatched, st.Policy.Matches = &unmatched, &matches
	}
	if d.cluster != nil {
		report := d.cluster.enforced(p)
		report.Time = time.Now().UTC()
		st.Enforced = &report
	}
	s := d.stats()
	st.Traffic = api.Traffic{
		Userspace: s.Upcalls, Kernel: s.Bypassed, Passed: s.Passed, Dropped: s.Dropped,
		Overflow: s.Overflow, Cut: s.Cut,
	}
	st.Traffic.CountConnections(d.engine)
	if d.audit != nil {
		st.Audit = &api.Audit{File: d.cfg.Audit.File, Records: s.AuditRecords, Lost: s.AuditLost}
	}
	return st
}

// probes says of each backend whether it runs, and why not.
func (d *daemon) probes() []api.Probe {
	out := make([]api.Probe, 0, 2)
	for _, name := range []string{"afxdp", "nfqueue"} {
		p := api.Probe{Backend: name, How: d.facts[name]}
		for _, running := range strings.Split(d.names, "+") {
			p.Running = p.Running || running == name
		}
		if !p.Running {
			p.Why = d.why
			if err := d.missing[name]; err != nil {
				p.Why = err.Error()
			}
		}
		out = append(out, p)
	}
	return out
}

// apiSource says where policy comes from.
func (d *daemon) apiSource() api.Source {
	if d.cluster == nil {
		return api.Source{Kind: "manifests", Where: d.cfg.Manifests.String(), Synced: d.generation() > 0}
	}
	where := d.cfg.Kubernetes.Kubeconfig
	if where == "" {
		where = "in the cluster"
	}
	st := d.cluster.source.Status()
	s := api.Source{Kind: "kubernetes", Where: where, Synced: st.Synced, Snapshot: !st.Snapshot.IsZero()}
	for i := range st.NotUnderstood {
		n := &st.NotUnderstood[i]
		d := n.Finding()
		out := api.NotUnderstood{
			Group: n.Group, Version: n.Version, Kind: n.Kind, Project: n.Project,
			Used: n.Used(), Matters: n.Matters(), Message: d.Message, Hint: d.Hint,
		}
		if n.Objects >= 0 {
			out.Objects = &n.Objects
		}
		s.NotUnderstood = append(s.NotUnderstood, out)
	}
	for _, r := range st.Resources {
		if r.Error != "" {
			s.Problem = fmt.Sprintf("%s: %s", r.Resource, r.Error)
			if !r.LastContact.IsZero() {
				s.Problem += fmt.Sprintf(" (last contact %s)", r.LastContact.UTC().Format(time.RFC3339))
			}
			break
		}
	}
	return s
}

// moment is nil for never.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
