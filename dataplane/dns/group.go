package dns

import (
	"fmt"
	"net/netip"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// group is names in the order they were resolved in, up to a number, with a share for
// each client: what one client alone resolves cannot put out what another one needs.
type group struct {
	*simplelru.LRU[string, *entry]
	size int
	sole map[netip.Addr]int // by client: the names that no other client resolved
}

func newGroup(size int) *group {
	r, err := simplelru.NewLRU[string, *entry](size, nil)
	if err != nil {
		panic(fmt.Sprintf("dns: %v", err)) // only for sizes that NewNames replaces
	}
	return &group{r, size, map[netip.Addr]int{}}
}

func (g *group) full() bool { return g.Len() == g.size }

func (g *group) add(e *entry) {
	g.Add(e.name, e)
	g.count(e, 1)
}

func (g *group) remove(e *entry) {
	if g.Remove(e.name) {
		g.count(e, -1)
	}
}

// count adds n to the names of e's client, if it is the only one.
func (g *group) count(e *entry, n int) {
	c, ok := e.sole()
	if !ok {
		return
	}
	if g.sole[c] += n; g.sole[c] == 0 {
		delete(g.sole, c)
	}
}

// victim returns the name that makes room for a new one: of the client with the most
// names of its own, the new one counted, the name resolved least recently. Names in use
// stay. It is nil if all are.
func (g *group) victim(fresh *entry) *entry {
	own, _ := fresh.sole()
	most, client := 0, netip.Addr{}
	for c, n := range g.sole {
		if n > most || n == most && c.Less(client) {
			most, client = n, c
		}
	}
	if n := g.sole[own]; n > 0 && n+1 >= most {
		client = own
	}
	var any *entry
	for _, e := range g.Values() {
		if e.used() {
			continue
		}
		if c, ok := e.sole(); ok && c == client {
			return e
		}
		if any == nil {
			any = e
		}
	}
	return any
}
