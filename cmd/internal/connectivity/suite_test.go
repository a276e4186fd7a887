package connectivity

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/simulate"
)

// What a run without -full does: these samples, and so many connections of each.
var short = []string{"examples/demo", "networkpolicy/kubernetes-docs", "antrea/s2-116-reject-ping"}

const shortAttempts = 90

// TestConnectivity: on every backend, with pods routed and pods on a bridge, every
// connection that the policies' own documents allow is made, of every other one
// nothing arrives, and the audit log says whose direction refused it.
func TestConnectivity(t *testing.T) {
	all := samples(t)
	most := 0
	for _, s := range all {
		most = max(most, len(s.world.Pods))
	}
	for _, dataplane := range []string{"nfqueue", "afxdp", "auto"} {
		for i, topology := range []string{ptp, bridge} {
			t.Run(dataplane+"/"+topology, func(t *testing.T) {
				l := newLab(t, topology, dataplane, most)
				s := &suite{lab: l, packets: map[packets]map[string]uint64{}}
				for n, sample := range all {
					if !*full && !slices.Contains(short, sample.name) && *onlySample == "" || !strings.Contains(sample.name, *onlySample) {
						continue
					}
					// Both modes meet every topology and every backend.
					mode := []string{nftables, iptables}[(i+n)%2]
					t.Run(sample.name, func(t *testing.T) { s.run(t, sample, n, mode) })
				}
				s.judgeCounts(t)
				t.Logf("%d samples (%d left out), %d connections: %d allowed, %d denied; %d needed a second try, and %d that the daemon did not see; %+v",
					s.samples, s.refused, s.tried, s.allowed, s.denied, s.again, s.unseen, s.ways)
				if t.Failed() {
					t.Logf("the daemon says %+v\n%s", l.daemon.stats(t), l.daemon.log())
				}
				if *full && *onlySample == "" && s.samples < 60 {
					t.Errorf("only %d samples were tried", s.samples)
				}
			})
		}
	}
}

// suite is a run over all samples on one lab.
type suite struct {
	*lab
	offset int64 // of what was read of the audit log
	rest   []byte

	packets  map[packets]map[string]uint64 // that were denied, by the log and direction
	recorded uint64                        // how many these are

	samples, refused, tried, allowed, denied, again, unseen int
	ways                                                    map[string]int
}

func (s *suite) run(t *testing.T, smp *sample, index int, mode string) {
	text, parties := smp.manifest(t, s.lab, index)
	dir := t.TempDir()
	fatal(t, os.WriteFile(filepath.Join(dir, "sample.yaml"), []byte(text), 0o600))
	in, err := cli.Load(dir, nodeName, nil)
	if err != nil {
		t.Fatal(err)
	}
	if in.Table == nil {
		// Fixtures may be about what is refused, or need an option.
		s.refused++
		t.Logf("not deployable: %v", in.Findings.Errors[0])
		return
	}
	truth, err := simulate.New(in.Objects, in.Snapshot, nodeName)
	if err != nil {
		// The simulator knows no Tiers but those in the manifests.
		s.refused++
		t.Logf("not simulated: %v", err)
		return
	}
	s.samples++
	all := s.plan(smp, parties)
	for _, a := range all {
		if a.way == fromNode {
			// X-58; the documents know no gateway address.
			a.want.Verdict = classifier.Allow
		} else {
			a.want = truth.Evaluate(a.key)
		}
	}
	if !*full && *onlySample == "" {
		all = some(all)
	}
	for _, a := range all {
		a.hasty = !a.allowed()
	}
	for _, a := range all {
		if a.key.Proto == flow.TCP || a.key.Proto == flow.UDP {
			s.serve(byte(a.key.Proto), a.to.ns, a.key.Dst.Netip(), a.key.DstPort)
		}
	}
	s.proxy(t, mode, parties, smp.ports)
	before := s.daemon.stats(t).Generation
	s.skipAudit(t)
	s.write(t, text)
	for deadline := time.Now().Add(startTimeout); s.daemon.stats(t).Generation == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the sample is not in force after %v\n%s", startTimeout, s.daemon.log())
		}
	}
	s.forgetConnections(t)
	s.attempts(all)
	s.judge(t, all)
	s.judgeAudit(t, all)
}

// some chooses attempts by a hash of what they are: the same ones on every run
// and backend.
func some(all []*attempt) []*attempt {
	every := uint32(len(all)/shortAttempts + 1)
	return slices.DeleteFunc(all, func(a *attempt) bool {
		h := fnv.New32a()
		io.WriteString(h, a.String())
		return a.way != fromNode && h.Sum32()%every != 0 || a.way == fromNode && h.Sum32()%(every/2+1) != 0
	})
}

// mostErrors bounds what one sample says: where one is wrong, hundreds are.
const mostErrors = 8

