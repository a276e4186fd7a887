package agent

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

const onlyToService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: y}
spec: {clusterIPs: [10.96.0.10, "fd00:96::10"], clusterIP: 10.96.0.10, selector: {pod: b}, ports: [{port: 8000, targetPort: 80, protocol: TCP}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: only-web, namespace: x}
spec:
  priority: 1
  tier: application
  appliedTo: [{podSelector: {matchLabels: {pod: c}}}]
  egress:
  - {name: web, action: Allow, enableLogging: true, toServices: [{name: web, namespace: y}]}
  - {name: rest, action: Drop, enableLogging: true}
`

// From the objects to the wire, where the fast path may be in front.
func TestToServices(t *testing.T) {
	nstest.Need(t, func() error { _, err := exec.LookPath("nft"); return err },
		func() error { _, err := exec.LookPath("nsenter"); return err })
	for _, dp := range []string{"nfqueue", "auto"} {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			var nat strings.Builder
			for family, vip := range map[int]string{4: "ip daddr 10.96.0.10", 6: "ip6 daddr fd00:96::10"} {
				fmt.Fprintf(&nat, "table ip%s proxy {\nchain pre { type nat hook prerouting priority dstnat;\n%s tcp dport 8000 dnat to %s\n}\n}\n",
					map[int]string{4: "", 6: "6"}[family], vip, r.to("y/b", family, 80))
			}
			cmd := exec.Command("nsenter", "--net="+r.world.Node.NS.Path(), "nft", "-f", "-")
			cmd.Stdin = strings.NewReader(nat.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, &nat)
			}
			r.write("services.yaml", onlyToService)
			r.start()
			for family, vip := range map[int]string{4: "10.96.0.10", 6: "fd00:96::10"} {
				to := netip.AddrPortFrom(netip.MustParseAddr(vip), 8000)
				if err := r.world.Host("x/c").NS.Probe("tcp", to, nstest.Timeout); err != nil { // S2-98; S2-102: with the fast path and without
					t.Errorf("to the Service, IPv%d: %v\n%s", family, err, r.logText())
				}
				if r.opens("tcp", "x/c", "y/b", family) { // S2-101: it is another thing, which this rule does not allow
					t.Errorf("the backend is reached directly, IPv%d", family)
				}
			}
			r.stop(syscall.SIGTERM)
			log, err := os.ReadFile(r.conf.Audit.File)
			if err != nil {
				t.Fatal(err)
			}
			if !hasLine(log, []string{`"verdict":"Allow"`, `"service":"y/web:8000"`, `"pod":"b"`}) {
				t.Errorf("no audit record names the Service\n%s", log)
			}
		})
	}
}
