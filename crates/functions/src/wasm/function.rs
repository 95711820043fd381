//! The `Wasm` network function.

use super::description::Description;
use super::error::Fault;
use super::layout::{
    Addresses, CHUNK, FRAMES_BYTES, PACKET_BYTES, ROOM, VERDICT, area, frames, key_offset, read_packet, state_stride,
    write_key, write_packet,
};
use super::machine::{Limits, Machine};
use super::program::Program;
use super::state_slots::StateSlots;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowEnds, FlowStates, FunctionProperties, NetworkFunction, NewFlow, PortableState,
    TracedPacket,
};
use tailwater_net::FlowKey;
use tailwater_sdk::abi;
use tailwater_sdk::host::{Printable, ip_headers};

/// Module with its configuration and limits.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) program: Program,
    pub(super) description: Description,
    pub(super) config: String,
    pub(super) read_only: bool,
    pub(super) limits: Limits,
    /// Instructions of creating an instance.
    pub(super) setup_cost: u64,
}

/// Location of a packet's frame in the area.
#[derive(Clone, Copy, Debug, Default)]
struct FrameSlot {
    /// Offset of the room before the frame.
    start: u32,
    /// Offset behind the room after the frame.
    end: u32,
    headroom: u16,
    /// Bytes of the frame that were copied.
    copied: u16,
}

/// Function compiled to WebAssembly. Its memory belongs to the worker.
pub struct Wasm {
    loaded: Arc<Loaded>,
    /// `None` after a call that was ended, until the packets that arrive have paid for a new instance.
    ///
    /// In a cell for explanations, which do not change the function but call into the machine.
    machine: RefCell<Option<Machine>>,
    /// Instructions saved for a new instance.
    saved: u64,
    /// Reason of the last call that was ended.
    fault: Cell<Fault>,
    counters: Box<[u64]>,
    /// Packets whose flow the function has not seen, by batch index.
    is_new: Box<[bool; MAX_BATCH]>,
    has_new: bool,
    /// The same of the last batch, for explanations.
    was_new: Box<[bool; MAX_BATCH]>,
    had_new: bool,
    states: StateSlots,
    frames: Box<[FrameSlot; CHUNK]>,
    /// Format of the state, if it can be stored externally.
    durable: Option<PortableState>,
}

impl Wasm {
    /// Creates a worker's instance.
    pub(super) fn new(loaded: Arc<Loaded>) -> Wasm {
        let Description {
            counters,
            state_version,
            ..
        } = loaded.description;
        // It worked when the spec was read. If it does not now, for lack of memory, the first packets try again.
        let machine = new_machine(&loaded);
        Wasm {
            saved: 0,
            fault: Cell::new(Fault::Trap("no instance")),
            counters: vec![0; counters.len()].into(),
            is_new: Box::new([false; MAX_BATCH]),
            has_new: false,
            was_new: Box::new([false; MAX_BATCH]),
            had_new: false,
            states: StateSlots::new(),
            frames: Box::new([FrameSlot::default(); CHUNK]),
            durable: (state_version != 0).then_some(PortableState {
                format_version: state_version,
            }),
            machine: RefCell::new(machine),
            loaded,
        }
    }

    /// Instructions that packets may take.
    fn budget(&self, packets: usize) -> u64 {
        u64::from(self.loaded.limits.instructions) * packets as u64
    }

    /// Creates a new instance, once the packets have paid for it: a function that is ended again and again takes at
    /// most twice the time that its limit allows.
    #[cold]
    fn renew(&mut self, packets: usize, cost: u64) {
        self.saved += self.budget(packets);
        if self.saved >= cost {
            self.saved = 0;
            *self.machine.get_mut() = new_machine(&self.loaded);
        }
    }

