package assure

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// TestAskIsWhatLookupSays asks about every port of random pairs and groups, and
// wants in every case what the table says of each connection in it, and a case for
// every connection.
func TestAskIsWhatLookupSays(t *testing.T) {
	asked := 0
	for seed := range worlds(250) {
		r := rand.New(rand.NewPCG(uint64(seed), 23))
		s := State{Snapshot: &inventory.Snapshot{}}
		s.Set, s.world = universe.Random(r)
		s.world.Node = ""
		b := newBrute(t, &s, &s)
		w := NewWorld(s.Snapshot, b.tables[0])
		outside, err := outsideOf("any")
		if err != nil {
			t.Fatal(err)
		}
		pods := w.Pods()
		ends := []End{{Text: "any", Pods: pods}, {Text: "external:any", Outside: outside}}
		for _, p := range pods {
			ends = append(ends, End{Text: PodName(p), Pods: []*rule.Endpoint{p}})
		}
		for _, from := range ends {
			for _, to := range ends {
				cases, err := w.Ask(from, to, Ports{Text: "any", Last: 0xffff})
				if err != nil {
					if !strings.Contains(err.Error(), "family in common") {
						t.Errorf("world %d: %s to %s: %v", seed, from.Text, to.Text, err)
					}
					continue
				}
				asked += len(cases)
				for _, c := range cases {
					b.inCase(fmt.Sprintf("world %d: %s to %s", seed, from.Text, to.Text), &c)
				}
				if from.Text != "any" && to.Text != "any" && len(from.Pods)+len(to.Pods) == 2 {
					b.covered(fmt.Sprintf("world %d: %s to %s", seed, from.Text, to.Text), from.Pods[0], to.Pods[0], cases)
				}
				if t.Failed() {
					return
				}
			}
		}
	}
	if asked == 0 {
		t.Error("nothing was asked")
	}
}

func (b *brute) inCase(what string, c *Case) {
	for _, port := range b.ports {
		for _, src := range b.srcs {
			if port < c.Ports[0] || port > c.Ports[1] || c.SourcePorts != nil && (src < c.SourcePorts[0] || src > c.SourcePorts[1]) {
				continue
			}
			if d := b.tables[0].Lookup(flow.Key{Src: c.Packet.Src, Dst: c.Packet.Dst, Proto: c.Packet.Proto, DstPort: port, SrcPort: src}); d.Verdict.String() != c.Decision.Verdict {
				b.t.Errorf("%s: port %d from %d is %s in %+v", what, port, src, d.Verdict, *c)
			}
		}
	}
	p := c.Packet
	if d := b.tables[0].Lookup(p); d.Verdict.String() != c.Decision.Verdict {
		b.t.Errorf("%s: the packet %v is %s in %+v", what, p, d.Verdict, *c)
	}
}

func (b *brute) covered(what string, from, to *rule.Endpoint, cases []Case) {
	for _, is4 := range []bool{true, false} {
		src, ok := from.Addr(is4)
		if _, ok2 := to.Addr(is4); !ok || !ok2 {
			continue
		}
		for _, proto := range b.protos {
			for _, port := range b.ports {
				if skips(proto, is4) || !ports(proto).Contains(port) {
					continue
				}
				if !slices.ContainsFunc(cases, func(c Case) bool {
					return c.Packet.Src.Is4() == src.Is4() && (c.Protocol == proto.String() || c.Protocol == Other) && c.Ports[0] <= port && port <= c.Ports[1]
				}) {
					b.t.Errorf("%s: no case for %s %d", what, proto, port)
				}
			}
		}
	}
}

func TestPorts(t *testing.T) {
	for text, want := range map[string]string{
		"any": "0 0-65535 ", "443": "6 443-443 ", "443/TCP": "6 443-443 ", "53/udp": "17 53-53 ", "8000-8100/TCP": "6 8000-8100 ",
		"http/TCP": "6 0-65535 http", "http": "6 0-65535 http", "any/UDP": "17 0-65535 ", "UDP": "17 0-65535 ", "ICMP": "1 2048-2048 ", "0/ICMP": "1 2048-2048 ",
		"any/ICMP": "1 0-65535 ", "0/47": "47 0-0 ",
	} {
		p, err := ParsePorts(text)
		if got := fmt.Sprintf("%d %d-%d %s", p.Proto, p.First, p.Last, p.Name); err != nil || got != want {
			t.Errorf("%s: got %q, want %q (%v)", text, got, want, err)
		}
	}
	for _, text := range []string{"0", "65536", "70000/TCP", "80/TPC", "90-80/TCP", "80-/TCP", "8/ICMP", "Http/TCP", "-/TCP", "80/47"} {
		if p, err := ParsePorts(text); err == nil {
			t.Errorf("%s: accepted as %+v", text, p)
		}
	}
}

// TestAskAboutIGMPTypes: IGMP messages have types, as ICMP's have, and rules name them.
func TestAskAboutIGMPTypes(t *testing.T) {
	set := rule.Set{Rules: []rule.Rule{{
		Direction: flow.Ingress, Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Deny,
		L4:     []rule.L4{{Proto: flow.IGMP, Ports: rule.PortRange{First: flow.ICMPPort(0x16, 0), Last: flow.ICMPPort(0x16, 255)}, SrcPorts: rule.AllPorts}},
		Origin: rule.Origin{Group: "test", Kind: "Rule", Name: "r"},
	}}}
	world := &rule.World{}
	for i, name := range []string{"a", "b"} {
		world.Endpoints = append(world.Endpoints, rule.Endpoint{Namespace: "x", Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
	}
	table, _, err := classifier.Compile(set, world, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorld(&inventory.Snapshot{}, table)
	pods := w.Pods()
	cases, err := w.Ask(End{Pods: pods[:1]}, End{Pods: pods[1:]}, Ports{Last: 0xffff})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(cases, func(c Case) bool {
		return c.Protocol == "IGMP" && c.Ports == [2]uint16{0x1600, 0x16ff} && !c.Decision.Allowed()
	}) {
		t.Errorf("no case is about reports of membership: %+v", cases)
	}
}
