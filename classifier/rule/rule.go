package rule

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Band is an ordered list of rules with a way out; see docs/architecture.md.
// Lower values are evaluated first.
type Band uint8

// The bands in evaluation order. Bands 3a-3c are the three passes of the KEP
// ClusterNetworkPolicy (Empower, Deny, Allow).
const (
	BandAntreaUpper    Band = iota // 1   Antrea tiers below 220
	BandAdmin                      // 2   upstream admin policies
	BandClusterEmpower             // 3a  KEP ClusterNetworkPolicy Empower
	BandClusterDeny                // 3b  KEP ClusterNetworkPolicy Deny
	BandClusterAllow               // 3c  KEP ClusterNetworkPolicy Allow
	BandAntreaLower                // 4   Antrea tiers 221 to 252
	BandNetworkPolicy              // 5   NetworkPolicy v1, Cilium policies
	BandAntreaBaseline             // 6   Antrea baseline tier
	BandBaseline                   // 7   upstream baseline policies
	BandClusterDefault             // 8   KEP ClusterDefaultNetworkPolicy
	BandDefault                    // 9   nothing decided: allow
	NumBands           = int(BandDefault)
)

var bandNames = [...]string{
	"antrea-upper", "admin", "cluster-empower", "cluster-deny", "cluster-allow", "antrea-lower",
	"networkpolicy", "antrea-baseline", "baseline", "cluster-default", "default",
}

// String returns the band's name as it appears in explain, audit and metrics.
func (b Band) String() string {
	if int(b) < len(bandNames) {
		return bandNames[b]
	}
	return "invalid"
}

// BandSet is a set of bands, one bit each.
type BandSet uint16

// Bands returns the set holding the given bands.
func Bands(bs ...Band) BandSet {
	var s BandSet
	for _, b := range bs {
		s |= 1 << b
	}
	return s
}

// Has reports whether b is in the set.
func (s BandSet) Has(b Band) bool { return s&(1<<b) != 0 }

// Action is what a matching rule does.
type Action uint8

// Actions. The zero value is invalid. Skip goes on behind the bands named in
// Rule.Skip; the others are final.
const (
	Allow Action = iota + 1
	Deny
	Reject
	Skip
)

// String returns the action's lower-case name.
func (a Action) String() string {
	switch a {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	case Reject:
		return "reject"
	case Skip:
		return "skip"
	}
	return "invalid"
}

// strictness orders actions for tie-breaking: strictest first.
func (a Action) strictness() int {
	switch a {
	case Deny, Reject:
		return 0
	case Skip:
		return 1
	}
	return 2
}

// Stage says whether a rule is enforced or only evaluated and logged.
type Stage uint8

// Stages.
const (
	Enforce Stage = iota
	AuditOnly
)

// String returns "enforce" or "audit".
func (s Stage) String() string {
	if s == AuditOnly {
		return "audit"
	}
	return "enforce"
}

// Order places a rule among all rules of its direction. Fields are compared in
// the order they are declared; lower is evaluated first. Full ties are broken
// by action (strictest first) and then by Origin, so every node decides alike
//
type Order struct {
	Band     Band
	Tier     int32   // Antrea tier priority; 0 elsewhere
	Priority float64 // normalised: lower is stronger
	Class    int32   // at equal priority: -1 for a Cilium deny; 0 elsewhere
	Name     string  // upstream kinds: policy name before rule index; "" for Antrea
	Index    int32   // rule index inside its policy and direction
}

// Rule is one line of policy, for one direction.
type Rule struct {
	Direction flow.Direction
	Order     Order
	Subject   Selector // whose policy this is
	Peers     []Peer   // OR-ed; an empty list matches no peer
	L4        []L4     // OR-ed; an empty list matches nothing (use AnyL4)
	Action    Action
	Skip      BandSet // for Action Skip: the bands left out from here on
	Audit     bool    // write an audit record when this rule decides or is skipped through
	// Auth, on an Allow rule, says that what it matches needs authentication,
	// whichever rule of the band allows it (S3-32…S3-34). Nothing authenticates
	// yet, so an Allow from that band becomes a Drop that names this rule.
	Auth   bool
	Stage  Stage
	Origin Origin
}

