package doctor

import (
	"errors"
	"strings"

	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// probe is what running a backend gave.
type probe struct {
	tried  bool
	how    string
	limits []string
	err    error // why it does not run; why it was not tried
}

type probes struct{ nfqueue, afxdp probe }

func untried(why string) probes {
	p := probe{err: errors.New(why)}
	return probes{p, p}
}

func probeBackends() probes {
	var got probes
	how, limits, err := probeNFQueue()
	got.nfqueue = probe{true, how, limits, err}
	how, limits, err = afxdp.Probe()
	got.afxdp = probe{true, how, limits, err}
	if how == "" && err == nil {
		got.afxdp = probe{err: errors.New("trying it takes a network namespace (CAP_SYS_ADMIN)")}
	}
	return got
}

// Feature is one of the things a daemon needs, for a list of what a machine can do.
type Feature struct {
	Name string
	How  string // in which of several ways
	Err  error  // which piece is missing
}

// Features tries everything the backends need. It takes root.
func Features() []Feature {
	got := probeBackends()
	return []Feature{
		{Name: "network namespaces and veth", Err: netlab.Missing()},
		{"nfqueue backend", got.nfqueue.how, got.nfqueue.err},
		{"afxdp backend", got.afxdp.how, got.afxdp.err},
	}
}

// probeNFQueue starts the nfqueue backend for real, in a network namespace that ends
// with the call, and returns how it works and what it does not do on this kernel.
func probeNFQueue() (how string, limits []string, err error) {
	ns, err := netlab.New("probe")
	if err != nil {
		return "", nil, err
	}
	defer ns.Close()
	err = ns.Do(func() error {
		b, err := nfqueue.New(nfqueue.Config{Queues: 1})
		if err != nil {
			return err
		}
		how, limits = b.Facts(), b.Limits()
		return b.Close()
	})
	return how, limits, err
}

// judge says how the dataplanes would work. blocked says why none can enforce policy on
// this node, whatever the kernel can do.
func judge(got probes, blocked error) map[string]Dataplane {
	one := func(p probe) Dataplane {
		d := Dataplane{Works: Fully, How: p.how, Limits: p.limits}
		switch {
		case !p.tried:
			d.Works, d.Why = NotTried, p.err.Error()
		case p.err != nil:
			d.Works, d.Why = No, strings.ReplaceAll(p.err.Error(), "\n", "; ")
		case len(p.limits) > 0:
			d.Works = Partly
		}
		return d
	}
	nf, xdp := one(got.nfqueue), one(got.afxdp)
	auto := nf
	runs := func(d Dataplane) bool { return d.Works == Fully || d.Works == Partly }
	switch {
	case runs(nf) && runs(xdp):
		auto.How = "both backends; " + nf.How + "; " + xdp.How
	case runs(nf) && xdp.Works == No:
		auto.How = "nfqueue alone: it judges the same, more slowly; " + nf.How
	case runs(xdp):
		auto = Dataplane{Works: Partly, How: "afxdp alone; " + xdp.How, Limits: append([]string{
			"what afxdp cannot judge is dropped, and the node is not ready: " + nf.Why,
		}, xdp.Limits...)}
	case nf.Works == No && xdp.Works == No:
		auto = Dataplane{Works: No, Why: "nfqueue: " + nf.Why + "; afxdp: " + xdp.Why}
	}
	all := map[string]Dataplane{"auto": auto, "nfqueue": nf, "afxdp": xdp}
	if blocked != nil {
		for name := range all {
			all[name] = Dataplane{Works: No, Why: strings.ReplaceAll(blocked.Error(), "\n", "; ")}
		}
	}
	return all
}
