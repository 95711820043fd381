//! Worker's instance of a library's function.
//!
//! One of the few modules with `unsafe` code: the calls into the library. Their results are validated before use.

use std::ffi::c_void;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowEnds, FlowStates, FunctionProperties, NetworkFunction, NewFlow, PortableState,
    TracedPacket,
};
use tailwater_net::FlowKey;
use tailwater_sdk::abi;
use tailwater_sdk::host::{self, Configured, FrameLocation, FunctionDescription, NO_PACKET};

/// Function from a library.
pub struct LibraryInstance {
    library: &'static FunctionDescription,
    shared: Arc<Configured>,
    instance: *mut c_void,
    /// Current batch in the library's format.
    packets: Box<[abi::Packet]>,
    counters: Box<[u64]>,
    /// Batch indices of packets whose flow the function has not seen.
    new: Vec<u16>,
    /// State of a flow that ended, aligned.
    last_state: Box<[u64]>,
    /// Format of the state, if it can be stored externally.
    durable: Option<PortableState>,
}

// SAFETY: by the header's rules, any thread may use an instance, one at a time. The pointers in `packets` are valid
// only while a batch is processed.
unsafe impl Send for LibraryInstance {}

impl LibraryInstance {
    pub(super) fn new(shared: Arc<Configured>, instance: *mut c_void) -> LibraryInstance {
        let library = shared.what;
        LibraryInstance {
            library,
            shared,
            instance,
            packets: vec![NO_PACKET; MAX_BATCH].into(),
            counters: vec![0; library.counters.len()].into(),
            new: Vec::with_capacity(MAX_BATCH),
            last_state: vec![0; (library.function.state_bytes as usize).div_ceil(8)].into(),
            durable: library.durable().map(|format_version| PortableState { format_version }),
        }
    }

    /// Describes the batch for the library. Returns its number of packets.
    #[inline]
    fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) -> u32 {
        let has_state = self.library.function.state_bytes > 0;
        let buffer_bytes = batch.buffer_bytes();
        let mut count = 0;
        for (to, (packet, buffer)) in self.packets.iter_mut().zip(batch.iter_with_buffers()) {
            let place = FrameLocation {
                buffer,
                buffer_bytes,
                start: packet.start(),
                length: packet.length(),
            };
            *to = host::packet(place, &packet.headers, packet.arrival, packet.flow(), packet.rss_hash);
            if has_state {
                to.state = flows.address(packet).cast();
            }
            count += 1;
        }
        for at in self.new.drain(..) {
            self.packets[usize::from(at)].flags = abi::NEW_FLOW;
        }
        count
    }

    /// Parses a packet again after the library rewrote it.
    #[cold]
    fn take_up(&self, i: usize, batch: &mut Batch) -> Verdict {
        let buffer_bytes = batch.buffer_bytes();
        let invalid = Verdict::Drop(self.library.invalid());
        let Some((packet, buffer)) = batch.iter_with_buffers().nth(i) else {
            return invalid;
        };
        let place = FrameLocation {
            buffer,
            buffer_bytes,
            start: packet.start(),
            length: packet.length(),
        };
        let Some([start, length]) = host::moved(self.library, &self.packets[i], place) else {
            return invalid;
        };
        packet.set_location(start, length);
        let (packet, frame) = batch.packet_mut(i);
        match host::ip_headers(frame) {
            Some(headers) => {
                packet.headers = headers;
                Verdict::Forward
            }
            None => invalid,
        }
    }
}

