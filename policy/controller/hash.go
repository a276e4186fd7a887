package controller

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"math/bits"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
)

// digest identifies rules: the sum, modulo 2^256, of a hash of what each object
// brings, so that a changed object is taken out and put in again without looking
// at the others. Four words, the least significant first. The zero value is that
// of no rules.
type digest [4]uint64

// sumOf returns the digest of a canonical set.
func sumOf(set *rule.Set) digest {
	hashes := map[classifier.PolicyRef]hash.Hash{}
	of := func(o *rule.Origin) hash.Hash {
		ref := classifier.RefOf(o)
		h := hashes[ref]
		if h == nil {
			h = sha256.New()
			hashes[ref] = h
		}
		return h
	}
	for i := range set.Rules {
		encode(of(&set.Rules[i].Origin), &set.Rules[i])
	}
	for i := range set.Isolations {
		encode(of(&set.Isolations[i].Origin), &set.Isolations[i])
	}
	var d digest
	for _, h := range hashes {
		d.add(h.Sum(nil))
	}
	return d
}

// encode writes a rule or isolation. JSON is complete by construction: a field
// added to the IR counts without anybody remembering to add it here. Rules are
// encoded one by one: all of them at once would be tens of megabytes of text.
func encode(h hash.Hash, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		// Only a priority that is no number could do this; it has no table.
		text = []byte(err.Error())
	}
	h.Write(append(text, '\n'))
}

func (d *digest) add(sum []byte) {
	var carry uint64
	for i := range d {
		d[i], carry = bits.Add64(d[i], binary.LittleEndian.Uint64(sum[i*8:]), carry)
	}
}

// replace takes the rules of one object out and puts others in. Both are in
// canonical order.
func (d *digest) replace(was, now *rule.Set) {
	old, fresh := sumOf(was), sumOf(now)
	var borrow, carry uint64
	for i := range d {
		d[i], borrow = bits.Sub64(d[i], old[i], borrow)
	}
	for i := range d {
		d[i], carry = bits.Add64(d[i], fresh[i], carry)
	}
}

// String is the short form: equal on all nodes that enforce the same policies.
func (d *digest) String() string {
	var b []byte
	for _, w := range d {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// PolicyHash is the hash of rules as nodes report it, for those who want to know
// whether what they have is what nodes enforce. set is sorted in place.
func PolicyHash(set rule.Set) string {
	set.Sort()
	d := sumOf(&set)
	return d.String()
}
