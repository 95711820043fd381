//! Rules that decide which chain of a shared port a packet belongs to: the chains' `spec.match`, compiled.
//!
//! A packet's chain depends on its addresses, protocol and VLAN alone, so all packets of a flow direction go to the
//! same chain without a look-up of the flow. Each field selects the set of chains that accept its value, as the bits of
//! a word; the chains that accept all fields are in the intersection. Prefixes are compiled to sorted interval bounds,
//! searched without unpredictable branches. A field that no chain restricts costs nothing.

use ipnet::IpNet;
use std::hint::select_unpredictable;
use std::net::IpAddr;
use tailwater_api::chain::Match;
use tailwater_net::ethernet;
use tailwater_net::parse::{Network, parse};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::tags;

/// Maximum number of chains on a port: a word has a bit for each.
pub const MAX_CHAINS: usize = 64;
/// Slot that no chain has.
pub(super) const NOBODY: u8 = MAX_CHAINS as u8;

/// Length of an IPv4 header without options, in bytes.
const V4_HEADER: usize = 20;

/// Set of chains, a bit for each slot.
type Chains = u64;

/// Compiled rules of a port.
#[derive(Clone, Debug)]
pub struct ChainRules {
    /// All chains of the port.
    all: Chains,
    /// Chains by destination MAC address, as a number.
    macs: Intervals<u64>,
    sources: Prefixes,
    destinations: Prefixes,
    /// Chains by IP protocol, if any chain restricts it.
    protocols: Option<Box<[Chains; 256]>>,
    /// Chains by VLAN identifier, if any chain restricts it; 0 stands for untagged packets.
    vlans: Option<Box<[Chains; 4096]>>,
    /// Chains that accept packets without readable IP headers.
    without_ip: Chains,
    /// Chains that list MAC addresses, protocols, and VLANs: they are more specific.
    lists_macs: Chains,
    lists_protocols: Chains,
    lists_vlans: Chains,
    /// The only chain, if it restricts no field.
    of_all: Option<u8>,
    /// Chains that have ended, whose packets go to no other one yet.
    ended: Chains,
    /// Packets that no chain matches are dropped, whatever the port does with such packets otherwise.
    drops_unmatched: bool,
}

/// Fields of a packet that rules refer to.
#[derive(Clone, Copy, Debug)]
struct Fields {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
}

