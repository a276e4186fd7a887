package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/dns"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/inventory"
)

// DNSConfig says how addresses behind DNS names are learnt (docs/dns.md).
type DNSConfig struct {
	Queue   uint16          `json:"queue"`   // NFQUEUE number for DNS packets
	State   string          `json:"state"`   // file that keeps what was learnt over a restart; "" = none
	Hold    metav1.Duration `json:"hold"`    // how long an answer waits for its addresses to be in force
	Grace   metav1.Duration `json:"grace"`   // how long an address stays after its TTL
	Servers string          `json:"servers"` // prefixes whose answers count, separated by commas; "" = see docs/dns.md
}

func defaultDNS() DNSConfig {
	return DNSConfig{
		Queue: 7299, State: "/var/lib/tierwall/dns.json",
		Hold: metav1.Duration{Duration: dns.DefaultHold}, Grace: metav1.Duration{Duration: dns.DefaultGrace},
	}
}

// servers parses Servers.
func (c *DNSConfig) servers() (list []netip.Prefix, err error) {
	for _, s := range strings.FieldsFunc(c.Servers, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("dns.servers: %q is neither an address nor a prefix", s)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

func (c *DNSConfig) validate(n *NFQueueConfig) (errs []error) {
	if _, err := c.servers(); err != nil {
		errs = append(errs, err)
	}
	if c.Hold.Duration <= 0 || c.Hold.Duration > 5*time.Second {
		errs = append(errs, errors.New("dns.hold: want more than 0 and at most 5s: resolvers ask again then"))
	}
	if c.Grace.Duration < 0 {
		errs = append(errs, errors.New("dns.grace: want 0 or more"))
	}
	if c.Queue == 0 || c.Queue >= n.FirstQueue && int(c.Queue) < int(n.FirstQueue)+max(n.Queues, 64) {
		errs = append(errs, errors.New("dns.queue: want a number above 0 that is none of nfqueue's"))
	}
	return errs
}

// How often what was learnt is written, and looked through for what is over.
const (
	namesSave  = time.Second
	namesSweep = 2 * time.Second
)

// names is the daemon's knowledge of DNS names. It implements controller.Learner.
type names struct {
	*dns.Names
	config   DNSConfig
	observer *dns.Observer
	tap      *nfqueue.Tap // nil where the kernel has none
	log      *slog.Logger

	matchers map[string]func(string) bool // by set; of the controller's goroutine
	warned   bool

	servers []netip.Prefix // whose answers count, besides those that cluster knows
	cluster bool           // the cluster's DNS servers count, and its nodes
	table   atomic.Pointer[classifier.Table]
	doubted map[netip.Addr]bool // servers that the log has named; of the tap's goroutine
}

// openNames reads what an earlier run learnt and prepares to learn. A kernel on
// which DNS cannot be observed is no reason not to run: it is said when a policy
// names a name.
//
// In a cluster, with nothing configured, the answers of the cluster's DNS servers count
// and those of the resolvers that the node itself uses. Elsewhere everybody's do:
// nothing says which servers are the cluster's.
func openNames(c DNSConfig, inCluster bool, log *slog.Logger) (*names, error) {
	grace := c.Grace.Duration
	if grace == 0 {
		grace = -1 // none, in that package's words
	}
	n := &names{
		Names:  dns.NewNames(dns.Config{Grace: grace}),
		config: c, log: log, matchers: map[string]func(string) bool{}, doubted: map[netip.Addr]bool{},
	}
	if err := n.believe(&c, inCluster); err != nil {
		return nil, err
	}
	n.observer = &dns.Observer{Names: n.Names, Hold: c.Hold.Duration, Believe: n.trust()}
	if c.State != "" {
		if err := n.Load(c.State); err != nil {
			log.Warn("names learnt by an earlier run are lost", "error", err)
		}
	}
	var err error
	if n.tap, err = nfqueue.NewTap(nfqueue.TapConfig{Queue: c.Queue, Logger: log.With("component", "dns")}, n.observer.Packet); err != nil {
		log.Warn("DNS answers cannot be observed here", "error", err)
		n.tap = nil
	}
	return n, nil
}

// resolverFiles name the servers that a node resolves names with. The first may name
// only a stub of the second on the node itself.
var (
	defaultResolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
	resolverFiles        = defaultResolverFiles
)

// believe settles whose answers count.
func (n *names) believe(c *DNSConfig, inCluster bool) (err error) {
	n.servers, err = c.servers()
	if n.cluster = inCluster && len(n.servers) == 0; n.cluster {
		n.servers = nodeResolvers(resolverFiles...)
	}
	return err
}

// trust returns the function that an observer asks about servers; nil where all count.
func (n *names) trust() func(netip.Addr) bool {
	if !n.cluster && len(n.servers) == 0 {
		return nil
	}
	return n.believes
}

// nodeResolvers reads the servers from files in the form of resolv.conf(5).
func nodeResolvers(files ...string) (list []netip.Prefix) {
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(fields[1]); err == nil && !a.IsLoopback() {
				a = a.Unmap().WithZone("")
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return list
}

// maxDoubted bounds how many servers the log names.
const maxDoubted = 64

// believes reports whether the answers of a server count. The tap's goroutine calls it.
func (n *names) believes(server netip.Addr) bool {
	if slices.ContainsFunc(n.servers, func(p netip.Prefix) bool { return p.Contains(server) }) || n.cluster && n.ofCluster(server) {
		return true
	}
	if !n.doubted[server] && len(n.doubted) < maxDoubted {
		n.doubted[server] = true
		n.log.Warn("answers of a DNS server are not believed: rules by name learn nothing from them", "server", server,
			"hint", "if its answers may open what rules name, add it to dns.servers")
	}
	return false
}

// ofCluster reports whether a server is a pod of the cluster's DNS Service, or runs on a
// node itself, as caches of nodes do: those have a link-local address or the node's.
func (n *names) ofCluster(server netip.Addr) bool {
	if server.IsLinkLocalUnicast() {
		return true
	}
	t := n.table.Load()
	if t == nil {
		return false
	}
	a := flow.AddrFrom(server)
	if t.IsNode(a) {
		return true
	}
	e := t.Endpoint(a)
	return e != nil && (e.Namespace == "kube-system" && e.Labels["k8s-app"] == "kube-dns" || e.Namespace == "openshift-dns")
}

// Fill implements controller.Learner.
func (n *names) Fill(sets map[string][]netip.Prefix) uint64 {
	var watch []dns.Set
	for name := range sets {
		match := n.matchers[name]
		if match == nil {
			m, ok := inventory.NameMatcher(name)
			if !ok {
				continue
			}
			match = m
			n.matchers[name] = m
		}
		watch = append(watch, dns.Set{Name: name, Match: match})
	}
	for name := range n.matchers {
		if _, there := sets[name]; !there {
			delete(n.matchers, name)
		}
	}
	n.Watch(watch)
	if len(watch) > 0 && n.tap == nil && !n.warned {
		n.warned = true
		n.log.Warn("policies name DNS names, and DNS answers cannot be observed here: such rules match nothing new", "sets", len(watch))
	}
	return n.Names.Fill(sets)
}

// publisher observes the DNS of the pods that policy selects, as long as it names
// names.
func (n *names) publisher(next controller.Publisher) controller.Publisher {
	return namesPublisher{n, next}
}

type namesPublisher struct {
	names *names
	next  controller.Publisher
}

// Publish implements controller.Publisher.
func (p namesPublisher) Publish(t *classifier.Table, report *classifier.Report) error {
	p.names.table.Store(t)
	if p.names.tap != nil {
		var pods []netip.Addr
		if p.names.Wanted() {
			pods = t.Selected()
		}
		if err := p.names.tap.Watch(pods); err != nil {
			p.names.log.Error("DNS answers are not observed", "error", err)
		}
	}
	return p.next.Publish(t, report)
}

// run keeps house until ctx ends.
func (n *names) run(ctx context.Context) {
	save, sweep := time.NewTicker(namesSave), time.NewTicker(namesSweep)
	defer save.Stop()
	defer sweep.Stop()
	said := ""
	problem := func(err error) {
		if err == nil {
			said = ""
		} else if said != err.Error() {
			said = err.Error()
			n.log.Error("names learnt from DNS", "error", err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			problem(n.save())
			return
		case <-save.C:
			problem(n.save())
		case <-sweep.C:
			if n.tap == nil {
				continue // what is lost now could not be learnt again
			}
			restored, err := n.tap.Check()
			if restored {
				n.log.Warn("other software removed our table, it is restored", "table", nfqueue.TapTableName)
			}
			problem(errors.Join(err, n.Expire(n.tap.Talking)))
		}
	}
}

func (n *names) save() error {
	if n.config.State == "" {
		return nil
	}
	return n.Save(n.config.State)
}

func (n *names) close() error {
	if n.tap == nil {
		return nil
	}
	return n.tap.Close()
}
