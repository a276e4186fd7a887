package rule

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

func TestSetText(t *testing.T) {
	set := Set{
		Rules: []Rule{
			{
				Direction: flow.Egress,
				Order:     Order{Band: BandAntreaUpper, Tier: 50, Priority: 1.5, Class: 1, Name: "n", Index: 2},
				Subject:   Selector{Namespace: "x"},
				Peers: []Peer{
					{Kind: PeerBlock, Block: IPBlock{Prefix: netip.MustParsePrefix("10.0.0.0/8")}},
					{Kind: PeerAny},
				},
				L4:     []L4{{Proto: flow.TCP, Ports: PortRange{80, 81}, SrcPorts: AllPorts}, AnyL4},
				Action: Skip, Skip: Bands(BandAntreaLower, BandAntreaUpper),
				Audit: true, Stage: AuditOnly,
				Origin: Origin{Group: "g", Kind: "K", Namespace: "x", Name: "n", Rule: "r", Index: 2, Word: "Pass", Dialect: "d", Label: "l", Generation: 3},
			},
			{Order: Order{Band: BandAdmin}, Action: Deny, Origin: Origin{Group: "g", Kind: "K", Name: "n"}},
		},
		Isolations: []Isolation{{
			Direction: flow.Egress, Band: BandNetworkPolicy, Subject: Selector{None: true}, Audit: true,
			Origin: Origin{Group: "g", Kind: "K", Namespace: "x", Name: "i", Index: -1},
		}},
	}
	const want = `egress antrea-upper tier=50 priority=1.5 class=1 name="n" index=2: skip antrea-upper+antrea-lower
    origin  k.g/x/n r word=Pass dialect=d label=l generation=3
    subject {namespace="x"}
    peer    10.0.0.0/8
    peer    anywhere
    l4      TCP 80-81
    l4      any protocol
    audit   yes
    stage   audit
ingress admin index=0: deny
    origin  k.g//n ingress[0]
    subject {}
    peer    none: matches nothing
    l4      none: matches nothing
isolate egress networkpolicy
    origin  k.g/x/i
    subject {none}
    audit   yes
`
	if got := set.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
