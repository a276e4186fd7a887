// Package upcall is the way of packets between the BPF programs and a driver: the veth
// pair that carries them, the AF_XDP socket at its end, and the metadata in the frames.
//
//	frame = destination MAC │ source MAC := metadata │ type │ [Origin] │ IP …
//	                          1: flags  2: nonce  3-6: ifindex
//
// The source address says where a packet was captured (Meta), and on the way back
// whether it was accepted (SetMarks). Where addresses are translated an Origin precedes
// the IP header and TakeOrigin removes it. Credit tells the programs how many more
// frames a queue can take.
//
// A Pair belongs to the thread that attaches programs, a Socket and a Credit to the
// worker of their queue.
package upcall
