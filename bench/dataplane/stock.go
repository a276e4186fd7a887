package dataplane

import (
	"context"
	"fmt"
	"os"

	nfqueue "github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
)

// StockCommand is the hidden subcommand that is the subject nfqueue_stock: what
// one writes with go-nfqueue in ten minutes. Its argument is a file to write
// "true" to once the queues are bound.
const StockCommand = "nfqueue-stock"

// RunStock accepts every packet of two queues until ctx ends, as the library's
// own example does: default decoding, one verdict message per packet.
func RunStock(ctx context.Context, readyFile string) error {
	for i := range stockQueues {
		nf, err := nfqueue.Open(&nfqueue.Config{
			NfQueue: uint16(stockQueue + i), MaxPacketLen: 128, MaxQueueLen: 8192,
			Copymode: nfqueue.NfQnlCopyPacket, Flags: nfqueue.NfQaCfgFlagGSO,
		})
		if err != nil {
			return fmt.Errorf("open queue: %w", err)
		}
		// Not closed: Close waits for a receive loop that ends with the process.
		if err := nf.SetOption(netlink.NoENOBUFS, true); err != nil {
			return fmt.Errorf("queue option: %w", err)
		}
		if err := nf.Con.SetReadBuffer(8 << 20); err != nil {
			return fmt.Errorf("queue buffer: %w", err)
		}
		accept := func(a nfqueue.Attribute) int {
			if err := nf.SetVerdict(*a.PacketID, nfqueue.NfAccept); err != nil {
				fmt.Fprintln(os.Stderr, "verdict:", err)
			}
			return 0
		}
		failed := func(err error) int {
			if ctx.Err() != nil {
				return 1
			}
			fmt.Fprintln(os.Stderr, "receive:", err)
			return 0
		}
		if err := nf.RegisterWithErrorFunc(ctx, accept, failed); err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
	}
	tmp := readyFile + ".tmp"
	if err := os.WriteFile(tmp, []byte("true"), 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, readyFile); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
