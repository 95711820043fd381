//! The `Encrypt` network function.

use super::chacha::{ChaCha20, Key, derive, key_of};
use bytemuck::{Pod, Zeroable};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{DurableState, Explanation, FlowStates, NetworkFunction, NewFlow, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_net::checksum::{ChecksumDelta, sum};
use tailwater_net::parse::Headers;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Bytes after each UDP payload: the packet number, big-endian.
const TRAILER: usize = 8;

/// Direction of the conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext in, ciphertext out.
    #[default]
    Encrypt,
    /// Ciphertext in, plaintext out.
    Decrypt,
}

/// Configuration of the function.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptRules {
    /// Secret shared by both ends.
    pub key: [u8; 32],
    /// Encrypt or decrypt.
    pub direction: Direction,
    /// Maximum length of a sent IP datagram, in bytes.
    pub mtu: u16,
    /// `true` to encrypt data of TCP connections whose SYN was not seen, with a key derived from the 5-tuple alone.
    /// `false` to drop it.
    pub midstream: bool,
    /// `true` to drop packets that cannot be encrypted (neither TCP nor UDP, or fragments). `false` to pass them
    /// unchanged.
    pub drop_others: bool,
}

/// Omits the key.
impl std::fmt::Debug for EncryptRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptRules")
            .field("direction", &self.direction)
            .field("mtu", &self.mtu)
            .field("midstream", &self.midstream)
            .field("drop_others", &self.drop_others)
            .finish_non_exhaustive()
    }
}

/// Packet numbers of UDP packets, unique across flows and workers.
///
/// Two flows can have the same key: keys depend on the 5-tuple as sent, and an earlier function may have given two
/// flows the same one. So numbers are not counted per flow. They start with the time in nanoseconds since 1970. Packets
/// take far longer than a nanosecond each, so after a restart all numbers are above the earlier ones.
#[derive(Debug)]
pub struct PacketNumbers {
    /// First number of the next block; 0 before the first block is taken.
    next: AtomicU64,
    /// Index of this process among `of` processes that generate numbers without sharing state.
    part: u64,
    of: u64,
}

/// Numbers that a worker takes at a time, to keep contention low.
const BLOCK: u64 = 1024;

impl PacketNumbers {
    /// Creates a generator of numbers that start with the current time.
    pub fn starting_now() -> PacketNumbers {
        let numbers = PacketNumbers::among(0, 1);
        numbers.next.store(numbers.now(), Ordering::Relaxed);
        numbers
    }

    /// Creates a generator of numbers that start with the time at which the first is taken. A standby process may wait
    /// long before it takes over. The generator returns every `of`-th block, so that `of` processes without shared
    /// state never use the same number. A packet must then take at least `of` nanoseconds.
    ///
    /// # Panics
    /// If `part` is not below `of`.
    pub fn among(part: u16, of: u16) -> PacketNumbers {
        assert!(part < of, "part {part} of {of}");
        PacketNumbers {
            next: AtomicU64::new(0),
            part: part.into(),
            of: of.into(),
        }
    }

    /// Returns the first block of this part after the current time.
    fn now(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_epoch.map_or(0, |time| time.as_nanos() as u64);
        now.next_multiple_of(BLOCK * self.of) + BLOCK * self.part
    }

    fn block(&self) -> Range<u64> {
        let step = BLOCK * self.of;
        if self.next.load(Ordering::Relaxed) == 0 {
            let (unset, relaxed) = (0, Ordering::Relaxed);
            // The loser of the race continues from the winner's start.
            let _ = self.next.compare_exchange(unset, self.now(), relaxed, relaxed);
        }
        let start = self.next.fetch_add(step, Ordering::Relaxed);
        start..start + BLOCK
    }
}

/// Cipher state of a flow. It has no `Debug`, because it contains a key.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FlowCipher {
    /// The flow's own key; for TCP, the connection's.
    key: Key,
    /// TCP: highest position in the stream so far.
    next: u64,
    /// TCP: initial sequence number.
    initial: u32,
    /// [`KEYED`], [`PASS`], or 0 for a TCP flow whose SYN has not been seen and for a flow that cannot be encrypted.
    phase: u32,
}

/// Initial sequence number of a TCP connection whose SYN was not seen: its stream positions are the sequence numbers.
const MIDSTREAM: u32 = u32::MAX;
/// The key has been derived.
const KEYED: u32 = 1;
/// The flow's packets pass unchanged.
const PASS: u32 = 2;

