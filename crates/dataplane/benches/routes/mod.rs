//! Routing table for the chains that route, and traffic to destinations in it.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tailwater_net::FlowKey;
use tailwater_net::checksum::ChecksumDelta;
use tailwater_net::ipv4::Ipv4View;
use tailwater_net::parse::parse;
use tailwater_net::udp::UdpView;
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Table in a file.
pub struct Table {
    /// File with one prefix per line.
    pub file: PathBuf,
    /// Name of the table.
    pub name: &'static str,
    /// IPv4 prefixes: network and length.
    prefixes: Vec<(u32, u8)>,
}

/// Full BGP table of the test data or, without it, a generated one of 100,000 prefixes.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let (text, name) = match full_table() {
            Some(text) => (text, "bgp-full"),
            None => (generated(100_000), "generated-100k"),
        };
        // Written atomically: another process may be reading it.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("{name}.routes"));
        let part = folder.join(format!("{name}-{}.part", std::process::id()));
        std::fs::write(&part, &text)
            .and_then(|()| std::fs::rename(&part, &file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let prefix = |line: &str| {
            let (address, length) = line.split_once('/')?;
            let address: Ipv4Addr = address.parse().ok()?;
            Some((address.to_bits(), length.parse().ok()?))
        };
        Table {
            prefixes: text.lines().filter_map(prefix).collect(),
            file,
            name,
        }
    })
}

fn full_table() -> Option<String> {
    let data = std::env::var_os("TAILWATER_TEST_DATA")?;
    let path = Path::new(&data).join("prefixes/bgp_fulltable_2023-12_iprbench.txt.xz");
    let output = Command::new("xz").arg("-dc").arg(path).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    String::from_utf8(text).ok()
}

/// Unique prefixes, of the lengths most frequent in BGP tables.
fn generated(count: u32) -> String {
    const LENGTHS: [u32; 16] = [24, 24, 24, 24, 24, 24, 24, 24, 24, 23, 23, 22, 22, 21, 20, 16];
    let mut text = String::new();
    let mut seen = std::collections::HashSet::new();
    for number in 0.. {
        if seen.len() == count as usize {
            break;
        }
        let bits = mixed(number);
        let length = LENGTHS[(bits >> 60) as usize];
        // Unicast space, 1.0.0.0 to 223.255.255.255.
        let first = 1 + (bits >> 40) as u32 % 223;
        let network = (first << 24 | bits as u32 & 0x00ff_ffff) >> (32 - length) << (32 - length);
        if seen.insert((network, length)) {
            let _ = writeln!(text, "{}/{length}", Ipv4Addr::from_bits(network));
        }
    }
    text
}

/// Pseudo-random bits (the finaliser of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Table {
    /// Random address of a random prefix, always the same for a flow.
    pub fn destination(&self, key: &FlowKey) -> Ipv4Addr {
        let bits = key.hash(1);
        let (network, length) = self.prefixes[(bits >> 32) as usize % self.prefixes.len()];
        let host = (mixed(bits) as u32).checked_shr(u32::from(length));
        Ipv4Addr::from_bits(network | host.unwrap_or(0))
    }
}

/// UDP packets over IPv4, each flow to its own destination.
pub struct Redirected<S, D> {
    pub source: S,
    pub destination: D,
    pub frame: Vec<u8>,
}

impl<S: PacketSource, D: Fn(&FlowKey) -> Ipv4Addr> PacketSource for Redirected<S, D> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(None);
        };
        self.frame.clear();
        self.frame.extend_from_slice(packet.data);
        let headers = parse(&self.frame).unwrap_or_else(|reason| panic!("{reason:?}"));
        let new = (self.destination)(&headers.key);
        let start = usize::from(headers.network_offset);
        let mut ip = Ipv4View::new(&mut self.frame[start..]).unwrap_or_else(|reason| panic!("{reason:?}"));
        let old = ip.destination();
        ip.set_destination(new);
        ip.fill_checksum();
        let mut udp = UdpView::new(&mut self.frame[usize::from(headers.transport_offset)..])
            .unwrap_or_else(|reason| panic!("{reason:?}"));
        udp.set_checksum(ChecksumDelta::ipv4(old, new).apply_udp(udp.checksum()));
        Ok(Some(Packet {
            data: &self.frame,
            ..packet
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}
