package lint

import (
	"fmt"
	mathbits "math/bits"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// bits is a set of pods, by their index in checker.pods.
type bits []uint64

func (b bits) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }

func (b bits) empty() bool {
	for _, w := range b {
		if w != 0 {
			return false
		}
	}
	return true
}

// within reports whether every element is in o, too.
func (b bits) within(o bits) bool {
	for i, w := range b {
		if w&^o[i] != 0 {
			return false
		}
	}
	return true
}

// meets reports whether the sets have a common element.
func (b bits) meets(o bits) bool {
	for i, w := range b {
		if w&o[i] != 0 {
			return true
		}
	}
	return false
}

func (b bits) count() int {
	n := 0
	for _, w := range b {
		n += mathbits.OnesCount64(w)
	}
	return n
}

// each calls f with every element, in order.
func (b bits) each(f func(i int)) {
	for w, word := range b {
		for ; word != 0; word &= word - 1 {
			f(w*64 + mathbits.TrailingZeros64(word))
		}
	}
}

// subject is one distinct selector that rules and isolations are about.
type subject struct {
	selector *rule.Selector
	pods     bits
}

// index numbers the distinct subjects and finds the pods of each, once: policies
// have few, and everything else asks by number.
func (c *checker) index() {
	numbers := map[string]int{}
	number := func(s *rule.Selector) int {
		text := s.String()
		n, ok := numbers[text]
		if !ok {
			n = len(c.subjects)
			numbers[text] = n
			c.subjects = append(c.subjects, subject{s, c.matching(s)})
		}
		return n
	}
	c.ruleSubject = make([]int, len(c.set.Rules))
	for i := range c.set.Rules {
		c.ruleSubject[i] = number(&c.set.Rules[i].Subject)
		c.addSubject(&c.set.Rules[i].Origin, c.ruleSubject[i])
	}
	c.isolationSubject = make([]int, len(c.set.Isolations))
	for i := range c.set.Isolations {
		c.isolationSubject[i] = number(&c.set.Isolations[i].Subject)
		c.addSubject(&c.set.Isolations[i].Origin, c.isolationSubject[i])
	}
}

func (c *checker) addSubject(o *rule.Origin, n int) {
	if p := c.of(o); p != nil {
		p.subjects = append(p.subjects, n)
	}
}

func (c *checker) matching(s *rule.Selector) bits {
	b := make(bits, (len(c.pods)+63)/64)
	for i := range c.pods {
		if s.Matches(&c.pods[i]) {
			b[i/64] |= 1 << (i % 64)
		}
	}
	return b
}

// of returns the pods a rule is about.
func (c *checker) podsOf(ruleIndex int) bits { return c.subjects[c.ruleSubject[ruleIndex]].pods }

// anyPod reports whether a selector selects a pod there is. Answers are kept:
// policies repeat their peers.
func (c *checker) anyPod(s *rule.Selector) bool {
	text := s.String()
	found, ok := c.selects[text]
	if !ok {
		found = !c.matching(s).empty()
		c.selects[text] = found
	}
	return found
}

// distinct keeps one pod of those that selectors and named ports cannot tell
// apart: a Deployment's replicas count once.
func distinct(pods []rule.Endpoint, inv *inventory.Snapshot) []rule.Endpoint {
	seen := map[string]bool{}
	var out []rule.Endpoint
	for i := range pods {
		p := &pods[i]
		p.Ports, p.Addrs = inv.Pods[i].Ports, inv.Pods[i].IPs
		key := fmt.Sprint(p.Namespace, p.ServiceAccount, p.HostNetwork, p.Labels, p.Ports) // fmt sorts maps
		if !seen[key] {
			seen[key] = true
			out = append(out, *p)
		}
	}
	return out
}
