//! Routing table for the chains that route, and traffic to destinations in it.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tailwater_net::FlowKey;
use tailwater_net::parse::parse;
use tailwater_traffic::renumber::Renumbering;
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Name of the generated table.
pub const GENERATED: &str = "generated-100k";

/// Table in a file.
pub struct Table {
    /// File with one prefix per line.
    pub file: PathBuf,
    /// Name of the table.
    pub name: &'static str,
    /// Networks and lengths of the IPv4 prefixes.
    v4: Vec<(u32, u8)>,
    /// Networks and lengths of the IPv6 prefixes.
    v6: Vec<(u128, u8)>,
}

/// Full BGP table of the test data or, without it, a generated one of 100,000 IPv4 and 20,000 IPv6 prefixes.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let (text, name) = match full_table() {
            Some(text) => (text, "bgp-full"),
            None => (generated(100_000) + &generated_v6(20_000), GENERATED),
        };
        // Written atomically: another process may be reading it.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("{name}.routes"));
        let part = folder.join(format!("{name}-{}.part", std::process::id()));
        std::fs::write(&part, &text)
            .and_then(|()| std::fs::rename(&part, &file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let Some((address, length)) = line.split_once('/') else {
                continue;
            };
            match (address.parse(), length.parse()) {
                (Ok(IpAddr::V4(address)), Ok(length)) => v4.push((address.to_bits(), length)),
                (Ok(IpAddr::V6(address)), Ok(length)) => v6.push((address.to_bits(), length)),
                _ => {}
            }
        }
        Table { v4, v6, file, name }
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

/// Unique IPv6 prefixes of 48 bits in 2000::/16.
fn generated_v6(count: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        // Multiplication by an odd number is a permutation.
        let network = 0x2000_u128 << 112 | u128::from(number.wrapping_mul(0x9e37_79b1)) << 80;
        let _ = writeln!(text, "{}/48", Ipv6Addr::from_bits(network));
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
    /// Random address of a random prefix of the flow's IP version, always the same for a flow.
    pub fn destination(&self, key: &FlowKey) -> IpAddr {
        let bits = key.hash(1);
        let (random, host) = ((bits >> 32) as usize, mixed(bits));
        if key.is_v4() {
            let (network, length) = self.v4[random % self.v4.len()];
            let host = (host as u32).checked_shr(u32::from(length));
            return Ipv4Addr::from_bits(network | host.unwrap_or(0)).into();
        }
        let (network, length) = self.v6[random % self.v6.len()];
        let host = (u128::from(host) << 64 | u128::from(bits)).checked_shr(u32::from(length));
        Ipv6Addr::from_bits(network | host.unwrap_or(0)).into()
    }
}

/// Packets with each flow's own destination. It must be of the flow's IP version.
pub struct Redirected<S, D> {
    pub source: S,
    pub destination: D,
    pub frame: Vec<u8>,
}

impl<S: PacketSource, D: Fn(&FlowKey) -> IpAddr> PacketSource for Redirected<S, D> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(None);
        };
        self.frame.clear();
        self.frame.extend_from_slice(packet.data);
        let headers = parse(&self.frame).unwrap_or_else(|reason| panic!("{reason:?}"));
        let new = (self.destination)(&headers.key);
        Renumbering::of(&headers).redirect(&mut self.frame, new);
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
