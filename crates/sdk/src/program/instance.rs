//! A function by the C interface that takes turns.
//!
//! One of the few modules with `unsafe` code: the calls into the function. What comes back is checked before it is
//! believed.

use super::flows::{Flows, Gathered};
use super::{Given, Made, Ready, Refusal, TurnPacket, Work};
use crate::abi;
use crate::host::{self, Configured, Described, NO_PACKET, Place};
use crate::protocol::images::FlowImages;
use crate::protocol::layout::MAX_BATCH;
use crate::protocol::memory::Memory;
use crate::protocol::message::Description;
use crate::sys::prefetch;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::slice;
use tailwater_net::Nanos;
use tailwater_net::parse::Headers;

/// A function by the C interface that waits for its memory.
#[derive(Debug)]
pub struct Waiting {
    configured: Configured,
    instance: *mut c_void,
}

impl Waiting {
    /// Has a function read its configuration, as JSON, and start.
    ///
    /// # Errors
    /// It refuses it, or gives no instance.
    pub fn new(what: &'static Described, config: &str) -> Result<Waiting, Refusal> {
        let configured = Configured::new(what, config).map_err(|wrong| Refusal::Config {
            field: wrong.field,
            message: wrong.message,
        })?;
        match configured.start() {
            Some(instance) => Ok(Waiting {
                configured,
                instance,
            }),
            None => Err(Refusal::Unfit {
                message: "tailwater_function: start: expected an instance, found NULL".to_owned(),
            }),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // SAFETY: of `start`, and not used again.
        unsafe { self.configured.stop(self.instance) }
    }
}

impl Ready for Waiting {
    type Work = Instance;

    fn describe(&self) -> Description {
        let what = self.configured.what;
        let reasons = what.drop_reasons.iter().zip(&what.losses);
        Description {
            name: what.name.to_owned(),
            state_bytes: what.function.state_bytes,
            wants_flow_ends: what.function.flows_ended.is_some(),
            opens_companions: false,
            durable: what.durable(),
            piece_bytes: match what.durable() {
                Some(_) => what.function.state_bytes,
                None => 0,
            },
            drop_reasons: reasons
                .map(|(name, lost)| ((*name).to_owned(), *lost))
                .collect(),
            notes: what.counters.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn attach(self, given: Given) -> io::Result<Instance> {
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
            images: match given.images {
                // Times are not for functions' state: there is nothing to translate.
                Some((_, memory)) => Some(FlowImages::open(memory, state_bytes)?),
                None => None,
            },
            raw: vec![NO_PACKET; MAX_BATCH].into(),
            known: vec![Known::none(); MAX_BATCH].into(),
            count: 0,
            counters: vec![0; what.counters.len()].into(),
            function: self,
        })
    }
}

/// What is known of a packet besides what the function sees.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its place in the batch.
    at: u16,
    start: u16,
    length: u16,
    /// Whether a function in front rekeyed the flow.
    rekeyed: bool,
    /// Its flow's place in the flow table.
    flow: u32,
    /// And its birth.
    birth: u64,
    rss_hash: u32,
    arrival: Nanos,
    /// The function's state of the flow, if it keeps any; and whether it is to decide anew about it.
    state: *mut u8,
    new: bool,
    headers: Headers,
}

impl Known {
    /// Of no packet.
    fn none() -> Known {
        Known {
            at: 0,
            start: 0,
            length: 0,
            rekeyed: false,
            flow: abi::NO_FLOW,
            birth: 0,
            rss_hash: 0,
            arrival: Nanos::ZERO,
            state: null_mut(),
            new: false,
            headers: Headers::default(),
        }
    }
}

impl Gathered for Known {
    #[inline]
    fn flow(&self) -> (u32, u64) {
        (self.flow, self.birth)
    }
}

/// The packets' buffers.
#[derive(Debug)]
struct Buffers {
    packets: Memory,
    /// Bytes of each.
    bytes: usize,
}

impl Buffers {
    /// The buffer at this place of the batch.
    #[inline]
    fn start(&self, at: u16) -> *mut u8 {
        let at = usize::from(at);
        assert!(at < MAX_BATCH, "a place of the batch");
        self.packets.base().wrapping_add(at * self.bytes)
    }

    /// The bytes from `start` on of the buffer at this place.
    ///
    /// # Panics
    /// If they are beyond it.
    #[inline]
    fn frame(&self, at: u16, [start, length]: [u16; 2]) -> &[u8] {
        let [start, length] = [start, length].map(usize::from);
        assert!(start + length <= self.bytes, "a frame within its buffer");
        // SAFETY: within the packets' memory, which is as long as `self`; any bytes are initialised. This process
        // writes them in `process` only. Another one that does so in this one's turn, against the rules, can
        // make it misread a frame, which is bytes: what is read of it is checked when it is read.
        unsafe { slice::from_raw_parts(self.start(at).add(start), length) }
    }
}

/// A function by the C interface: its only instance in its process.
#[derive(Debug)]
pub struct Instance {
    what: &'static Described,
    buffers: Buffers,
    flows: Option<Flows>,
    /// What it shows of its flows, if their state is kept outside.
    images: Option<FlowImages>,
    /// The batch, as the function sees it, and what else is known of its packets.
    raw: Box<[abi::Packet]>,
    known: Box<[Known]>,
    count: usize,
    counters: Box<[u64]>,
    function: Waiting,
}

impl Instance {
    fn place(&self, known: &Known) -> Place {
        Place {
            buffer: self.buffers.start(known.at),
            buffer_bytes: self.buffers.bytes,
            start: known.start.into(),
            length: known.length.into(),
        }
    }

