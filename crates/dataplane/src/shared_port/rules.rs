//! Rules that decide which chain of a shared port a packet belongs to: the chains' `spec.match`, compiled.
//!
//! A packet's chain depends on its addresses, protocol and VLAN alone, so all packets of a flow direction go to the
//! same chain without a look-up of the flow. Each field selects the set of chains that accept its value, as the bits of
//! a word; the chains that accept all fields are in the intersection. Prefixes are compiled to sorted interval bounds,
//! searched without unpredictable branches. IPv4 prefixes that are close together are found in a table instead.
//! A field that no chain restricts costs nothing.

use ipnet::IpNet;
use std::hint::select_unpredictable;
use std::net::IpAddr;
use tailwater_api::chain::Match;
use tailwater_chain::batch::{Batch, MAX_BATCH};
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
/// Length of these headers of an untagged packet.
const HEADERS: usize = ethernet::HEADER + V4_HEADER;

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
    /// Some chain lists one of these.
    lists_others: bool,
    /// The only chain, if it restricts no field.
    of_all: Option<u8>,
    /// Chains that get no packets, and whose packets go to no other one yet.
    ended: Chains,
    /// Packets that no chain matches are dropped, whatever the port does with such packets otherwise.
    drops_unmatched: bool,
}

/// Chains of the packets of a batch.
pub(super) struct Choices {
    /// Slot of each packet's chain, or [`NOBODY`].
    pub(super) chosen: [u8; MAX_BATCH],
    /// Number of packets for each slot. There are entries for all values of a `u8`, so that no index is beyond.
    counts: [u16; 256],
    /// All chains.
    slots: Chains,
}

/// Places of the packets of a batch, by chain and in order.
pub(super) struct SortedPlaces {
    places: [u8; MAX_BATCH],
    /// Chains with packets are some of these.
    slots: Chains,
    /// End of each chain's places, and so the begin of the next one's.
    ends: [u16; 256],
}

impl Choices {
    /// Choices of no packet yet.
    #[inline]
    pub(super) fn new() -> Choices {
        Choices {
            chosen: [NOBODY; MAX_BATCH],
            counts: [0; 256],
            slots: 0,
        }
    }

    /// Returns the slot of the chain that all `count` packets belong to, if there is one.
    #[inline]
    pub(super) fn only(&self, count: usize) -> Option<u8> {
        let first = self.chosen[0];
        (usize::from(self.counts[usize::from(first)]) == count && first != NOBODY).then_some(first)
    }

    /// Sorts the `count` packets by chain.
    #[inline]
    pub(super) fn sort(&self, count: usize) -> SortedPlaces {
        let mut sorted = SortedPlaces {
            places: [0; MAX_BATCH],
            slots: self.slots,
            ends: [0; 256],
        };
        let mut next = 0;
        for slot in slots_of(self.slots) {
            sorted.ends[slot] = next;
            next += self.counts[slot];
        }
        // Those of no chain are last.
        sorted.ends[usize::from(NOBODY)] = next;
        for (place, slot) in self.chosen[..count].iter().enumerate() {
            let end = &mut sorted.ends[usize::from(*slot)];
            sorted.places[usize::from(*end as u8)] = place as u8;
            *end += 1;
        }
        sorted
    }
}

impl SortedPlaces {
    /// Calls `each` with the slot of each chain that has packets, and their places.
    #[inline]
    pub(super) fn for_each(&self, mut each: impl FnMut(usize, &[u8])) {
        let mut begin = 0;
        for slot in slots_of(self.slots) {
            let end = usize::from(self.ends[slot]);
            if end > begin {
                each(slot, &self.places[begin..end]);
            }
            begin = end;
        }
    }
}

