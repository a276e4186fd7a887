package nfqueue

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
)

// queueLosses reads who has our queues and how many packets the kernel dropped in
// front of them. The file stays open: an open file keeps the namespace it was opened in.
type queueLosses struct {
	file        *os.File
	first, last uint16
}

// openLosses runs on a locked thread inside the namespace. The file is there once the
// module is: see startQueueing.
func openLosses(c Config) (*queueLosses, error) {
	f, err := os.Open("/proc/thread-self/net/netfilter/nfnetlink_queue")
	if err != nil {
		return nil, fmt.Errorf("read how many packets queues lose: %w", err)
	}
	return &queueLosses{f, c.QueueNum, c.QueueNum + uint16(c.Queues-1)}, nil
}

func (q *queueLosses) close() error { return q.file.Close() }

// read returns the packets that wait for a verdict now, and those lost since the
// queues were bound.
func (q *queueLosses) read() (waiting, lost uint64, err error) {
	lines, err := q.lines()
	for _, l := range lines {
		waiting += l.waiting
		lost += l.queueDropped + l.userDropped
	}
	return waiting, lost, err
}

// free returns an error if somebody has one of our queues.
func (q *queueLosses) free() error {
	lines, err := q.lines()
	if err != nil {
		return err
	}
	for _, l := range lines {
		return fmt.Errorf("queue %d is taken by another program (netlink port %d), or another tierwall", l.num, l.port)
	}
	return nil
}

func (q *queueLosses) lines() ([]queueLine, error) {
	b, err := io.ReadAll(io.NewSectionReader(q.file, 0, 1<<20))
	if err != nil {
		return nil, err
	}
	return parseQueues(b, q.first, q.last)
}

// queueLine is what we read of a line of nfnetlink_queue.
type queueLine struct {
	num, port    uint64
	waiting      uint64 // for a verdict
	queueDropped uint64 // the queue was full
	userDropped  uint64 // the socket's receive buffer was full
}

// parseQueues returns the lines of queues first to last. Their columns are:
// number, port id, waiting, copy mode, copy range, queue dropped, user dropped,
// last packet id, 1.
func parseQueues(b []byte, first, last uint16) (lines []queueLine, err error) {
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var l queueLine
		var mode, length uint64
		if _, err := fmt.Sscan(s.Text(), &l.num, &l.port, &l.waiting, &mode, &length, &l.queueDropped, &l.userDropped); err != nil {
			return lines, fmt.Errorf("line %q of nfnetlink_queue: %w", s.Text(), err)
		}
		if l.num >= uint64(first) && l.num <= uint64(last) {
			lines = append(lines, l)
		}
	}
	return lines, nil
}
