package audit

import (
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Resolver turns the ids of one table into what they stand for. A
// *classifier.Table is one. Outcome and Endpoint return nil for what they do
// not know.
type Resolver interface {
	Outcome(id classifier.OutcomeID) *classifier.Outcome
	Rule(id classifier.RuleID) *rule.Rule
	Isolation(i int32) *rule.Isolation
	Endpoint(a flow.Addr) *rule.Endpoint
}

// NodeResolver is what a Resolver may know beside pods. A *classifier.Table does.
type NodeResolver interface {
	NodeOf(a flow.Addr) *rule.Node
	IsVIP(a flow.Addr) bool
	ServiceOf(via flow.Service) string
}

// Source is where the writer gets its events and their tables.
type Source interface {
	// Rings returns the event rings, the same ones every time. The writer is
	// their only consumer.
	Rings() []*dataplane.Ring
	// Resolver returns the table of a generation, or nil if it is not kept.
	Resolver(generation uint64) Resolver
	// BackendNames returns the names Event.Backend indexes.
	BackendNames() []string
}

type engineSource struct{ *dataplane.Engine }

func (s engineSource) Resolver(generation uint64) Resolver {
	if t := s.TableOf(generation); t != nil {
		return t
	}
	return nil // not a nil *Table in an interface
}

// FromEngine makes an engine a Source.
func FromEngine(e *dataplane.Engine) Source { return engineSource{e} }

// builder makes records of events. It belongs to the writer's goroutine.
type builder struct {
	node     string
	labels   []string // pod labels to record
	backends []string
	ifname   func(int32) string
	// wall converts an engine clock reading to the time of day.
	wall func(ns int64) time.Time
}

// base fills what every record of an event has in common.
func (b *builder) base(e *dataplane.Event, res Resolver) Record {
	r := Record{
		V: Version, Kind: KindFlow, Time: b.wall(e.Time), Node: b.node,
		Verdict: e.Verdict.String(), Stage: StageEnforce,
		Length: e.Length, Interface: b.ifname(e.Device), TableGeneration: e.Generation, Count: e.Count,
	}
	if int(e.Backend) < len(b.backends) {
		r.Backend = b.backends[e.Backend]
	}
	if n, ok := res.(NodeResolver); ok && !e.Service.IsZero() {
		r.Service = serviceName(n.ServiceOf(e.Service), e.Service)
	}
	if e.Conn != 0 {
		r.Connection = strconv.FormatUint(e.Conn, 16)
	}
	if e.Key.Valid() {
		b.flow(&r, &e.Key, res)
		if e.Key.Proto == flow.TCP {
			r.TCPFlags = flagTexts[e.TCPFlags]
		}
	} else if onlySource(&e.Key) {
		src := b.endpoint(e.Key.Src, res)
		r.Source = &src
	}
	return r
}

// serviceName is "namespace/name:port" for a Service that policy knows by the set
// "service:namespace/name"; its address and port where it does not.
func serviceName(set string, via flow.Service) string {
	if _, name, ok := strings.Cut(set, ":"); ok {
		return name + ":" + strconv.Itoa(int(via.Port))
	}
	return via.String()
}

func (b *builder) flow(r *Record, k *flow.Key, res Resolver) {
	r.Protocol = k.Proto.String()
	src, dst := b.endpoint(k.Src, res), b.endpoint(k.Dst, res)
	r.Source, r.Destination = &src, &dst
	switch {
	case k.Proto.HasPorts():
		r.Source.Port, r.Destination.Port = k.SrcPort, k.DstPort
	case hasType(k.Proto):
		typ, code := uint8(k.DstPort>>8), uint8(k.DstPort)
		r.ICMPType, r.ICMPCode = &typ, &code
	}
}

// endpoint names an address, without a port.
func (b *builder) endpoint(a flow.Addr, res Resolver) Endpoint {
	e := Endpoint{IP: a.Netip()}
	if res == nil {
		return e
	}
	if pod := res.Endpoint(a); pod != nil {
		e.Namespace, e.Pod, e.Node = pod.Namespace, pod.Name, pod.Node
		for _, k := range b.labels {
			if v, ok := pod.Labels[k]; ok {
				if e.Labels == nil {
					e.Labels = map[string]string{}
				}
				e.Labels[k] = v
			}
		}
		return e
	}
	if n, ok := res.(NodeResolver); ok {
		if node := n.NodeOf(a); node != nil {
			e.Node = node.Name
		}
		e.Service = n.IsVIP(a)
	}
	return e
}

func ref(o *rule.Origin) Policy {
	return Policy{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Generation: o.Generation}
}

// actionVerdicts are the verdict words of rule actions.
var actionVerdicts = map[rule.Action]string{rule.Allow: Allow, rule.Deny: Drop, rule.Reject: Reject, rule.Skip: Pass}

// named adds a rule to a record.
func named(r Record, x *rule.Rule) Record {
	if x == nil {
		return r
	}
	r.Verdict = actionVerdicts[x.Action]
	word := "" // the API's, where it is not ours
	if x.Origin.Word != r.Verdict {
		word = x.Origin.Word
	}
	if x.Stage == rule.AuditOnly {
		r.Stage, r.Verdict = StageAudit, would[r.Verdict]
	}
	r.Direction = x.Direction.String()
	r.Band = x.Order.Band.String()
	r.Tier = x.Order.Tier
	prio := x.Order.Priority
	r.Priority = &prio
	p := ref(&x.Origin)
	r.Policy = &p
	r.Rule = &Rule{Name: x.Origin.Rule, Index: x.Origin.Index, Action: word}
	r.Label = x.Origin.Label
	r.Reason = classifier.ReasonRule.String()
	return r
}

// unauthenticated corrects a record of a rule that allows but asks for
// authentication (S3-32): nobody can give it, so the connection is dropped.
func unauthenticated(r Record, why classifier.Reason) Record {
	if why == classifier.ReasonAuthRequired {
		r.Verdict, r.Reason = Drop, why.String()
	}
	return r
}

// isolated adds a default deny to a record: all policies that isolate.
func isolated(r Record, ids []int32, res Resolver) Record {
	r.Verdict = Drop
	r.Reason = classifier.ReasonIsolation.String()
	for _, id := range ids {
		if iso := res.Isolation(id); iso != nil {
			r.Isolations = append(r.Isolations, ref(&iso.Origin))
			r.Band = iso.Band.String()
		}
	}
	if len(r.Isolations) > 0 {
		r.Policy = &r.Isolations[0]
	}
	return r
}

// records calls emit for every record an event asks for, in the order they
// happened: egress before ingress, passed rules before the deciding one.
func (b *builder) records(e *dataplane.Event, res Resolver, emit func(Record)) {
	switch e.Cause {
	case dataplane.CausePolicy, dataplane.CauseICMPError:
	case dataplane.CauseLost:
		until := b.wall(e.Last)
		emit(Record{V: Version, Kind: KindLost, Time: b.wall(e.Time), Until: &until, Node: b.node, Reason: LostRing, Count: e.Count})
		return
	default:
		r := b.base(e, res)
		r.Kind, r.Reason = KindPacket, e.Cause.String()
		if e.Cause == dataplane.CauseProblem && e.Problem != packet.OK {
			r.Reason = e.Problem.String()
		}
		emit(r)
		return
	}
	base := b.base(e, res)
	if res == nil {
		base.Reason = ReasonForgotten
		emit(base)
		return
	}
	n := 0
	denied, stopped := base.Verdict != Allow, false
	for _, side := range [...]struct {
		dir flow.Direction
		id  classifier.OutcomeID
	}{{flow.Egress, e.Egress}, {flow.Ingress, e.Ingress}} {
		o := res.Outcome(side.id)
		if o == nil {
			continue
		}
		if side.dir == flow.Egress {
			stopped = o.Verdict != classifier.Allow
		} else if stopped && o.Verdict == classifier.Allow {
			continue // the packet never got to the rules that would let it in
		}
		r := base
		r.Direction = side.dir.String()
		covered := b.outcome(r, o, res, func(r Record) { n++; emit(r) })
		if e.Forced && !covered && decides(o, denied) {
			n++
			emit(decided(r, o, res))
		}
	}
	if n == 0 && e.Forced {
		// Asked for, and no policy here concerns it.
		base.Reason = classifier.ReasonNotLocal.String()
		emit(base)
	}
}

// outcome emits what one direction's rules asked for. It reports whether that
// named what decided the direction.
func (b *builder) outcome(base Record, o *classifier.Outcome, res Resolver, emit func(Record)) (covered bool) {
	staged := false
	for _, id := range o.Audit {
		r := named(base, res.Rule(id))
		if o.HasStaged && id == o.StagedRule && r.Stage == StageAudit {
			staged = true
		}
		if id == o.Rule {
			covered = true
			r = unauthenticated(r, o.Reason)
		}
		emit(r)
	}
	if o.AuditIsolation && o.Reason == classifier.ReasonIsolation {
		covered = true
		emit(isolated(base, o.Isolations, res))
	}
	if o.HasStaged && !staged {
		r := base
		switch o.StagedReason {
		case classifier.ReasonRule, classifier.ReasonAuthRequired:
			r = unauthenticated(named(base, res.Rule(o.StagedRule)), o.StagedReason)
		case classifier.ReasonIsolation:
			r = isolated(base, o.StagedIsolations, res)
		default:
			r.Reason, r.Band = o.StagedReason.String(), o.StagedBand.String()
		}
		r.Stage, r.Verdict = StageAudit, would[o.Staged.String()]
		emit(r)
	}
	return covered
}

// decides reports whether an outcome is one that made the connection's verdict:
// every allowing one of an allowed connection, the denying ones of a denied one.
func decides(o *classifier.Outcome, denied bool) bool {
	if o == nil || o.Reason == classifier.ReasonNotLocal || o.Reason == classifier.ReasonNone {
		return false
	}
	return denied == (o.Verdict != classifier.Allow)
}

// decided is the record of what decided a direction, whether or not its rule
// asked for one: whoever configured the engine did.
func decided(r Record, o *classifier.Outcome, res Resolver) Record {
	switch o.Reason {
	case classifier.ReasonRule, classifier.ReasonAuthRequired:
		return unauthenticated(named(r, res.Rule(o.Rule)), o.Reason)
	case classifier.ReasonIsolation:
		return isolated(r, o.Isolations, res)
	}
	r.Verdict, r.Reason, r.Band = o.Verdict.String(), o.Reason.String(), o.Band.String()
	return r
}
