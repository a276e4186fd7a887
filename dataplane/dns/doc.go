// Package dns learns the addresses behind DNS names from the answers pods get,
// for rules that name peers by name.
//
//	pod ── query ──► tap ─ Observer: asked ─────────────► on its way
//	pod ◄── answer ─ tap ─ Observer: was it asked? ─ no ─► on its way
//	                            │ yes
//	                            ▼
//	                     Names.Learn ── nothing new ─────► on its way
//	                            │ new addresses: News
//	                            ▼
//	            the owner: Fill ► compile ► publish ► InForce ─► on its way
//
// An answer with an address that no table has yet waits until one has, so that the
// pod's first connection is judged by it. It waits no longer than the Observer's
// hold time; a message is never changed and never dropped (S4-22).
//
// # What is believed
//
// An answer counts if the pod asked for it: the same two addresses and ports, the
// same transaction number, the same question, not longer ago than askedFor. Each
// query is answered once. Whoever wants to plant an address has to guess what he
// would have to guess to fool the pod itself (RFC 5452). The server a pod asks is
// believed as the pod believes it; Observer's Believe limits whom. Which servers a
// pod may ask is for policy to say.
//
// Of an answer count the A and AAAA records of the name that was asked for, and of
// what its CNAME records lead to, with the least TTL of the chain. They are
// learnt for the name that was asked for, not for those in between: the owner of
// one zone shall not speak for another. Records of other names are ignored, and
// so are addresses no peer can have: unspecified, loopback, multicast, mapped.
//
// # How long
//
// An address stays for its TTL and Config.Grace after the last answer that had it,
// and beyond that while a live connection uses it: a rule allows a connection for
// as long as it lasts. TTLs count from MinTTL to MaxTTL.
//
// # Bounds
//
// A set takes at most PerSet names (1,024), all sets together Total (10,000), a
// name PerName addresses. One more puts out, of the client with the most names that
// nobody else resolved, the one resolved least recently: so a client that resolves
// very many names puts out its own. Names with an address in use, as far as Expire has
// found out, stay; where all are in use the new one is not taken in. A client may have
// perClient questions open; more put out its own oldest. It may have maxHeldFor answers
// waiting; more go on at once. Names that no set wants are not kept.
//
// # What it leaves to you
//
// Which names a set wants is a function the caller brings. Messages over TCP are
// understood if a segment has whole ones. DNS over TLS, HTTPS and QUIC cannot be
// read, and addresses in SVCB and HTTPS records are not learnt: clients that use
// those ask for A and AAAA as well.
//
// Names may be used by any number of goroutines, an Observer's Packet by one.
package dns
