package nfqueue

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Ports beside portGood (both accept) and portBad (we accept, the others drop).
const portOurs = 8082 // they accept, we drop

// others are rules of the forward hook in the forms that distributions' tools write:
// they accept portGood and portOurs between pods and drop the rest, with what each tool
// has around it. Another's rules must stay what they are, and both must hold.
var others = []struct {
	name  string
	with  [][]string // programs, each with the same rules for its family
	rules string
}{
	// As firewalld: a table of its own behind everybody's filters, the zone of a device
	// decides, the rest is rejected.
	{"firewalld", [][]string{{"nft", "-f", "-"}}, `
table inet firewalld {
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; }
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		jump filter_FORWARD_POLICIES
		reject with icmpx type admin-prohibited
	}
	chain filter_FORWARD_POLICIES {
		jump filter_FWD_public_allow
	}
	chain filter_FWD_public_allow {
		meta l4proto { tcp, udp } th dport { 8080, 8082 } ct state { new, untracked } accept
		meta l4proto ipv6-icmp accept
	}
}
`},
	// As ufw: chains of its own in the filter table of both families, policy drop.
	{"ufw", [][]string{{"iptables-nft-restore"}, {"ip6tables-nft-restore"}}, `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-reject-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -p tcp -m multiport --dports 8080,8082 -j ACCEPT
-A ufw-user-forward -p udp -m multiport --dports 8080,8082 -j ACCEPT
COMMIT
`},
	// As written by hand, with marks and counters.
	{"iptables", [][]string{{"iptables-nft-restore"}, {"ip6tables-nft-restore"}}, `*mangle
:PREROUTING ACCEPT [0:0]
-A PREROUTING -p tcp -j MARK --set-xmark 0x100/0x100
COMMIT
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m state --state ESTABLISHED -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 8080 -j ACCEPT
-A FORWARD -p udp -m udp --dport 8080 -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 8082 -j ACCEPT
-A FORWARD -p udp -m udp --dport 8082 -j ACCEPT
-A FORWARD -p tcp -j REJECT
-A FORWARD -p udp -j DROP
COMMIT
`},
}

func (w *world) program(t *testing.T, in string, program ...string) string {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + w.NS.Path()}, program...)...)
	cmd.Stdin = bytes.NewBufferString(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", program, err, out)
	}
	return string(out)
}

// theirs is the ruleset without our table, and without counters.
func (w *world) theirs(t *testing.T) string {
	t.Helper()
	var kept []string
	skip := false
	for line := range strings.Lines(w.program(t, "", "nft", "-s", "list", "ruleset")) {
		switch {
		case strings.HasPrefix(line, "table inet "+TableName+" "):
			skip = true
		case strings.HasPrefix(line, "table "):
			skip = false
		}
		// A comment says which tables have targets of xtables, ours among them.
		if !skip && strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// Beside rulesets of distributions both hold, whoever came first: what we accept is
// still subject to theirs, what they accept is still subject to ours. Nothing of theirs
// is changed while we come, change, are cleaned up; nor is ours when they are loaded anew.
func TestBesideOtherRules(t *testing.T) {
	for _, o := range others {
		for _, first := range []string{"theirs", "ours"} {
			t.Run(o.name+" "+first+" first", func(t *testing.T) {
				nstest.Need(t, func() error { _, err := exec.LookPath(o.with[0][0]); return err },
					func() error { _, err := exec.LookPath("nft"); return err },
					func() error { _, err := exec.LookPath("nsenter"); return err })
				w := newWorld(t, Config{Queues: 1}, func(k flow.Key) bool { return k.DstPort == portGood || k.DstPort == portBad })
				load := func() {
					for _, program := range o.with {
						w.program(t, o.rules, program...)
					}
				}
				if first == "theirs" {
					w.stop(t)
					w.cleanup(t)
					load()
					w.start(t, Config{Queues: 1})
					w.update(t)
				} else {
					load()
				}
				before := w.theirs(t)
				if before == "" {
					t.Fatal("there are no rules")
				}
				both := func(when string) {
					t.Helper()
					for _, family := range families {
						for _, network := range networks {
							for port, passes := range map[uint16]bool{portGood: true, portBad: false, portOurs: false} {
								s := nstest.Echo(t, w.b.NS, network, w.b.Addr(family), port)
								if passes {
									nstest.Reach(t, w.a.NS, network, s.Addr)
								} else {
									nstest.Unreachable(t, w.a.NS, network, s.Addr)
									if n := s.Seen(); n != 0 {
										t.Errorf("%s: %s IPv%d port %d: %d connections arrived", when, network, family, port, n)
									}
								}
								s.Close()
							}
						}
					}
				}
				both("at first")
				w.update(t)
				if now := w.theirs(t); now != before {
					t.Errorf("their rules were\n%sand are\n%s", before, now)
				}
				// A reload of theirs: their tables only.
				if o.name == "firewalld" {
					w.program(t, "delete table inet firewalld\n", "nft", "-f", "-")
				}
				load()
				both("after a reload of theirs")
				w.stop(t)
				w.cleanup(t)
				if now := w.theirs(t); now != before {
					t.Errorf("after a cleanup their rules were\n%sand are\n%s", before, now)
				}
			})
		}
	}
}