impl ChainRules {
    /// Compiles the matches of chains, each with its slot below [`MAX_CHAINS`]. Of several chains that match a packet,
    /// one that lists MAC addresses gets it; among equals the one with the longest matching destination prefix, then
    /// the longest source prefix, then one that lists protocols, then one that lists VLANs, then the lowest slot.
    ///
    /// # Panics
    /// If a slot is not below [`MAX_CHAINS`].
    pub fn new<'m>(chains: impl IntoIterator<Item = (usize, &'m Match)>) -> ChainRules {
        let chains: Vec<(usize, &Match)> = chains.into_iter().collect();
        assert!(
            chains.iter().all(|(slot, _)| *slot < MAX_CHAINS),
            "a slot beyond the port's"
        );
        let chosen = |accepts: &dyn Fn(&Match) -> bool| {
            let slots = chains.iter().filter(|(_, wanted)| accepts(wanted));
            slots.fold(0, |set, (slot, _)| set | 1 << slot)
        };
        let lists_protocols = chosen(&|wanted| !wanted.protocols.is_empty());
        let lists_vlans = chosen(&|wanted| !wanted.vlans.is_empty());
        let by_protocol = |protocol: usize| {
            chosen(&|wanted| wanted.protocols.is_empty() || wanted.protocols.contains(&(protocol as u8)))
        };
        let by_vlan = |vlan: usize| chosen(&|wanted| wanted.vlans.is_empty() || wanted.vlans.contains(&(vlan as u16)));
        let prefixes = |lists: fn(&Match) -> &[IpNet]| {
            Prefixes::new(chains.iter().map(|(slot, wanted)| (*slot, lists(wanted))).collect())
        };
        let macs = chains.iter().map(|(slot, wanted)| {
            let own = wanted.macs.iter().map(|mac| (number(*mac), number(*mac)));
            (*slot, wanted.macs.is_empty(), own.collect())
        });
        ChainRules {
            macs: Intervals::new(&macs.collect::<Vec<_>>(), |last| last.checked_add(1)),
            lists_macs: chosen(&|wanted| !wanted.macs.is_empty()),
            all: chosen(&|_| true),
            sources: prefixes(|wanted| &wanted.sources),
            destinations: prefixes(|wanted| &wanted.destinations),
            protocols: (lists_protocols != 0).then(|| Box::new(std::array::from_fn(by_protocol))),
            vlans: (lists_vlans != 0).then(|| Box::new(std::array::from_fn(by_vlan))),
            without_ip: chosen(&|wanted| {
                wanted.sources.is_empty() && wanted.destinations.is_empty() && wanted.protocols.is_empty()
            }),
            lists_protocols,
            lists_vlans,
            of_all: match &chains[..] {
                [(slot, wanted)] if **wanted == Match::default() => Some(*slot as u8),
                _ => None,
            },
            ended: 0,
            drops_unmatched: false,
        }
    }

    /// Rules while chains change: those in the slots `ended` get no packets, and no other chain gets theirs.
    pub(super) fn during_change(self, ended: Chains, drops_unmatched: bool) -> ChainRules {
        ChainRules {
            ended,
            drops_unmatched,
            ..self
        }
    }

    /// Chains that have ended, as a set of slots.
    #[inline]
    pub(super) fn ended(&self) -> Chains {
        self.ended
    }

    /// Returns `true` if packets that no chain matches are dropped in any case.
    pub(super) fn drops_unmatched(&self) -> bool {
        self.drops_unmatched
    }

    /// Returns `true` if there is only one chain.
    #[inline]
    pub fn is_one(&self) -> bool {
        self.all.is_power_of_two()
    }

    /// Returns the slot of the chain that all frames belong to, if it is the only one and restricts no field.
    #[inline]
    pub fn chain_of_all(&self) -> Option<u8> {
        self.of_all
    }

    /// Returns the slot of the chain that a frame belongs to, or `None` if no chain matches it.
    ///
    /// Of several VLAN tags, the outermost one with a VLAN identifier counts. A frame with a complete IPv4 header is
    /// matched by that header, whatever follows it. Other malformed frames and those without IP match only chains that
    /// list no prefix or protocol.
    #[inline]
    pub fn chain_of(&self, frame: &[u8]) -> Option<u8> {
        const HEADERS: usize = ethernet::HEADER + V4_HEADER;
        let Some(head) = frame.first_chunk::<HEADERS>() else {
            return self.other_chain_of(frame);
        };
        let is_plain = (u16::from_be_bytes([head[12], head[13]]) == ethertype::IPV4) & (head[14] == 0x45);
        if !is_plain {
            return self.other_chain_of(frame);
        }
        let address = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (source, destination) = (address(26), address(30));
        let mut chains = self.all & self.sources.v4.find(source) & self.destinations.v4.find(destination);
        if self.lists_macs != 0 {
            let mac = number([head[0], head[1], head[2], head[3], head[4], head[5]]);
            chains &= self.macs.find(mac);
        }
        if let Some(protocols) = &self.protocols {
            chains &= protocols[usize::from(head[23])];
        }
        if let Some(vlans) = &self.vlans {
            chains &= vlans[0];
        }
        if chains & chains.wrapping_sub(1) == 0 {
            return (chains != 0).then(|| chains.trailing_zeros() as u8);
        }
        self.most_specific(chains, v4(source), v4(destination))
    }

    /// Same for frames other than untagged IPv4 without options.
    #[cold]
    #[inline(never)]
    fn other_chain_of(&self, frame: &[u8]) -> Option<u8> {
        let vlan = || tags(frame).map(|tag| tag.id).find(|id| *id != 0).unwrap_or(0);
        let by_vlan = |vlans: &[Chains; 4096]| vlans[usize::from(vlan()) % vlans.len()];
        let mac = frame.first_chunk().map_or(0, |mac| number(*mac));
        let chains = self.all & self.macs.find(mac) & self.vlans.as_deref().map_or(self.all, by_vlan);
        let headers = parse(frame).ok().filter(|headers| headers.network != Network::NotIp);
        let fields = headers.map(|headers| Fields {
            source: headers.key.source(),
            destination: headers.key.destination(),
            protocol: headers.key.protocol(),
        });
        let fields = fields.or_else(|| v4_fields(frame));
        let Some(fields) = fields else {
            let mut chains = chains & self.without_ip;
            for lists in [self.lists_macs, self.lists_vlans] {
                let listing = chains & lists;
                chains = if listing != 0 { listing } else { chains };
            }
            return (chains != 0).then(|| chains.trailing_zeros() as u8);
        };
        let protocols = self.protocols.as_deref();
        let protocols = protocols.map_or(self.all, |protocols| protocols[usize::from(fields.protocol)]);
        let chains = chains & protocols & self.sources.find(fields.source) & self.destinations.find(fields.destination);
        self.most_specific(chains, fields.source, fields.destination)
    }

    /// Most specific of several chains that accept a packet.
    #[cold]
    fn most_specific(&self, chains: Chains, source: IpAddr, destination: IpAddr) -> Option<u8> {
        let slots = (0..MAX_CHAINS).filter(|slot| chains >> slot & 1 == 1);
        let specific = |slot: &usize| {
            let lists = |set: Chains| set >> slot & 1;
            (
                lists(self.lists_macs),
                self.destinations.length(*slot, destination),
                self.sources.length(*slot, source),
                lists(self.lists_protocols),
                lists(self.lists_vlans),
                std::cmp::Reverse(*slot),
            )
        };
        slots.max_by_key(specific).map(|slot| slot as u8)
    }
}

/// MAC address as a number.
fn number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn v4(address: u32) -> IpAddr {
    IpAddr::V4(address.into())
}