func (s *suite) judge(t *testing.T, all []*attempt) {
	t.Helper()
	if s.ways == nil {
		s.ways = map[string]int{}
	}
	bad, waited := 0, false
	for _, a := range all {
		s.tried++
		s.ways[a.way]++
		s.again += a.tries - 1 - a.mute
		if a.tries > 1 {
			late := 0
			if a.mute > 0 && !waited {
				time.Sleep(2 * time.Second) // for what the source says late, and the tap
				waited = true
			}
			for _, p := range a.sources[:a.mute] {
				if a.spoke(p) {
					late++
				}
			}
			t.Logf("%s: %d tries, %d of them said nothing in time, %d late, source ports %v", a, a.tries, a.mute, late, a.sources)
		}
		var wrong string
		switch {
		case a.tooEarly != nil:
			wrong = "the attempt itself failed"
		case a.mute == mostMute:
			wrong = "nothing left the source in any try"
		case !a.allowed() && a.passed:
			wrong = "passed, policy denies it"
		case !a.allowed() && a.arrived > 0:
			wrong = fmt.Sprintf("%d packets arrived, policy denies them", a.arrived)
		case a.allowed() && !a.passed:
			wrong = fmt.Sprintf("did not pass in %d tries (%d packets arrived), policy allows it", a.tries, a.arrived)
		case a.passed && a.arrived == 0:
			wrong = "passed and the tap saw nothing: the test is broken"
		}
		if a.allowed() {
			s.allowed++
		} else {
			s.denied++
		}
		if wrong != "" {
			if bad++; bad <= mostErrors {
				t.Errorf("%s: %s (egress %+v, ingress %+v): %v", a, wrong, a.want.Egress, a.want.Ingress, a.err)
			}
		}
	}
	if bad > mostErrors {
		t.Errorf("and %d more of %d", bad-mostErrors, len(all))
	}
}

// told is a refusal as the audit log tells it.
type told struct {
	src, dst  netip.Addr
	proto     string
	port      uint16 // 0 for ICMP
	direction string
}

// packets is what a record is of. There are two, one for each direction, of what both
// ends deny; and several of echo requests that came at the same time, whose identifiers
// they do not tell.
type packets struct {
	src, dst netip.AddrPort
	proto    string
	at       time.Time // of the first one
}

// judgeAudit fails the test unless every refused connection has a record that
// names the direction. A packet that a busy machine lost before the daemon's hooks has
// none, so what is missing is tried again; that no record is lost once the daemon has
// judged the packet is judgeCounts' to say.
func (s *suite) judgeAudit(t *testing.T, all []*attempt) {
	t.Helper()
	var missing []*attempt
	for try := range tries + 1 {
		if missing = s.unrecorded(t, all); len(missing) == 0 {
			return
		}
		if try < tries {
			for _, a := range missing {
				t.Logf("%s: no record of source ports %v: tried again", a, a.sources)
				s.attempt(a)
				if a.passed {
					t.Errorf("%s: passed in a further try, policy denies it", a)
				}
			}
			s.unseen += len(missing)
			all = missing
		}
	}
	for i, a := range missing {
		if i == mostErrors {
			t.Errorf("and %d more records missing", len(missing)-mostErrors)
			break
		}
		t.Errorf("%s: refused, and no audit record with direction %s says so", a, a.direction())
	}
}

// direction is the one that refuses an attempt which is not allowed.
func (a *attempt) direction() string {
	if a.want.Egress.Verdict != classifier.Allow {
		return "egress"
	}
	return "ingress"
}

// unrecorded returns the attempts that were refused and of which the log does not tell.
func (s *suite) unrecorded(t *testing.T, all []*attempt) (missing []*attempt) {
	t.Helper()
	want := map[told]*attempt{}
	for _, a := range all {
		if a.allowed() {
			continue
		}
		w := told{src: a.key.Src.Netip(), dst: a.key.Dst.Netip(), proto: a.key.Proto.String(), direction: a.direction()}
		if a.key.Proto.HasPorts() {
			w.port = a.key.DstPort
		}
		want[w] = a
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		for _, r := range s.readAudit(t) {
			if r.Kind == audit.KindFlow && r.Source != nil && r.Destination != nil && (r.Verdict == audit.Drop || r.Verdict == audit.Reject) {
				delete(want, told{r.Source.IP, r.Destination.IP, r.Protocol, r.Destination.Port, r.Direction})
			}
		}
		if len(want) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, a := range want {
		missing = append(missing, a)
	}
	return missing
}

// judgeCounts fails the test unless the records are of exactly the packets that the
// daemon says it has denied, but for those it says it has lost.
func (s *suite) judgeCounts(t *testing.T) {
	t.Helper()
	var st agent.Stats
	var denied uint64
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		st = s.daemon.stats(t)
		s.skipAudit(t)
		if denied = st.Paths["drop/policy"]; denied == s.recorded || time.Now().After(deadline) {
			break
		}
	}
	if s.recorded > denied || s.recorded+st.AuditLost < denied || denied == 0 {
		t.Errorf("%d packets were denied, there are records of %d, and %d lost", denied, s.recorded, st.AuditLost)
	}
}

// readAudit returns the records written since the last call.
func (s *suite) readAudit(t *testing.T) (records []audit.Record) {
	t.Helper()
	f, err := os.Open(s.daemon.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(s.offset, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	s.offset += int64(len(b))
	b = append(s.rest, b...)
	end := bytes.LastIndexByte(b, '\n') + 1
	s.rest = slices.Clone(b[end:])
	for line := range bytes.Lines(b[:end]) {
		r, err := audit.Parse(line)
		if err != nil {
			t.Fatalf("audit log: %v: %s", err, line)
		}
		if r.Kind == audit.KindFlow && (r.Verdict == audit.Drop || r.Verdict == audit.Reject) {
			p := packets{at: r.Time, proto: r.Protocol}
			if r.Source != nil && r.Destination != nil {
				p.src, p.dst = netip.AddrPortFrom(r.Source.IP, r.Source.Port), netip.AddrPortFrom(r.Destination.IP, r.Destination.Port)
			}
			by := s.packets[p]
			if by == nil {
				by = map[string]uint64{}
				s.packets[p] = by
			}
			s.recorded -= max(by["egress"], by["ingress"])
			by[r.Direction] += r.Count
			s.recorded += max(by["egress"], by["ingress"])
		}
		records = append(records, r)
	}
	return records
}

// skipAudit forgets what the samples before have left in the log.
func (s *suite) skipAudit(t *testing.T) { s.readAudit(t) }
