//! Frames for conformance checks: ordinary ones, and ones that no ordinary sender makes.

use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Deterministic pseudo-random numbers (xorshift64*), the same on every machine.
pub struct Random(u64);

impl Random {
    /// Starts a sequence. The seed is not 0.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Key of a flow: TCP and UDP, every fourth over IPv6.
fn key(flow: usize) -> FlowKey {
    let port = 1024 + (flow % 50_000) as u16;
    match flow % 2 {
        0 => with_ports(flow, protocol::TCP, [port, 443]),
        _ => with_ports(flow, protocol::UDP, [port, 53]),
    }
}

/// Key with a flow's addresses.
fn with_ports(flow: usize, protocol: u8, [from, to]: [u16; 2]) -> FlowKey {
    let client = flow as u32 + 1;
    match flow % 4 {
        3 => {
            let source = Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(client));
            let server = Ipv6Addr::from((0x2001_0db8_ffff_u128 << 80) + 7);
            FlowKey::v6(source, server, protocol, from, to)
        }
        _ => {
            let source = Ipv4Addr::from(0x0a00_0000 + client);
            FlowKey::v4(source, Ipv4Addr::new(198, 18, 0, 7), protocol, from, to)
        }
    }
}

/// A packet of a flow. `number` is its number within the flow.
pub fn packet(flow: usize, number: usize) -> Vec<u8> {
    let key = key(flow);
    let payload = format!(
        "packet {number} of flow {flow} {}",
        "x".repeat((flow * 7 + number * 13) % 900)
    );
    let mut builder = FrameBuilder::new(&key).payload(payload.as_bytes());
    if flow.is_multiple_of(2) {
        let flags = if number == 0 { 0x02 } else { 0x10 };
        builder = builder.tcp(TcpFields {
            flags: TcpFlags(flags),
            ..TcpFields::default()
        });
    }
    // The longest payload is below 1,000 bytes.
    builder.to_vec().unwrap_or_default()
}

/// Packets of some flows in a random order, and their flows. Packets of a flow are in order.
pub fn ordinary(packets: usize, flows: usize) -> Vec<(usize, Vec<u8>)> {
    let mut random = Random::new(7);
    let mut numbers = vec![0; flows];
    let packets = (0..packets).map(|_| {
        let flow = random.below(flows);
        numbers[flow] += 1;
        (flow, packet(flow, numbers[flow] - 1))
    });
    packets.collect()
}

/// Frames that are wrong, or right in ways that are easily forgotten.
pub fn hostile(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(11);
    (0..count).map(|number| hostile_frame(number, &mut random)).collect()
}

fn hostile_frame(number: usize, random: &mut Random) -> Vec<u8> {
    let mut frame = packet(random.below(512), number % 5);
    match number % 8 {
        // Bits that have changed on the way.
        0 | 1 => {
            for _ in 0..=random.below(4) {
                let at = random.below(frame.len());
                frame[at] ^= 1 << random.below(8);
            }
        }
        // Headers that lie.
        2 | 3 => {
            let at = 12 + random.below(54);
            if let Some(byte) = frame.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
        }
        // Cut at any length.
        4 => frame.truncate(1 + random.below(frame.len())),
        // Random bytes behind an EtherType of IP.
        5 => {
            let length = 14 + random.below(200);
            frame = random.bytes(length);
            frame[12..14].copy_from_slice(&[[0x08, 0x00], [0x86, 0xdd]][random.below(2)]);
        }
        // Well-formed: any protocol, without a payload, or with random bytes as long as a frame may be.
        6 => frame = strange(random),
        // Well-formed, with random bytes where the payload was.
        _ => {
            let start = frame.len() - frame.len().min(40);
            let bytes = random.bytes(frame.len() - start);
            frame[start..].copy_from_slice(&bytes);
        }
    }
    frame
}

/// A well-formed frame with a rare protocol, options, or payload.
fn strange(random: &mut Random) -> Vec<u8> {
    let protocol = match random.below(3) {
        0 => [protocol::TCP, protocol::UDP][random.below(2)],
        _ => random.below(256) as u8,
    };
    let ports = [random.below(65_536) as u16, random.below(65_536) as u16];
    let key = with_ports(random.below(512), protocol, ports);
    let length = [0, 1, 7, 8, 1400][random.below(5)];
    let payload = random.bytes(length);
    let options = vec![1; 4 * random.below(11)];
    let mut builder = FrameBuilder::new(&key).payload(&payload);
    if key.source().is_ipv4() {
        builder = builder.ip_options(&options);
    }
    // Not every protocol number can be built: those that need another header.
    builder.to_vec().unwrap_or_else(|_| packet(0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::parse::parse;

    #[test]
    fn ordinary_packets_are_well_formed_and_a_part_of_the_hostile_ones_is() {
        assert!(ordinary(500, 64).iter().all(|(_, frame)| parse(frame).is_ok()));
        let frames = hostile(2_000);
        let right = frames.iter().filter(|frame| parse(frame).is_ok()).count();
        assert!((400..1_800).contains(&right), "{right} of {}", frames.len());
        assert_eq!(frames, hostile(2_000));
    }
}
