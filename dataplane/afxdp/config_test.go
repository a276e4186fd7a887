package afxdp

import (
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	var c Config
	if err := c.fill(); err != nil {
		t.Fatalf("the zero value: %v", err)
	}
	if c.Marks != DefaultMarks || c.FrameSize != 2048 || c.maxFrame() != 1792 {
		t.Errorf("defaults: %+v", c)
	}
	if big := (Config{FrameSize: 4096}); big.maxFrame() > 4096-headroom {
		t.Errorf("frames of %d bytes in buffers of 4096", big.maxFrame())
	}
	for name, c := range map[string]Config{
		"frame size":     {FrameSize: 3000},
		"ring":           {Ring: 100},
		"small ring":     {Ring: 32},
		"flow entries":   {FlowEntries: -1},
		"alive time":     {AliveTime: 100 * time.Millisecond},
		"upcall burst":   {UpcallBurst: -1},
		"idle time":      {Timeouts: Timeouts{UDP: -1}},
		"one mark twice": {Marks: Marks{Accept: 1, Fast: 2, Return: 2}},
		"two bits":       {Marks: Marks{Accept: 3, Fast: 4, Return: 8}},
		"no mark":        {Marks: Marks{Accept: 1, Fast: 2}},
		"pattern":        {Devices: []string{"[veth"}},
	} {
		if err := c.fill(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
