//! The `Xdp` network function.

use super::machine::Machine;
use super::memory::Frame;
use super::program::Program;
use super::run::{Fault, Run};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_sdk::host::ip_headers;

const DROP: u8 = 0;
const ABORTED: u8 = 1;
const REDIRECT: u8 = 2;
const INVALID: u8 = 3;

const DROP_REASONS: &[&str] = &["xdp-drop", "xdp-aborted", "xdp-redirect", "xdp-invalid"];
const COUNTERS: &[&str] = &["xdp-tx"];

/// Verdicts of XDP programs.
mod verdict {
    pub(super) const ABORTED: u32 = 0;
    pub(super) const DROP: u32 = 1;
    pub(super) const PASS: u32 = 2;
    pub(super) const TX: u32 = 3;
    pub(super) const REDIRECT: u32 = 4;
}

/// Program with the limits of its runs, as a change replaces it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) program: Arc<Program>,
    pub(super) read_only: bool,
    pub(super) limit: u32,
}

/// Runs an XDP program on each packet. Its maps belong to the worker.
pub struct Xdp {
    loaded: Arc<Live<Loaded>>,
    current: Arc<Version<Loaded>>,
    machine: Machine,
    worker: u32,
    /// Runs on the packets of the last batch, for explanations.
    runs: Box<[Option<Run>; MAX_BATCH]>,
    /// Packets with the verdict `XDP_TX`.
    sent_back: [u64; 1],
}

impl Xdp {
    /// Creates the instance of worker number `worker`, with a key for the hashes of its maps.
    pub(super) fn new(loaded: Arc<Live<Loaded>>, worker: u32, seed: u64) -> Xdp {
        let current = loaded.current();
        Xdp {
            machine: Machine::new(Arc::clone(&current.value.program), worker, seed),
            loaded,
            current,
            worker,
            runs: Box::new([None; MAX_BATCH]),
            sent_back: [0],
        }
    }

    /// Runs the program on packet `i`, and sets its verdict.
    fn run(&mut self, batch: &mut Batch, i: usize) -> Run {
        let Loaded {
            program,
            read_only,
            limit,
        } = &self.current.value;
        let buffer_bytes = batch.buffer_bytes();
        let (packet, _) = batch.packet_mut(i);
        let (start, length) = (packet.start(), packet.length());
        let ingress = [u32::from(packet.entry) + 1, self.worker];
        let now = packet.arrival;
        let resizes = program.resizes();
        if resizes {
            // The room around the frame, too, for which the program can ask.
            packet.set_location(0, buffer_bytes.min(u16::MAX.into()) as u16);
        }
        let (packet, bytes) = batch.packet_mut(i);
        let start_in_bytes = if resizes { start } else { 0 };
        let mut frame = Frame {
            bytes,
            start: start_in_bytes,
            end: start_in_bytes + length,
            read_only: *read_only,
            ingress,
        };
        let run = self.machine.run(&mut frame, now, *limit);
        let (frame_start, frame_length) = (frame.start, frame.end - frame.start);
        if resizes {
            packet.set_location(frame_start as u16, frame_length as u16);
        }
        packet.verdict = match run.result.map(|value| value as u32) {
            Ok(verdict::PASS) => Verdict::Forward,
            Ok(verdict::TX) => {
                packet.turn_back();
                self.sent_back[0] += 1;
                Verdict::Forward
            }
            Ok(verdict::DROP) => Verdict::Drop(DROP),
            Ok(verdict::REDIRECT) => Verdict::Drop(REDIRECT),
            Ok(verdict::ABORTED) | Ok(_) | Err(_) => Verdict::Drop(ABORTED),
        };
        if !read_only && packet.verdict == Verdict::Forward {
            // Functions behind this one rely on the headers, which the program may have changed.
            let (packet, frame) = batch.packet_mut(i);
            match ip_headers(frame) {
                Some(headers) => packet.headers = headers,
                None => packet.verdict = Verdict::Drop(INVALID),
            }
        }
        run
    }
}

impl NetworkFunction for Xdp {
    fn kind(&self) -> &'static str {
        "Xdp"
    }

    fn can_restart(&self) -> bool {
        !self.machine.program().has_state()
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        DROP_REASONS
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.sent_back
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            reads_hash: false,
            // A program may change addresses and ports, and functions behind it find flows by those in front of it.
            mixes_flows: !self.current.value.read_only,
            ..FunctionProperties::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let number = self.current.number;
        self.loaded.refresh(&mut self.current);
        if self.current.number != number {
            self.machine.replace(Arc::clone(&self.current.value.program));
        }
        for i in 0..batch.len() {
            self.runs[i % MAX_BATCH] = Some(self.run(batch, i));
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let Some(run) = self.runs.get(traced.at).copied().flatten() else {
            return;
        };
        let Run {
            result,
            instructions,
            last,
        } = run;
        match result.map(|value| value as u32) {
            Ok(verdict) => {
                let names = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];
                match names.get(verdict as usize) {
                    Some(name) => text.add(format_args!("{name}")),
                    None => text.add(format_args!("unknown verdict {verdict}")),
                }
                text.add(format_args!(" after {instructions} instructions"));
            }
            Err(Fault::Limit) => text.add(format_args!("stopped after {instructions} instructions, the limit")),
            Err(fault) => text.add(format_args!("stopped at instruction {last}: {fault}")),
        }
    }
}
