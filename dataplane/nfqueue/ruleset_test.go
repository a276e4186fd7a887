package nfqueue

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite golden files")

// The golden files show what the kernel executes, in the notation of
// "nft --debug=netlink", for both ways to queue and both ways to know the node's
// own traffic.
func TestRulesetGolden(t *testing.T) {
	for name, tc := range map[string]struct {
		c Config
		f features
	}{
		"native-closed.txt":     {Config{Queues: 2}, features{queueExpr: true, fib: true, back: true, reject: true}},
		"xtables-closed.txt":    {Config{Queues: 2}, features{fib: true, back: true, reject: true}},
		"xtables-open.txt":      {Config{Queues: 1, FailOpen: true, AllowSpoofing: true}, features{fib: true, back: true, reject: true}},
		"fast-path.txt":         {Config{Queues: 2, FastMark: 0x10}, features{fib: true, back: true, reject: true, zones: true}},
		"pod-cidrs.txt":         {Config{Queues: 2, PodCIDRs: podNetworks}, features{queueExpr: true, fib: true, back: true, reject: true}},
		"early.txt":             {Config{Queues: 2, FastMark: 0x10}, features{queueExpr: true, fib: true, backEarly: true, reject: true, zones: true}},
		"native-open-nofib.txt": {Config{Queues: 4, QueueNum: 100, FailOpen: true, Marks: Marks{0x1, 0x80000000}}, features{queueExpr: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := tc.c.complete()
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, renderRuleset(ruleset(c, tc.f)))
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("ruleset differs from %s (go test -update rewrites it)\n--- got\n%s\n--- want\n%s", path, got, want)
	}
}

// Every way into the queue is closed to unjudged packets, whatever the features:
// a rule that accepts must have asked for the accept bit, a source that is the
// node, or neighbour discovery.
func TestAcceptsAreGuarded(t *testing.T) {
	for _, f := range []features{{}, {queueExpr: true}, {fib: true}, {queueExpr: true, fib: true}, {queueExpr: true, fib: true, reject: true}, {zones: true}, {fib: true, backEarly: true}} {
		c, _ := Config{}.complete()
		if f.zones {
			c.FastMark = 0x10
		}
		for _, ch := range ruleset(c, f) {
			for _, r := range ch.rules {
				text := renderExprs(r.exprs)
				if !strings.Contains(text, "accept") && !strings.Contains(text, "goto passed") {
					continue
				}
				guarded := strings.Contains(text, "reg1 & 0x00000020") || c.FastMark != 0 && (strings.Contains(text, "reg1 & 0x00000030 ^ 0x00000000 | cmp eq reg1 0x00000010") || ch.name == "passed") ||
					strings.Contains(text, "fib saddr type") ||
					strings.Contains(text, "cmp gte reg1 0x85") || ch.name == "own" && (strings.Contains(text, "ct load direction") || strings.Contains(text, "13 reg1"))
				if !guarded {
					t.Errorf("chain %s accepts without a reason: %s", ch.name, text)
				}
			}
		}
	}
}

func renderRuleset(chains []chain) string {
	var b strings.Builder
	for _, ch := range chains {
		fmt.Fprintf(&b, "chain %s", ch.name)
		if ch.hook != nil {
			fmt.Fprintf(&b, " hook %s priority %d", hookName(*ch.hook), ch.priority)
		}
		b.WriteByte('\n')
		for _, r := range ch.rules {
			fmt.Fprintf(&b, "  # %s\n  %s\n", r.comment, renderExprs(r.exprs))
		}
	}
	return b.String()
}

func hookName(h nftables.ChainHook) string {
	return map[nftables.ChainHook]string{unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward", unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_PRE_ROUTING: "prerouting"}[h]
}

func renderExprs(exprs []expr.Any) string {
	parts := make([]string, len(exprs))
	for i, e := range exprs {
		parts[i] = renderExpr(e)
	}
	return strings.Join(parts, " | ")
}

func renderExpr(e expr.Any) string {
	hex := func(b []byte) string {
		if len(b) == 4 {
			return fmt.Sprintf("%#08x", binary.NativeEndian.Uint32(b))
		}
		return fmt.Sprintf("%#x", b)
	}
	word := func(b []byte) string {
		if len(b) == 1 {
			return fmt.Sprintf("%#02x", b[0])
		}
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
	switch e := e.(type) {
	case *expr.Meta:
		key := map[expr.MetaKey]string{expr.MetaKeyMARK: "mark", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyIIFTYPE: "iiftype", expr.MetaKeyPRIORITY: "priority"}[e.Key]
		if e.SourceRegister {
			return fmt.Sprintf("meta set %s reg%d", key, e.Register)
		}
		return fmt.Sprintf("meta load %s reg%d", key, e.Register)
	case *expr.Ct:
		key := map[expr.CtKey]string{expr.CtKeyMARK: "mark", expr.CtKeyDIRECTION: "direction", expr.CtKeySTATE: "state", expr.CtKeySTATUS: "status", expr.CtKeyZONE: "zone"}[e.Key]
		if e.SourceRegister {
			return fmt.Sprintf("ct set %s reg%d", key, e.Register)
		}
		return fmt.Sprintf("ct load %s reg%d", key, e.Register)
	case *expr.Bitwise:
		return fmt.Sprintf("reg%d = reg%d & %s ^ %s", e.DestRegister, e.SourceRegister, word(e.Mask), word(e.Xor))
	case *expr.Cmp:
		op := map[expr.CmpOp]string{expr.CmpOpEq: "eq", expr.CmpOpNeq: "neq", expr.CmpOpGte: "gte", expr.CmpOpLte: "lte"}[e.Op]
		return fmt.Sprintf("cmp %s reg%d %s", op, e.Register, hex(e.Data))
	case *expr.Payload:
		base := map[expr.PayloadBase]string{expr.PayloadBaseNetworkHeader: "network", expr.PayloadBaseTransportHeader: "transport"}[e.Base]
		return fmt.Sprintf("load %d@%s+%d reg%d", e.Len, base, e.Offset, e.DestRegister)
	case *expr.Lookup:
		if e.Invert {
			return fmt.Sprintf("lookup reg%d not @%s", e.SourceRegister, e.SetName)
		}
		return fmt.Sprintf("lookup reg%d @%s", e.SourceRegister, e.SetName)
	case *expr.Immediate:
		return fmt.Sprintf("reg%d = %s", e.Register, hex(e.Data))
	case *expr.Fib:
		switch *e {
		case expr.Fib{Register: e.Register, FlagSADDR: true, ResultADDRTYPE: true}:
			return fmt.Sprintf("fib saddr type reg%d", e.Register)
		case expr.Fib{Register: e.Register, FlagSADDR: true, FlagIIF: true, ResultOIF: true}:
			return fmt.Sprintf("fib saddr . iif oif reg%d", e.Register)
		}
		return fmt.Sprintf("fib %+v", *e)
	case *expr.Reject:
		return fmt.Sprintf("reject type %d code %d", e.Type, e.Code)
	case *expr.Objref:
		return fmt.Sprintf("objref %d %s", e.Type, strings.TrimRight(e.Name, "\x00"))
	case *expr.Queue:
		return fmt.Sprintf("queue num %d total %d flags %d", e.Num, e.Total, e.Flag)
	case *expr.Target:
		info, _ := e.Info.(*xt.Unknown)
		if info == nil || len(*info) < 6 {
			return fmt.Sprintf("target %s rev %d %v", e.Name, e.Rev, e.Info)
		}
		f := func(i int) uint16 { return binary.NativeEndian.Uint16((*info)[2*i:]) }
		return fmt.Sprintf("target %s rev %d num %d total %d flags %d", e.Name, e.Rev, f(0), f(1), f(2))
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictAccept:
			return "accept"
		case expr.VerdictDrop:
			return "drop"
		case expr.VerdictJump:
			return "jump " + e.Chain
		case expr.VerdictGoto:
			return "goto " + e.Chain
		}
	}
	return fmt.Sprintf("%T %+v", e, e)
}
