mod evasions;
mod oracle;
mod stream_pool;
mod streams;
mod strict;

use super::*;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

const PATTERNS: [&str; 6] = [
    "bad.example",
    "=exact.example",
    "ok.example/secret",
    "/evil",
    "*needle*",
    "port.example:8080",
];

fn config() -> FilterConfig {
    FilterConfig {
        action: Action::Drop,
        rest: Rest::Drop,
        http_ports: Ports::any(),
        tls_ports: Ports::any(),
        streams: 8,
        buffer_bytes: 4096,
        on_overflow: PacketAction::Pass,
        fragments: PacketAction::Pass,
    }
}

fn filter(config: FilterConfig) -> Box<UrlFilter> {
    let patterns: Vec<_> = PATTERNS.iter().map(|text| Pattern::parse(text).unwrap()).collect();
    let table = FilterTable::new(&patterns, config).unwrap();
    Box::new(UrlFilter::new(Arc::new(table)))
}

/// Connection through a chain with only the filter.
struct Rig {
    rig: ChainRig,
    key: FlowKey,
    first: u32,
    now: Nanos,
}

impl Rig {
    fn new(config: FilterConfig) -> Rig {
        Rig {
            rig: ChainRig::new(vec![filter(config)], INPUT),
            key: key(40_000, 80),
            // The first request wraps around the sequence space.
            first: u32::MAX - 20,
            now: Nanos::from_secs(1),
        }
    }

    fn segment(&self, offset: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let fields = TcpFields {
            sequence: self.first.wrapping_add(offset),
            flags,
            ..TcpFields::default()
        };
        FrameBuilder::new(&self.key)
            .tcp(fields)
            .payload(payload)
            .to_vec()
            .unwrap()
    }

    /// Sends a segment; returns `true` if it passes unchanged.
    fn send_flags(&mut self, offset: u32, flags: TcpFlags, payload: &[u8]) -> bool {
        let frame = self.segment(offset, flags, payload);
        let sent = self.rig.run(std::slice::from_ref(&frame), self.now);
        assert!(sent.is_empty() || sent == [frame]);
        !sent.is_empty()
    }

    /// Opens the connection; data starts at offset 1.
    fn syn(&mut self) -> bool {
        self.send_flags(0, TcpFlags::SYN, b"")
    }

    /// Sends data at a stream offset, from 0.
    fn data(&mut self, offset: usize, payload: &[u8]) -> bool {
        self.send_flags(1 + offset as u32, TcpFlags::ACK, payload)
    }

    /// Sends a stream in pieces of `size` bytes; returns `true` if all pass.
    fn stream(&mut self, bytes: &[u8], size: usize) -> bool {
        let mut pass = true;
        for (i, piece) in bytes.chunks(size).enumerate() {
            pass &= self.data(i * size, piece);
        }
        pass
    }

    fn count(&self, reason: &str) -> u64 {
        self.rig.count(&format!("urlfilter/{reason}"))
    }
}

fn key(source_port: u16, port: u16) -> FlowKey {
    let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    FlowKey::v4(ends.0, ends.1, protocol::TCP, source_port, port)
}

/// Sends a whole stream on a connection of its own, in pieces of several sizes; returns `true` if all of it passes. The
/// verdict must not depend on the size.
fn passes(bytes: &[u8]) -> bool {
    let verdicts = [1, 2, 3, 7, 40, 1400].map(|size| {
        let mut rig = Rig::new(config());
        rig.syn();
        rig.stream(bytes, size)
    });
    assert!(
        verdicts.iter().all(|verdict| *verdict == verdicts[0]),
        "depends on the segments: {verdicts:?} for {}",
        String::from_utf8_lossy(bytes)
    );
    verdicts[0]
}

/// Returns the handshake message of a ClientHello.
fn client_hello(name: &str) -> Vec<u8> {
    let list = [&[0][..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat();
    let extension =
        |kind: u16, data: &[u8]| [&kind.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat();
    let names = [&(list.len() as u16).to_be_bytes()[..], &list].concat();
    let extensions = [
        extension(0xff01, &[0]),
        extension(51, &[7; 600]),
        extension(0, &names),
        extension(21, &[0; 40]),
    ]
    .concat();
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[32],
        &[1; 32],
        &[0, 4, 0x13, 1, 0x13, 2],
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        &extensions,
    ]
    .concat();
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
}

/// Splits a handshake message into records of `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message
        .chunks(size)
        .flat_map(|piece| [&[22, 3, 1][..], &(piece.len() as u16).to_be_bytes(), piece].concat())
        .collect()
}
