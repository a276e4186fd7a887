package connectivity

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/deploy/examples"
	"github.com/tierwall/tierwall/policy/inventory"
)

// A sample is policies and the cluster they talk about.
type sample struct {
	name     string
	policies string // YAML documents
	world    *inventory.Snapshot
	node     string // of world: its pods are local; "" = all pods are
	hosts    []netip.Addr
	ports    []uint16 // that the policies tell apart, and one they do not
}

// shared is how many of a sample's ports are tried, oddPort one that no sample
// names.
const (
	shared  = 3
	oddPort = 9999
)

// samples returns the policies of deploy/examples and those of the documents that
// the lowering packages test with (policy/lower/*/testdata, see
// policy/internal/fixture for their form): every one that somebody wrote
// expectations for.
func samples(t *testing.T) (all []*sample) {
	t.Helper()
	inventory, err := world.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	all = append(all,
		exampleSample(t, "demo", string(inventory), world.NodeName, 80, 81),
		exampleSample(t, "quickstart", "", "node-1", 5432, 8080, 9100))
	files, err := filepath.Glob("../../../policy/lower/*/testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parseSample(string(b))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if s != nil {
			dialect := filepath.Base(filepath.Dir(filepath.Dir(f)))
			s.name = dialect + "/" + strings.TrimSuffix(filepath.Base(f), ".txtar")
			all = append(all, s)
		}
	}
	return all
}

// exampleSample reads a folder of deploy/examples; extra describes its world if
// the folder does not.
func exampleSample(t *testing.T, folder, extra, node string, ports ...uint16) *sample {
	t.Helper()
	s := &sample{name: "examples/" + folder, node: node, ports: append(ports, oddPort)}
	dir := t.TempDir()
	err := fs.WalkDir(examples.FS, folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(examples.FS, path)
		if err != nil {
			return err
		}
		if d.Name() == "world.yaml" {
			extra = string(b)
		} else {
			s.policies += "---\n" + string(b) + "\n"
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "world.yaml"), []byte(extra), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := cli.Load(dir, node, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.world = in.Snapshot
	return s
}

var (
	section    = regexp.MustCompile(`(?m)^-- (\S+) --\n`)
	expectPort = regexp.MustCompile(`\b(\d+)/(TCP|UDP|SCTP)\b`)
)

// parseSample reads a fixture; nil if nobody expects anything of it.
func parseSample(text string) (*sample, error) {
	s := &sample{world: &inventory.Snapshot{}}
	marks := section.FindAllStringSubmatchIndex(text, -1)
	var expect string
	for i, m := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		name, body := text[m[2]:m[3]], text[m[1]:end]
		switch {
		case name == "world":
			if err := s.parseWorld(body); err != nil {
				return nil, err
			}
		case name == "expect":
			expect = body
		case strings.HasSuffix(name, ".yaml"):
			s.policies += "---\n" + body
		}
	}
	if expect == "" {
		return nil, nil
	}
	for _, m := range expectPort.FindAllStringSubmatch(expect, -1) {
		n, err := strconv.ParseUint(m[1], 10, 16)
		if err != nil {
			return nil, err
		}
		if p := uint16(n); p != 0 && len(s.ports) < shared && !slices.Contains(s.ports, p) {
			s.ports = append(s.ports, p)
		}
	}
	s.ports = append(s.ports, oddPort)
	return s, nil
}

// parseWorld reads the lines of a fixture's world. Its pods have no addresses
// here: the nodes and hosts have.
func (s *sample) parseWorld(text string) error {
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		labels := map[string]string{}
		var addrs []netip.Addr
		var rest []string
		for _, w := range f[2:] {
			a, err := netip.ParseAddr(w)
			k, v, pair := strings.Cut(w, "=")
			_, _, port := strings.Cut(v, "/")
			switch {
			case err == nil:
				addrs = append(addrs, a)
			case pair && !(port && f[0] == "pod"):
				labels[k] = v
			default:
				rest = append(rest, w)
			}
		}
		if err := s.worldLine(f[0], f[1], labels, addrs, rest); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

func (s *sample) worldLine(kind, name string, labels map[string]string, addrs []netip.Addr, rest []string) error {
	w := s.world
	ns, short, _ := strings.Cut(name, "/")
	switch kind {
	case "namespace":
		annotations := map[string]string{}
		for k, v := range maps.Clone(labels) {
			if strings.HasPrefix(k, "@") {
				annotations[k[1:]] = v
				delete(labels, k)
			}
		}
		w.Namespaces = append(w.Namespaces, inventory.Namespace{Name: name, Labels: labels, Annotations: annotations})
	case "host":
		s.hosts = append(s.hosts, addrs...)
	case "node":
		w.Nodes = append(w.Nodes, inventory.Node{Name: name, Labels: labels, Addrs: addrs})
	case "pod":
		p := inventory.Pod{Namespace: ns, Name: short, Node: labels["node"], ServiceAccount: labels["serviceAccount"], Labels: labels}
		delete(labels, "node")
		delete(labels, "serviceAccount")
		for _, r := range rest {
			if r == "hostNetwork" {
				p.HostNetwork = true
				continue
			}
			port, spec, _ := strings.Cut(r, "=")
			n, proto, err := parsePort(spec)
			if err != nil {
				return err
			}
			p.Ports = append(p.Ports, rule.NamedPort{Name: port, Proto: proto, Port: n})
		}
		w.Pods = append(w.Pods, p)
	case "service":
		v := inventory.Service{Namespace: ns, Name: short, ClusterIPs: addrs, Selector: labels}
		for _, r := range rest {
			spec, target, _ := strings.Cut(r, ":")
			n, proto, err := parsePort(spec)
			if err != nil {
				return err
			}
			p := inventory.ServicePort{Proto: proto.String(), Port: n, TargetPort: n, TargetName: target}
			if t, err := strconv.ParseUint(target, 10, 16); err == nil {
				p.TargetPort, p.TargetName = uint16(t), ""
			}
			v.Ports = append(v.Ports, p)
		}
		w.Services = append(w.Services, v)
	default:
		return fmt.Errorf("unknown kind %q", kind)
	}
	return nil
}

func parsePort(s string) (uint16, flow.Proto, error) {
	number, name, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, 0, err
	}
	p, err := flow.ParseProto(name)
	return uint16(n), p, err
}
