//! The `Encrypt` network function.

use super::chacha::{ChaCha20, Key, derive, key_of};
use bytemuck::{Pod, Zeroable};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction, NewFlow};
use tailwater_chain::live::{Live, Version};
use tailwater_net::checksum::{ChecksumDelta, sum};
use tailwater_net::parse::Headers;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Bytes behind each UDP payload: the packet's number, big-endian.
const TRAILER: usize = 8;

/// Whether payloads become ciphertext or plaintext.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext in, ciphertext out.
    #[default]
    Encrypt,
    /// Ciphertext in, plaintext out.
    Decrypt,
}

/// What is encrypted, and how.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptRules {
    /// The secret that both ends share.
    pub key: [u8; 32],
    /// Encrypt or decrypt.
    pub direction: Direction,
    /// The longest IP datagram that may leave, in bytes.
    pub mtu: u16,
    /// Whether data of TCP connections whose SYN was not seen is encrypted, with a key of the 5-tuple
    /// alone, rather than dropped.
    pub midstream: bool,
    /// Whether packets that cannot be encrypted (neither TCP nor UDP, or fragments) are dropped rather
    /// than passed unchanged.
    pub drop_others: bool,
}

/// Without the key.
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

/// The numbers of UDP packets: each is given once, whatever the flow and the worker.
///
/// Two flows can have one key, since keys are of the 5-tuple as it leaves and a function in front may
/// have given two flows the same. So numbers are not counted per flow. They start with the time, in
/// nanoseconds since 1970, and packets take far longer than a nanosecond each: after a restart the
/// numbers are above all that were given before.
#[derive(Debug)]
pub struct PacketNumbers {
    /// The next block's first; 0 before the first is taken.
    next: AtomicU64,
    /// Of so many processes with numbers of their own, which share nothing, this one is `part`.
    part: u64,
    of: u64,
}

/// Numbers that a worker takes at a time, so that workers seldom meet.
const BLOCK: u64 = 1024;

impl PacketNumbers {
    /// Numbers from now on.
    pub fn starting_now() -> PacketNumbers {
        let numbers = PacketNumbers::among(0, 1);
        numbers.next.store(numbers.now(), Ordering::Relaxed);
        numbers
    }

    /// Numbers from the time on at which the first is taken: a process may wait for long until it follows
    /// another one. It gives every `of`th block, so that as many processes that share nothing never give the same.
    /// A packet must then take so many nanoseconds at least.
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

    /// The first block of this part from now on.
    fn now(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_epoch.map_or(0, |time| time.as_nanos() as u64);
        now.next_multiple_of(BLOCK * self.of) + BLOCK * self.part
    }

    fn block(&self) -> Range<u64> {
        let step = BLOCK * self.of;
        if self.next.load(Ordering::Relaxed) == 0 {
            let (unset, relaxed) = (0, Ordering::Relaxed);
            // Who comes second goes on from where the first began.
            let _ = self.next.compare_exchange(unset, self.now(), relaxed, relaxed);
        }
        let start = self.next.fetch_add(step, Ordering::Relaxed);
        start..start + BLOCK
    }
}

/// A flow's part in encryption. Without `Debug`: it holds a key.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct FlowCipher {
    /// The flow's own key: for TCP the connection's.
    key: Key,
    /// TCP: the furthest place in the stream so far.
    next: u64,
    /// TCP: the initial sequence number.
    initial: u32,
    /// [`KEYED`], [`PASS`], or 0 for a TCP flow whose SYN has not been seen and one that cannot be
    /// encrypted.
    phase: u32,
}

/// The key is there.
const KEYED: u32 = 1;
/// The flow passes unchanged.
const PASS: u32 = 2;

/// A packet that cannot be encrypted: neither TCP nor UDP, or a fragment.
const NOT_ENCRYPTABLE: u8 = 0;
/// Data of a TCP connection whose start was not seen.
const NO_SYN: u8 = 1;
/// The packet would be longer than the MTU.
const OVERSIZE: u8 = 2;
/// A UDP packet to decrypt that has no trailer.
const NO_TRAILER: u8 = 3;
/// The packet's buffer has no room for the trailer.
const NO_ROOM: u8 = 4;

