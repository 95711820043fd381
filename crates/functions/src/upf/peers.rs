//! Peers: the remote ends of tunnels, by their numbers. Each process has the outer headers; where several share a
//! table, they share the addresses.

use super::gtp::PORT;
use crate::ipsec::DontFragment;
use crate::ipsec::headers::Outer;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_net::protocol;

/// Largest number of peers over a whole run.
pub const MAX_PEERS: usize = 16_384;

/// Words of a peer's address: the IP version, and the address of IPv4, or both halves of that of IPv6.
const ADDRESS: usize = 4;
const V4: u64 = 4;
const V6: u64 = 6;

/// Reasons a peer is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPeer {
    /// There is no local address of its IP version.
    Version,
    /// The limit is reached.
    Full,
}

/// Addresses and outer headers of all peers.
#[derive(Debug)]
pub(super) struct Peers {
    known: Box<[OnceLock<(IpAddr, Outer)>]>,
    /// Addresses that all processes see; `None` in a table of one process.
    addresses: Option<CounterArray>,
    /// Sources of outer packets.
    own: Vec<IpAddr>,
    kept: (u8, DontFragment),
}

impl Peers {
    /// Shared words.
    pub(super) const WORDS: usize = ADDRESS * MAX_PEERS;

    /// Creates the list, without peers. `own` are the local addresses, and `kept` time to live and "don't fragment" of
    /// outer headers.
    pub(super) fn new(own: &[IpAddr], kept: (u8, DontFragment), shared_counters: &SharedCounters) -> Peers {
        Peers {
            known: (0..MAX_PEERS).map(|_| OnceLock::new()).collect(),
            addresses: shared_counters
                .is_of_processes()
                .then(|| shared_counters.take(Peers::WORDS)),
            own: own.to_vec(),
            kept,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.known) + self.addresses.as_ref().map_or(0, |addresses| size_of_val(&**addresses))
    }

    /// Adds a peer with a number that is not in use. Only one thread of one process may call it at a time.
    pub(super) fn add(&self, number: usize, peer: IpAddr) -> Result<(), NoPeer> {
        let outer = self.outer(peer).ok_or(NoPeer::Version)?;
        let free = self.known.get(number).ok_or(NoPeer::Full)?;
        let _ = free.set((peer, outer));
        if let Some(addresses) = &self.addresses {
            let (version, bits) = match peer {
                IpAddr::V4(peer) => (V4, u128::from(peer.to_bits())),
                IpAddr::V6(peer) => (V6, peer.to_bits()),
            };
            let words = [version, bits as u64, (bits >> 64) as u64];
            for (to, word) in addresses[ADDRESS * number..].iter().zip(words) {
                // Published by the session that names the peer.
                to.store(word, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Returns a peer's address and outer header.
    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&(IpAddr, Outer)> {
        let known = self.known.get(usize::from(number))?;
        known.get().or_else(|| self.find(number))
    }

    /// Same as [`get`](Peers::get), for a peer that another process added.
    #[cold]
    fn find(&self, number: u16) -> Option<&(IpAddr, Outer)> {
        let words = self.addresses.as_ref()?;
        let words = words.get(ADDRESS * usize::from(number)..)?.first_chunk::<ADDRESS>()?;
        let [version, low, high, _] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let peer = match version {
            V4 => IpAddr::V4((low as u32).into()),
            V6 => IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into()),
            _ => return None,
        };
        let outer = self.outer(peer)?;
        Some(self.known[usize::from(number)].get_or_init(|| (peer, outer)))
    }

    /// Returns the outer header to a peer, if there is a local address of its IP version.
    fn outer(&self, peer: IpAddr) -> Option<Outer> {
        let mut own = self.own.iter();
        let own = *own.find(|own| own.is_ipv4() == peer.is_ipv4())?;
        let (ttl, dont_fragment) = self.kept;
        let kept = (ttl, None, dont_fragment);
        Some(Outer::between([own, peer], Some([PORT; 2]), protocol::UDP, kept))
    }
}