    /// What becomes of packet `i`, which the function let pass.
    #[inline(always)]
    fn forwarded(&mut self, i: usize) -> Made {
        let (raw, known) = (&self.raw[i], &self.known[i]);
        if raw.flags & abi::REWRITTEN == 0 && self.flows.is_none() {
            return Made::Forward {
                place: [known.start, known.length],
                rekeyed: known.rekeyed,
            };
        }
        self.moved(i)
    }

    /// As [`forwarded`](Instance::forwarded), of a packet that may have moved, or whose flow may have.
    fn moved(&mut self, i: usize) -> Made {
        let (raw, known) = (&self.raw[i], &self.known[i]);
        let place = match raw.flags & abi::REWRITTEN {
            0 => [known.start, known.length],
            _ => {
                let moved = host::moved(self.what, raw, self.place(known));
                let fit = moved.filter(|moved| {
                    host::ip_headers(self.buffers.frame(known.at, *moved)).is_some()
                });
                match fit {
                    Some(place) => place,
                    None => return Made::Drop(self.what.invalid()),
                }
            }
        };
        let rekeyed = match &mut self.flows {
            Some(flows) => flows.take_pending(known.flow),
            None => known.rekeyed,
        };
        Made::Forward { place, rekeyed }
    }
}

impl Work for Instance {
    #[inline]
    fn prefetch(&self, flow: u32, at: u16, start: u16) {
        prefetch(self.buffers.start(at).wrapping_add(start.into()));
        if let Some(flows) = &self.flows {
            flows.prefetch(flow);
        }
        if let Some(images) = &self.images {
            images.prefetch(flow);
        }
    }

    #[inline(always)]
    fn put<const CHANGED: bool>(
        &mut self,
        packet: &TurnPacket,
        known: impl Fn(&mut Headers),
    ) -> bool {
        let ([start, length], i) = (packet.place, self.count);
        if !CHANGED {
            known(&mut self.known[i].headers);
        } else {
            let frame = self.buffers.frame(packet.at, packet.place);
            if !host::find_headers(frame, &mut self.known[i].headers) {
                return false;
            }
        }
        let (gathered, rest) = self.known.split_at_mut(i);
        let to = &mut rest[0];
        (to.at, to.start, to.length) = (packet.at, start, length);
        to.rekeyed = packet.rekeyed;
        to.flow = packet.flow.map_or(abi::NO_FLOW, |(place, _)| place);
        (to.arrival, to.rss_hash) = (packet.arrival, packet.rss_hash);
        if let Some(flows) = &mut self.flows {
            let flow = packet
                .flow
                .unwrap_or_else(|| panic!("a packet with a flow"));
            let key = || {
                let mut headers = Headers::default();
                known(&mut headers);
                headers.key
            };
            to.birth = flow.1;
            let images = self.images.as_ref();
            (to.new, to.state) = flows.arrive(flow, key, packet.rekeyed, gathered, images);
        }
        self.count += 1;
        true
    }

    #[inline]
    fn run(&mut self, _now: Nanos, mut each: impl FnMut(u16, Made)) {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        // Only now: headers are read as a whole long after they were written in parts.
        for i in 0..count {
            let known = &self.known[i];
            let number = (known.flow != abi::NO_FLOW).then_some(known.flow);
            let place = self.place(known);
            let numbers = (number, known.rss_hash);
            self.raw[i] = abi::Packet {
                state: known.state.cast(),
                flags: if known.new { abi::NEW_FLOW } else { 0 },
                ..host::packet(place, &known.headers, known.arrival, numbers)
            };
        }
        let mut batch = abi::Batch {
            packets: self.raw.as_mut_ptr(),
            counters: self.counters.as_mut_ptr(),
            count: count as u32,
            reserved: 0,
        };
        // SAFETY: as the header says. The instance is the only one. Each of the `count` packets has a frame, with so
        // much room around it, in a buffer of its own; a key in `known`, which is not touched meanwhile; and the
        // state of its flow. `self` is borrowed exclusively, and this is the process's only thread.
        let code = unsafe { (self.what.process)(self.function.instance, &raw mut batch) };
        let name = self.what.name;
        assert!(code == 0, "the function {name} failed (code {code})");
        if let Some(flows) = &mut self.flows {
            for known in self.known[..count].iter().filter(|known| known.new) {
                flows.saw(known.flow, known.birth);
            }
        }
        if let (Some(flows), Some(images)) = (&self.flows, &self.images) {
            for known in &self.known[..count] {
                images.show(known.flow, known.birth, flows.piece(known.flow, images));
            }
        }
        for i in 0..count {
            let made = match self.raw[i].verdict {
                abi::FORWARD => self.forwarded(i),
                reason => Made::Drop(reason - 1),
            };
            each(self.known[i].at, made);
        }
    }

    fn end_flow(&mut self, place: u32, birth: u64) {
        let (instance, counters) = (self.function.instance, self.counters.as_mut_ptr());
        let flows_ended = self.what.function.flows_ended;
        let Some(flows) = &mut self.flows else {
            return;
        };
        flows.end(place, birth, |ended| {
            if let Some(flows_ended) = flows_ended {
                // SAFETY: as the header says: the only instance, one flow with its key and its state, aligned to a
                // cache line, and as many counters as the function has; all outlive the call.
                unsafe { flows_ended(instance, &raw const ended, 1, counters) };
            }
        });
    }

    fn finish(&mut self) {}

    fn notes(&self) -> impl Iterator<Item = u64> {
        self.counters.iter().copied()
    }
}
