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
// apart (APART in bpf/kernel.h) keep it down.
const mostVerified = 20_000

// verifiedOn has what the largest program took on kernels it was tried on (.ci/kernels),
// by series. Verifiers differ; a change that makes one of them look at a tenth more is
// made knowingly, here.
var verifiedOn = map[string]uint32{
	"6.1":  21_635,
	"6.12": 9_759,
	"6.18": 11_932,
	"7.3":  9_964,
}

// mostOn bounds the instructions of one program on the running kernel.
func mostOn(release string) uint32 {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil {
		if n, ok := verifiedOn[fmt.Sprintf("%d.%d", major, minor)]; ok {
			return n + n/10
		}
	}
	return mostVerified
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
					if !ok {
						t.Skip("the kernel does not say what it verified (Linux 5.16)")
					}
					if most := mostOn(dataplane.KernelRelease()); n > most {
						t.Errorf("%s: %d instructions verified, want %d at most", name, n, most)
					}
					t.Logf("%s: %d", name, n)
				}
			})
		}
	}
}
