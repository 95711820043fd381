//! Fingerprint of the parts of a packet that functions do not modify.
//!
//! Routers and translators change addresses, ports, ICMP identifiers, TTLs, service classes, checksums, TCP options and
//! Ethernet headers. The fingerprint excludes these. The rest distinguishes most packets: the IPv4 identification, TCP
//! sequence and acknowledgement numbers, lengths, and the payload's first and last bytes.

use tailwater_functions::external::Changes;
use tailwater_net::icmp::{IcmpView, v4, v6};
use tailwater_net::ipv4::Ipv4View;
use tailwater_net::parse::{Fragment, Headers, Network};
use tailwater_net::protocol;
use tailwater_net::tcp::{TcpFlags, TcpView};

/// Fingerprint of a packet. Different packets have the same one with a probability of 2⁻⁶⁴, unless they are equal in
/// all parts that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(super) u64);

/// Computes fingerprints of packets that go to one function and come back from it.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    seed: u64,
    changes: Changes,
}

/// Bytes at the payload's beginning and end that count.
const ENDS: [usize; 2] = [96, 32];

/// Bytes of a non-IP frame that count: the length of an ARP packet.
const NOT_IP: usize = 28;

/// TCP flags that count. The network may set the congestion marks.
const FLAGS: u8 = !(TcpFlags::ECE.0 | TcpFlags::CWR.0);

impl Fingerprints {
    /// For a function that additionally makes these changes. `seed` should be unpredictable.
    pub fn new(seed: u64, changes: Changes) -> Fingerprints {
        Fingerprints { seed, changes }
    }

    /// Fingerprint of a frame with the given headers. Without headers the frame is malformed, or not IP.
    #[inline]
    pub fn of(&self, frame: &[u8], headers: &Headers) -> Fingerprint {
        let mut hash = Hash(self.seed);
        if headers.network == Network::NotIp {
            let from = match headers.network_offset {
                // After both MAC addresses.
                0 => 12,
                offset => usize::from(offset),
            };
            let rest = frame.get(from..).unwrap_or_default();
            hash.bytes(&rest[..rest.len().min(NOT_IP)]);
            return hash.finish();
        }
        self.ip(&mut hash, frame, headers);
        hash.finish()
    }

    #[inline]
    fn ip(&self, hash: &mut Hash, frame: &[u8], headers: &Headers) {
        let protocol = headers.key.protocol();
        let place = match Ipv4View::new(headers.datagram(frame)) {
            Ok(ip) if headers.network == Network::V4 => {
                let id = match self.changes.ip_id {
                    true => 0,
                    false => ip.identification(),
                };
                u64::from(id) << 16 | ip.fragment_offset() as u64
            }
            _ => 0,
        };
        let payload = headers.payload(frame);
        let (beginning, length) = match self.changes.payload {
            true => (&payload[..0], 0),
            false => (payload, payload.len() as u64),
        };
        hash.word(place << 32 | length << 16 | u64::from(protocol) << 8 | headers.fragment as u64);
        let transport = headers.transport(frame);
        match protocol {
            _ if headers.fragment == Fragment::Later => {}
            protocol::TCP => {
                if let Ok(tcp) = TcpView::new(transport) {
                    if !self.changes.tcp_sequence {
                        let (sequence, acknowledged) = (tcp.sequence(), tcp.acknowledgment());
                        hash.word(u64::from(sequence) << 32 | u64::from(acknowledged));
                    }
                    hash.word(u64::from(tcp.flags().0 & FLAGS));
                }
            }
            protocol::ICMP | protocol::ICMPV6 => {
                if let Ok(icmp) = IcmpView::new(transport) {
                    let (kind, code) = (icmp.kind(), icmp.code());
                    hash.word(u64::from(kind) << 8 | u64::from(code));
                    let is_error = match protocol {
                        protocol::ICMP => v4::is_error(kind),
                        _ => v6::is_error(kind),
                    };
                    if is_error {
                        // ICMP errors quote a packet, whose addresses are translated, too.
                        return;
                    }
                    hash.word(u64::from(icmp.sequence()));
                }
            }
            _ => {}
        }
        let [first, last] = ENDS;
        let middle = beginning.len().min(first);
        hash.bytes(&beginning[..middle]);
        hash.bytes(&beginning[beginning.len().saturating_sub(last).max(middle)..]);
    }
}

