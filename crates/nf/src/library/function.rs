//! A worker's instance of a library's function.
//!
//! One of the few modules with `unsafe` code: the calls into the library. What comes back is checked before it
//! is believed.

use super::load::Library;
use super::shared::Shared;
use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use crate::buffer::MAX_FRAME;
use crate::function::{FlowStates, NetworkFunction, NewFlow};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use tailwater_net::FlowKey;
use tailwater_net::parse::{Fragment, Network, parse};
use tailwater_sdk::abi;

const _: () = assert!(size_of::<FlowKey>() == size_of::<abi::FlowKey>());
const _: () = assert!(align_of::<FlowKey>() == align_of::<abi::FlowKey>());

/// A function from a library.
pub struct Foreign {
    library: &'static Library,
    shared: Arc<Shared>,
    instance: *mut c_void,
    /// The batch under way, as the library sees it.
    packets: Box<[abi::Packet]>,
    counters: Box<[u64]>,
    /// Packets, by place in the batch, whose flow the function has not seen.
    new: Vec<u16>,
    /// The state of a flow that ended, aligned.
    last_state: Box<[u64]>,
}

// SAFETY: the header's rule: an instance may be used by any thread, by one at a time. The pointers in `packets` mean
// something only while a batch is processed.
unsafe impl Send for Foreign {}

/// No packet.
const NOTHING: abi::Packet = abi::Packet {
    frame: null_mut(),
    state: null_mut(),
    key: std::ptr::null(),
    arrival_ns: 0,
    length: 0,
    flow: abi::NO_FLOW,
    rss_hash: 0,
    network_offset: 0,
    transport_offset: 0,
    payload_offset: 0,
    end: 0,
    headroom: 0,
    tailroom: 0,
    ip_version: 0,
    fragment: 0,
    flags: 0,
    verdict: abi::FORWARD,
    reserved: 0,
};

impl Foreign {
    pub(super) fn new(shared: Arc<Shared>, instance: *mut c_void) -> Foreign {
        let library = shared.library;
        Foreign {
            library,
            shared,
            instance,
            packets: vec![NOTHING; MAX_BATCH].into(),
            counters: vec![0; library.counters.len()].into(),
            new: Vec::with_capacity(MAX_BATCH),
            last_state: vec![0; (library.function.state_bytes as usize).div_ceil(8)].into(),
        }
    }

    /// Describes the batch for the library. How many packets it has.
    #[inline]
    fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) -> u32 {
        let has_state = self.library.function.state_bytes > 0;
        let buffer_bytes = batch.buffer_bytes();
        let mut count = 0;
        for (to, (packet, buffer)) in self.packets.iter_mut().zip(batch.iter_with_buffers()) {
            let headers = &packet.headers;
            let (start, length) = (packet.start(), packet.length());
            *to = abi::Packet {
                frame: buffer.wrapping_add(start),
                state: match has_state {
                    true => flows.address(packet).cast(),
                    false => null_mut(),
                },
                key: (&raw const headers.key).cast(),
                arrival_ns: packet.arrival.0,
                length: length as u32,
                flow: packet.flow().unwrap_or(abi::NO_FLOW),
                rss_hash: packet.rss_hash,
                network_offset: headers.network_offset,
                transport_offset: headers.transport_offset,
                payload_offset: headers.payload_offset,
                end: headers.end,
                headroom: start as u16,
                tailroom: (buffer_bytes - start - length).min(MAX_FRAME) as u16,
                ip_version: match headers.network {
                    Network::V4 => 4,
                    Network::V6 => 6,
                    Network::NotIp => 0,
                },
                fragment: match headers.fragment {
                    Fragment::Whole => 0,
                    Fragment::First => 1,
                    Fragment::Later => 2,
                },
                flags: 0,
                verdict: abi::FORWARD,
                reserved: 0,
            };
            count += 1;
        }
        for at in self.new.drain(..) {
            self.packets[usize::from(at)].flags = abi::NEW_FLOW;
        }
        count
    }

    /// Looks anew at a packet that the library rewrote.
    #[cold]
    fn take_up(&self, i: usize, batch: &mut Batch) -> Verdict {
        let raw = &self.packets[i];
        let buffer_bytes = batch.buffer_bytes();
        let invalid = Verdict::Drop(self.library.invalid());
        let Some((packet, buffer)) = batch.iter_with_buffers().nth(i) else {
            return invalid;
        };
        let start = (raw.frame as usize).wrapping_sub(buffer as usize);
        let length = raw.length as usize;
        let inside = start <= buffer_bytes && length <= buffer_bytes - start;
        // Somebody may yet write the end of the payload where it was.
        let moved = (start, length) != (packet.start(), packet.length());
        let may_move = self.needs_payload();
        if !inside || start.max(length) > MAX_FRAME || (moved && !may_move) {
            return invalid;
        }
        packet.set_place(start as u16, length as u16);
        let (packet, frame) = batch.packet_mut(i);
        match parse(frame) {
            Ok(headers) if headers.network != Network::NotIp => {
                packet.headers = headers;
                if headers.fragment != Fragment::Whole {
                    packet.headers.key = headers.key.of_fragment();
                }
                Verdict::Forward
            }
            _ => invalid,
        }
    }
}

impl NetworkFunction for Foreign {
    fn kind(&self) -> &'static str {
        self.library.name
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &self.library.drop_reasons
    }

    fn loses(&self, reason: u8) -> bool {
        let losses = &self.library.losses;
        losses.get(usize::from(reason)).copied().unwrap_or(false)
    }

    fn notes(&self) -> &'static [&'static str] {
        &self.library.counters
    }

    fn note_counts(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        self.library.function.state_bytes as usize
    }

    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        // None is refused here, so that packets keep their places until they are processed.
        self.new.push(flow.place() as u16);
        if self.library.function.flags & abi::REWRITES_FLOWS != 0 {
            flow.rekeyed();
        }
        Verdict::Forward
    }

    fn needs_payload(&self) -> bool {
        self.library.function.flags & abi::HEADERS_ONLY == 0
    }

    fn wants_flow_ends(&self) -> bool {
        self.library.function.flows_ended.is_some()
    }

    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let Some(flows_ended) = self.library.function.flows_ended else {
            return;
        };
        bytemuck::cast_slice_mut(&mut self.last_state)[..state.len()].copy_from_slice(state);
        let ended = abi::EndedFlow {
            key: (key as *const FlowKey).cast(),
            state: self.last_state.as_ptr().cast(),
        };
        // SAFETY: as the header says: the worker's instance, one flow with a state of the declared size, aligned
        // to 8, and as many counters as the library has; all outlive the call.
        unsafe {
            flows_ended(
                self.instance,
                &raw const ended,
                1,
                self.counters.as_mut_ptr(),
            );
        }
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let count = self.describe(batch, flows);
        let mut described = abi::Batch {
            packets: self.packets.as_mut_ptr(),
            counters: self.counters.as_mut_ptr(),
            count,
            reserved: 0,
        };
        // SAFETY: as the header says. The instance is the worker's own. Each of the `count` packets has a frame,
        // with so much room around it, in a buffer that only this batch refers to; a key in the packet's
        // metadata, which is not touched meanwhile; and the state of its flow, which is this worker's by the
        // rules of the flow table and not touched by others meanwhile: batch, flow states and `self` are
        // borrowed exclusively.
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
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: made by this library, and not used again.
        unsafe { self.shared.stop(self.instance) }
    }
}
