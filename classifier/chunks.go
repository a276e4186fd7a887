package classifier

const chunkSize = 256

// chunks is a persistent array. A version shares with the one before it every
// chunk that was not written in between; values never move, so readers of an
// older version are not disturbed by a writer of a newer one.
//
// Copying the struct makes a version. epoch is the writer's: chunks stamped with
// it were made since the last version was handed out and may be written in place.
type chunks[T any] struct {
	dir   []*chunk[T]
	epoch uint64 // that of dir
}

type chunk[T any] struct {
	epoch uint64
	v     [chunkSize]T
}

func (c *chunks[T]) at(i int) *T { return &c.dir[i/chunkSize].v[i%chunkSize] }

// set writes one value, copying what older versions can see.
func (c *chunks[T]) set(i int, v T, epoch uint64) {
	n := i / chunkSize
	if c.epoch != epoch || n >= len(c.dir) {
		dir := make([]*chunk[T], max(len(c.dir), n+1), max(len(c.dir), n+1)*9/8+1)
		copy(dir, c.dir)
		c.dir, c.epoch = dir, epoch
	}
	switch old := c.dir[n]; {
	case old == nil:
		c.dir[n] = &chunk[T]{epoch: epoch}
	case old.epoch != epoch:
		fresh := *old
		fresh.epoch = epoch
		c.dir[n] = &fresh
	}
	c.dir[n].v[i%chunkSize] = v
}

// numbers hands out small integers and takes them back.
type numbers struct {
	next int
	free []int
}

func (n *numbers) take() int {
	if l := len(n.free); l > 0 {
		i := n.free[l-1]
		n.free = n.free[:l-1]
		return i
	}
	n.next++
	return n.next - 1
}

func (n *numbers) give(i int) { n.free = append(n.free, i) }

// used returns how many numbers are out.
func (n *numbers) used() int { return n.next - len(n.free) }

// each calls f for every place, also empty ones.
func (c *chunks[T]) each(f func(*T)) {
	for _, ch := range c.dir {
		if ch == nil {
			continue
		}
		for i := range ch.v {
			f(&ch.v[i])
		}
	}
}
