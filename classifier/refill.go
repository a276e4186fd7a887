package classifier

import (
	"errors"
	"net/netip"
)

// ErrNothingCompiled is what Refill returns before the first Compile.
var ErrNothingCompiled = errors.New("classifier: nothing compiled yet")

// Refill returns the table of the last successful Compile with other prefixes in
// the address sets named, at the cost of what changed in them. The prefixes are
// kept. generation must grow; the report compares with the table before.
func (c *Compiler) Refill(sets map[string][]netip.Prefix, generation uint64) (*Table, *Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil {
		return nil, nil, ErrNothingCompiled
	}
	return c.live.Apply(&Delta{Generation: generation, Sets: sets})
}
