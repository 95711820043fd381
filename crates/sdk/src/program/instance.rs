//! Function by the C interface that takes turns.
//!
//! One of the few modules with `unsafe` code: the calls into the function. Its results are validated before use.

use super::flows::{Flows, Gathered};
use super::turns::{TurnFunction, TurnPacket, TurnVerdict};
use super::unattached::{AttachedMemory, Refusal, UnattachedFunction};
use crate::abi;
use crate::abi::MAX_EXPLANATION;
use crate::host::{self, Configured, FrameLocation, FunctionDescription, NO_PACKET, Printable};
use crate::protocol::layout::{FlowSlot, MAX_BATCH};
use crate::protocol::memory::Memory;
use crate::protocol::message::Description;
use crate::protocol::snapshots::FlowSnapshots;
use crate::sys::prefetch;
use std::ffi::c_void;
use std::io;
use std::ptr::{null, null_mut};
use std::slice;
use tailwater_net::Nanos;
use tailwater_net::parse::{Headers, parse_plain_v4};

/// Function by the C interface, configured and waiting for its memory.
#[derive(Debug)]
pub struct UnattachedInstance {
    configured: Configured,
    instance: *mut c_void,
}

impl UnattachedInstance {
    /// Configures a function with JSON, and starts it.
    ///
    /// # Errors
    /// The function rejects its configuration, or returns no instance.
    pub fn new(what: &'static FunctionDescription, config: &str) -> Result<UnattachedInstance, Refusal> {
        let configured = Configured::new(what, config).map_err(|wrong| Refusal::Config {
            field: wrong.field,
            message: wrong.message,
        })?;
        match configured.start() {
            Some(instance) => Ok(UnattachedInstance { configured, instance }),
            None => Err(Refusal::Unfit {
                message: "tailwater_function: start: expected an instance, found NULL".to_owned(),
            }),
        }
    }
}

impl Drop for UnattachedInstance {
    fn drop(&mut self) {
        // SAFETY: it comes from `start`, and is not used afterwards.
        unsafe { self.configured.stop(self.instance) }
    }
}

impl UnattachedFunction for UnattachedInstance {
    type Attached = Instance;

