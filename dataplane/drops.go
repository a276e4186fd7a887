package dataplane

// dropCauses are the causes of events for what a kernel side drops. Of the other fates no
// record is due: denials that rules do not want recorded, packets that are judged when
// they are sent again, frames of no pod.
var dropCauses = [NumFates]Cause{
	DropForged: CauseForged, DropUnknownPod: CauseUnknownLocal, DropUnparsed: CauseUnparsed,
	DropLimited: CauseLimited, DropUnheard: CauseUnheard,
}

// recordDrops makes events of what backends' kernel sides have dropped by themselves since
// the last call. It is the producer of e.kernel.
func (e *Engine) recordDrops() {
	event := Event{Time: e.clock()}
	if s := e.current.Load(); s != nil {
		event.Generation = s.generation
	}
	for i, b := range e.cfg.Backends {
		event.Backend = uint8(i)
		b.Drops(func(dr Drop) {
			event.Cause = dropCauses[dr.Fate]
			if event.Cause == CausePolicy || dr.Packets == 0 {
				return
			}
			event.Device, event.Key.Src, event.Count = dr.Device, dr.Pod, dr.Packets
			e.kernel.Put(&event)
		})
	}
	e.kernel.Flush()
}
