//! First test of a filter: one word of a flow key against a few values. Most packets fail it, and cost no more.

use super::node::{End, Node};
use crate::batch::Batch;
use std::net::IpAddr;
use tailwater_net::FlowKey;

/// Most alternatives; a filter with more is tested in full for each packet.
const MOST: usize = 4;

/// Words of a flow key that are tested: the addresses of IPv4; ports, protocol and version.
const WORDS: usize = 2;

/// Words of a flow key: the addresses of IPv4.
const ADDRESSES: usize = 0;

/// Ports, protocol and version.
const PORTS: usize = 4;

/// Bits of the words that a key must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits {
    masks: [u64; WORDS],
    values: [u64; WORDS],
}

/// Necessary condition of a filter: a word of the key has one of these values in these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quick {
    /// The word is that with the ports.
    of_ports: bool,
    /// Mask and value. The last one is repeated.
    alternatives: [(u64, u64); MOST],
    /// The first two are all.
    is_short: bool,
}

impl Quick {
    pub(super) fn new(node: &Node) -> Quick {
        let found = alternatives(node);
        // Ports tell more than addresses do, if all alternatives name some.
        let names = |word: usize, bits: u64| found.iter().all(|found| found.masks[word] & bits != 0);
        let of_ports = names(1, 0xffff_ffff) || !names(0, u64::MAX);
        let word = usize::from(of_ports);
        // None matches: no key has both.
        let mut all = [(0, 1); MOST];
        let listed = found.iter().map(|found| (found.masks[word], found.values[word]));
        for (at, slot) in all.iter_mut().enumerate() {
            *slot = listed.clone().nth(at).or(listed.clone().next_back()).unwrap_or((0, 1));
        }
        Quick {
            of_ports,
            alternatives: all,
            is_short: found.len() <= 2,
        }
    }

    /// Returns `false` if packets of this flow do not match.
    #[inline]
    pub(crate) fn may_match(&self, key: &FlowKey) -> bool {
        let [addresses, .., ports] = key.words();
        let word = if self.of_ports { ports } else { addresses };
        self.alternatives.iter().any(|(mask, value)| word & mask == *value)
    }

    /// Returns `false` if no packet of this batch matches. That costs about three instructions for each of them.
    #[inline]
    pub(crate) fn may_match_some(&self, batch: &Batch) -> bool {
        match (self.of_ports, self.is_short) {
            (true, true) => self.finds::<PORTS, 2>(batch),
            (true, false) => self.finds::<PORTS, MOST>(batch),
            (false, true) => self.finds::<ADDRESSES, 2>(batch),
            (false, false) => self.finds::<ADDRESSES, MOST>(batch),
        }
    }

    /// Returns `true` if some packet's word has one of the first `N` alternatives.
    #[inline]
    fn finds<const WORD: usize, const N: usize>(&self, batch: &Batch) -> bool {
        let alternatives: [(u64, u64); N] = std::array::from_fn(|at| self.alternatives[at]);
        batch.any_key(|key| {
            let word = key.words()[WORD];
            let has = |(mask, value)| if word & mask == value { u64::MAX } else { 0 };
            alternatives.into_iter().fold(0, |found, bits| found | has(bits))
        })
    }
}

/// Alternatives of which a key that matches has one; a single one without any bits if there are too many.
fn alternatives(node: &Node) -> Vec<Bits> {
    let found = match node {
        Node::All | Node::Not(_) => vec![Bits::default()],
        Node::Version(version) => vec![tail(40, 0xff, u64::from(*version))],
        Node::Protocol(protocol) => vec![tail(32, 0xff, u64::from(*protocol))],
        Node::Ports(end, first, last) if first == last => ends(*end)
            .map(|end| tail(16 * end, 0xffff, u64::from(*first)))
            .collect(),
        Node::Ports(..) => vec![Bits::default()],
        Node::Address(end, IpAddr::V4(address), bits) => ends(*end)
            .map(|end| {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                let mut found = tail(40, 0xff, 4);
                found.masks[0] = u64::from(mask) << (32 * end);
                found.values[0] = u64::from(address.to_bits() & mask) << (32 * end);
                found
            })
            .collect(),
        Node::Address(_, IpAddr::V6(_), _) => vec![tail(40, 0xff, 6)],
        Node::Either(one, two) => [alternatives(one), alternatives(two)].concat(),
        Node::Both(one, two) => {
            let (one, two) = (alternatives(one), alternatives(two));
            one.iter()
                .flat_map(|one| two.iter().filter_map(|two| both(one, two)))
                .collect()
        }
    };
    match found.len() > MOST {
        true => vec![Bits::default()],
        false => found,
    }
}