/// Drop reason: the packet cannot be encrypted (neither TCP nor UDP, or a fragment).
const NOT_ENCRYPTABLE: u8 = 0;
/// Drop reason: data of a TCP connection whose start was not seen.
const NO_SYN: u8 = 1;
/// Drop reason: the packet would exceed the MTU.
const OVERSIZE: u8 = 2;
/// Drop reason: a UDP packet to decrypt has no trailer.
const NO_TRAILER: u8 = 3;
/// Loss reason: the packet's buffer has no room for the trailer.
const NO_ROOM: u8 = 4;

/// Encrypts or decrypts payloads of TCP and UDP.
pub struct Encrypt {
    rules: Arc<Live<EncryptRules>>,
    cached_rules: Arc<Version<EncryptRules>>,
    secret: Key,
    cipher: ChaCha20,
    numbers: Arc<PacketNumbers>,
    /// Packet numbers reserved for this worker.
    own: Range<u64>,
}

impl Encrypt {
    /// Creates an instance that shares its packet numbers with the other workers.
    pub fn new(rules: Arc<Live<EncryptRules>>, numbers: Arc<PacketNumbers>) -> Encrypt {
        let held = rules.current();
        Encrypt {
            secret: key_of(&held.value.key),
            cached_rules: held,
            rules,
            cipher: ChaCha20::detect(),
            numbers,
            own: 0..0,
        }
    }

    /// Updates the worker to the rules in force.
    #[inline]
    fn refresh(&mut self) {
        if self.rules.number() != self.cached_rules.number {
            self.cached_rules = self.rules.current();
            self.secret = key_of(&self.cached_rules.value.key);
        }
    }

    /// Returns an unused packet number.
    #[inline]
    fn number(&mut self) -> u64 {
        if self.own.is_empty() {
            self.own = self.numbers.block();
        }
        let number = self.own.start;
        self.own.start += 1;
        number
    }

    /// Processes a TCP segment, or returns its drop reason.
    fn tcp(&self, packet: &Packet, frame: &mut [u8], flow: &mut FlowCipher) -> Result<(), u8> {
        let headers = &packet.headers;
        let (start, end) = (headers.payload_offset.into(), headers.end.into());
        let transport = usize::from(headers.transport_offset);
        let Some((head, payload)) = parts(frame, transport, start, end) else {
            return Err(NOT_ENCRYPTABLE);
        };
        let Some(header) = head.first_chunk_mut::<20>() else {
            return Err(NOT_ENCRYPTABLE);
        };
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        // Offset of the first data byte in the stream, whose first byte follows the SYN.
        let mut offset = sequence.wrapping_sub(flow.initial).wrapping_sub(1);
        if TcpFlags(header[13]).contains(TcpFlags::SYN) {
            if flow.phase != KEYED || flow.initial != sequence {
                *flow = FlowCipher {
                    key: flow_key(&self.secret, &headers.key, Some(sequence)),
                    next: 0,
                    initial: sequence,
                    phase: KEYED,
                };
            }
            offset = 0;
        }
        if payload.is_empty() {
            return Ok(());
        }
        if flow.phase != KEYED {
            if !self.cached_rules.value.midstream {
                return Err(NO_SYN);
            }
            *flow = FlowCipher {
                key: flow_key(&self.secret, &headers.key, None),
                next: sequence.into(),
                initial: MIDSTREAM,
                phase: KEYED,
            };
            offset = sequence;
        }
        let position = extend(flow.next, offset);
        let after = position.wrapping_add(payload.len() as u64);
        // A byte before the stream's start (keep-alive) has a very high unsigned position.
        if after > flow.next && position < 1 << 63 {
            flow.next = after;
        }
        let before = sum(payload);
        self.cipher.apply(&flow.key, [0, 0], position, payload);
        let delta = ChecksumDelta::u16(before, sum(payload));
        let checksum = u16::from_be_bytes([header[16], header[17]]);
        [header[16], header[17]] = delta.apply(checksum).to_be_bytes();
        Ok(())
    }

    /// Encrypts packet `i`, a UDP datagram, or returns its drop reason.
    fn encrypt_udp(&mut self, batch: &mut Batch, i: usize, flow: FlowCipher) -> Result<(), u8> {
        let (packet, frame) = batch.packet_mut(i);
        let headers = packet.headers;
        if !fills_its_datagram(&headers, frame) {
            return Err(NOT_ENCRYPTABLE);
        }
        let datagram = usize::from(headers.end - headers.network_offset) + TRAILER;
        if datagram > self.cached_rules.value.mtu.into() {
            return Err(OVERSIZE);
        }
        let number = self.number();
        let (packet, frame) = batch.grow_back(i, TRAILER).ok_or(NO_ROOM)?;
        let start = packet.headers.payload_offset.into();
        let (transport, end) = (packet.headers.transport_offset.into(), packet.headers.end.into());
        let (head, payload) = parts(frame, transport, start, end).ok_or(NOT_ENCRYPTABLE)?;
        let (data, trailer) = payload.split_at_mut(payload.len() - TRAILER);
        let before = sum(data);
        self.cipher.apply(&flow.key, nonce(number), 0, data);
        trailer.copy_from_slice(&number.to_be_bytes());
        let delta = ChecksumDelta::u16(before, sum(payload));
        finish_udp(head, delta, TRAILER as u16).ok_or(NOT_ENCRYPTABLE)?;
        let network = frame.get_mut(headers.network_offset.into()..);
        set_ip_length(network, &headers.key, TRAILER as u16).ok_or(NOT_ENCRYPTABLE)
    }

