package nfqueue

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Two Services of both families in front of pod b's one port: the address tells
// them apart, and the port does.
var vips = map[string][]netip.Addr{
	"web":   {netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")},
	"other": {netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:96::11")},
}

// nat is what a Service proxy does, without its marks.
func (w *whole) nat(t *testing.T) {
	t.Helper()
	nstest.Need(t, func() error {
		_, err := exec.LookPath("nft")
		_, err2 := exec.LookPath("nsenter")
		return errors.Join(err, err2)
	})
	var b strings.Builder
	for i, family := range []string{"ip", "ip6"} {
		to := w.b.Addr4.String()
		if i == 1 {
			to = "[" + w.b.Addr6.String() + "]"
		}
		fmt.Fprintf(&b, "table %s proxy { chain pre { type nat hook prerouting priority dstnat;\n", family)
		for _, proto := range networks {
			for _, a := range []string{"web", "other"} {
				for _, port := range []uint16{servicePort, servicePort + 1} {
					fmt.Fprintf(&b, "%s daddr %s %s dport %d dnat to %s:%d\n", family, vips[a][i], proto, port, to, portGood)
				}
			}
		}
		b.WriteString("}\n}\n")
	}
	cmd := exec.Command("nsenter", "--net="+w.NS.Path(), "nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, b.String())
	}
}

// services makes the policy "egress of pod a: first, to web's port 80; then, all
// else"; no first leaves that out.
func services(first, rest rule.Action) classifier.PolicyChange {
	origin := rule.Origin{Kind: "Policy", Namespace: "x", Name: "services"}
	r := rule.Rule{
		Direction: flow.Egress, Order: rule.Order{Band: rule.BandAdmin}, Action: first, Origin: origin,
		Subject: rule.Selector{PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{"a"}}}},
		Peers:   []rule.Peer{{Kind: rule.PeerService, Set: "web"}},
	}
	port := rule.PortRange{First: servicePort, Last: servicePort}
	r.L4 = []rule.L4{{Proto: flow.TCP, Ports: port, SrcPorts: rule.AllPorts}, {Proto: flow.UDP, Ports: port, SrcPorts: rule.AllPorts}}
	all := r
	all.Order.Index, all.Origin.Index, all.Action = 1, 1, rest
	all.Peers, all.L4 = []rule.Peer{{Kind: rule.PeerAny}}, []rule.L4{rule.AnyL4}
	c := classifier.PolicyChange{Ref: classifier.RefOf(&origin), Set: rule.Set{Rules: []rule.Rule{r, all}}}
	if first == 0 {
		c.Set.Rules = c.Set.Rules[1:]
	}
	return c
}

// A kernel before 5.18 does not tell which Service a packet was sent to: rules to
// Services were silently in vain there.
func TestToServicesInVainIsSaid(t *testing.T) {
	w := newWhole(t, dataplane.Config{})
	var log bytes.Buffer
	w.backend.mu.Lock()
	w.backend.fw.features.priority = false
	w.backend.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w.backend.mu.Unlock()
	said := func() int {
		w.backend.mu.Lock()
		defer w.backend.mu.Unlock()
		return strings.Count(log.String(), "level=ERROR msg=\"toServices rules match nothing")
	}
	set := map[string][]netip.Prefix{"web": hosts(vips["web"])}
	for _, c := range []struct {
		what  string
		delta classifier.Delta
		want  int
	}{
		{"no rule to a Service", classifier.Delta{Sets: set, Policies: []classifier.PolicyChange{services(0, rule.Allow)}}, 0},
		{"S2-102: a rule to a Service", classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Deny, rule.Allow)}}, 1},
		{"still one", classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Allow, rule.Deny)}}, 1},
		{"none", classifier.Delta{Policies: []classifier.PolicyChange{services(0, rule.Allow)}}, 1},
		{"S2-102: again", classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Deny, rule.Allow)}}, 2},
	} {
		w.apply(t, c.delta)
		if got := said(); got != c.want {
			t.Errorf("%s: said %d times, want %d", c.what, got, c.want)
		}
	}
}

