package kern

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Before Linux 6.2 the verifier takes a map's key from the stack, a packet or a map's
// value, but not from memory that a global function (__noinline and not static, see bpf/kernel.h) was given a
// pointer to: "R2 type=mem expected=fp, pkt, …". A newer kernel accepts both, so the
// objects themselves are searched for such keys.
func TestMapKeysAreNotArguments(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"pod": LoadPod, "guard": LoadGuard} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		calls, done := 0, map[string]bool{}
		for _, p := range spec.Programs {
			for _, f := range functions(p.Instructions) {
				fn := btf.FuncMetadata(&f[0])
				if fn == nil || fn.Linkage != btf.GlobalFunc || p.Name == fn.Name || done[fn.Name] {
					continue
				}
				done[fn.Name] = true
				calls += findArgumentKeys(t, fn, f)
			}
		}
		if name == "pod" && calls == 0 {
			t.Error("no global function of pod looks anything up: the test tests nothing")
		}
	}
}

// functions splits a program where its functions begin.
func functions(all asm.Instructions) (parts []asm.Instructions) {
	start := 0
	for i := range all {
		if i > start && btf.FuncMetadata(&all[i]) != nil {
			parts = append(parts, all[start:i])
			start = i
		}
	}
	return append(parts, all[start:])
}

// registers says which registers and which slots of the stack may point into memory
// that the function was given.
type registers struct {
	given [11]bool
	slots map[int16]bool
}

func (r registers) merge(o registers) (registers, bool) {
	m, changed := registers{r.given, map[int16]bool{}}, false
	for k := range r.slots {
		m.slots[k] = true
	}
	for i, g := range o.given {
		if g && !m.given[i] {
			m.given[i], changed = true, true
		}
	}
	for k := range o.slots {
		if !m.slots[k] {
			m.slots[k], changed = true, true
		}
	}
	return m, changed
}

// findArgumentKeys follows pointers through the function f and reports calls whose map
// key is one it was given. It returns how many calls with keys it met.
func findArgumentKeys(t *testing.T, fn *btf.Func, f asm.Instructions) (calls int) {
	t.Helper()
	at := map[int]int{} // raw offset, in 8 bytes, to index
	offset, offsets := 0, make([]int, len(f))
	labels := map[string]int{}
	for i, ins := range f {
		at[offset], offsets[i] = i, offset
		if s := ins.Symbol(); s != "" {
			labels[s] = i
		}
		offset++
		if ins.OpCode.IsDWordLoad() {
			offset++
		}
	}
	entry := registers{slots: map[int16]bool{}}
	params := fn.Type.(*btf.FuncProto).Params
	for i, p := range params {
		if _, ok := btf.UnderlyingType(p.Type).(*btf.Pointer); ok && i > 0 { // the first is the packet
			entry.given[i+1] = true
		}
	}
	states, seen := make([]registers, len(f)), make([]bool, len(f))
	counted := map[int]bool{}
	type step struct {
		to    int
		state registers
	}
	for todo := []step{{0, entry}}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.to >= len(f) {
			continue
		}
		merged, changed := states[s.to].merge(s.state)
		if seen[s.to] && !changed {
			continue
		}
		seen[s.to], states[s.to] = true, merged
		r, _ := merged.merge(registers{})
		ins := f[s.to]
		op := ins.OpCode
		next := true
		switch class := op.Class(); {
		case class.IsALU() && op.ALUOp() == asm.Mov:
			r.given[ins.Dst] = op.Source() == asm.RegSource && class == asm.ALU64Class && r.given[ins.Src]
		case class.IsLoad() && class == asm.LdXClass:
			r.given[ins.Dst] = ins.Src == asm.R10 && r.slots[ins.Offset]
		case class.IsLoad():
			r.given[ins.Dst] = false
		case class == asm.StXClass && ins.Dst == asm.R10:
			delete(r.slots, ins.Offset)
			if r.given[ins.Src] {
				r.slots[ins.Offset] = true
			}
		case class.IsJump() && op.JumpOp() == asm.Call:
			if ins.IsBuiltinCall() {
				switch asm.BuiltinFunc(ins.Constant) {
				case asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem:
					counted[s.to] = true
					if r.given[asm.R2] {
						t.Errorf("%s: instruction %d, %v: the key is memory the function was given: copy it to the stack", fn.Name, s.to, ins)
					}
				}
			}
			for i := asm.R0; i <= asm.R5; i++ {
				r.given[i] = false
			}
		case class.IsJump() && op.JumpOp() == asm.Exit:
			next = false
		case class.IsJump():
			to, ok := labels[ins.Reference()]
			if !ok {
				to, ok = at[offsets[s.to]+1+int(ins.Offset)]
			}
			if !ok {
				t.Fatalf("%s: instruction %d, %v jumps where nothing is", fn.Name, s.to, ins)
			}
			todo = append(todo, step{to, r})
			next = op.JumpOp() != asm.Ja
		}
		if next {
			todo = append(todo, step{s.to + 1, r})
		}
	}
	return len(counted)
}
