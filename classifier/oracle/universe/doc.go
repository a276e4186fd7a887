// Package universe makes random worlds so small that everything in them
// collides: two label values, three ports, a handful of pods. In such a world a
// random rule set overlaps itself everywhere, so every band, reason and tie gets
// to decide some connection, and a fuzz target that compares two evaluators
// finds a difference in seconds instead of years.
//
//	r := universe.FromBytes(fuzzInput)      // or rand.New(rand.NewPCG(1, 2))
//	set, world := universe.Random(r)
//	k := universe.RandomKey(r, world)
//
// Everything is a function of the random stream: the same bytes give the same
// universe on every machine. The package is test support; it is never imported
// by product code.
package universe
