package afxdp

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// mostVerified bounds the instructions that the kernel's verifier looks at in one
// program. It is far from the kernel's own bound (a million) and a measure of how long
// the daemon takes to start: a tenth of a second where hundred thousands take seconds.
// One branch too many in the wrong place multiplies it; functions that are verified
// apart (__noinline and not static, see kern/bpf/kernel.h) keep it down.
const mostVerified = 20_000

// verifiedOn has what each program took on kernels it was tried on (.ci/kernels), by
// series. Verifiers differ; a change that makes one of them look at a tenth more is made
// knowingly, here. Linux 5.15 has no row: Debian has no such kernel, and it does not say
// what it verified.
var verifiedOn = map[string]map[string]uint32{
	"6.1":  {"pod_egress": 8_290, "pod_ingress": 10_694, "pod_exit": 2, "gate": 2, "renew": 21_635, "upcall_ingress": 153, "upcall_xdp": 75},
	"6.18": {"pod_egress": 10_972, "pod_ingress": 11_459, "pod_exit": 11_464, "gate": 1_190, "renew": 6_457, "upcall_ingress": 153, "upcall_xdp": 76},
}

// mostOn bounds the instructions of a program on the running kernel.
func mostOn(release, program string) uint32 {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil {
		if on, ok := verifiedOn[fmt.Sprintf("%d.%d", major, minor)]; ok {
			return on[program] + on[program]/10 // none of a program that is not listed
		}
	}
	return mostVerified
}

// A bound holds for one program, and not because the largest one is larger.
func TestBoundsArePerProgram(t *testing.T) {
	for _, c := range []struct {
		release, program string
		want             uint32
	}{
		{"6.1.0-56-amd64", "renew", 23_798},
		{"6.1.0-56-amd64", "upcall_xdp", 82},
		{"6.1.0-56-amd64", "new_one", 0},
		{"6.6.1", "upcall_xdp", mostVerified},
		{"unheard of", "renew", mostVerified},
	} {
		if got := mostOn(c.release, c.program); got != c.want {
			t.Errorf("%s on %s: %d, want %d", c.program, c.release, got, c.want)
		}
	}
}

func TestVerificationIsShort(t *testing.T) {
	nstest.Need(t, canRun)
	for _, strict := range []bool{true, false} {
		for _, accelerate := range []uint8{0, 1} {
			t.Run(fmt.Sprintf("strict %v, accelerate %v", strict, accelerate), func(t *testing.T) {
				k := newKernel(t, strict, func(spec *ebpf.CollectionSpec) {
					for name, v := range map[string]any{"nat": uint8(1), "accelerate": accelerate, "open": uint8(1), "upcall_cost": uint64(1)} {
						if err := spec.Variables[name].Set(v); err != nil {
							t.Fatal(err)
						}
					}
				})
				for name, p := range k.c.Programs {
					info, err := p.Info()
					if err != nil {
						t.Fatal(err)
					}
					n, ok := info.VerifiedInstructions()
					nstest.Since(t, "5.16", "count of the instructions it has verified", ok)
					if most := mostOn(dataplane.KernelRelease(), name); n > most {
						t.Errorf("%s: %d instructions verified, want %d at most", name, n, most)
					}
					t.Logf("%s: %d", name, n)
				}
			})
		}
	}
}