/// Slots of a set of chains, in order.
#[inline]
fn slots_of(mut chains: Chains) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (chains != 0).then(|| chains.trailing_zeros() as usize)?;
        chains &= chains - 1;
        Some(slot)
    })
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
        let lists_macs = chosen(&|wanted| !wanted.macs.is_empty());
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
            lists_macs,
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
            lists_others: (lists_macs | lists_protocols | lists_vlans) != 0,
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

    /// Chains that get no packets, as a set of slots.
    #[inline]
    pub(super) fn ended(&self) -> Chains {
        self.ended
    }

    /// Returns `true` if packets that no chain matches are dropped in any case.
    pub(super) fn drops_unmatched(&self) -> bool {
        self.drops_unmatched
    }

    /// Slot of the chain that gets every packet, if one does.
    #[inline]
    pub(super) fn only_of_all(&self) -> Option<usize> {
        self.of_all.filter(|_| self.ended == 0).map(usize::from)
    }

    /// Returns `true` if no chain gets packets, or chains change.
    pub(super) fn is_between_chains(&self) -> bool {
        self.all & !self.ended == 0 || self.drops_unmatched
    }

    /// Returns `true` if there is only one chain.
    #[inline]
    pub fn is_one(&self) -> bool {
        self.all.is_power_of_two()
    }

    /// Chooses the chain of each packet of a batch. `choices` are [new](Choices::new) ones.
    #[inline]
    pub(super) fn choose(&self, batch: &mut Batch, choices: &mut Choices) {
        choices.slots = self.all;
        if let Some(slot) = self.of_all {
            choices.chosen[..batch.len()].fill(slot);
            choices.counts[usize::from(slot)] = batch.len() as u16;
            return;
        }
        let mut place = 0;
        batch.for_each(|_, frame| {
            let slot = self.slot_of(frame);
            choices.chosen[place] = slot;
            choices.counts[usize::from(slot)] += 1;
            place += 1;
        });
    }

    /// Returns the slot of the chain that a frame belongs to, or `None` if no chain matches it.
    ///
    /// Of several VLAN tags, the outermost one with a VLAN identifier counts. A frame with a complete IPv4 header is
    /// matched by that header, whatever follows it. Other malformed frames and those without IP match only chains that
    /// list no prefix or protocol.
    #[inline]
    pub fn chain_of(&self, frame: &[u8]) -> Option<u8> {
        Some(self.slot_of(frame)).filter(|slot| *slot != NOBODY)
    }

    /// Same, with [`NOBODY`] for `None`.
    #[inline(always)]
    fn slot_of(&self, frame: &[u8]) -> u8 {
        let Some(head) = frame.first_chunk::<HEADERS>() else {
            return self.other_chain_of(frame);
        };
        let is_plain = (u16::from_be_bytes([head[12], head[13]]) == ethertype::IPV4) & (head[14] == 0x45);
        if !is_plain {
            return self.other_chain_of(frame);
        }
        let address = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (source, destination) = (address(26), address(30));
        let mut chains = self.all & self.sources.find_v4(source) & self.destinations.find_v4(destination);
        if self.lists_others {
            chains &= self.other_fields(head);
        }
        if chains & chains.wrapping_sub(1) == 0 {
            // Without a chain, `NOBODY`.
            return chains.trailing_zeros() as u8;
        }
        self.most_specific(chains, v4(source), v4(destination))
    }

    /// Chains that accept an untagged IPv4 packet by its fields other than addresses.
    fn other_fields(&self, head: &[u8; HEADERS]) -> Chains {
        let mut chains = self.all;
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
        chains
    }

    /// Same for frames other than untagged IPv4 without options.
    #[cold]
    #[inline(never)]
    fn other_chain_of(&self, frame: &[u8]) -> u8 {
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
            return chains.trailing_zeros() as u8;
        };
        let protocols = self.protocols.as_deref();
        let protocols = protocols.map_or(self.all, |protocols| protocols[usize::from(fields.protocol)]);
        let chains = chains & protocols & self.sources.find(fields.source) & self.destinations.find(fields.destination);
        self.most_specific(chains, fields.source, fields.destination)
    }

    /// Most specific of several chains that accept a packet.
    #[cold]
    fn most_specific(&self, chains: Chains, source: IpAddr, destination: IpAddr) -> u8 {
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
        slots.max_by_key(specific).map_or(NOBODY, |slot| slot as u8)
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

/// EtherType behind all VLAN tags, and the bytes that follow it.
pub(super) fn after_tags(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    let mut kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    while kind == ethertype::VLAN || kind == ethertype::QINQ {
        at += 4;
        kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    }
    Some((kind, frame.get(at + 2..)?))
}

/// Addresses and protocol of a complete IPv4 header whose packet is malformed otherwise.
fn v4_fields(frame: &[u8]) -> Option<Fields> {
    let (kind, payload) = after_tags(frame)?;
    let header = payload.first_chunk::<{ V4_HEADER }>()?;
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
    search: AddressSearch,
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
        let v4 = Intervals::new(&v4.collect::<Vec<_>>(), |last| last.checked_add(1));
        Prefixes {
            search: AddressSearch::new(&v4),
            v4,
            v6: Intervals::new(&v6.collect::<Vec<_>>(), |last| last.checked_add(1)),
            lists: lists.iter().map(|(slot, list)| (*slot, list.to_vec())).collect(),
        }
    }

    fn find(&self, address: IpAddr) -> Chains {
        match address {
            IpAddr::V4(address) => self.find_v4(address.into()),
            IpAddr::V6(address) => self.v6.find(address.into()),
        }
    }

    #[inline]
    fn find_v4(&self, address: u32) -> Chains {
        match &self.search {
            AddressSearch::Unrestricted => Chains::MAX,
            AddressSearch::Table(table) => table.find(address),
            AddressSearch::Intervals => self.v4.find(address),
        }
    }

    /// Length of the longest prefix of a chain that contains the address, plus 1; 0 without one.
    fn length(&self, slot: usize, address: IpAddr) -> u8 {
        let own = self.lists.iter().filter(|(of, _)| *of == slot);
        let containing = own
            .flat_map(|(_, list)| list)
            .filter(|prefix| prefix.contains(&address));
        containing.map(|prefix| prefix.prefix_len() + 1).max().unwrap_or(0)
    }
}

