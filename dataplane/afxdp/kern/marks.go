package kern

import "github.com/cilium/ebpf"

// FlowMarks are what the programs compare flows with to know which still count.
// Package flows moves them.
type FlowMarks struct {
	cells                         *ebpf.Map
	generation, floor, translated *ebpf.Variable
}

// FlowMarks returns those of the programs.
func (p *Loaded) FlowMarks() FlowMarks {
	return FlowMarks{cells: p.Cells, generation: p.Generation, floor: p.ValidFrom, translated: p.Translated}
}

// Generation reads the generation of the front cache.
func (m FlowMarks) Generation() (g uint64, err error) {
	err = m.generation.Get(&g)
	return g, err
}

// SetGeneration ends what CPUs noted in the front cache.
func (m FlowMarks) SetGeneration(g uint64) error { return m.generation.Set(g) }

// SetFloor ends every flow of an older generation than g.
func (m FlowMarks) SetFloor(g uint64) error { return m.floor.Set(g) }

// SetCell ends the older flows with an address in the cell.
func (m FlowMarks) SetCell(cell uint32, g uint64) error { return m.cells.Put(cell, g) }

// SetTranslated makes the programs look for translated flows.
func (m FlowMarks) SetTranslated() error { return m.translated.Set(uint8(1)) }