    fn describe(&self) -> Description {
        let what = self.configured.what;
        let reasons = what.drop_reasons.iter().zip(&what.losses);
        Description {
            name: what.name.to_owned(),
            state_bytes: what.function.state_bytes,
            wants_flow_ends: what.function.flows_ended.is_some(),
            opens_companions: false,
            durable: what.durable(),
            can_restart: false,
            piece_bytes: match what.durable() {
                Some(_) => what.function.state_bytes,
                None => 0,
            },
            drop_reasons: reasons.map(|(name, lost)| ((*name).to_owned(), *lost)).collect(),
            counters: what.counters.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn attach(self, given: AttachedMemory) -> io::Result<Instance> {
        let what = self.configured.what;
        let state_bytes = what.function.state_bytes as usize;
        let flows = given.flows;
        let flows = flows.map(|(_, memory)| Flows::open(memory, state_bytes));
        Ok(Instance {
            what,
            buffers: Buffers {
                packets: given.packets,
                bytes: given.buffer_bytes,
            },
            flows: flows.transpose()?,
            images: match given.snapshots {
                // Functions' state must not contain times, so nothing is translated.
                Some((_, memory)) => Some(FlowSnapshots::open(memory, state_bytes)?),
                None => None,
            },
            raw: Box::new([NO_PACKET; MAX_BATCH]),
            keys: Box::new([abi::FlowKey::default(); MAX_BATCH]),
            known: Box::new([ReceivedFrame::default(); MAX_BATCH]),
            of_flows: Box::new([PacketFlow::default(); MAX_BATCH]),
            count: 0,
            processed: 0,
            counters: vec![0; what.counters.len()].into(),
            function: self,
        })
    }
}

/// Packet data that the function does not see.
#[derive(Clone, Copy, Debug, Default)]
struct ReceivedFrame {
    /// Slot in the batch.
    at: u16,
    start: u16,
    length: u16,
    /// `true`: a preceding function rewrote the flow.
    rekeyed: bool,
    /// `true`: a preceding function turned it into a response.
    turned: bool,
}

/// Flow of a packet, for a stateful function.
#[derive(Clone, Copy, Debug, Default)]
struct PacketFlow {
    /// Slot in the flow table.
    flow: u32,
    /// `true`: the function must decide on it.
    new: bool,
    /// Generation of the flow.
    generation: u64,
}

impl Gathered for PacketFlow {
    #[inline]
    fn flow(&self) -> FlowSlot {
        FlowSlot {
            flow: self.flow,
            generation: self.generation,
        }
    }
}

/// Packet buffers.
#[derive(Debug)]
struct Buffers {
    packets: Memory,
    /// Size of each buffer in bytes.
    bytes: usize,
}

impl Buffers {
    /// Returns the buffer of this slot of the batch.
    #[inline]
    fn start(&self, at: u16) -> *mut u8 {
        let at = usize::from(at);
        assert!(at < MAX_BATCH, "a place of the batch");
        self.packets.base().wrapping_add(at * self.bytes)
    }

    /// Returns the location of a frame in this slot's buffer.
    #[inline]
    fn place(&self, at: u16, [start, length]: [u16; 2]) -> FrameLocation {
        FrameLocation {
            buffer: self.start(at),
            buffer_bytes: self.bytes,
            start: start.into(),
            length: length.into(),
        }
    }

    /// Prefetches the cache line at offset `start` of that buffer, if the address exists.
    #[inline]
    fn prefetch(&self, at: u16, start: u16) {
        let offset = usize::from(at) * self.bytes + usize::from(start);
        prefetch(self.packets.base().wrapping_add(offset));
    }

    /// Returns `length` bytes from `start` on of this slot's buffer.
    ///
    /// # Panics
    /// If they are not within the buffer.
    #[inline]
    fn frame(&self, at: u16, [start, length]: [u16; 2]) -> &[u8] {
        let [start, length] = [start, length].map(usize::from);
        assert!(start + length <= self.bytes, "a frame within its buffer");
        // SAFETY: within the packet memory, which lives as long as `self`; any bytes are initialised. This process
        // writes them in `process` only. A process that writes during another's turn, against the rules, can only make
        // it misread a frame, which is plain bytes that are validated when read.
        unsafe { slice::from_raw_parts(self.start(at).add(start), length) }
    }
}

/// Function by the C interface: the only instance in its process.
#[derive(Debug)]
pub struct Instance {
    what: &'static FunctionDescription,
    buffers: Buffers,
    flows: Option<Flows>,
    /// Snapshots of its flow state, if it is stored externally.
    images: Option<FlowSnapshots>,
    /// The batch as the function sees it, the keys of its packets, and further data of the packets.
    raw: Box<[abi::Packet; MAX_BATCH]>,
    keys: Box<[abi::FlowKey; MAX_BATCH]>,
    known: Box<[ReceivedFrame; MAX_BATCH]>,
    /// Flows of the packets; used by stateful functions only.
    of_flows: Box<[PacketFlow; MAX_BATCH]>,
    /// Packets in the batch, at most [`MAX_BATCH`].
    count: usize,
    /// Packets of the last batch.
    processed: usize,
    counters: Box<[u64]>,
    function: UnattachedInstance,
}

impl Instance {
    /// Appends a packet with these headers. `known` writes the headers with which it entered the chain.
    ///
    /// Always inlined: each field goes from its source to the function's packet without an intermediate copy.
    #[inline(always)]
    fn add(&mut self, packet: &TurnPacket, headers: &Headers, known: impl Fn(&mut Headers)) {
        let ([start, length], i) = (packet.frame_range, self.count);
        assert!(i < MAX_BATCH, "packets of a batch");
        let (mut new, mut state) = (false, null_mut());
        if let Some(flows) = &mut self.flows {
            let flow = packet.flow.unwrap_or_else(|| panic!("a packet with a flow"));
            let key = || {
                let mut headers = Headers::default();
                known(&mut headers);
                headers.key
            };
            let (gathered, images) = (&self.of_flows[..i], self.images.as_ref());
            (new, state) = flows.arrive(flow, key, packet.rekeyed, gathered, images);
            let FlowSlot { flow, generation } = flow;
            self.of_flows[i] = PacketFlow { flow, new, generation };
        }
        self.known[i] = ReceivedFrame {
            at: packet.at,
            start,
            length,
            rekeyed: packet.rekeyed,
            turned: packet.turned,
        };
        let place = self.buffers.place(packet.at, packet.frame_range);
        let flow = packet.flow.map(|flow| flow.flow);
        self.keys[i] = abi::FlowKey {
            words: headers.key.words(),
        };
        self.raw[i] = abi::Packet {
            // `run` sets the key's address once all packets are added.
            key: null(),
            state: state.cast(),
            flags: if new { abi::NEW_FLOW } else { 0 },
            ..host::packet(place, headers, packet.arrival, flow, packet.rss_hash)
        };
        self.count = i + 1;
    }

    /// As [`put`](TurnFunction::put), for a packet that is not an ordinary one and may have been changed. `packet` is
    /// passed by value, because a reference would force it into memory for all packets.
    #[inline(never)]
    fn put_other(&mut self, packet: TurnPacket, known: impl Fn(&mut Headers)) -> bool {
        let found = host::ip_headers(self.buffers.frame(packet.at, packet.frame_range));
        if let Some(headers) = &found {
            self.add(&packet, headers, known);
        }
        found.is_some()
    }

    /// Returns the result for packet `i`, which the function rewrote and forwarded.
    fn moved(&mut self, i: usize) -> TurnVerdict {
        let (raw, known) = (&self.raw[i], &self.known[i]);
        let before = self.buffers.place(known.at, [known.start, known.length]);
        let moved = host::moved(self.what, raw, before);
        let fit = moved.filter(|moved| host::ip_headers(self.buffers.frame(known.at, *moved)).is_some());
        let Some(place) = fit else {
            return TurnVerdict::Drop(self.what.invalid());
        };
        let rekeyed = match &mut self.flows {
            Some(flows) => flows.take_pending(self.of_flows[i].flow),
            None => known.rekeyed,
        };
        let turned = known.turned;
        TurnVerdict::Forward { place, rekeyed, turned }
    }
}

impl TurnFunction for Instance {
    #[inline]
    fn prefetch(&self, flow: u32, at: u16, start: u16) {
        self.buffers.prefetch(at, start);
        if let Some(flows) = &self.flows {
            flows.prefetch(flow);
        }
        if let Some(images) = &self.images {
            images.prefetch(flow);
        }
    }

    #[inline(always)]
    fn put<const CHANGED: bool>(&mut self, packet: &TurnPacket, known: impl Fn(&mut Headers)) -> bool {
        if !CHANGED {
            let mut headers = Headers::default();
            known(&mut headers);
            self.add(packet, &headers, known);
            return true;
        }
        match parse_plain_v4(self.buffers.frame(packet.at, packet.frame_range)) {
            Some(headers) => {
                self.add(packet, &headers, known);
                true
            }
            None => self.put_other(*packet, known),
        }
    }

    #[inline]
    fn run(&mut self, _now: Nanos, mut each: impl FnMut(u16, TurnVerdict)) {
        let count = std::mem::take(&mut self.count).min(MAX_BATCH);
        self.processed = count;
        if count == 0 {
            return;
        }
        let keys = self.keys.as_ptr();
        for (i, packet) in self.raw[..count].iter_mut().enumerate() {
            packet.key = keys.wrapping_add(i);
        }
        let mut batch = abi::Batch {
            packets: self.raw.as_mut_ptr(),
            counters: self.counters.as_mut_ptr(),
            count: count as u32,
            reserved: 0,
        };
        // SAFETY: as the header requires. This is the only instance. Each of the `count` packets has a frame, with the
        // stated room around it, in a buffer of its own; a key in `keys`, which is not changed meanwhile; and the state
        // of its flow. `self` is borrowed exclusively, and this is the process's only thread.
        let code = unsafe { (self.what.process)(self.function.instance, &raw mut batch) };
        let name = self.what.name;
        assert!(code == 0, "the function {name} failed (code {code})");
        if let Some(flows) = &mut self.flows {
            for of in self.of_flows[..count].iter().filter(|of| of.new) {
                flows.mark_seen(of.flow, of.generation);
            }
        }
        if let (Some(flows), Some(images)) = (&self.flows, &self.images) {
            for of in &self.of_flows[..count] {
                images.publish(of.flow, of.generation, flows.piece(of.flow, images));
            }
        }
        for i in 0..count {
            let packet = &self.raw[i];
            let made = match packet.verdict {
                abi::FORWARD if packet.flags & abi::REWRITTEN == 0 => {
                    let Some(flows) = &mut self.flows else {
                        continue;
                    };
                    let known = &self.known[i];
                    let rekeyed = flows.take_pending(self.of_flows[i].flow);
                    if rekeyed == known.rekeyed {
                        continue;
                    }
                    let place = [known.start, known.length];
                    let turned = known.turned;
                    TurnVerdict::Forward { place, rekeyed, turned }
                }
                abi::FORWARD => self.moved(i),
                reason => TurnVerdict::Drop(reason - 1),
            };
            each(self.known[i].at, made);
        }
    }

    fn explain(&mut self, at: u16, text: &mut [u8; MAX_EXPLANATION]) -> bool {
        let known = self.known[..self.processed].iter().position(|known| known.at == at);
        let Some(i) = known else {
            return false;
        };
        let (raw, known) = (&self.raw[i], &self.known[i]);
        let mut packet = abi::Packet {
            headroom: 0,
            tailroom: 0,
            ..*raw
        };
        if raw.verdict == abi::FORWARD && raw.flags & abi::REWRITTEN != 0 {
            let before = self.buffers.place(known.at, [known.start, known.length]);
            let left = host::moved(self.what, raw, before);
            let left = left.and_then(|left| Some((left, host::ip_headers(self.buffers.frame(known.at, left))?)));
            let Some((left, headers)) = left else {
                const INVALID: &[u8] = b"it left no well-formed IP packet";
                text[..INVALID.len()].copy_from_slice(INVALID);
                return true;
            };
            packet = abi::Packet {
                key: raw.key,
                state: raw.state,
                flags: raw.flags,
                headroom: 0,
                tailroom: 0,
                ..host::packet(
                    self.buffers.place(known.at, left),
                    &headers,
                    Nanos(raw.arrival_ns),
                    (raw.flow != abi::NO_FLOW).then_some(raw.flow),
                    raw.rss_hash,
                )
            };
        }
        let mut is_explained = false;
        // SAFETY: as the header requires. This is the only instance, and has just processed the packet. Its frame, in a
        // buffer, its key in `keys` and its flow's state are as `run` left them, and nothing accesses them meanwhile.
        unsafe {
            self.what.explain(self.function.instance, &packet, |Printable(bytes)| {
                let length = bytes.len().min(text.len());
                text[..length].copy_from_slice(&bytes[..length]);
                is_explained = true;
            });
        }
        is_explained
    }

    fn end_flow(&mut self, place: u32, generation: u64) {
        let (instance, counters) = (self.function.instance, self.counters.as_mut_ptr());
        let flows_ended = self.what.function.flows_ended;
        let Some(flows) = &mut self.flows else {
            return;
        };
        flows.end(place, generation, |ended| {
            if let Some(flows_ended) = flows_ended {
                // SAFETY: as the header requires: the only instance, one flow with its key and its state, aligned to a
                // cache line, and the function's number of counters; all outlive the call.
                unsafe { flows_ended(instance, &raw const ended, 1, counters) };
            }
        });
    }

    fn drain(&mut self) {}

    fn counters(&self) -> impl Iterator<Item = u64> {
        self.counters.iter().copied()
    }
}