/// Ends of a flow by number: 0 for the source.
fn ends(end: End) -> impl Iterator<Item = u32> {
    let ends: &[u32] = match end {
        End::Source => &[0],
        End::Destination => &[1],
        End::Any => &[0, 1],
    };
    ends.iter().copied()
}

/// Bits of the word with ports, protocol and version.
fn tail(from: u32, mask: u64, value: u64) -> Bits {
    Bits {
        masks: [0, mask << from],
        values: [0, value << from],
    }
}

/// Bits of both; `None` if they exclude each other.
fn both(one: &Bits, two: &Bits) -> Option<Bits> {
    let mut found = *one;
    for word in 0..WORDS {
        let common = one.masks[word] & two.masks[word];
        if (one.values[word] ^ two.values[word]) & common != 0 {
            return None;
        }
        found.masks[word] |= two.masks[word];
        found.values[word] |= two.values[word];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::super::PacketFilter;
    use crate::batch::Batch;
    use crate::buffer::BufferPool;
    use crate::rig::udp;
    use proptest::prelude::*;
    use tailwater_net::{FlowKey, Nanos};

    /// One of few keys, so that filters match some.
    fn key(number: u8) -> FlowKey {
        let bit = |at: u8| number >> at & 1;
        let address = |at| [10, bit(at), 0, 1 + bit(at + 1)];
        let ports = [443 + u16::from(bit(4)), 443 + u16::from(bit(5))];
        let protocol = if bit(6) == 1 { 6 } else { 17 };
        match bit(7) {
            0 => FlowKey::v4(address(0).into(), address(2).into(), protocol, ports[0], ports[1]),
            _ => {
                let [source, destination] = [0, 2].map(|at| std::net::Ipv4Addr::from(address(at)).to_ipv6_mapped());
                FlowKey::v6(source, destination, protocol, ports[0], ports[1])
            }
        }
    }

    proptest! {
        /// The first test refuses no packet that matches.
        #[test]
        fn no_match_is_missed(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "tcp", "udp", "ip", "ip6", "port 443", "src port 444", "dst port 443", "portrange 440-443",
                    "host 10.0.0.1", "src host 10.1.0.2", "net 10.0.0.0/16", "dst net 10.1.0.0/16", "not port 443",
                ]),
                1..5,
            ),
            ors in any::<u8>(),
        ) {
            let mut text = String::new();
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    text += if ors >> at & 1 == 1 { " or " } else { " and " };
                }
                text += part;
            }
            let filter = PacketFilter::parse(&text).unwrap();
            for number in 0..=u8::MAX {
                let key = key(number);
                prop_assert!(filter.quick.may_match(&key) || !filter.node.matches(&key), "{} {}", text, key);
            }
        }
    }

    proptest! {
        /// A batch passes the test if one of its packets does, wherever it is and whatever the batch's size.
        #[test]
        fn a_batch_passes_with_one_packet(
            numbers in prop::collection::vec(any::<u8>(), 0..40),
            text in prop::sample::select(vec![
                "", "tcp", "src port 444", "port 443", "port 443 or port 444", "src host 10.1.0.2", "host 10.0.0.1",
                "host 10.0.0.1 or host 10.1.0.2", "portrange 440-443", "udp and tcp",
            ]),
        ) {
            let quick = PacketFilter::parse(text).unwrap().quick;
            let mut pool = BufferPool::new(64, 128).unwrap();
            let mut batch = Batch::new(&pool, 64);
            for _ in &numbers {
                batch.push(&mut pool, &udp(1), Nanos::ZERO, 0);
            }
            for (packet, number) in batch.iter_mut().zip(&numbers) {
                packet.headers.key = key(*number);
            }
            let one = batch.iter().any(|packet| quick.may_match(&packet.headers.key));
            prop_assert_eq!(quick.may_match_some(&batch), one);
            batch.release(&mut pool);
        }
    }

    #[test]
    fn packets_of_other_ports_fail_the_first_test() {
        for (text, others) in [
            ("tcp port 444", 0b0100_0000),
            ("src host 10.1.0.1", 0),
            ("udp and tcp", 0),
        ] {
            let filter = PacketFilter::parse(text).unwrap();
            assert!(!filter.quick.may_match(&key(others)), "{text}");
        }
    }
}
