package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// onCluster marks a subject whose node has the rules of a Service proxy, as
// every node of a Kubernetes cluster has them: "afxdp@cluster". Its baseline is the
// same node without Tierwall, "kernel@cluster".
const onCluster = "@cluster"

// clusterServices is how many Services the proxy has; each has two endpoints.
const clusterServices = 1000

// clusterMark is the bit that kube-proxy sets on packets to be masqueraded.
const clusterMark = 0x4000

// withoutNode returns a subject's name without the node it is on.
func withoutNode(subject string) string { return strings.TrimSuffix(subject, onCluster) }

// atCluster names the same subjects on a node of a cluster. Subjects that are no
// more than yardsticks for rules of other kinds are left out.
func atCluster(subjects []string) (out []string) {
	for _, s := range subjects {
		switch withoutCopy(s) {
		case subjectConntrack, subjectNft1000, subjectStock:
		default:
			out = append(out, s+onCluster)
		}
	}
	return out
}

// proxy builds the rules that kube-proxy makes in its nftables mode, in the shape
// of KEP-3866: one lookup of (address, protocol, port) in a verdict map in front of
// all, chains per Service and per endpoint behind it, and checks of new connections
// in the filter hooks. They make the kernel track every connection.
type proxy struct {
	*nftables.Conn
	table *nftables.Table
}

// serviceProxy installs the rules of a proxy with a number of Services, none of
// which the benchmark uses: what pods pay for them is the same for all subjects.
func (l *lab) serviceProxy(services int) error {
	conn, err := nftables.New(nftables.WithNetNSFd(l.node.NS.FD()), nftables.WithSockOptions(func(nl *netlink.Conn) error {
		// A transaction is one message, with one answer per rule.
		return errors.Join(nl.SetWriteBuffer(32<<20), nl.SetReadBuffer(32<<20))
	}))
	if err != nil {
		return fmt.Errorf("open nf_tables netlink: %w", err)
	}
	p := proxy{conn, conn.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4})}
	if err := errors.Join(p.install(services), conn.Flush()); err != nil {
		return fmt.Errorf("install the rules of a Service proxy: %w", err)
	}
	return nil
}

func (p proxy) install(services int) error {
	clusterIPs := &nftables.Set{Table: p.table, Name: "cluster-ips", KeyType: nftables.TypeIPAddr}
	nodePortIPs := &nftables.Set{Table: p.table, Name: "nodeport-ips", KeyType: nftables.TypeIPAddr}
	byService, err := p.verdictMap("service-ips", nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return err
	}
	noEndpoints, err := p.verdictMap("no-endpoint-services", nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return err
	}
	firewalls, err := p.verdictMap("firewall-ips", nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return err
	}
	nodePorts, err := p.verdictMap("service-nodeports", nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return err
	}
	mark := p.chain("mark-for-masquerade")
	p.rule(mark, setMark(clusterMark))
	var addresses []nftables.SetElement
	var verdicts []nftables.SetElement
	for i := range services {
		address := []byte{10, 96, byte(1 + i>>8), byte(i)}
		name := p.service(i, address, mark)
		addresses = append(addresses, nftables.SetElement{Key: address})
		verdicts = append(verdicts, nftables.SetElement{
			Key:         key(address, []byte{unix.IPPROTO_TCP}, port(80)),
			VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: name},
		})
	}
	if err := errors.Join(p.AddSet(clusterIPs, addresses), p.AddSet(nodePortIPs, []nftables.SetElement{{Key: []byte{203, 0, 113, 1}}}),
		p.SetAddElements(byService, verdicts)); err != nil {
		return err
	}
	dispatch := p.chain("services")
	p.rule(dispatch, destination(), into(byService))
	p.rule(dispatch, []expr.Any{addressOf(16, 1), inSet(nodePortIPs)}, []expr.Any{protocol(8), destinationPort(9)}, into(nodePorts))
	clusterCheck := p.chain("cluster-ips-check")
	p.rule(clusterCheck, []expr.Any{addressOf(16, 1), inSet(clusterIPs)}, drop())
	endpointsCheck := p.chain("service-endpoints-check")
	p.rule(endpointsCheck, destination(), into(noEndpoints))
	firewallCheck := p.chain("firewall-check")
	p.rule(firewallCheck, destination(), into(firewalls))
	p.hooks(dispatch, clusterCheck, endpointsCheck, firewallCheck)
	return nil
}

