//! Captures and rules of the comparison: each capture gets a span of time of its own, in one file for both programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, pcap, protocol};
use tailwater_traffic::renumber::Renumbering;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// Time between the starts of two captures: longer than any time-out of a connection.
const SLOT: Nanos = Nanos::from_secs(20_000);
/// Longest capture; later packets move to its end.
const LONGEST: Nanos = Nanos::from_secs(9_000);
/// Time of the first packet.
const START: Nanos = Nanos::from_secs(1_600_000_000);
/// Packets read of a capture.
const MAX_PACKETS: usize = 20_000;

/// Capture in memory.
pub struct Capture {
    pub name: String,
    packets: Vec<(Nanos, Vec<u8>)>,
}

impl Capture {
    /// Returns `true` for captures not used in development: a third, by a hash of the name (FNV-1a).
    pub fn is_held_out(&self) -> bool {
        let hash = self.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash % 3 == 0
    }
}

/// Packet with its time and the number of its capture.
#[derive(Clone)]
pub struct Timed {
    pub capture: usize,
    pub time: Nanos,
    pub frame: Vec<u8>,
}

/// Unpacks the rules into one file.
pub fn rules(data: &Path, folder: &Path) -> Option<PathBuf> {
    let output = Command::new("tar")
        .arg("--zstd")
        .arg("-xOf")
        .arg(data.join("rules/et_open_2025.tar.zst"))
        .args(["--wildcards", "*.rules"])
        .output()
        .ok()?;
    let path = folder.join("all.rules");
    std::fs::write(&path, output.stdout).ok()?;
    Some(path)
}

/// Reads all captures that are Ethernet or can be presented as such.
pub fn all(data: &Path, folder: &Path) -> Vec<Capture> {
    let traces = data.join("traces");
    let unpacked = folder.join("captures");
    std::fs::create_dir_all(&unpacked).expect("a writable folder");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&traces).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.to_string_lossy().into_owned();
        if name.contains(".tar") {
            let status = Command::new("tar")
                .arg("--zstd")
                .arg("-xf")
                .arg(&path)
                .arg("-C")
                .arg(&unpacked)
                .status();
            assert!(status.is_ok_and(|status| status.success()), "{name} cannot be unpacked");
        } else if name.contains(".pcap") {
            files.push(path);
        }
    }
    let mut folders = vec![unpacked];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().contains("cap") {
                files.push(path);
            }
        }
    }
    let mut captures: Vec<Capture> = files.iter().filter_map(|path| read(path)).collect();
    captures.sort_by(|one, other| one.name.cmp(&other.name));
    captures
}

fn read(path: &Path) -> Option<Capture> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).ok()?;
    let mut packets = Vec::new();
    while let Ok(Some(packet)) = reader.next_packet() {
        packets.push((packet.timestamp, packet.data.to_vec()));
        if packets.len() == MAX_PACKETS {
            break;
        }
    }
    let name = path.file_name()?.to_string_lossy().into_owned();
    (!packets.is_empty()).then_some(Capture { name, packets })
}

/// Returns all packets, each capture in a span of time of its own.
pub fn in_slots(captures: &[&Capture]) -> Vec<Timed> {
    let slots = captures.iter().enumerate().flat_map(|(i, capture)| {
        let first = capture.packets.iter().map(|(time, _)| time.0).min().unwrap_or(0);
        let start = START.0 + SLOT.0 * i as u64;
        capture.packets.iter().map(move |(time, frame)| Timed {
            capture: i,
            time: Nanos(start + (time.0 - first).min(LONGEST.0)),
            frame: frame.clone(),
        })
    });
    slots.collect()
}

/// Returns the packets several times, with other addresses and times each time.
pub fn repeated(packets: &[Timed], passes: u16) -> Vec<Timed> {
    let span = packets.last().map_or(0, |last| last.time.0) + SLOT.0 - START.0;
    let all = (0..passes).flat_map(|pass| {
        packets.iter().map(move |packet| {
            let mut packet = packet.clone();
            packet.time.0 += span * u64::from(pass);
            if let Ok(headers) = parse(&packet.frame)
                && pass > 0
            {
                Renumbering::of(&headers).apply(&mut packet.frame, pass);
            }
            packet
        })
    });
    all.collect()
}

/// Returns a conversation per response: a request, the response, and the end of the connection.
pub fn conversations<'a>(responses: impl Iterator<Item = &'a [u8]>) -> Vec<Timed> {
    let mut packets = Vec::new();
    for (i, response) in responses.enumerate() {
        let key = FlowKey::v4(
            [10, 0, 0, 1].into(),
            [198, 51, 100, 1].into(),
            protocol::TCP,
            40_000,
            80,
        );
        let mut next = [1000u32, 5000];
        let mut time = START.0 + SLOT.0 * i as u64;
        let mut send = |side: usize, flags: u8, data: &[u8]| {
            let key = if side == 0 { key } else { key.reversed() };
            let fields = TcpFields {
                sequence: next[side],
                acknowledgment: next[1 - side],
                flags: TcpFlags(flags),
                ..TcpFields::default()
            };
            let frame = FrameBuilder::new(&key)
                .tcp(fields)
                .payload(data)
                .to_vec()
                .expect("a right frame");
            next[side] = next[side].wrapping_add(data.len() as u32 + u32::from(flags & 3 != 0));
            time += 1_000_000;
            packets.push(Timed {
                capture: i,
                time: Nanos(time),
                frame,
            });
        };
        send(0, 2, b"");
        send(1, 0x12, b"");
        send(0, 0x10, b"");
        send(0, 0x18, b"GET /x HTTP/1.1\r\nHost: www.example\r\n\r\n");
        send(1, 0x10, b"");
        for piece in response.chunks(1400) {
            send(1, 0x18, piece);
            send(0, 0x10, b"");
        }
        send(1, 0x11, b"");
        send(0, 0x11, b"");
        send(1, 0x10, b"");
    }
    packets
}

/// Writes packets to a capture file.
pub fn write(packets: &[Timed], path: &Path) {
    let mut bytes = pcap::file_header().to_vec();
    for packet in packets {
        let length = packet.frame.len() as u32;
        let Some(header) = pcap::record_header(packet.time, length, length) else {
            continue;
        };
        bytes.extend(header);
        bytes.extend(&packet.frame);
    }
    std::fs::write(path, bytes).expect("a writable folder");
}

/// Returns the number of the capture at a time.
pub fn capture_at(time: Nanos) -> usize {
    (time.0.saturating_sub(START.0) / SLOT.0) as usize
}
