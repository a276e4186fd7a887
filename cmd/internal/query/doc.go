// Package query asks a decision table the questions people ask: what happens to
// a connection from here to there (matrix), and why (explain).
//
// It turns names into addresses and addresses into names and leaves every
// decision to [classifier.Table]; it holds no policy semantics of its own. The
// JSON field names of [Flow], [Side] and [Explanation] are a contract with other
// tools: add fields, never rename one.
//
// # The packet a question stands for
//
// A question names a protocol and a destination port. The rest of the key is
// the first packet of an ordinary client: source port 40000, ICMP echo request
// with identifier 1. A named port becomes the number the destination pod gives
// that name. A pod without such a port is asked about port 0, which no rule that
// names ports or ranges can match, so the answer is what rules without a port
// list say; resolvedPort is then absent. A name that no pod has is refused
// ([CheckPort]).
//
// Where a question leaves the family open, it is IPv4 when both ends have it,
// else IPv6.
package query
