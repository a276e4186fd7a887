// Command traffic sends and counts the packets of cluster tests; package traffic
// says how. Flags that name addresses may be repeated.
//
//	traffic -serve 9000
//	traffic -udp 10.0.0.5:9000 -connect 10.0.0.5:9000 -every 20ms
//	traffic -ask
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tierwall/tierwall/deploy/e2e/traffic"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	type target struct {
		kind traffic.Kind
		to   string
	}
	var targets []target
	for _, kind := range []traffic.Kind{traffic.Datagrams, traffic.NewDatagrams, traffic.Stream, traffic.Connects, traffic.Sweep} {
		flag.Func(string(kind), "an `address:port` to send to", func(to string) error {
			targets = append(targets, target{kind, to})
			return nil
		})
	}
	ask := flag.Bool("ask", false, "write the report of the process that runs here")
	serve := flag.Int("serve", 0, "listen on this `port`, UDP and TCP")
	every := flag.Duration("every", 20*time.Millisecond, "between two requests")
	patience := flag.Duration("patience", 30*time.Second, "for a connection to be made")
	flag.Parse()
	ctx := context.Background()
	if *ask {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return traffic.Ask(ctx, os.Stdout)
	}
	var senders []*traffic.Sender
	for _, t := range targets { // first: a test counts what leaves before anything else happens
		senders = append(senders, traffic.Send(ctx, t.kind, t.to, *every, *patience))
	}
	var server *traffic.Server
	if *serve != 0 {
		var err error
		if server, err = traffic.Serve(ctx, *serve); err != nil {
			return err
		}
	}
	return traffic.Answer(ctx, server, senders)
}