// hooks adds the base chains.
func (p proxy) hooks(services, clusterCheck, endpointsCheck, firewallCheck *nftables.Chain) {
	fresh := ctState(expr.CtStateBitNEW)
	filter := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, jumps ...*nftables.Chain) {
		c := p.AddChain(&nftables.Chain{Name: name, Table: p.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority})
		for _, to := range jumps {
			p.rule(c, fresh, jump(to))
		}
	}
	filter("filter-prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest-10, firewallCheck)
	filter("filter-forward", nftables.ChainHookForward, -110, endpointsCheck, clusterCheck)
	filter("filter-input", nftables.ChainHookInput, -110, endpointsCheck)
	filter("filter-output", nftables.ChainHookOutput, -110, firewallCheck, endpointsCheck)
	nat := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return p.AddChain(&nftables.Chain{Name: name, Table: p.table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority})
	}
	p.rule(nat("nat-prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), jump(services))
	p.rule(nat("nat-output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest), jump(services))
	masquerade := nat("nat-postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	p.rule(masquerade, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(clusterMark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictReturn},
	})
	p.rule(masquerade, []expr.Any{&expr.Masq{FullyRandom: true}})
}

// service adds the chains of one Service and returns the first one's name.
func (p proxy) service(i int, address []byte, mark *nftables.Chain) string {
	name := fmt.Sprintf("service-%04d", i)
	first := p.chain(name)
	p.rule(first, []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{255, 255, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{10, 244, 0, 0}},
	}, jump(mark))
	for n := range 2 {
		endpoint := p.chain(fmt.Sprintf("endpoint-%04d-%d", i, n))
		to := []byte{10, 245, byte(i >> 7), byte(i<<1 | n)}
		p.rule(endpoint, []expr.Any{
			&expr.Immediate{Register: 1, Data: to}, &expr.Immediate{Register: 2, Data: port(8080)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		})
		choose := []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: endpoint.Name}}
		if n == 0 {
			p.rule(first, []expr.Any{
				&expr.Numgen{Register: 1, Type: unix.NFT_NG_RANDOM, Modulus: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
			}, choose)
			continue
		}
		p.rule(first, choose)
	}
	return name
}

func (p proxy) chain(name string) *nftables.Chain {
	return p.AddChain(&nftables.Chain{Name: name, Table: p.table})
}

func (p proxy) rule(c *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, part := range parts {
		all = append(all, part...)
	}
	p.AddRule(&nftables.Rule{Table: p.table, Chain: c, Exprs: all})
}

func (p proxy) verdictMap(name string, fields ...nftables.SetDatatype) (*nftables.Set, error) {
	kind, err := nftables.ConcatSetType(fields...)
	if err != nil {
		return nil, err
	}
	s := &nftables.Set{Table: p.table, Name: name, IsMap: true, Concatenation: true, KeyType: kind, DataType: nftables.TypeVerdict}
	return s, p.AddSet(s, nil)
}

// destination reads the key that Services are found by. Registers from 8 on have
// four bytes each; fields of a key lie in a row from 8 on.
func destination() []expr.Any {
	return []expr.Any{addressOf(16, 8), protocol(9), destinationPort(10)}
}

// addressOf reads the IPv4 address at an offset of the header.
func addressOf(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func protocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

func destinationPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

func inSet(s *nftables.Set) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: s.Name} }

// into looks a key up in a verdict map and does what it says.
func into(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 8, DestRegister: 0, IsDestRegSet: true, SetName: s.Name}}
}

func jump(to *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}}
}

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// setMark sets bits of the packet's mark.
func setMark(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(^bits), Xor: binaryutil.NativeEndian.PutUint32(bits)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

func port(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// key concatenates the fields of a key, each padded to four bytes.
func key(fields ...[]byte) (out []byte) {
	for _, f := range fields {
		out = append(out, f...)
		out = append(out, make([]byte, -len(f)&3)...)
	}
	return out
}
