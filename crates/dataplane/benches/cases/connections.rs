//! Realistic TCP connections: both ends send, sequence numbers advance, and connections end.

use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Bytes of a frame apart from the segment's payload: headers, and the frame check sequence, which frames in memory
/// lack.
const OVERHEAD: usize = 14 + 20 + 20 + 4;
/// Frames of [`FrameSize::Imix`], in an order without long runs of one size.
const IMIX: [usize; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 64, 594];
/// Time between packets.
const GAP: Nanos = Nanos(1_000);

/// Primes: a connection's turn in a round is its index times one of these, so consecutive rounds have different orders.
const STRIDES: [usize; 4] = [7_919, 104_729, 611_953, 15_485_863];

/// Sender of a segment.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// One segment of each connection with a script.
struct Step {
    from: usize,
    flags: TcpFlags,
    numbers: [u32; 2],
    payload: Vec<u8>,
}

/// Segments that a connection's two ends send, in turn.
#[derive(Default)]
struct Script {
    steps: Vec<Step>,
    /// Next sequence number of each end.
    next: [u32; 2],
}

impl Script {
    fn say(&mut self, from: usize, flags: TcpFlags, payload: &[u8]) {
        let numbers = [self.next[from], self.next[1 - from]];
        let control = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::FIN);
        self.next[from] += payload.len() as u32 + u32::from(control);
        self.steps.push(Step {
            from,
            flags,
            numbers,
            payload: payload.to_vec(),
        });
    }

    fn open(&mut self) {
        self.say(CLIENT, TcpFlags::SYN, b"");
        self.say(SERVER, TcpFlags::SYN | TcpFlags::ACK, b"");
        self.say(CLIENT, TcpFlags::ACK, b"");
    }

    /// Sends bytes in segments of these lengths.
    fn send(&mut self, from: usize, mut bytes: &[u8], lengths: &mut impl Iterator<Item = usize>) {
        while !bytes.is_empty() {
            let length = lengths.next().unwrap_or(1).min(bytes.len());
            let (segment, rest) = bytes.split_at(length);
            self.say(from, TcpFlags::ACK, segment);
            bytes = rest;
        }
    }

    fn close(&mut self) {
        for from in [CLIENT, SERVER] {
            self.say(from, TcpFlags::FIN | TcpFlags::ACK, b"");
        }
        self.say(CLIENT, TcpFlags::ACK, b"");
    }
}

/// Payload lengths of frames of a size, repeated without end, starting with the given one.
fn payloads(size: FrameSize, first: usize) -> impl Iterator<Item = usize> {
    let frames = match size {
        FrameSize::Fixed(size) => vec![usize::from(size)],
        FrameSize::Imix => IMIX.to_vec(),
    };
    let all = frames.into_iter().cycle().skip(first);
    all.map(|frame| frame - OVERHEAD)
}

/// Connections that follow scripts, a block at a time.
pub struct Connections {
    keys: Vec<FlowKey>,
    /// Scripts, assigned to the connections in turn.
    scripts: Vec<Script>,
    /// Connections open at a time.
    block: usize,
    /// Number of times each connection is opened, with other sequence numbers each time.
    generations: u32,
    generation: u32,
    /// First connection of the current block.
    begin: usize,
    step: usize,
    at: usize,
    frame: Vec<u8>,
    sent: u64,
}

/// Connections of [`Connections::opening`] and [`Connections::http`] that are open at a time.
const BLOCK: usize = 2048;
/// Maximum number of connections of [`Connections::http`].
const SPEAKING: usize = 65_536;

impl Connections {
    fn new(flows: u32, scripts: Vec<Script>, block: usize) -> Connections {
        Connections {
            keys: keys(flows),
            scripts,
            block,
            generations: 1,
            generation: 0,
            begin: 0,
            step: 0,
            at: 0,
            frame: vec![0; 2048],
            sent: 0,
        }
    }

    /// Handshakes only.
    pub fn opening(flows: u32) -> Connections {
        let mut script = Script::default();
        script.open();
        Connections::new(flows, vec![script], (flows as usize / 4).min(BLOCK))
    }

    /// Rounds of data in connections that were opened, both ends in turn. Half of the connections begin with either
    /// end. When the trace is repeated, its segments are retransmissions within the window.
    pub fn data(flows: u32, size: FrameSize, rounds: u64) -> Connections {
        let variants = 0..IMIX.len();
        let scripts = variants.map(|variant| {
            let mut script = Script {
                steps: Vec::new(),
                next: [1; 2],
            };
            let lengths = payloads(size, variant).zip(0..rounds);
            for (length, round) in lengths {
                let from = (round as usize + variant) % 2;
                script.say(from, TcpFlags::ACK, &vec![b'x'; length]);
            }
            assert!(script.next.iter().all(|next| *next < 65_535), "beyond the window");
            script
        });
        Connections::new(flows, scripts.collect(), flows as usize)
    }