/// Addresses and protocol of a complete IPv4 header whose packet is malformed otherwise.
fn v4_fields(frame: &[u8]) -> Option<Fields> {
    let mut at = 12;
    let mut kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    while kind == ethertype::VLAN || kind == ethertype::QINQ {
        at += 4;
        kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    }
    let header = frame.get(at + 2..)?.first_chunk::<{ V4_HEADER }>()?;
    if kind != ethertype::IPV4 || header[0] >> 4 != 4 || header[0] & 15 < 5 {
        return None;
    }
    let address = |at: usize| IpAddr::from([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    Some(Fields {
        source: address(12),
        destination: address(16),
        protocol: header[9],
    })
}

/// Prefix lists of one field.
#[derive(Clone, Debug)]
struct Prefixes {
    v4: Intervals<u32>,
    v6: Intervals<u128>,
    /// Prefixes by slot, for the rare packets that several chains accept.
    lists: Vec<(usize, Vec<IpNet>)>,
}

impl Prefixes {
    fn new(lists: Vec<(usize, &[IpNet])>) -> Prefixes {
        let v4 = lists.iter().map(|(slot, list)| {
            let own = list.iter().filter_map(|prefix| match prefix {
                IpNet::V4(net) => Some((u32::from(net.network()), u32::from(net.broadcast()))),
                IpNet::V6(_) => None,
            });
            (*slot, list.is_empty(), own.collect())
        });
        let v6 = lists.iter().map(|(slot, list)| {
            let own = list.iter().filter_map(|prefix| match prefix {
                IpNet::V6(net) => Some((u128::from(net.network()), u128::from(net.broadcast()))),
                IpNet::V4(_) => None,
            });
            (*slot, list.is_empty(), own.collect())
        });
        Prefixes {
            v4: Intervals::new(&v4.collect::<Vec<_>>(), |last| last.checked_add(1)),
            v6: Intervals::new(&v6.collect::<Vec<_>>(), |last| last.checked_add(1)),
            lists: lists.iter().map(|(slot, list)| (*slot, list.to_vec())).collect(),
        }
    }

    fn find(&self, address: IpAddr) -> Chains {
        match address {
            IpAddr::V4(address) => self.v4.find(address.into()),
            IpAddr::V6(address) => self.v6.find(address.into()),
        }
    }

    /// Length of the longest prefix of a chain that contains the address, 0 without one.
    fn length(&self, slot: usize, address: IpAddr) -> u8 {
        let own = self.lists.iter().filter(|(of, _)| *of == slot);
        let containing = own
            .flat_map(|(_, list)| list)
            .filter(|prefix| prefix.contains(&address));
        containing.map(IpNet::prefix_len).max().unwrap_or(0)
    }
}

/// Chains by interval of addresses.
#[derive(Clone, Debug)]
struct Intervals<A> {
    /// First addresses of all intervals, in order, filled up to a power of two with copies of the last. That of the
    /// first one is not looked at. Empty if no chain restricts the field.
    firsts: Box<[A]>,
    /// Chains of each interval.
    chains: Box<[Chains]>,
}

/// Slot of a chain, `true` if it accepts all addresses, and its intervals, first and last address.
type Accepted<A> = (usize, bool, Vec<(A, A)>);

impl<A: Copy + Ord> Intervals<A> {
    fn new(lists: &[Accepted<A>], after: fn(A) -> Option<A>) -> Intervals<A> {
        let everything = lists.iter().filter(|(_, everything, _)| *everything);
        let everything = everything.fold(0, |set, (slot, ..)| set | 1 << slot);
        let own = || {
            lists
                .iter()
                .flat_map(|(slot, _, list)| list.iter().map(move |range| (*slot, *range)))
        };
        let mut firsts: Vec<A> = own()
            .flat_map(|(_, (first, last))| [Some(first), after(last)])
            .flatten()
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        let at = |address: A| {
            let containing = own().filter(|(_, (first, last))| *first <= address && address <= *last);
            containing.fold(everything, |set, (slot, _)| set | 1 << slot)
        };
        let restricted = lists.iter().any(|(_, everything, _)| !everything);
        let mut chains: Vec<Chains> = std::iter::once(if restricted { everything } else { Chains::MAX })
            .chain(firsts.iter().map(|first| at(*first)))
            .collect();
        if let Some(last) = firsts.last().copied() {
            let (size, of_last) = ((firsts.len() + 1).next_power_of_two(), chains[firsts.len()]);
            firsts.insert(0, firsts[0]);
            firsts.resize(size, last);
            chains.resize(size, of_last);
        }
        Intervals {
            firsts: firsts.into(),
            chains: chains.into(),
        }
    }

    /// Chains that accept an address.
    #[inline]
    fn find(&self, address: A) -> Chains {
        let (mut at, mut half) = (0, self.chains.len() / 2);
        while half > 0 {
            let next = at + half;
            at = select_unpredictable(self.firsts[next] <= address, next, at);
            half /= 2;
        }
        self.chains[at]
    }
}

#[cfg(test)]
mod tests;