    /// Copies packets from index `first` on into the area, as many as fit. Returns their number.
    fn copy_in(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, first: usize) -> usize {
        let Some(machine) = self.machine.get_mut() else {
            return (batch.len() - first).min(CHUNK);
        };
        let Description {
            state_bytes, counters, ..
        } = self.loaded.description;
        let needs_payload = self.loaded.description.needs_payload();
        let (stride, frames_start) = (state_stride(state_bytes), frames(state_bytes));
        let [states_address, keys_address, frames_address] =
            [area::STATES, area::KEYS, 0].map(|offset| machine.address(offset));
        let (buffer_bytes, mut next, mut count) = (batch.buffer_bytes(), frames_start, 0);
        let area = machine.area_mut();
        area[area::COUNTERS..][..8 * counters.len()].fill(0);
        self.states.clear();
        for i in first..batch.len().min(first + CHUNK) {
            let (packet, frame) = batch.packet_mut(i);
            let slot = frame_slot(packet, needs_payload, buffer_bytes, next);
            if slot.end as usize > frames_start + FRAMES_BYTES {
                break;
            }
            let frame_at = slot.start as usize + usize::from(slot.headroom);
            let copied = usize::from(slot.copied);
            area[frame_at..frame_at + copied].copy_from_slice(&frame[..copied]);
            write_key(area, key_offset(count), &packet.headers.key);
            let mut state = 0;
            if state_bytes > 0 {
                let (slot, is_first) = self.states.slot(flows.address(packet) as usize, i);
                if is_first {
                    area[area::STATES + slot * stride..][..state_bytes].copy_from_slice(flows.bytes(packet));
                }
                state = states_address + (slot * stride) as u32;
            }
            let addresses = Addresses {
                frame: frames_address + frame_at as u32,
                state,
                key: keys_address + (key_offset(count) - area::KEYS) as u32,
            };
            let tailroom = slot.end as usize - frame_at - copied;
            let tailroom = if needs_payload { tailroom as u16 } else { 0 };
            if let Some(to) = area[area::PACKETS + count * PACKET_BYTES..].first_chunk_mut() {
                write_packet(
                    to,
                    packet,
                    addresses,
                    [slot.headroom, tailroom],
                    self.is_new[i % MAX_BATCH],
                );
            }
            self.frames[count] = slot;
            next = (slot.end as usize).next_multiple_of(16);
            count += 1;
        }
        count
    }

    /// Copies verdicts, frames, states and counters out of the area.
    fn copy_out(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, range: Range<usize>) {
        let Some(machine) = self.machine.get_mut() else {
            return;
        };
        let Loaded {
            description, read_only, ..
        } = &*self.loaded;
        let base = machine.address(0);
        let area = &*machine.area_mut();
        for (counter, bytes) in self.counters.iter_mut().zip(area[area::COUNTERS..].as_chunks().0) {
            *counter = counter.wrapping_add(u64::from_le_bytes(*bytes));
        }
        let stride = state_stride(description.state_bytes);
        for (slot, owner) in self.states.owners().iter().enumerate() {
            let state = &area[area::STATES + slot * stride..][..description.state_bytes];
            flows.bytes(batch.packet(usize::from(*owner))).copy_from_slice(state);
        }
        for (at, i) in range.enumerate() {
            let Some(changed) = area[area::PACKETS + at * PACKET_BYTES..].first_chunk() else {
                continue;
            };
            let changed = read_packet(changed);
            if changed.verdict != abi::FORWARD {
                let reason = changed.verdict - 1;
                let known = reason < description.own_reasons();
                let reason = if known { reason } else { description.invalid() };
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
                continue;
            }
            let slot = self.frames[at];
            if changed.flags & abi::REWRITTEN != 0 {
                let start = changed.frame.wrapping_sub(base);
                let is_taken = !read_only && take_rewritten(batch, i, description, slot, [start, changed.length], area);
                if !is_taken {
                    batch.packet_mut(i).0.verdict = Verdict::Drop(description.invalid());
                }
            } else if !read_only && description.needs_payload() {
                // Functions behind this one rely on the headers, which only a rewritten packet may change.
                let (packet, frame) = batch.packet_mut(i);
                let payload = usize::from(packet.headers.payload_offset).min(frame.len());
                let frame_at = slot.start as usize + usize::from(slot.headroom);
                let copy = &area[frame_at..frame_at + frame.len()];
                frame[payload..].copy_from_slice(&copy[payload..]);
            }
        }
    }

