package adversary

import (
	"net/netip"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Party is a host of a Field.
type Party struct {
	Name         string
	Addr4, Addr6 netip.Addr
	NS           *netlab.NS
	Wire         *Wire // on the party's device
}

// Addr returns the address of family 4 or 6.
func (p *Party) Addr(family int) netip.Addr {
	if family == 6 {
		return p.Addr6
	}
	return p.Addr4
}

// Field is where attacks happen. Attacker is a pod whose traffic to Server policy
// denies. Client has a UDP and a TCP connection with Server, from the ports below, and
// a UDP connection with Outside. Server lets in nobody but Client, and Client nobody.
type Field struct {
	Attacker, Client, Server, Outside *Party
	Bystander, Node                   *Party // a pod that no policy is about; the node, which has no wire

	ServerPort       uint16
	UDPPort, TCPPort map[int]uint16 // of Client, by family: connections with Server
	FarPort          map[int]uint16 // of Client, by family: UDP with Outside
}

// Attack is one row.
type Attack struct {
	Name string
	// Like names published attacks of the same kind on other software.
	Like string
	// From sends; the attacker if nil.
	From func(f *Field) *Party
	// Packets returns IP packets, sent in order. Each must have the mark in it, so
	// that it is recognised where it arrives.
	Packets func(f *Field, family int, mark string) [][]byte
	// Frames is Packets with Ethernet headers, for what is not IP or has addresses of
	// its own choice.
	Frames func(f *Field, family int, mark string) [][]byte
	// Arrives is set on a row that must not be stopped: what looks like an attack and is
	// somebody's right.
	Arrives bool
	// Reason is the reason that the audit log must give for the drops, or Policy: then
	// it must have each of them as denied by policy. "" asks for no record.
	Reason string
	// Families the row has packets for; both if empty.
	Families []int
	// Skip says why a dataplane in a topology does not stop the row, "" if it does.
	Skip func(dataplane, topology string) string
}

// Policy is an Attack's Reason if policy denies it.
const Policy = "policy"

// Attacks returns every row.
func Attacks() (all []Attack) {
	for _, list := range [][]Attack{ICMPErrors(), ForeignSources(), RouterClaims(), DHCPServer(), Tunnels()} {
		all = append(all, list...)
	}
	return all
}

// Sender is the party that sends the row's frames.
func (a *Attack) Sender(f *Field) *Party {
	if a.From != nil {
		return a.From(f)
	}
	return f.Attacker
}

// Send sends the row's frames.
func (a *Attack) Send(f *Field, family int, mark string) (frames int) {
	w := a.Sender(f).Wire
	if a.Packets != nil {
		for _, p := range a.Packets(f, family, mark) {
			w.IP(p)
			frames++
		}
	}
	if a.Frames != nil {
		for _, b := range a.Frames(f, family, mark) {
			if err := w.Frame(b); err != nil {
				w.t.Errorf("%s: send: %v", a.Name, err)
			}
			frames++
		}
	}
	return frames
}
