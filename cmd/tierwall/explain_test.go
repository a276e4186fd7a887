package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestExplainGolden(t *testing.T) {
	for _, tt := range []struct{ file, args string }{
		{"explain-isolated.txt", "--from shop/frontend --to shop/db --port 5432/TCP"},
		{"explain-isolated.json", "--from shop/frontend --to shop/db --port 5432/TCP -o json"},
		{"explain-allowed.txt", "--from prometheus --to backend-1 --port http/TCP --all"},
		{"explain-service.txt", "--from shop/frontend --to svc/shop/backend --port 80/TCP"},
		{"explain-outside.txt", "--from 203.0.113.9 --to shop/backend-0 --port http/TCP"},
		{"explain-icmp.txt", "--from frontend --to db --port 0/ICMP --icmp 3/4 --family 6"},
		{"explain-noport.txt", "--from prometheus --to db --port http/TCP"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			r := tierwall(t, "", append([]string{"explain", "-m", quickstart}, strings.Fields(tt.args)...)...)
			if r.code != 0 || r.err != "" {
				t.Fatalf("exit code %d, stderr %q", r.code, r.err)
			}
			golden(t, tt.file, r.out)
		})
	}
}

type explanation struct {
	From, To, Port, FromIP, ToIP, Verdict, Packet string
	Family, ResolvedPort                          int
	Backends                                      []explanation
}

func explainJSON(t *testing.T, args string) explanation {
	t.Helper()
	r := tierwall(t, "", append([]string{"explain", "-m", quickstart, "-o", "json"}, strings.Fields(args)...)...)
	var e explanation
	if err := json.Unmarshal([]byte(r.out), &e); r.code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	return e
}

func TestExplainResolves(t *testing.T) {
	for _, tt := range []struct {
		name, args                           string
		from, to, fromIP, toIP, port, packet string
	}{
		{"a bare pod name", "--from frontend --to db -p 5432", "shop/frontend", "shop/db", "10.244.1.10", "10.244.2.12", "5432/TCP", "TCP 10.244.1.10:40000 > 10.244.2.12:5432"},
		{"a pod's address is the pod", "--from 10.244.1.10 --to db -p 1/udp", "shop/frontend", "shop/db", "10.244.1.10", "10.244.2.12", "1/udp", "UDP 10.244.1.10:40000 > 10.244.2.12:1"},
		{"an IPv6 address decides the family", "--from frontend --to fd00:244:2::c -p 1/TCP", "shop/frontend", "shop/db", "fd00:244:1::a", "fd00:244:2::c", "1/TCP", "TCP [fd00:244:1::a]:40000 > [fd00:244:2::c]:1"},
		{"an outside address", "--from db --to 203.0.113.1 -p 53/UDP", "shop/db", "203.0.113.1", "10.244.2.12", "203.0.113.1", "53/UDP", "UDP 10.244.2.12:40000 > 203.0.113.1:53"},
		{"family 6 when the other lacks 4", "--from 2001:db8::99 --to db -p 1/TCP", "2001:db8::99", "shop/db", "2001:db8::99", "fd00:244:2::c", "1/TCP", "TCP [2001:db8::99]:40000 > [fd00:244:2::c]:1"},
		{"ICMP over IPv6 is ICMPv6", "--from frontend --to db -p 0/ICMP --family 6", "shop/frontend", "shop/db", "fd00:244:1::a", "fd00:244:2::c", "0/ICMP", "ICMPv6 fd00:244:1::a > fd00:244:2::c type 128 code 0"},
		{"an ICMP message", "--from frontend --to db -p 0/ICMP --icmp 3/4", "shop/frontend", "shop/db", "10.244.1.10", "10.244.2.12", "0/ICMP", "ICMP 10.244.1.10 > 10.244.2.12 type 3 code 4"},
		{"a protocol by number", "--from frontend --to db -p 0/47", "shop/frontend", "shop/db", "10.244.1.10", "10.244.2.12", "0/47", "47 10.244.1.10 > 10.244.2.12"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := explainJSON(t, tt.args)
			got := []string{e.From, e.To, e.FromIP, e.ToIP, e.Port, e.Packet}
			want := []string{tt.from, tt.to, tt.fromIP, tt.toIP, tt.port, tt.packet}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("got %q, want %q", got[i], want[i])
				}
			}
		})
	}
}

// A Service is its backends at their target ports, whatever they are called.
func TestExplainService(t *testing.T) {
	for _, args := range []string{
		"--from frontend --to svc/shop/backend -p 80/TCP",
		"--from frontend --to svc/shop/backend -p http/TCP",
		"--from frontend --to 10.96.0.20 -p 80/TCP", // its address means the Service
	} {
		e := explainJSON(t, args)
		if e.Verdict != "Allow" || e.To != "svc/shop/backend" || len(e.Backends) != 2 {
			t.Fatalf("%s: %+v", args, e)
		}
		if e.Backends[0].To != "shop/backend-0" || e.Backends[0].ResolvedPort != 8080 ||
			e.Backends[1].To != "shop/backend-1" || e.Backends[1].ResolvedPort != 9090 {
			t.Errorf("%s: backends %+v", args, e.Backends)
		}
	}
	// backend-1 has no IPv6 address, so an IPv6 client never gets it.
	if e := explainJSON(t, "--from frontend --to svc/shop/backend -p 80/TCP --family 6"); len(e.Backends) != 1 || e.Backends[0].Family != 6 {
		t.Errorf("IPv6 backends %+v", e.Backends)
	}
	// The node reaches its own backend and not the other: there is no one verdict.
	if e := explainJSON(t, "--from node-exporter --to svc/shop/backend -p 80/TCP"); e.Verdict != "" || len(e.Backends) != 2 || e.Backends[0].Verdict == e.Backends[1].Verdict {
		t.Errorf("verdict %s, backends %+v", e.Verdict, e.Backends)
	}
	// Headless: the port asked for is the pods' own.
	if e := explainJSON(t, "--from backend-0 --to svc/shop/db -p 5432/TCP"); e.Verdict != "Allow" || len(e.Backends) != 1 || e.Backends[0].Port != "5432/TCP" {
		t.Errorf("headless %+v", e)
	}
}