    /// Decrypts packet `i`, a UDP datagram, or returns its drop reason.
    fn decrypt_udp(&self, batch: &mut Batch, i: usize, flow: &FlowCipher) -> Result<(), u8> {
        const LESS: u16 = (TRAILER as u16).wrapping_neg();
        let (packet, frame) = batch.packet_mut(i);
        let headers = packet.headers;
        if !fills_its_datagram(&headers, frame) {
            return Err(NOT_ENCRYPTABLE);
        }
        let (start, end) = (headers.payload_offset.into(), headers.end.into());
        let (head, payload) = parts(frame, headers.transport_offset.into(), start, end).ok_or(NOT_ENCRYPTABLE)?;
        let before = sum(payload);
        let (data, trailer) = payload.split_last_chunk_mut::<TRAILER>().ok_or(NO_TRAILER)?;
        let number = u64::from_be_bytes(*trailer);
        self.cipher.apply(&flow.key, nonce(number), 0, data);
        let delta = ChecksumDelta::u16(before, sum(data));
        finish_udp(head, delta, LESS).ok_or(NOT_ENCRYPTABLE)?;
        let network = frame.get_mut(headers.network_offset.into()..);
        set_ip_length(network, &headers.key, LESS).ok_or(NOT_ENCRYPTABLE)?;
        batch.shrink_back(i, TRAILER).map(drop).ok_or(NO_TRAILER)
    }
}

impl NetworkFunction for Encrypt {
    fn kind(&self) -> &'static str {
        "Encrypt"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["not-encryptable", "no-syn", "oversize", "no-trailer", "no-room"]
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn state_bytes(&self) -> usize {
        size_of::<FlowCipher>()
    }

    fn version(&self) -> u32 {
        self.rules.number()
    }

    /// After a key change, a TCP connection keeps the key under which it was opened. A UDP flow continues under the new
    /// key: the number in each packet determines its key stream.
    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.refresh();
        let key = &packet.headers.key;
        let state = flow.state::<FlowCipher>();
        match key.protocol() {
            protocol::TCP | protocol::UDP if key.is_fragment() => {}
            protocol::TCP => return Verdict::Forward,
            protocol::UDP => {
                *state = FlowCipher {
                    key: flow_key(&self.secret, key, None),
                    next: 0,
                    initial: 0,
                    phase: KEYED,
                };
                return Verdict::Forward;
            }
            _ => {}
        }
        state.phase = match self.cached_rules.value.drop_others {
            true => 0,
            false => PASS,
        };
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.refresh();
        let direction = self.cached_rules.value.direction;
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let flow = flows.state::<FlowCipher>(packet);
            let key = &packet.headers.key;
            let done = match (flow.phase, key.protocol(), direction) {
                (PASS, ..) => Ok(()),
                (_, protocol::TCP, _) if !key.is_fragment() => self.tcp(packet, frame, flow),
                (KEYED, _, Direction::Encrypt) => {
                    let cipher = *flow;
                    self.encrypt_udp(batch, i, cipher)
                }
                (KEYED, _, Direction::Decrypt) => self.decrypt_udp(batch, i, flow),
                _ => Err(NOT_ENCRYPTABLE),
            };
            if let Err(reason) = done {
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
            }
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let (packet, rules) = (traced.packet(), &self.cached_rules.value);
        let (headers, key) = (&packet.headers, &traced.key);
        let flow = *flows.state::<FlowCipher>(packet);
        match packet.verdict {
            Verdict::Drop(NO_SYN) => text.add(format_args!("data of a connection without a SYN, midstream is off")),
            Verdict::Drop(OVERSIZE) => {
                let length = usize::from(headers.end - headers.network_offset) + TRAILER;
                text.add(format_args!("{length} bytes with the packet number, mtu {}", rules.mtu));
            }
            Verdict::Drop(NO_TRAILER) => text.add(format_args!("no packet number behind the data")),
            Verdict::Drop(NO_ROOM) => text.add(format_args!("no room for the packet number in the buffer")),
            _ if key.is_fragment() => text.add(format_args!("fragment")),
            _ if !matches!(key.protocol(), protocol::TCP | protocol::UDP) => {
                text.add(format_args!("neither TCP nor UDP"));
            }
            Verdict::Drop(_) => text.add(format_args!("UDP length differs from that of the IP packet")),
            _ if key.protocol() == protocol::TCP && headers.payload(traced.frame()).is_empty() => {
                text.add(format_args!("no data"));
            }
            _ => explain_key((rules.direction, &flow), traced, text),
        }
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

/// Names the inputs of the key and of the key stream that a packet was converted with, never the key.
fn explain_key((direction, flow): (Direction, &FlowCipher), traced: &TracedPacket<'_>, text: &mut Explanation) {
    let done = match direction {
        Direction::Encrypt => "encrypted",
        Direction::Decrypt => "decrypted",
    };
    if traced.key.protocol() == protocol::TCP {
        text.add(format_args!("{done} with the connection's key"));
        match flow.initial {
            MIDSTREAM => text.add_part(format_args!("its SYN was not seen")),
            initial => text.add_part(format_args!("initial sequence number {initial}")),
        }
        return;
    }
    text.add(format_args!("{done} with the flow's key"));
    let trailer = traced.packet().headers.payload(traced.frame()).last_chunk::<TRAILER>();
    // Decryption has removed the number.
    if let (Direction::Encrypt, Some(number)) = (direction, trailer) {
        text.add_part(format_args!("packet number {}", u64::from_be_bytes(*number)));
    }
}

/// Derives the key of a flow. For a TCP connection the initial sequence number is included if known. Three applications
/// of HChaCha20, each keyed by the previous result, form a pseudorandom function of the 48 input bytes.
fn flow_key(secret: &Key, key: &FlowKey, initial: Option<u32>) -> Key {
    let mut tuple = [0; 16];
    tuple[0] = key.version();
    tuple[1] = key.protocol();
    tuple[2..4].copy_from_slice(&key.source_port().to_be_bytes());
    tuple[4..6].copy_from_slice(&key.destination_port().to_be_bytes());
    if let Some(initial) = initial {
        tuple[6] = 1;
        tuple[8..12].copy_from_slice(&initial.to_be_bytes());
    }
    let [source, destination] = [key.source(), key.destination()].map(|address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    });
    [tuple, source, destination]
        .into_iter()
        .fold(*secret, |key, input| derive(&key, input))
}