    /// A request and its answer, from handshake to end, a block of connections at a time. All follow once more with
    /// other sequence numbers, so a repetition of the trace contains no recent segment. Of many flows, only the first
    /// are used.
    pub fn http(flows: u32, size: FrameSize) -> Connections {
        let variants = match size {
            FrameSize::Fixed(_) => 1,
            FrameSize::Imix => IMIX.len(),
        };
        let scripts = (0..variants).map(|variant| {
            let mut lengths = payloads(size, variant);
            let mean = payloads(size, 0).take(IMIX.len()).sum::<usize>() / IMIX.len();
            let mut request = b"GET / HTTP/1.1\r\nHost: a.org\r\n".to_vec();
            filled(&mut request, b"Cookie: ", mean);
            let text = text(2 * mean);
            let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            answer.push_str(&text);
            let mut script = Script::default();
            script.open();
            script.send(CLIENT, &request, &mut lengths);
            script.send(SERVER, answer.as_bytes(), &mut lengths);
            script.close();
            script
        });
        let mut connections = Connections::new(flows, scripts.collect(), BLOCK);
        connections.keys.truncate(SPEAKING);
        connections.generations = 2;
        connections
    }

    /// Advances to the next segment. Returns its connection, and the offset of its sequence numbers from the step's.
    fn advance(&mut self) -> Option<(FlowKey, u32, &Step)> {
        loop {
            if self.begin == self.keys.len() {
                (self.begin, self.at, self.generation) = (0, 0, self.generation + 1);
            }
            if self.generation == self.generations {
                return None;
            }
            let end = (self.begin + self.block).min(self.keys.len());
            let longest = self.scripts.iter().map(|script| script.steps.len()).max();
            if self.at == end {
                (self.at, self.step) = (self.begin, self.step + 1);
            }
            if self.step == longest.unwrap_or(0) {
                (self.begin, self.at, self.step) = (end, end, 0);
                continue;
            }
            let length = end - self.begin;
            let place = (self.at - self.begin) * STRIDES[self.step % STRIDES.len()] % length;
            let connection = self.begin + place;
            self.at += 1;
            let of = connection % self.scripts.len();
            if self.step < self.scripts[of].steps.len() {
                let step = &self.scripts[of].steps[self.step];
                return Some((self.keys[connection], self.generation << 30, step));
            }
        }
    }
}

/// Ends a header, after a field that pads it to this length, if it is shorter.
fn filled(head: &mut Vec<u8>, field: &[u8], length: usize) {
    let room = length.saturating_sub(head.len() + field.len() + 4);
    if room > 0 {
        head.extend_from_slice(field);
        head.resize(head.len() + room, b'c');
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

/// Text similar to a page, the same each time.
fn text(length: usize) -> String {
    const WORDS: [&str; 9] = [
        "<div class=\"item\">",
        "the quick brown fox ",
        "</div>\n",
        "<a href=\"/news/2024\">report</a> ",
        "of the day ",
        "<p>weather: 17 degrees, ",
        "function(x) { return x; }",
        "</p>\n",
        "information ",
    ];
    let mut state = 1u32;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        WORDS[(state >> 16) as usize % WORDS.len()].chars()
    });
    words.flatten().take(length).collect()
}

/// Connections of uniform traffic, in the order of its first round.
fn keys(flows: u32) -> Vec<FlowKey> {
    let config = UniformConfig {
        seed: 1,
        flows,
        size: FrameSize::Fixed(64),
        transport: Transport::Tcp,
        rate_pps: 1_000_000,
        packets: flows.into(),
    };
    let mut source = Uniform::new(config).unwrap_or_else(|error| panic!("{error}"));
    let mut keys = Vec::with_capacity(flows as usize);
    while let Ok(Some(packet)) = source.next_packet() {
        let headers = parse(packet.data).unwrap_or_else(|reason| panic!("{reason:?}"));
        keys.push(headers.key);
    }
    keys
}

impl PacketSource for Connections {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let mut frame = std::mem::take(&mut self.frame);
        let length = self.advance().map(|(key, more, step)| {
            let key = match step.from {
                CLIENT => key,
                _ => key.reversed(),
            };
            let fields = TcpFields {
                sequence: step.numbers[0] + more,
                // A first SYN acknowledges nothing.
                acknowledgment: match step.flags.contains(TcpFlags::ACK) {
                    true => step.numbers[1] + more,
                    false => 0,
                },
                flags: step.flags,
                ..TcpFields::default()
            };
            let builder = FrameBuilder::new(&key).tcp(fields).payload(&step.payload);
            let written = builder.pad_to_minimum().write(&mut frame);
            written.unwrap_or_else(|error| panic!("{error}"))
        });
        self.frame = frame;
        let Some(length) = length else {
            return Ok(None);
        };
        self.sent += 1;
        Ok(Some(Packet {
            timestamp: Nanos(self.sent * GAP.0),
            data: &self.frame[..length],
            wire_length: length as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "connections"
    }
}
