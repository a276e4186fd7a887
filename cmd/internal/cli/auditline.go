package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/api"
)

// AuditLine renders an audit record for people, on one line without a newline:
//
//	15:04:05.000 Drop    x/a -> y/b  TCP 80  NetworkPolicy y/default-deny  ingress, isolation
//
// Times are in the zone given, to the millisecond.
func AuditLine(s Style, zone *time.Location, r *audit.Record) string {
	var b strings.Builder
	b.WriteString(s.Dim(r.Time.In(zone).Format("15:04:05.000")))
	switch r.Kind {
	case audit.KindLost:
		fmt.Fprintf(&b, " %s  %s missing here: %s", s.Alarm("Lost"), Plural(r.Count, "record"), Escape(r.Reason))
		return b.String()
	case audit.KindFile:
		b.WriteString(s.Dim(" a file of a hash-chained log begins"))
		return b.String()
	}
	fmt.Fprintf(&b, " %s  %s -> %s", s.VerdictAs(r.Verdict, fmt.Sprintf("%-6s", Escape(r.Verdict))),
		s.Bold(Escape(r.Source.Name())), s.Bold(Escape(r.Destination.Name())))
	fmt.Fprintf(&b, "  %s", Escape(auditProto(r)))
	if by := auditPolicy(r); by != "" {
		b.WriteString("  " + s.Cyan(Escape(by)))
	}
	var notes []string
	if r.Direction != "" {
		notes = append(notes, r.Direction)
	}
	if r.Reason != "" && r.Reason != "rule" {
		notes = append(notes, r.Reason)
	}
	if r.Stage == audit.StageAudit {
		notes = append(notes, "not enforced")
	}
	if r.Label != "" {
		notes = append(notes, "label "+r.Label)
	}
	if r.Count > 1 {
		notes = append(notes, fmt.Sprintf("%d packets", r.Count))
	}
	if r.Ports != nil {
		notes = append(notes, fmt.Sprintf("to ports %d-%d", r.Ports.First, r.Ports.Last))
	}
	if len(notes) > 0 {
		b.WriteString("  " + s.Dim(Escape(strings.Join(notes, ", "))))
	}
	return b.String()
}

func auditProto(r *audit.Record) string {
	family := ""
	if r.Destination != nil && r.Destination.IP.Is6() {
		family = " v6"
	}
	switch {
	case r.ICMPType != nil && r.ICMPCode != nil:
		return fmt.Sprintf("%s type %d code %d", r.Protocol, *r.ICMPType, *r.ICMPCode)
	case r.Destination != nil && r.Destination.Port != 0:
		return fmt.Sprintf("%s %d%s", r.Protocol, r.Destination.Port, family)
	}
	return r.Protocol + family
}

// maxDeciders bounds the policies a line names.
const maxDeciders = 8

// auditPolicy names what decided: all policies that isolate for a default deny
// "NetworkPolicy y/web" with the rule after a colon otherwise.
func auditPolicy(r *audit.Record) string {
	var names []string
	deciders := r.Deciders()
	for i, p := range deciders {
		if i == maxDeciders {
			names = append(names, fmt.Sprintf("%d more", len(deciders)-i))
			break
		}
		names = append(names, api.Ref{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}.String())
	}
	name := strings.Join(names, ", ")
	switch {
	case name == "" || r.Rule == nil:
		return name
	case r.Rule.Name != "":
		return name + ": " + r.Rule.Name
	}
	return fmt.Sprintf("%s: %s[%d]", name, r.Direction, r.Rule.Index)
}