/// Returns a packet number as the last words of the cipher's state.
fn nonce(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// Returns the stream position nearest to `near` with the lower 32 bits `low`.
fn extend(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(ahead.into())
}

/// Returns the transport header and the payload.
#[inline]
fn parts(frame: &mut [u8], transport: usize, start: usize, end: usize) -> Option<(&mut [u8], &mut [u8])> {
    let (head, payload) = frame.get_mut(transport..end)?.split_at_mut_checked(start - transport)?;
    Some((head, payload))
}

/// Returns `true` if a UDP datagram fills its IP packet. The checksum of a shorter one would not cover the bytes after
/// it.
#[inline]
fn fills_its_datagram(headers: &Headers, frame: &[u8]) -> bool {
    let transport = headers.transport(frame);
    transport
        .first_chunk::<8>()
        .is_some_and(|udp| usize::from(u16::from_be_bytes([udp[4], udp[5]])) == transport.len())
}

/// Updates a UDP header: adds `more` to the length, and adjusts the checksum for the length (which is also in the
/// pseudo header) and for the payload.
#[inline]
fn finish_udp(header: &mut [u8], payload: ChecksumDelta, more: u16) -> Option<()> {
    let header = header.first_chunk_mut::<8>()?;
    let length = u16::from_be_bytes([header[4], header[5]]);
    let longer = length.wrapping_add(more);
    let delta = ChecksumDelta::u16(length, longer);
    [header[4], header[5]] = longer.to_be_bytes();
    let checksum = u16::from_be_bytes([header[6], header[7]]);
    let checksum = payload.and(delta).and(delta).apply_udp(checksum);
    [header[6], header[7]] = checksum.to_be_bytes();
    Some(())
}

/// Adds `more` to an IP header's length and adjusts its checksum.
#[inline]
fn set_ip_length(network: Option<&mut [u8]>, key: &FlowKey, more: u16) -> Option<()> {
    let ip = network?.first_chunk_mut::<20>()?;
    let at = if key.is_v4() { 2 } else { 4 };
    let length = u16::from_be_bytes([ip[at], ip[at + 1]]);
    let longer = length.wrapping_add(more);
    [ip[at], ip[at + 1]] = longer.to_be_bytes();
    if key.is_v4() {
        let checksum = u16::from_be_bytes([ip[10], ip[11]]);
        let checksum = ChecksumDelta::u16(length, longer).apply(checksum);
        [ip[10], ip[11]] = checksum.to_be_bytes();
    }
    Some(())
}
