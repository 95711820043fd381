//! Test harness for a function, without the runtime: frames in, verdicts out.

use crate::abi;
use crate::{Batch, Config, ConfigError, Explanation, FlowKey, Function, Packet};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::raw::c_void;
use std::sync::Arc;

/// Room before and after each frame, in bytes.
const ROOM: usize = 64;

/// Offset of the network header in a frame built by [`frame`].
const ETHERNET: usize = 14;

/// Function with its flows. Differs from the runtime in speed, has a single instance, and never ends flows.
#[derive(Debug)]
pub struct Harness<F: Function> {
    function: F,
    flows: HashMap<FlowKey, Flow<F::State>>,
    counters: Vec<u64>,
    explanations: Vec<String>,
    /// Time between two packets' arrivals, in nanoseconds.
    pub gap_ns: u64,
    now: u64,
}

/// Number and state of a flow. Packets of a flow in one batch share it.
type Flow<S> = (u32, Box<UnsafeCell<S>>);

/// Verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Forwarded, as this frame.
    Forwarded(Vec<u8>),
    /// Dropped, with this reason.
    Dropped(u8),
}

impl<F: Function> Harness<F> {
    /// Creates a function with this configuration, in JSON.
    ///
    /// # Errors
    /// The function rejects the configuration.
    pub fn new(config: &str) -> Result<Harness<F>, ConfigError> {
        let shared = Arc::new(F::configure(&Config::parse(config)?)?);
        Ok(Harness {
            function: F::start(shared),
            flows: HashMap::new(),
            counters: vec![0; F::COUNTERS.len()],
            explanations: Vec::new(),
            gap_ns: 1000,
            now: 0,
        })
    }

    /// Processes a batch of packets, each with its 5-tuple.
    pub fn process(&mut self, packets: &[(FlowKey, Vec<u8>)]) -> Vec<Outcome> {
        let mut buffers: Vec<Vec<u8>> = packets
            .iter()
            .map(|(_, frame)| [&[0; ROOM][..], frame, &[0; ROOM]].concat())
            .collect();
        let mut new = Vec::new();
        for (key, _) in packets {
            let number = self.flows.len() as u32;
            new.push(!self.flows.contains_key(key));
            self.flows.entry(*key).or_insert_with(|| {
                // SAFETY: zeros are a valid value of every `State`.
                (number, Box::new(unsafe { std::mem::zeroed() }))
            });
        }
        let mut raw: Vec<abi::Packet> = Vec::new();
        for (((key, frame), buffer), new) in packets.iter().zip(&mut buffers).zip(new) {
            let flow = self.flows.get(key);
            let (number, state) = flow.map_or((abi::NO_FLOW, std::ptr::null_mut()), |flow| {
                (flow.0, flow.1.get().cast::<c_void>())
            });
            let transport = ETHERNET + if is_v4(key) { 20 } else { 40 };
            let payload = transport + transport_bytes(key);
            let offset = |at: usize| at.min(frame.len()) as u16;
            raw.push(abi::Packet {
                frame: buffer[ROOM..].as_mut_ptr(),
                state,
                key: &key.0,
                arrival_ns: self.now,
                length: frame.len() as u32,
                flow: number,
                rss_hash: 0,
                network_offset: offset(ETHERNET),
                transport_offset: offset(transport),
                payload_offset: offset(payload),
                end: offset(frame.len()),
                headroom: ROOM as u16,
                tailroom: ROOM as u16,
                ip_version: if is_v4(key) { 4 } else { 6 },
                fragment: 0,
                flags: if new { abi::NEW_FLOW } else { 0 },
                verdict: abi::FORWARD,
                reserved: 0,
            });
            self.now += self.gap_ns;
        }
        let mut batch = abi::Batch {
            packets: raw.as_mut_ptr(),
            counters: self.counters.as_mut_ptr(),
            count: raw.len() as u32,
            reserved: 0,
        };
        // SAFETY: the stated numbers of packets, counters and states; each packet has a buffer of its own, with the
        // stated room; nothing else accesses any of them until the batch is gone.
        let mut batch = unsafe { Batch::new(&mut batch, F::COUNTERS.len()) };
        self.function.process(&mut batch);
        self.explanations.clear();
        for packet in &raw {
            let mut explanation = abi::Explanation {
                text: [0; abi::MAX_EXPLANATION],
            };
            let mut packet = *packet;
            // SAFETY: as above; only a shared reference is passed on.
            let packet = unsafe { Packet::new(&mut packet) };
            self.function.explain(&packet, &mut Explanation::new(&mut explanation));
            let text = explanation.text.map(|c| c as u8);
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            self.explanations.push(String::from_utf8_lossy(text).into_owned());
        }
        raw.iter()
            .zip(&buffers)
            .map(|(packet, buffer)| match packet.verdict.checked_sub(1) {
                Some(reason) => Outcome::Dropped(reason),
                None => {
                    let start = usize::from(packet.headroom);
                    Outcome::Forwarded(buffer[start..start + packet.length as usize].to_vec())
                }
            })
            .collect()
    }

    /// Returns the function's explanations of the packets of the last batch, as traces show them.
    pub fn explanations(&self) -> &[String] {
        &self.explanations
    }

    /// Returns the function's counters.
    pub fn counters(&self) -> &[u64] {
        &self.counters
    }
}

fn is_v4(key: &FlowKey) -> bool {
    key.source().is_ipv4()
}

fn transport_bytes(key: &FlowKey) -> usize {
    match key.protocol() {
        6 => 20,
        17 => 8,
        _ => 0,
    }
}

/// Builds a frame of a flow: Ethernet, IPv4 or IPv6, TCP, UDP or neither, and a payload. Lengths are right, checksums
/// are zero.
pub fn frame(key: &FlowKey, payload: &[u8]) -> Vec<u8> {
    let segment = transport_bytes(key) + payload.len();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (key.source(), key.destination()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + segment as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, key.protocol(), 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        (source, destination) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((segment as u16).to_be_bytes());
            frame.extend([key.protocol(), 64]);
            for address in [source, destination] {
                if let IpAddr::V6(address) = address {
                    frame.extend(address.octets());
                }
            }
        }
    }
    if transport_bytes(key) > 0 {
        frame.extend(key.source_port().to_be_bytes());
        frame.extend(key.destination_port().to_be_bytes());
    }
    match key.protocol() {
        6 => frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]),
        17 => {
            frame.extend((segment as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
        _ => {}
    }
    frame.extend(payload);
    frame
}