    /// Calls the function's `explain` for a packet that it has processed, which is copied into the area once more.
    /// Nothing is copied back. A call that does not end in time, or traps, ends the instance as any other does.
    #[cold]
    fn explain_packet(
        &self,
        traced: &TracedPacket<'_>,
        reason: Option<u8>,
        flows: &mut FlowStates<'_>,
        text: &mut Explanation,
    ) {
        let mut slot = self.machine.borrow_mut();
        let Some(machine) = &mut *slot else {
            return;
        };
        let Description { state_bytes, .. } = self.loaded.description;
        let needs_payload = self.loaded.description.needs_payload();
        let (packet, frame) = (traced.packet(), traced.frame());
        let place = frame_slot(packet, needs_payload, traced.batch.buffer_bytes(), frames(state_bytes));
        let frame_at = place.start as usize + usize::from(place.headroom);
        let addresses = Addresses {
            frame: machine.address(frame_at),
            state: if state_bytes > 0 {
                machine.address(area::STATES)
            } else {
                0
            },
            key: machine.address(area::KEYS),
        };
        let area = machine.area_mut();
        let copied = usize::from(place.copied);
        area[frame_at..frame_at + copied].copy_from_slice(&frame[..copied]);
        write_key(area, area::KEYS, &traced.key);
        if state_bytes > 0 {
            area[area::STATES..][..state_bytes].copy_from_slice(flows.bytes(packet));
        }
        let is_new = self.had_new && self.was_new.get(traced.at).is_some_and(|is_new| *is_new);
        if let Some(to) = area[area::PACKETS..].first_chunk_mut() {
            write_packet(to, packet, addresses, [0; 2], is_new);
            to[VERDICT] = reason.map_or(abi::FORWARD, |reason| reason.saturating_add(1));
        }
        let ended = match machine.explain(self.budget(1)) {
            Ok(bytes) => {
                text.add(format_args!("{}", Printable(bytes)));
                return;
            }
            Err(fault) => fault,
        };
        text.add(format_args!("its explanation was ended: {ended}"));
        self.fault.set(ended);
        *slot = None;
    }

    /// Drops packets of a call that was ended, and the instance. The states of their flows stay as they were.
    #[cold]
    fn end(&mut self, batch: &mut Batch, range: Range<usize>, fault: Fault) {
        self.fault.set(fault);
        *self.machine.get_mut() = None;
        self.drop_all(batch, range);
    }

    #[cold]
    fn drop_all(&self, batch: &mut Batch, range: Range<usize>) {
        let reason = match self.fault.get() {
            Fault::Limit => self.loaded.description.limit(),
            Fault::Trap(_) | Fault::Failed(_) => self.loaded.description.trap(),
        };
        for i in range {
            batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
        }
    }
}

/// Creates an instance; `None` if the system has no memory, or the function behaves differently from the first time.
fn new_machine(loaded: &Loaded) -> Option<Machine> {
    let (machine, description) = Machine::new(&loaded.program, &loaded.config, &loaded.limits).ok()?;
    (description == loaded.description).then_some(machine)
}

/// Slot of a packet's frame at an offset of the area. A function that accesses headers only gets no room.
#[inline]
fn frame_slot(packet: &Packet, needs_payload: bool, buffer_bytes: usize, start: usize) -> FrameSlot {
    let (length, before) = (packet.length(), packet.start());
    let (copied, [headroom, tailroom]) = match needs_payload {
        true => (
            length,
            [before, buffer_bytes - before - length].map(|room| room.min(ROOM)),
        ),
        false => (length.min(packet.headers.payload_offset.into()), [0; 2]),
    };
    FrameSlot {
        start: start as u32,
        end: (start + headroom + copied + tailroom) as u32,
        headroom: headroom as u16,
        copied: copied as u16,
    }
}