func hosts(addrs []netip.Addr) (out []netip.Prefix) {
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// A rule to a Service is about the Service's address, port and
// protocol, though the packets we see have the backend's; the backend asked
// directly is another destination. In both families, by a connection's first
// packet and for connections that are open when the policy changes.
func TestToServices(t *testing.T) {
	w := newWhole(t, dataplane.Config{})
	w.nat(t)
	for _, network := range networks {
		nstest.Echo(t, w.b.NS, network, w.b.Addr4, portGood)
		nstest.Echo(t, w.b.NS, network, w.b.Addr6, portGood)
	}
	set := map[string][]netip.Prefix{"web": hosts(vips["web"])}
	each := func(f func(network string, family int)) {
		for _, network := range networks {
			f(network, 0)
			f(network, 1)
		}
	}
	check := func(what string, service, rest bool) {
		t.Helper()
		each(func(network string, family int) {
			t.Helper()
			probe := func(to netip.AddrPort, want bool) {
				t.Helper()
				if want {
					nstest.Reach(t, w.a.NS, network, to)
				} else {
					nstest.Unreachable(t, w.a.NS, network, to)
				}
				if t.Failed() {
					t.Fatalf("%s: %s to %s", what, network, to)
				}
			}
			probe(at(vips["web"][family], servicePort), service) // S2-98
			probe(at(vips["web"][family], servicePort+1), rest)
			probe(at(vips["other"][family], servicePort), rest)
			probe(at([]netip.Addr{w.b.Addr4, w.b.Addr6}[family], portGood), rest)
		})
	}
	w.apply(t, classifier.Delta{Sets: set, Policies: []classifier.PolicyChange{services(rule.Allow, rule.Deny)}})
	check("allow to Service, deny the rest", true, false)
	w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Deny, rule.Allow)}})
	check("deny to Service, allow the rest", false, true)

	// Live connections: the kernel's are cut by where they were opened to, and what
	// userspace remembers of them does not let them in again.
	w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{services(0, rule.Allow)}})
	each(func(network string, family int) {
		there := dial(t, w.a.NS, network, at(vips["web"][family], servicePort))
		other := dial(t, w.a.NS, network, at(vips["other"][family], servicePort))
		alive(t, there, "before")
		alive(t, other, "before")
		if cut := w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Deny, rule.Allow)}}); cut == 0 { // more while earlier ones close
			t.Errorf("%s family %d: cut nothing", network, family)
		}
		dead(t, there, "to the Service")
		alive(t, other, "to another Service")
		there.Close()
		other.Close()
		w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{services(0, rule.Allow)}})
	})
	each(func(network string, family int) {
		w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{services(rule.Allow, rule.Deny)}})
		c := dial(t, w.a.NS, network, at(vips["web"][family], servicePort))
		alive(t, c, "before")
		// The Service's address is another one now (both ends stay what they were).
		w.apply(t, classifier.Delta{Sets: map[string][]netip.Prefix{"web": hosts(vips["other"])}})
		dead(t, c, "the Service has moved")
		c.Close()
		nstest.Reach(t, w.a.NS, network, at(vips["other"][family], servicePort))
		w.apply(t, classifier.Delta{Sets: set})
	})
}

// The tag is in the packet while it waits and at no time later; a tag that others
// set is no Service.
func TestTags(t *testing.T) {
	var tags tags
	key := func(addr string, port uint16, proto flow.Proto) classifier.ServicePort {
		return classifier.ServicePort{Service: flow.Service{Addr: flow.AddrFrom(netip.MustParseAddr(addr)), Port: port}, Proto: proto}
	}
	a, b, c := key("10.96.0.1", 80, flow.TCP), key("10.96.0.1", 80, flow.UDP), key("fd00::1", 80, flow.TCP)
	if m, _, left := tags.assign(nil); m != nil || left != 0 || tags.service(tagValue|1) != (flow.Service{}) {
		t.Errorf("nothing assigned: %v %d", m, left)
	}
	first, more, _ := tags.assign([]classifier.ServicePort{a, b})
	second, moreYet, _ := tags.assign([]classifier.ServicePort{b, c})
	if _, again, _ := tags.assign([]classifier.ServicePort{c, b}); !more || !moreYet || again {
		t.Errorf("new Services: %v, %v, then %v, want the first two", more, moreYet, again)
	}
	ka, kb, kc := serviceKey{a.Service, a.Proto}, serviceKey{b.Service, b.Proto}, serviceKey{c.Service, c.Proto}
	if first[kb] != second[kb] || second[kc] == first[ka] || len(second) != 2 {
		t.Errorf("first %v, second %v", first, second)
	}
	for tag, want := range map[uint32]flow.Service{
		first[ka]: a.Service, first[kb]: b.Service, second[kc]: c.Service, tagValue: {}, tagValue | 4: {}, tagValue | 0xffff: {},
	} {
		if got := tags.service(tag); !isTag(tag) || got != want {
			t.Errorf("tag %#x is %s, want %s", tag, got, want)
		}
	}
	if isTag(0) || isTag(6) || isTag(0x10001) {
		t.Error("a priority of other software is taken for a tag")
	}
	// All numbers in use or remembered: the longest unused one is given again.
	var many []classifier.ServicePort
	for i := range maxTags {
		many = append(many, key("10.0.0.1", uint16(i), flow.TCP))
	}
	if m, _, left := tags.assign(many); len(m) != maxTags || left != 0 {
		t.Errorf("%d of %d, %d left", len(m), maxTags, left)
	}
	if m, _, left := tags.assign(append(many, key("10.0.0.2", 1, flow.TCP))); len(m) != maxTags || left != 1 {
		t.Errorf("one too many: %d of %d, %d left", len(m), maxTags, left)
	}
}