/// Hash that multiplies every word.
struct Hash(u64);

impl Hash {
    #[inline(always)]
    fn word(&mut self, word: u64) {
        /// Odd constant without pattern: the golden ratio's fraction.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR ^ self.0.rotate_left(29));
        // XORs the word again, so a product of zero loses no information.
        self.0 = (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(17);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_ne_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_ne_bytes(last));
    }

    #[inline]
    fn finish(mut self) -> Fingerprint {
        self.word(0);
        Fingerprint(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use tailwater_net::FlowKey;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::parse::parse;

    /// Fingerprint of a frame with freshly parsed headers.
    fn of(changes: Changes, frame: &[u8]) -> Fingerprint {
        let headers = parse(frame).unwrap_or_default();
        Fingerprints::new(42, changes).of(frame, &headers)
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Kept {
        protocol: u8,
        id: u16,
        sequence: u32,
        payload: Vec<u8>,
    }

    fn kept() -> impl Strategy<Value = Kept> {
        let protocol = prop::sample::select(vec![protocol::TCP, protocol::UDP, protocol::ICMP]);
        let payload = prop::collection::vec(any::<u8>(), 0..300);
        (protocol, any::<u16>(), any::<u32>(), payload).prop_map(|(protocol, id, sequence, payload)| Kept {
            protocol,
            id,
            sequence,
            payload,
        })
    }

    /// A packet in which every field that functions change is drawn from `noise`.
    fn frame(kept: &Kept, is_v6: bool, noise: u64) -> Vec<u8> {
        let (a, b) = (noise as u32, (noise >> 32) as u32);
        let (source, destination): (IpAddr, IpAddr) = match is_v6 {
            true => (
                Ipv6Addr::from_bits(u128::from(a) | 1 << 125).into(),
                Ipv6Addr::from_bits(u128::from(b) | 1 << 125).into(),
            ),
            false => (Ipv4Addr::from_bits(a).into(), Ipv4Addr::from_bits(b).into()),
        };
        let protocol = match (kept.protocol, is_v6) {
            (protocol::ICMP, true) => protocol::ICMPV6,
            (protocol, _) => protocol,
        };
        let ports = match protocol {
            protocol::TCP | protocol::UDP => [a as u16, b as u16],
            _ => [0; 2],
        };
        let key = match (source, destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => FlowKey::v4(s, d, protocol, ports[0], ports[1]),
            (IpAddr::V6(s), IpAddr::V6(d)) => FlowKey::v6(s, d, protocol, ports[0], ports[1]),
            _ => unreachable!("both are of one version"),
        };
        let [high, low] = (kept.sequence as u16).to_be_bytes();
        let builder = FrameBuilder::new(&key).payload(&kept.payload);
        // The identifier of an echo request, then its sequence number.
        let echo = [a as u8, b as u8, high, low];
        let builder = match protocol {
            protocol::ICMP => builder.icmp(v4::ECHO_REQUEST, 0, echo),
            protocol::ICMPV6 => builder.icmp(v6::ECHO_REQUEST, 0, echo),
            _ => builder,
        };
        let mut frame = builder.to_vec().unwrap();
        let headers = parse(&frame).unwrap();
        let (network, transport) = (
            usize::from(headers.network_offset),
            usize::from(headers.transport_offset),
        );
        frame[..12].copy_from_slice(&noise.to_le_bytes().repeat(2)[..12]);
        if is_v6 {
            frame[network + 7] = a as u8;
        } else {
            frame[network + 4..network + 6].copy_from_slice(&kept.id.to_be_bytes());
            // TTL, service class, checksum.
            frame[network + 8] = a as u8;
            frame[network + 1] = b as u8;
            frame[network + 10] = a as u8;
        }
        if protocol == protocol::TCP {
            frame[transport + 4..transport + 8].copy_from_slice(&kept.sequence.to_be_bytes());
            frame[transport + 16] = b as u8;
        }
        frame
    }

    proptest! {
        /// The fingerprint stays under all changes of a router or translator. Changes of other fields alter it.
        #[test]
        fn what_functions_change_does_not_count(
            (kept, other) in (kept(), kept()),
            v6 in any::<bool>(),
            [noise, more] in any::<[u64; 2]>(),
        ) {
            let all = Changes::default();
            let print = of(all, &frame(&kept, v6, noise));
            prop_assert_eq!(print, of(all, &frame(&kept, v6, more)));
            if kept.payload != other.payload || kept.protocol != other.protocol {
                prop_assert_ne!(print, of(all, &frame(&other, v6, noise)));
            }
        }

        /// Each configurable change alters the fingerprint by default, and does not once it is configured.
        #[test]
        fn what_a_function_is_said_to_change_does_not_count(kept in kept(), noise in any::<u64>()) {
            let with = |changes, kept: &Kept| of(changes, &frame(kept, false, noise));
            let id = Kept { id: !kept.id, ..kept.clone() };
            let sequence = Kept { sequence: !kept.sequence, ..kept.clone() };
            let payload = Kept { payload: vec![7; kept.payload.len() + 1], ..kept.clone() };
            let none = Changes::default();
            let is_tcp = kept.protocol == protocol::TCP;
            for (changes, other, applies) in [
                (Changes { ip_id: true, ..none }, id, true),
                (Changes { tcp_sequence: true, ..none }, sequence, is_tcp),
                (Changes { payload: true, ..none }, payload, true),
            ] {
                if applies {
                    prop_assert_ne!(with(none, &kept), with(none, &other));
                    prop_assert_eq!(with(changes, &kept), with(changes, &other));
                }
            }
        }

        /// Arbitrary bytes have a fingerprint.
        #[test]
        fn any_bytes_have_one(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let none = Changes::default();
            prop_assert_eq!(of(none, &bytes), of(none, &bytes.clone()));
        }
    }

    #[test]
    fn frames_that_are_not_ip_have_one_whatever_their_addresses_and_padding() {
        let arp = |source: u8, target: u8, padding: usize| {
            let mut frame = vec![source; 12];
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([9; 16]);
            frame.extend([10, 0, 0, target]);
            frame.extend(vec![0; padding]);
            of(Changes::default(), &frame)
        };
        assert_eq!(arp(1, 2, 0), arp(3, 2, 18));
        assert_ne!(arp(1, 2, 0), arp(1, 3, 0));
    }

    #[test]
    fn a_packet_is_known_again_by_the_other_ip_version() {
        let without_id = Changes {
            ip_id: true,
            ..Changes::default()
        };
        for protocol in [protocol::TCP, protocol::UDP] {
            let kept = Kept {
                protocol,
                id: 7,
                sequence: 8,
                payload: b"question".to_vec(),
            };
            let [v4, v6] = [false, true].map(|is_v6| of(without_id, &frame(&kept, is_v6, 9)));
            assert_eq!(v4, v6);
        }
    }

    #[test]
    fn the_quoted_packet_of_an_icmp_error_may_be_translated() {
        let error = |port: u8, code: u8| {
            let key = FlowKey::v4(
                Ipv4Addr::new(10, 0, 0, port),
                Ipv4Addr::new(10, 0, 0, 2),
                protocol::ICMP,
                0,
                0,
            );
            let quoted = [port; 28];
            let error = FrameBuilder::new(&key).icmp(v4::UNREACHABLE, code, [0; 4]);
            of(Changes::default(), &error.payload(&quoted).to_vec().unwrap())
        };
        assert_eq!(error(1, 1), error(2, 1));
        assert_ne!(error(1, 1), error(1, 3));
    }
}
