package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// A connection that the kernel keeps to itself was listed as "established", however
// long ago it ended.
func TestFlowsDoNotPresentFinishedConnectionsAsLive(t *testing.T) {
	now := time.Now()
	end := &audit.Endpoint{Namespace: "x", Pod: "a"}
	flow := func(state, alive string, inKernel bool) api.Flow {
		return api.Flow{Node: "n", Protocol: "TCP", Source: end, Destination: end, State: state, Alive: alive, InKernel: inKernel, Since: now.Add(-time.Hour), LastSeen: now.Add(-30 * time.Minute)}
	}
	a := flowsAnswer{Flows: []api.Flow{flow("established", api.AliveUnknown, true), flow("established", api.AliveYes, false), flow("closed", api.AliveNo, true)}}
	for _, wide := range []bool{false, true} {
		var b strings.Builder
		if err := a.write(&b, now, wide); err != nil {
			t.Fatal(err)
		}
		rows := fields(b.String())
		state, seen := -1, -1
		for i, name := range rows[0] {
			switch name {
			case "STATE":
				state = i
			case "LAST-SEEN":
				seen = i
			}
		}
		for i, want := range []string{"in-kernel", "established", "closed"} {
			if got := rows[i+1][state]; got != want || rows[i+1][seen] != "30m" {
				t.Errorf("wide %t: state %s, want %s, last seen %s", wide, got, want, rows[i+1][seen])
			}
		}
		if !strings.Contains(b.String(), "1 connection in-kernel: the daemon sees no more of their packets, nor their end") {
			t.Error(b.String())
		}
	}
}

type fakeRecords []conntrack.Record

func (r fakeRecords) Flows(f func(string, conntrack.Record) bool) {
	for _, rec := range r {
		f("nfqueue", rec)
	}
}
func (fakeRecords) TableOf(uint64) *classifier.Table { return nil }
func (fakeRecords) Table() *classifier.Table         { return nil }

// "12 connections" counted those that had ended.
func TestStatusTellsOpenConnectionsFromEnded(t *testing.T) {
	st := api.Status{Node: "n1", Ready: true}
	bypassed := conntrack.Admission{Bypassed: true}
	st.Traffic.CountConnections(fakeRecords{
		{State: conntrack.Established},
		{State: conntrack.SynSent, Admission: bypassed},
		{State: conntrack.Established, Admission: bypassed},
		{State: conntrack.TimeWait},
		{State: conntrack.Closed, Admission: bypassed},
		{State: conntrack.Closed},
	})
	if c := st.Traffic; c.Connections != 6 || c.Open != 1 || c.InKernel != 2 || c.Ended != 3 {
		t.Errorf("%+v", c)
	}
	var b strings.Builder
	if err := writeStatus(&b, cli.Style{}, &st, time.Now()); err != nil {
		t.Fatal(err)
	}
	if want := "6 connections remembered: 1 open, 2 in the kernel (some may have ended), 3 ended"; !strings.Contains(b.String(), want) {
		t.Errorf("%q is not in\n%s", want, b.String())
	}
}

// No connections: of whom?
func TestEmptyFlowsSayWhoWasAsked(t *testing.T) {
	var b strings.Builder
	a := flowsAnswer{Failed: []nodeFailed{{Node: "n2"}}, errs: []error{nil, errors.New("gone")}}
	if a.tell(&b, []target{{Node: "n1"}, {Node: "n2"}}); b.String() != "no connection matches: asked 1 daemon: n1\n" {
		t.Error(b.String())
	}
}
