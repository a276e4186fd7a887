package adversary

import (
	"fmt"
	"net/netip"
)

// ICMPErrors are messages of a third pod, in its own name, about a connection that it
// is no end of. An error may come from any router on the way; a pod is none.
func ICMPErrors() (all []Attack) {
	type message struct {
		name       string
		typ, code  [2]uint8 // IPv4, IPv6
		rest       uint32
		only       int
		redirect   bool
		fromRouter bool // a router may send it
	}
	for _, m := range []message{
		{name: "packet too big", typ: [2]uint8{3, 2}, code: [2]uint8{4, 0}, rest: 552, fromRouter: true},
		{name: "port unreachable", typ: [2]uint8{3, 1}, code: [2]uint8{3, 4}, fromRouter: true},
		{name: "host unreachable", typ: [2]uint8{3, 1}, code: [2]uint8{1, 3}, fromRouter: true},
		{name: "administratively prohibited", typ: [2]uint8{3, 1}, code: [2]uint8{13, 1}, fromRouter: true},
		{name: "time exceeded", typ: [2]uint8{11, 3}, fromRouter: true},
		{name: "parameter problem", typ: [2]uint8{12, 4}, fromRouter: true},
		{name: "source quench", typ: [2]uint8{4, 0}, only: 4},
		{name: "redirect", typ: [2]uint8{5, 0}, code: [2]uint8{1, 0}, only: 4, redirect: true},
	} {
		families, reason := []int{4, 6}, Policy
		if m.redirect {
			reason = "forged"
		}
		if m.only != 0 {
			families = []int{m.only}
		}
		// about returns the error to one end of a connection: quoted is a packet that
		// this end sent.
		about := func(from *Party, family int, quoted []byte, to Ends) []byte {
			i := family/2 - 2
			e := Ends{from.Addr(family), to.Src}
			return e.Packet(e.ICMPProto(), e.ICMP(m.typ[i], m.code[i], m.rest, quoted))
		}
		all = append(all, Attack{
			Name: m.name + " to the server of others' UDP", Like: "CVE-2004-0790, CVE-2004-1060 (RFC 5927)", Families: families, Reason: reason,
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Server.Addr(family), f.Client.Addr(family)}
				return [][]byte{about(f.Attacker, family, q.Packet(17, q.UDP(f.ServerPort, f.UDPPort[family], mark)), q)}
			},
		}, Attack{
			Name: m.name + " to the client of others' UDP", Like: "CVE-2004-0790, CVE-2004-1060 (RFC 5927)", Families: families, Reason: reason,
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Client.Addr(family), f.Server.Addr(family)}
				return [][]byte{about(f.Attacker, family, q.Packet(17, q.UDP(f.UDPPort[family], f.ServerPort, mark)), q)}
			},
		}, Attack{
			Name: m.name + " to the server of others' TCP", Like: "CVE-2004-0790, CVE-2004-1060 (RFC 5927)", Families: families, Reason: reason,
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Server.Addr(family), f.Client.Addr(family)}
				return [][]byte{about(f.Attacker, family, q.Packet(6, q.TCP(f.ServerPort, f.TCPPort[family], "A", mark)), q)}
			},
		}, Attack{
			Name: m.name + " about a connection with the outside", Families: families, Reason: reason,
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Client.Addr(family), f.Outside.Addr(family)}
				return [][]byte{about(f.Attacker, family, q.Packet(17, q.UDP(f.FarPort[family], f.ServerPort, mark)), q)}
			},
		})
		if !m.fromRouter && !m.redirect {
			continue
		}
		all = append(all, Attack{
			Name: m.name + " from a router outside", Arrives: m.fromRouter, Families: families,
			From: func(f *Field) *Party { return f.Outside },
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Client.Addr(family), f.Outside.Addr(family)}
				return [][]byte{about(neighbour(f.Outside), family, q.Packet(17, q.UDP(f.FarPort[family], f.ServerPort, mark)), q)}
			},
		})
	}
	for _, to := range []string{"client", "server"} {
		all = append(all, Attack{
			Name: fmt.Sprintf("an error about others' connection behind an extension header, to its %s", to), Families: []int{6}, Reason: Policy,
			Packets: func(f *Field, family int, mark string) [][]byte {
				q := Ends{f.Server.Addr(6), f.Client.Addr(6)}
				sport, dport := f.ServerPort, f.UDPPort[6]
				if to == "client" {
					q, sport, dport = q.Turned(), dport, sport
				}
				e := Ends{f.Attacker.Addr(6), q.Src}
				quote := q.Packet(17, q.UDP(sport, dport, mark))
				return [][]byte{e.Packet(60, append([]byte{58, 0, 1, 4, 0, 0, 0, 0}, e.ICMP(2, 0, 1280, quote)...))}
			},
		})
	}
	return all
}

// neighbour is somebody else in the party's networks.
func neighbour(p *Party) *Party {
	a, b := p.Addr4.As4(), p.Addr6.As16()
	a[3], b[15] = 77, 77
	return &Party{Name: "beside " + p.Name, Addr4: netip.AddrFrom4(a), Addr6: netip.AddrFrom16(b)}
}
