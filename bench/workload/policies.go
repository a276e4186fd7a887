package workload

import (
	"fmt"
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Where policies come from, as lowering writes it into origins.
const (
	npGroup   = "networking.k8s.io"
	npKind    = "NetworkPolicy"
	cnpGroup  = "policy.networking.k8s.io"
	cnpKind   = "ClusterNetworkPolicy"
	domainSet = "domain:"
)

func in(key string, values ...string) rule.Requirement {
	return rule.Requirement{Key: key, Op: rule.In, Values: values}
}

func pods(s rule.Selector) rule.Peer { return rule.Peer{Kind: rule.PeerPods, Pods: s} }

func block(prefix string, except ...string) rule.Peer {
	p := rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.MustParsePrefix(prefix)}}
	for _, e := range except {
		p.Block.Except = append(p.Block.Except, netip.MustParsePrefix(e))
	}
	return p
}

func port(p flow.Proto, first, last uint16) rule.L4 {
	return rule.L4{Proto: p, Ports: rule.PortRange{First: first, Last: last}, SrcPorts: rule.AllPorts}
}

func named(name string) rule.L4 {
	return rule.L4{Proto: flow.TCP, Name: name, SrcPorts: rule.AllPorts}
}

var (
	dns   = []rule.L4{port(flow.UDP, 53, 53), port(flow.TCP, 53, 53)}
	anyL4 = []rule.L4{rule.AnyL4}
	// private is what "the world except private networks" leaves out.
	private = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}
)

func (c *Cluster) policies() {
	for i := range c.Spec.Policies {
		ns := i % len(c.namespaces)
		c.Set.Add(c.NetworkPolicy(ns, i/len(c.namespaces), i))
	}
	for i := range c.Spec.Admin {
		c.Set.Add(c.ClusterPolicy(i, rule.BandAdmin))
	}
	for i := range c.Spec.Baseline {
		c.Set.Add(c.ClusterPolicy(i, rule.BandBaseline))
	}
	for i := range c.Spec.Domains {
		var addrs []netip.Prefix
		for j := range 6 { // shared by neighbouring names, as CDNs have it
			addrs = append(addrs, netip.PrefixFrom(netip.AddrFrom4([4]byte{151, 101, byte((i + j) >> 8), byte(i + j)}), 32))
		}
		c.World.Sets[domainSet+domain(i)] = addrs
	}
}

func domain(i int) string { return fmt.Sprintf("svc-%d.example.com", i) }

// policy collects the rules of one NetworkPolicy.
type policy struct {
	rule.Set
	ns, name string
	subject  rule.Selector
	index    [2]int32
}

func (p *policy) isolate(ds ...flow.Direction) {
	for _, d := range ds {
		p.Isolations = append(p.Isolations, rule.Isolation{
			Direction: d, Band: rule.BandNetworkPolicy, Subject: p.subject,
			Origin: rule.Origin{Group: npGroup, Kind: npKind, Namespace: p.ns, Name: p.name, Index: -1},
		})
	}
}

func (p *policy) allow(d flow.Direction, l4 []rule.L4, peers ...rule.Peer) {
	p.Rules = append(p.Rules, rule.Rule{
		Direction: d, Subject: p.subject, Peers: peers, L4: l4, Action: rule.Allow,
		Order:  rule.Order{Band: rule.BandNetworkPolicy, Name: p.ns + "/" + p.name, Index: p.index[d]},
		Origin: rule.Origin{Group: npGroup, Kind: npKind, Namespace: p.ns, Name: p.name, Index: int(p.index[d]), Word: "Allow"},
	})
	p.index[d]++
}

// NetworkPolicy makes policy n of a namespace; the shape follows from n and i.
func (c *Cluster) NetworkPolicy(ns, n, i int) rule.Set {
	name := c.namespaces[ns].name
	p := &policy{ns: name, name: fmt.Sprintf("policy-%d", n), subject: rule.Selector{Namespace: name}}
	if c.Spec.OwnLabels {
		return p.own(ns, n)
	}
	own := rule.Selector{Namespace: name}
	app := apps[(i/7)%len(apps)]
	switch n % 8 {
	case 0:
		p.isolate(flow.Ingress)
	case 1:
		p.isolate(flow.Ingress)
		p.allow(flow.Ingress, anyL4, pods(own))
	case 2, 5:
		p.subject.PodLabels = rule.Labels{in("app", apps[(n+1)%len(apps)])}
		p.isolate(flow.Ingress)
		client := own
		client.PodLabels = rule.Labels{in("app", app)}
		p.allow(flow.Ingress, []rule.L4{named("http"), port(flow.TCP, 8443, 8443)}, pods(client))
		p.allow(flow.Ingress, []rule.L4{port(flow.TCP, 9090, 9099)}, pods(rule.Selector{
			NamespaceLabels: rule.Labels{in("team", team(i))}, PodLabels: rule.Labels{in("tier", "front", "middle")},
		}))
	case 3, 6:
		p.subject.PodLabels = rule.Labels{in("app", app)}
		p.isolate(flow.Egress)
		p.allow(flow.Egress, dns, pods(rule.Selector{}))
		p.allow(flow.Egress, []rule.L4{port(flow.TCP, 443, 443)},
			block(fmt.Sprintf("203.%d.0.0/16", i%200), fmt.Sprintf("203.%d.128.0/24", i%200)), block("198.18.0.0/15", "198.19.7.0/24"))
		p.allow(flow.Egress, []rule.L4{port(flow.TCP, 5432, 5432), port(flow.SCTP, 3868, 3868)}, pods(rule.Selector{
			NamespaceLabels: rule.Labels{in("kubernetes.io/metadata.name", c.namespaces[(ns*13+n)%len(c.namespaces)].name)},
			PodLabels:       rule.Labels{in("app", "db")},
		}))
	case 4:
		p.subject.PodLabels = rule.Labels{in("tier", "front")}
		p.isolate(flow.Ingress)
		p.allow(flow.Ingress, []rule.L4{port(flow.TCP, 30000, 32767), port(flow.TCP, 8080, 8080)},
			block("0.0.0.0/0", private...), block("::/0", "fc00::/7"))
	case 7:
		p.subject.PodLabels = rule.Labels{{Key: "version", Op: rule.NotIn, Values: []string{"v0"}}, {Key: "app", Op: rule.Exists}}
		p.isolate(flow.Ingress, flow.Egress)
		p.allow(flow.Ingress, []rule.L4{port(flow.TCP, uint16(1024+i%5000), uint16(1024+i%5000))}, pods(rule.Selector{
			NamespaceLabels: rule.Labels{{Key: "env", Op: rule.NotIn, Values: []string{"dev"}}},
		}))
		p.allow(flow.Egress, anyL4, pods(own), block("10.0.0.0/8"))
	}
	return p.Set
}

