package nfqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages of nf_tables about changes (linux/netfilter/nf_tables.h).
const (
	groupTables = 7 // NFNLGRP_NFTABLES

	msgNewGen   = unix.NFNL_SUBSYS_NFTABLES<<8 | 15 // NFT_MSG_NEWGEN: ends a transaction
	tableNameOf = 1                                 // NFTA_*_TABLE, and NFTA_TABLE_NAME
)

// restorePause is the least time between two restorations: a fight with other
// software must not take the node's time.
const restorePause = 50 * time.Millisecond

// watch listens to changes of nf_tables in a namespace.
type watch struct {
	conn *netlink.Conn
	done chan struct{} // closed when the goroutine has ended
}

func openWatch(nsFD int) (*watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: nsFD, Groups: 1 << (groupTables - 1)})
	if err != nil {
		return nil, fmt.Errorf("listen to nf_tables: %w", err)
	}
	_ = conn.SetReadBuffer(1 << 20) // an overrun counts as a change
	return &watch{conn: conn, done: make(chan struct{})}, nil
}

// close ends run and waits for it.
func (w *watch) close() error {
	err := w.conn.Close()
	<-w.done
	return err
}

// run calls restore after each transaction in which somebody but port changed our
// table, as soon as the transaction is over. It ends with close.
func (w *watch) run(port uint32, restore func()) {
	defer close(w.done)
	var touched bool
	var last time.Time
	for {
		msgs, err := w.conn.Receive()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADF):
			return
		case errors.Is(err, unix.ENOBUFS):
			msgs, touched = []netlink.Message{{Header: netlink.Header{Type: msgNewGen}}}, true
		default:
			time.Sleep(restorePause)
			continue
		}
		for _, m := range msgs {
			if m.Header.PID != port && isOurs(m) {
				touched = true
			}
			if m.Header.Type != msgNewGen || !touched {
				continue
			}
			touched = false
			time.Sleep(restorePause - time.Since(last))
			restore()
			last = time.Now()
		}
	}
}

// isOurs reports whether a message is about our table.
func isOurs(m netlink.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfHeaderLen || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	for b := m.Data[nfHeaderLen:]; len(b) >= attrLen; {
		l := int(binary.NativeEndian.Uint16(b))
		if l < attrLen || l > len(b) {
			return false
		}
		if binary.NativeEndian.Uint16(b[2:]) == tableNameOf {
			return string(bytes.TrimRight(b[attrLen:l], "\x00")) == TableName
		}
		b = b[min((l+3)&^3, len(b)):]
	}
	return false
}

// restore puts the table back after other software changed it, in one
// transaction. Packets that wait in a queue are lost with the changed one.
func (b *Backend) restore() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed {
		err := b.fw.install()
		if err == nil {
			b.stats.Restored++
			b.config.Logger.Warn("other software changed our table, it is restored", "table", TableName, "restored", b.stats.Restored)
			return
		}
		b.config.Logger.Error("other software changed our table, and it cannot be restored yet", "table", TableName, "error", err)
		b.mu.Unlock()
		time.Sleep(restorePause)
		b.mu.Lock()
	}
}