impl NetworkFunction for LibraryInstance {
    fn kind(&self) -> &'static str {
        self.library.name
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &self.library.drop_reasons
    }

    fn is_loss(&self, reason: u8) -> bool {
        let losses = &self.library.losses;
        losses.get(usize::from(reason)).copied().unwrap_or(false)
    }

    fn counters(&self) -> &'static [&'static str] {
        &self.library.counters
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        self.library.function.state_bytes as usize
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            needs_payload: self.library.may_move(),
            ..FunctionProperties::default()
        }
    }

    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        // None is refused here, so that packets keep their indices until they are processed.
        self.new.push(flow.batch_index() as u16);
        if self.library.function.flags & abi::REWRITES_FLOWS != 0 {
            flow.rekeyed();
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let count = self.describe(batch, flows);
        let mut described = abi::Batch {
            packets: self.packets.as_mut_ptr(),
            counters: self.counters.as_mut_ptr(),
            count,
            reserved: 0,
        };
        // SAFETY: as the header requires. The instance belongs to the worker. Each of the `count` packets has a frame
        // with the stated room around it, in a buffer to which only this batch refers; a key in the packet's metadata,
        // which is not touched meanwhile; and the state of its flow. By the flow table's rules that state belongs to
        // this worker and no other accesses it meanwhile. Batch, flow states and `self` are borrowed exclusively.
        let code = unsafe { (self.library.process)(self.instance, &raw mut described) };
        let name = self.library.name;
        assert!(code == 0, "the function {name} failed (code {code})");
        for i in 0..count as usize {
            let raw = &self.packets[i];
            let verdict = match raw.verdict {
                abi::FORWARD if raw.flags & abi::REWRITTEN == 0 => continue,
                abi::FORWARD => self.take_up(i, batch),
                reason => Verdict::Drop(reason - 1),
            };
            batch.packet_mut(i).0.verdict = verdict;
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let packet = traced.packet();
        if packet.verdict == Verdict::Drop(self.library.invalid()) {
            text.add(format_args!("it left no well-formed IP packet"));
            return;
        }
        let location = FrameLocation {
            buffer: traced.frame().as_ptr().cast_mut().wrapping_sub(packet.start()),
            buffer_bytes: traced.batch.buffer_bytes(),
            start: packet.start(),
            length: packet.length(),
        };
        // The library's own marks of this packet: `process` has just set them.
        let marks = self.packets.get(traced.at).map_or(0, |marked| marked.flags);
        let mut described = abi::Packet {
            key: (&raw const traced.key).cast(),
            headroom: 0,
            tailroom: 0,
            flags: marks,
            verdict: match packet.verdict {
                Verdict::Drop(reason) => reason.saturating_add(1),
                Verdict::Forward | Verdict::Bypass => abi::FORWARD,
            },
            ..host::packet(
                location,
                &packet.headers,
                packet.arrival,
                packet.flow(),
                packet.rss_hash,
            )
        };
        if self.library.function.state_bytes > 0 {
            described.state = flows.address(packet).cast();
        }
        // SAFETY: as the header requires. The instance belongs to the worker, and has just processed the packet. Frame,
        // key and the state of its flow are valid, and nothing else accesses them, until the call returns.
        unsafe {
            self.library.explain(self.instance, &described, |printable| {
                text.add(format_args!("{printable}"));
            });
        }
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        match self.library.function.flows_ended {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        match &mut self.durable {
            Some(durable) => Some(durable),
            None => None,
        }
    }
}

impl Drop for LibraryInstance {
    fn drop(&mut self) {
        // SAFETY: created by this library, and not used again.
        unsafe { self.shared.stop(self.instance) }
    }
}

impl FlowEnds for LibraryInstance {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let Some(flows_ended) = self.library.function.flows_ended else {
            return;
        };
        bytemuck::cast_slice_mut(&mut self.last_state)[..state.len()].copy_from_slice(state);
        let ended = abi::EndedFlow {
            key: (key as *const FlowKey).cast(),
            state: self.last_state.as_ptr().cast(),
        };
        // SAFETY: as the header requires: the worker's instance, one flow with a state of the declared size, aligned to
        // 8, and as many counters as the library has. All outlive the call.
        unsafe {
            flows_ended(self.instance, &raw const ended, 1, self.counters.as_mut_ptr());
        }
    }
}
