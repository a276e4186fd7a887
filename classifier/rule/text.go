package rule

import (
	"fmt"
	"strconv"
	"strings"
)

// Text is the set in readable form, a few lines a rule, in the order the slices
// have: call [Set.Sort] first for the canonical text. Sets with equal canonical
// text decide alike; the text is for people, goldens and diffs, not for parsing.
//
//	ingress admin priority=-10 name="deny-all" index=0: deny
//	    origin  adminnetworkpolicy.policy.networking.k8s.io//deny-all ingress[0] word=Deny dialect=kep
//	    subject {namespaces("env"=["prod"])}
//	    peer    pods {}
//	    l4      any protocol
//	isolate egress networkpolicy
//	    origin  networkpolicy.networking.k8s.io/x/deny
//	    subject {namespace="x"}
func (s *Set) Text() string {
	var b strings.Builder
	for i := range s.Rules {
		s.Rules[i].text(&b)
	}
	for i := range s.Isolations {
		s.Isolations[i].text(&b)
	}
	return b.String()
}

func (r *Rule) text(b *strings.Builder) {
	fmt.Fprintf(b, "%s %s%s: %s", r.Direction, r.Order.Band, r.Order.text(), r.Action)
	if r.Action == Skip {
		b.WriteString(" " + r.Skip.String())
	}
	b.WriteByte('\n')
	line(b, "origin", r.Origin.text(r.RuleName()))
	line(b, "subject", r.Subject.String())
	for i := range r.Peers {
		line(b, "peer", r.Peers[i].String())
	}
	if len(r.Peers) == 0 {
		line(b, "peer", "none: matches nothing")
	}
	for i := range r.L4 {
		line(b, "l4", r.L4[i].String())
	}
	if len(r.L4) == 0 {
		line(b, "l4", "none: matches nothing")
	}
	if r.Auth {
		line(b, "auth", "required")
	}
	flags(b, r.Audit, r.Stage)
}

func (i *Isolation) text(b *strings.Builder) {
	fmt.Fprintf(b, "isolate %s %s\n", i.Direction, i.Band)
	line(b, "origin", i.Origin.text(""))
	line(b, "subject", i.Subject.String())
	flags(b, i.Audit, i.Stage)
}

// RuleName is [Origin.RuleName] of the rule's own direction.
func (r *Rule) RuleName() string { return r.Origin.RuleName(r.Direction) }

func line(b *strings.Builder, key, value string) { fmt.Fprintf(b, "    %-7s %s\n", key, value) }

func flags(b *strings.Builder, audit bool, stage Stage) {
	if audit {
		line(b, "audit", "yes")
	}
	if stage != Enforce {
		line(b, "stage", stage.String())
	}
}

// text leaves out what is zero, except the index, which always counts.
func (o *Order) text() string {
	var b strings.Builder
	if o.Tier != 0 {
		fmt.Fprintf(&b, " tier=%d", o.Tier)
	}
	if o.Priority != 0 {
		b.WriteString(" priority=" + strconv.FormatFloat(o.Priority, 'g', -1, 64))
	}
	if o.Class != 0 {
		fmt.Fprintf(&b, " class=%d", o.Class)
	}
	if o.Name != "" {
		fmt.Fprintf(&b, " name=%q", o.Name)
	}
	fmt.Fprintf(&b, " index=%d", o.Index)
	return b.String()
}

func (o *Origin) text(ruleName string) string {
	var b strings.Builder
	b.WriteString(o.Ref())
	if ruleName != "" {
		b.WriteString(" " + ruleName)
	}
	for _, kv := range [][2]string{{"word", o.Word}, {"dialect", o.Dialect}, {"label", o.Label}} {
		if kv[1] != "" {
			b.WriteString(" " + kv[0] + "=" + kv[1])
		}
	}
	if o.Generation != 0 {
		fmt.Fprintf(&b, " generation=%d", o.Generation)
	}
	return b.String()
}

// String lists the bands in order: "admin", "antrea-upper+antrea-lower".
func (s BandSet) String() string {
	var names []string
	for b := Band(0); b <= BandDefault; b++ {
		if s.Has(b) {
			names = append(names, b.String())
		}
	}
	return strings.Join(names, "+")
}