/// Copies a frame back that the function rewrote, and parses it again. `start` and `length` are the function's.
/// Returns `false` if they are not allowed, or if the frame is no longer well-formed.
#[cold]
fn take_rewritten(
    batch: &mut Batch,
    i: usize,
    description: &Description,
    slot: FrameSlot,
    [start, length]: [u32; 2],
    area: &[u8],
) -> bool {
    let before = slot.start + u32::from(slot.headroom);
    let packet = batch.packet(i);
    if description.needs_payload() {
        let inside = start >= slot.start && start <= slot.end && length <= slot.end - start;
        // The room in the area is part of the room in the buffer.
        let location = packet.start() as i64 + i64::from(start) - i64::from(before);
        if !inside || length > u32::from(u16::MAX) || location < 0 {
            return false;
        }
        let bytes = &area[start as usize..(start + length) as usize];
        batch.replace_frame(i, [location as usize, length as usize], |frame| {
            frame.copy_from_slice(bytes)
        });
    } else if (start, length as usize) == (before, packet.length()) {
        let copied = usize::from(slot.copied);
        let (_, frame) = batch.packet_mut(i);
        frame[..copied].copy_from_slice(&area[before as usize..][..copied]);
    } else {
        return false;
    }
    let (packet, frame) = batch.packet_mut(i);
    match ip_headers(frame) {
        Some(headers) => packet.headers = headers,
        None => return false,
    }
    true
}

impl NetworkFunction for Wasm {
    fn kind(&self) -> &'static str {
        self.loaded.description.name
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        self.loaded.description.drop_reasons
    }

    /// The host's own reasons are no decisions of the function.
    fn is_loss(&self, reason: u8) -> bool {
        let losses = &self.loaded.description.losses;
        losses.get(usize::from(reason)).copied().unwrap_or(true)
    }

    fn counters(&self) -> &'static [&'static str] {
        self.loaded.description.counters
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        self.loaded.description.state_bytes
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            needs_payload: self.loaded.description.needs_payload(),
            ..FunctionProperties::default()
        }
    }

    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        // None is refused here, so that packets keep their indices until they are processed.
        self.is_new[flow.batch_index() % MAX_BATCH] = true;
        self.has_new = true;
        if self.loaded.description.flags & abi::REWRITES_FLOWS != 0 {
            flow.rekeyed();
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let mut first = 0;
        while first < batch.len() {
            let remaining = (batch.len() - first).min(CHUNK);
            if self.machine.get_mut().is_none() {
                self.renew(remaining, self.loaded.setup_cost);
            }
            let count = self.copy_in(batch, flows, first);
            let (range, budget) = (first..first + count, self.budget(count));
            match self
                .machine
                .get_mut()
                .as_mut()
                .map(|machine| machine.process(count as u32, budget))
            {
                Some(Ok(_)) => self.copy_out(batch, flows, range),
                Some(Err(fault)) => self.end(batch, range, fault),
                None => self.drop_all(batch, range),
            }
            first += count;
        }
        self.had_new = std::mem::take(&mut self.has_new);
        if self.had_new {
            std::mem::swap(&mut self.is_new, &mut self.was_new);
            self.is_new.fill(false);
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let description = &self.loaded.description;
        let reason = match traced.packet().verdict {
            Verdict::Drop(reason) => Some(reason),
            Verdict::Forward | Verdict::Bypass => None,
        };
        if reason == Some(description.limit()) || reason == Some(description.trap()) {
            text.add(format_args!("its call was ended: {}", self.fault.get()));
        } else if reason == Some(description.invalid()) {
            text.add(format_args!("it left no well-formed IP packet"));
        } else if description.explain != 0 {
            self.explain_packet(traced, reason, flows, text);
        }
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        match self.loaded.description.flows_ended {
            0 => None,
            _ => Some(self),
        }
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        match &mut self.durable {
            Some(durable) => Some(durable),
            None => None,
        }
    }
}

impl FlowEnds for Wasm {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let budget = self.budget(1);
        let Some(machine) = self.machine.get_mut() else {
            return;
        };
        let area = machine.area_mut();
        write_key(area, area::KEYS, key);
        area[area::STATES..][..state.len()].copy_from_slice(state);
        area[area::COUNTERS..][..8 * self.counters.len()].fill(0);
        match machine.flow_ended(budget) {
            Ok(()) => {
                let area = machine.area_mut();
                for (counter, bytes) in self.counters.iter_mut().zip(area[area::COUNTERS..].as_chunks().0) {
                    *counter = counter.wrapping_add(u64::from_le_bytes(*bytes));
                }
            }
            Err(fault) => {
                self.fault.set(fault);
                *self.machine.get_mut() = None;
            }
        }
    }
}