// own is the shape of the scale test with labels per namespace: ingress of one
// group from another of the same namespace.
func (p *policy) own(ns, n int) rule.Set {
	p.subject.PodLabels = rule.Labels{in("group", fmt.Sprintf("g-%d-%d", ns, n%3))}
	p.isolate(flow.Ingress)
	p.allow(flow.Ingress, []rule.L4{port(flow.TCP, 80, 80)},
		pods(rule.Selector{Namespace: p.ns, PodLabels: rule.Labels{in("group", fmt.Sprintf("g-%d-%d", ns, (n+1)%3))}}))
	return p.Set
}

// ClusterPolicy makes cluster-wide policy i of a tier.
func (c *Cluster) ClusterPolicy(i int, band rule.Band) rule.Set {
	name := fmt.Sprintf("%s-%d", band, i)
	var set rule.Set
	subject := rule.Selector{NamespaceLabels: rule.Labels{in("env", envs[i%len(envs)])}}
	switch i % 4 {
	case 1:
		subject = rule.Selector{} // everybody
	case 2:
		subject = rule.Selector{NamespaceLabels: rule.Labels{in("team", team(i))}, PodLabels: rule.Labels{in("tier", "back")}}
	}
	var index [2]int32
	add := func(d flow.Direction, word string, l4 []rule.L4, peers ...rule.Peer) {
		r := rule.Rule{
			Direction: d, Subject: subject, Peers: peers, L4: l4,
			Order:  rule.Order{Band: band, Priority: float64(10 + i), Name: name, Index: index[d]},
			Origin: rule.Origin{Group: cnpGroup, Kind: cnpKind, Name: name, Index: int(index[d]), Word: word},
		}
		switch word {
		case "Accept":
			r.Action = rule.Allow
		case "Deny":
			r.Action = rule.Deny
		case "Pass":
			r.Action, r.Skip = rule.Skip, rule.Bands(band)
		}
		set.Rules = append(set.Rules, r)
		index[d]++
	}
	other := pods(rule.Selector{NamespaceLabels: rule.Labels{in("team", team(i*3+1))}})
	switch i % 5 {
	case 0:
		add(flow.Ingress, "Deny", []rule.L4{port(flow.TCP, uint16(2000+i%1000), uint16(2000+i%1000))}, other)
		add(flow.Ingress, "Pass", anyL4, pods(rule.Selector{NamespaceLabels: rule.Labels{in("env", "prod")}}))
	case 1:
		add(flow.Egress, "Deny", anyL4, block(fmt.Sprintf("192.0.%d.%d/32", i>>8&255, i&255)), block("198.51.100.0/24"))
		if c.Spec.Domains > 0 && band == rule.BandAdmin {
			add(flow.Egress, "Accept", []rule.L4{port(flow.TCP, 443, 443)},
				rule.Peer{Kind: rule.PeerSet, Set: domainSet + domain(i%c.Spec.Domains)})
		}
	case 2:
		add(flow.Ingress, "Accept", []rule.L4{port(flow.TCP, 9090, 9094)}, pods(rule.Selector{
			NamespaceLabels: rule.Labels{in("team", team(0))}, PodLabels: rule.Labels{in("app", "api")},
		}))
		add(flow.Egress, "Pass", dns, pods(rule.Selector{}))
	case 3:
		add(flow.Ingress, "Deny", []rule.L4{port(flow.UDP, 1, 1023), port(flow.SCTP, 1, 65535)}, other)
	case 4:
		add(flow.Egress, "Deny", []rule.L4{port(flow.TCP, uint16(6000+i%1000), uint16(6010+i%1000))}, other)
		add(flow.Ingress, "Deny", []rule.L4{port(flow.TCP, 22, 22)}, pods(rule.Selector{NamespaceLabels: rule.Labels{in("env", "dev")}}))
	}
	return set
}
