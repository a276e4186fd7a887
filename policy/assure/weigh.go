package assure

// weightKey names the connections between two ends of one family and protocol.
type weightKey struct {
	from, to, protocol string
	family             int
}

type weight struct {
	port  uint16
	count uint64
}

func (d *Diff) seen(c *Change) uint64 {
	n := uint64(0)
	for _, w := range d.weights[weightKey{c.From, c.To, c.Protocol, c.Family}] {
		if c.Ports[0] <= w.port && w.port <= c.Ports[1] {
			n += w.count
		}
	}
	return n
}