/// Encrypts or decrypts payloads.
pub struct Encrypt {
    rules: Arc<Live<EncryptRules>>,
    held: Arc<Version<EncryptRules>>,
    secret: Key,
    cipher: ChaCha20,
    numbers: Arc<PacketNumbers>,
    /// Those of the numbers that this worker may give.
    own: Range<u64>,
}

impl Encrypt {
    /// An instance that shares its numbers with the other workers'.
    pub fn new(rules: Arc<Live<EncryptRules>>, numbers: Arc<PacketNumbers>) -> Encrypt {
        let held = rules.current();
        Encrypt {
            secret: key_of(&held.value.key),
            held,
            rules,
            cipher: ChaCha20::detect(),
            numbers,
            own: 0..0,
        }
    }

    /// Has the worker use the present rules.
    #[inline]
    fn refresh(&mut self) {
        if self.rules.number() != self.held.number {
            self.held = self.rules.current();
            self.secret = key_of(&self.held.value.key);
        }
    }

    /// A number that no packet has had.
    #[inline]
    fn number(&mut self) -> u64 {
        if self.own.is_empty() {
            self.own = self.numbers.block();
        }
        let number = self.own.start;
        self.own.start += 1;
        number
    }

    /// Processes a TCP segment, or says why not.
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
        // The first byte of data, counted from the connection's first.
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
            if !self.held.value.midstream {
                return Err(NO_SYN);
            }
            // The stream's places are the sequence numbers themselves.
            *flow = FlowCipher {
                key: flow_key(&self.secret, &headers.key, None),
                next: sequence.into(),
                initial: u32::MAX,
                phase: KEYED,
            };
            offset = sequence;
        }
        let position = extend(flow.next, offset);
        let after = position.wrapping_add(payload.len() as u64);
        // What comes before the stream (a keep-alive's byte) is far ahead, taken as a number.
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

    /// Encrypts packet `i`, a UDP datagram, or says why not.
    fn encrypt_udp(&mut self, batch: &mut Batch, i: usize, flow: FlowCipher) -> Result<(), u8> {
        let (packet, frame) = batch.packet_mut(i);
        let headers = packet.headers;
        if !fills_its_datagram(&headers, frame) {
            return Err(NOT_ENCRYPTABLE);
        }
        let datagram = usize::from(headers.end - headers.network_offset) + TRAILER;
        if datagram > self.held.value.mtu.into() {
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

    /// Decrypts packet `i`, a UDP datagram, or says why not.
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

    fn loses(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn state_bytes(&self) -> usize {
        size_of::<FlowCipher>()
    }

    fn version(&self) -> u32 {
        self.rules.number()
    }

    /// With a new key, a TCP connection stays with that under which it was opened, and a UDP flow goes on under the new
    /// one: where it began, the number in each packet says.
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
        state.phase = match self.held.value.drop_others {
            true => 0,
            false => PASS,
        };
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.refresh();
        let direction = self.held.value.direction;
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
}

/// The key of a flow: of a TCP connection with its initial sequence number, if that is known.
/// HChaCha20 thrice, each time under the key before, is a pseudorandom function of its 48 bytes.
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

/// A packet's number as the last words of the cipher's state.
fn nonce(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// The place in a stream that is nearest to `near` of those with these low 32 bits.
fn extend(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(ahead.into())
}

/// Transport header and payload.
#[inline]
fn parts(frame: &mut [u8], transport: usize, start: usize, end: usize) -> Option<(&mut [u8], &mut [u8])> {
    let (head, payload) = frame.get_mut(transport..end)?.split_at_mut_checked(start - transport)?;
    Some((head, payload))
}

/// Whether a UDP datagram is as long as the IP packet it is in: what comes behind a shorter one is not
/// in its checksum.
#[inline]
fn fills_its_datagram(headers: &Headers, frame: &[u8]) -> bool {
    let transport = headers.transport(frame);
    transport
        .first_chunk::<8>()
        .is_some_and(|udp| usize::from(u16::from_be_bytes([udp[4], udp[5]])) == transport.len())
}

/// Updates a UDP header: its length by `more`, and the checksum by that (it is in the pseudo header,
/// too) and what the payload did.
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

/// Makes an IP header's length `more`.
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