// Isolation makes a band end with Deny for the subjects it selects.
type Isolation struct {
	Direction flow.Direction
	Band      Band
	Subject   Selector
	Audit     bool // log connections this isolation drops
	Stage     Stage
	Origin    Origin // Rule is empty, Index is -1
}

// Origin names what a human wrote. Group is the API group without version.
type Origin struct {
	Group, Kind     string
	Namespace, Name string
	Rule            string // the rule's own name, "" if it has none
	Index           int    // rule index inside the policy and direction; -1 for isolation
	Word            string // the API's own word for the action: "Pass", "Drop", …
	Dialect         string // "kep", "v0.1.7", …; "" where the API has one meaning
	Label           string // log label: Antrea's logLabel, Cilium's log.value
	Generation      int64  // metadata.generation; 0 when the source has none
}

// Peer is one alternative of a rule's from/to. Exactly one of the forms below
// is meant; Kind says which.
type Peer struct {
	Kind     PeerKind
	Pods     Selector // PeerPods
	Relation Relation // PeerPods: how namespace and pod relate to the subject
	Block    IPBlock  // PeerBlock
	Set      string   // PeerSet, PeerService: name of an address set in the World
}

// PeerKind selects the meaning of a Peer.
type PeerKind uint8

// Peer kinds. The zero value is invalid and matches nothing.
const (
	PeerAny   PeerKind = iota + 1 // everything: pods, nodes, outside
	PeerPods                      // pods of the cluster, never other addresses
	PeerBlock                     // addresses in a prefix, pods included
	PeerSet                       // addresses in a named set (nodes, FQDN)
	// PeerService is Services by where the connection was opened to: the address is
	// in a named set, the rule's L4 is the Service's own protocol and port, whatever
	// backend was chosen (S2-98). Where nothing was translated it is the destination
	// that must be the Service, so a backend asked directly does not match (S2-101).
	PeerService
)

// IPBlock is a prefix with holes. Traffic from a hole does not match; it may
// still match another peer or rule.
type IPBlock struct {
	Prefix netip.Prefix   // masked, IPv4 unmapped
	Except []netip.Prefix // inside Prefix
	// NoPods leaves pod addresses out (Cilium CIDR rules).
	NoPods bool
}

// Contains reports whether a lies in the block and in none of its holes.
func (b IPBlock) Contains(a netip.Addr) bool {
	a = a.Unmap()
	if !b.Prefix.Contains(a) {
		return false
	}
	for _, e := range b.Except {
		if e.Contains(a) {
			return false
		}
	}
	return true
}

// PortRange is an inclusive range of port numbers, or of type<<8|code for ICMP.
type PortRange struct{ First, Last uint16 }

// AllPorts is every port.
var AllPorts = PortRange{0, 0xffff}

// Contains reports whether p lies in the range.
func (r PortRange) Contains(p uint16) bool { return r.First <= p && p <= r.Last }

// L4 is one alternative of a rule's ports section.
type L4 struct {
	Proto    flow.Proto // AnyProto matches every protocol, with or without ports
	Ports    PortRange  // destination ports; AllPorts when not restricted
	Name     string     // named port, resolved per destination pod; Ports is then ignored
	SrcPorts PortRange  // source ports; AllPorts when not restricted
}

// AnyL4 matches every protocol and port, ICMP and other protocols included.
var AnyL4 = L4{Ports: AllPorts, SrcPorts: AllPorts}

// ToServices reports whether the rule is about Services: such a rule is matched
// with where the connection was opened to, see PeerService.
func (r *Rule) ToServices() bool { return len(r.Peers) > 0 && r.Peers[0].Kind == PeerService }

// Set is a complete policy: what a Table is compiled from.
type Set struct {
	Rules      []Rule
	Isolations []Isolation
}