/// Way to find the chains of an IPv4 address.
#[derive(Clone, Debug)]
enum AddressSearch {
    /// No chain restricts the field.
    Unrestricted,
    Table(Box<AddressTable>),
    /// Among the intervals.
    Intervals,
}

/// Chains by IPv4 address, for intervals close together: an entry for each block of addresses from the first bound to
/// the last, and others for the addresses outside.
#[derive(Clone, Debug)]
struct AddressTable {
    /// First bound.
    first: u32,
    /// Logarithm of the size of a block.
    shift: u32,
    chains: [Chains; ENTRIES],
}

/// Entries of a table, which should stay in the L1 cache. The last is for addresses outside.
const ENTRIES: usize = 128;

impl AddressSearch {
    /// Fastest way for these intervals.
    fn new(intervals: &Intervals<u32>) -> AddressSearch {
        if intervals.firsts.is_empty() && intervals.find(0) == Chains::MAX {
            return AddressSearch::Unrestricted;
        }
        match AddressTable::new(intervals) {
            Some(table) => AddressSearch::Table(Box::new(table)),
            None => AddressSearch::Intervals,
        }
    }
}

impl AddressTable {
    /// Table of these intervals. `None` if it has too few entries, or if the intervals before the first bound and
    /// behind the last one differ.
    fn new(intervals: &Intervals<u32>) -> Option<AddressTable> {
        let (first, last) = match &intervals.firsts[..] {
            [first, .., last] => (*first, *last),
            _ => (0, 0),
        };
        let outside = intervals.find(last);
        let zeros = intervals.firsts.iter().map(|bound| bound.trailing_zeros());
        let shift = zeros.fold(31, u32::min);
        let blocks = ((last - first) >> shift) as usize;
        if intervals.find(0) != outside || blocks >= ENTRIES {
            return None;
        }
        let mut chains = [outside; ENTRIES];
        for (block, own) in chains[..blocks].iter_mut().enumerate() {
            *own = intervals.find(first + ((block as u32) << shift));
        }
        Some(AddressTable { first, shift, chains })
    }

    /// Chains that accept an address.
    #[inline]
    fn find(&self, address: u32) -> Chains {
        let block = address.wrapping_sub(self.first) >> self.shift;
        self.chains[(block as usize).min(ENTRIES - 1)]
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

/// Keeps the items for which `stays` yields `true`.
fn retain<T>(items: &mut Vec<T>, mut stays: impl Iterator<Item = bool>) {
    items.retain(|_| stays.next() == Some(true));
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
        // Neighbours with the same chains are one: prefixes of one chain often are.
        let mut before = chains[0];
        let begins = chains[1..]
            .iter()
            .map(|own| std::mem::replace(&mut before, *own) != *own);
        let begins: Vec<bool> = begins.collect();
        retain(&mut firsts, begins.iter().copied());
        retain(&mut chains, std::iter::once(true).chain(begins));
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
