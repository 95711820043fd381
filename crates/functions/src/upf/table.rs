//! What all workers of a user plane function share: sessions, profiles, the other ends of tunnels.

use super::gtp::PORT;
use super::index::{Buckets, Index};
use super::records::{Forward, NO_PEER, Record, Records, Usage};
use super::session::{MAX_RATES, Profile, Role, Session};
use crate::ipsec::DontFragment;
use crate::ipsec::headers::Outer;
use crate::policer::{Meter, Rate};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tailwater_api::Fate;
use tailwater_net::{Nanos, protocol};

/// The most other ends of tunnels, over all of a run.
pub const MAX_PEERS: usize = 16_384;

/// How a user plane function works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which end it is.
    pub role: Role,
    /// Its addresses, where tunnels end; the first of each IP version is the source of what it sends.
    pub addresses: Vec<IpAddr>,
    /// The most sessions.
    pub capacity: usize,
    /// The longest outer IP packet, in bytes.
    pub mtu: u16,
    /// Addresses to send ICMP errors from about packets that are too big, by IP version; `None`: none is sent.
    pub error_sources: [Option<IpAddr>; 2],
    /// What becomes of packets that belong to no session and come by no tunnel.
    pub others: Fate,
    /// Whether a packet whose QFI is not its rule's is dropped.
    pub check_qfi: bool,
    /// Whether the source port of outer headers tells inner flows apart.
    pub flow_ports: bool,
    /// Whether UDP over IPv4 has a checksum.
    pub checksums: bool,
    /// Time to live of outer headers.
    pub ttl: u8,
    /// "Don't fragment" of outer IPv4 headers.
    pub dont_fragment: DontFragment,
    /// The most error indications and ICMP errors a second, each.
    pub errors_per_second: u64,
    /// Whether what is decided about packets to users is kept with their flows.
    pub cached: bool,
}

/// Who a session belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The file of sessions: what is not in it any more is removed.
    File,
    /// Whoever uses the API.
    Api,
}

/// Why a session cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another session has what is to be one's own.
    #[error("{what} is session {other}'s")]
    Taken {
        /// What.
        what: &'static str,
        /// Whose it is.
        other: u64,
    },
    /// There are as many sessions as there may be.
    #[error("there is no room: the capacity is {0} sessions")]
    Full(usize),
    /// Tunnels have had too many other ends.
    #[error("there have been {MAX_PEERS} peers, as many as there may be")]
    Peers,
    /// This end has no address of the peer's IP version.
    #[error("this end has no address of the IP version of {0}")]
    Version(IpAddr),
    /// The sessions of a file are being put in force: what others want has to wait.
    #[error("the file's sessions are being put in force: ask again")]
    Replacing,
    /// There is no such profile.
    #[error("there is no profile {0}")]
    Profile(u16),
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// There is a session more.
    Added,
    /// It is another.
    Changed,
    /// It was so already.
    Nothing,
}

/// What one thread at a time knows, to change sessions.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) sessions: HashMap<u64, (u32, Owner)>,
    /// Places of no session: the one that has been free for the longest is the next.
    free: VecDeque<u32>,
    pub(super) peers: HashMap<IpAddr, u16>,
    removed: Vec<(u64, IpAddr, Usage)>,
    /// Whether all of the file's sessions are about to be replaced.
    pub(super) replacing: bool,
    /// How often they have been.
    pub(super) version: u32,
}

/// A profile with the places of its rates.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) profile: Profile,
    /// For each treatment, the place of its rates among the session's.
    pub(super) pairs: Vec<u8>,
}

/// Sessions and profiles; one value serves all workers.
#[derive(Debug)]
pub struct UpfTable {
    pub(super) options: Options,
    pub(super) profiles: Vec<Used>,
    pub(super) records: Records,
    teids: Index,
    addresses: Index,
    prefixes: Index,
    peers: Box<[OnceLock<(IpAddr, Outer)>]>,
    writer: Mutex<Writer>,
    /// Sessions of which a report is due, a bit each.
    due: Box<[AtomicU64]>,
    /// When the last batch was taken.
    now: AtomicU64,
    errors: Meter,
    /// Buckets of what is sent about errors: indications, ICMP.
    pub(super) error_buckets: [AtomicU64; 2],
    /// Whether anybody wants to know of removed sessions.
    reports: bool,
}

impl UpfTable {
    /// Without sessions. `seed` keys its hashes; `reports`: somebody takes what removed sessions used.
    pub fn new(options: Options, profiles: &[Profile], reports: bool, seed: u64) -> UpfTable {
        let capacity = options.capacity;
        let used = |profile: &Profile| {
            let mut next = 0;
            let pairs = profile.treatments().map(|treatment| {
                let pair = next;
                next += u8::from(treatment.rates.iter().any(Option::is_some));
                pair
            });
            Used {
                pairs: pairs.collect(),
                profile: profile.clone(),
            }
        };
        let limited = |profile: &Profile| {
            let treatments = profile.treatments();
            treatments
                .filter(|treatment| treatment.rates.iter().any(Option::is_some))
                .count()
        };
        let pairs = profiles.iter().map(limited).max().unwrap_or(0);
        let errors = options.errors_per_second.max(1);
        UpfTable {
            profiles: profiles.iter().map(used).collect(),
            records: Records::new(capacity, pairs.min(MAX_RATES)),
            teids: Index::new(capacity, seed),
            addresses: Index::new(capacity, seed),
            prefixes: Index::new(capacity, seed),
            peers: (0..MAX_PEERS).map(|_| OnceLock::new()).collect(),
            writer: Mutex::new(Writer {
                free: (0..capacity as u32).collect(),
                ..Writer::default()
            }),
            due: (0..capacity.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            now: AtomicU64::new(0),
            errors: Meter::new(Rate::Packets(errors), errors),
            error_buckets: Default::default(),
            reports,
            options,
        }
    }

    /// How it works.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The profiles' names with their places, and which IP versions this end has.
    pub fn names(&self) -> super::language::Names {
        let profiles = (0..).zip(&self.profiles);
        super::language::Names {
            profiles: profiles
                .map(|(place, used)| (used.profile.name.clone(), place))
                .collect(),
            versions: [true, false].map(|v4| {
                let mut addresses = self.options.addresses.iter();
                addresses.any(|address| address.is_ipv4() == v4)
            }),
        }
    }

    /// The profile at a place.
    pub fn profile(&self, place: u16) -> Option<&Profile> {
        self.profiles.get(usize::from(place)).map(|used| &used.profile)
    }

    /// Bytes that it takes, whatever the number of sessions; without what is needed to change them.
    pub fn memory_bytes(&self) -> usize {
        let indices = [&self.teids, &self.addresses, &self.prefixes];
        let indices: usize = indices.iter().map(|index| index.bytes()).sum();
        self.records.bytes() + indices + size_of_val(&*self.peers) + size_of_val(&*self.due)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Adds a session, or has the one of its number be so. Workers see it with the next packet that they look at.
    ///
    /// # Errors
    /// Why it cannot be; all is as it was.
    pub fn set(&self, session: &Session, owner: Owner) -> Result<Changed, Refused> {
        let mut writer = self.lock();
        if writer.replacing {
            return Err(Refused::Replacing);
        }
        self.set_locked(&mut writer, session, owner)
    }

    pub(super) fn set_locked(&self, writer: &mut Writer, session: &Session, owner: Owner) -> Result<Changed, Refused> {
        if usize::from(session.profile) >= self.profiles.len() {
            return Err(Refused::Profile(session.profile));
        }
        self.check_free(session)?;
        let peer = match session.tunnel {
            None => NO_PEER,
            Some(tunnel) => self.peer_of(writer, tunnel.peer)?,
        };
        let forward = Forward {
            teid: session.tunnel.map_or(0, |tunnel| tunnel.teid),
            peer,
            profile: session.profile,
        };
        if let Some((place, known)) = writer.sessions.get_mut(&session.id) {
            let (place, before) = (*place, self.records.read(*place));
            *known = owner;
            let same = before.is_some_and(|before| {
                (before.address, before.prefix, before.teid) == (session.address, session.prefix, session.teid)
            });
            if same {
                if before.is_some_and(|before| before.forward == forward) {
                    return Ok(Changed::Nothing);
                }
                self.records.redirect(place, forward);
                return Ok(Changed::Changed);
            }
            // With other addresses it is another session of the same number.
            self.remove_locked(writer, session.id);
            return self.add(writer, session, forward, owner).map(|()| Changed::Changed);
        }
        self.add(writer, session, forward, owner).map(|()| Changed::Added)
    }

    /// That nobody else has what is to be the session's own.
    fn check_free(&self, session: &Session) -> Result<(), Refused> {
        match self.in_the_way(session).next() {
            None => Ok(()),
            Some((what, other)) => Err(Refused::Taken { what, other }),
        }
    }

    /// Who has what is to be the session's own, and what.
    pub(super) fn in_the_way(&self, session: &Session) -> impl Iterator<Item = (&'static str, u64)> {
        let teid = self.find_teid(session.teid);
        let address = session.address.and_then(|address| self.find_user(address.into()));
        let prefix = session.prefix.and_then(|prefix| self.find_prefix(prefix));
        let (found, id) = (
            [("the teid", teid), ("the ue", address), ("the ue6", prefix)],
            session.id,
        );
        let others = found.into_iter().filter_map(|(what, found)| Some((what, found?.1.id)));
        others.filter(move |(_, other)| *other != id)
    }

    fn add(&self, writer: &mut Writer, session: &Session, forward: Forward, owner: Owner) -> Result<(), Refused> {
        let full = || Refused::Full(self.options.capacity);
        let place = writer.free.pop_front().ok_or_else(full)?;
        let now = self.now.load(Ordering::Relaxed);
        // What was due about the last session there is not about this one.
        self.clear_due(place);
        self.records.create(place, session, forward, now);
        for (at, (index, key)) in self.keys(session).into_iter().enumerate() {
            if !index.insert(key, place) {
                for (index, key) in self.keys(session).into_iter().take(at) {
                    index.remove(key, place);
                }
                self.records.remove(place);
                writer.free.push_back(place);
                return Err(full());
            }
        }
        writer.sessions.insert(session.id, (place, owner));
        Ok(())
    }

    /// By what a session is found.
    fn keys(&self, session: &Session) -> Vec<(&Index, u64)> {
        let teid = Some((&self.teids, session.teid.into()));
        let address = session.address.map(|a| (&self.addresses, a.to_bits().into()));
        let prefix = session.prefix.map(|prefix| (&self.prefixes, prefix));
        [teid, address, prefix].into_iter().flatten().collect()
    }

    /// Removes a session. What it used is given to whoever takes that; `None`: there is no such session.
    pub fn remove(&self, id: u64) -> Option<Usage> {
        self.remove_locked(&mut self.lock(), id)
    }

    pub(super) fn remove_locked(&self, writer: &mut Writer, id: u64) -> Option<Usage> {
        let (place, _) = writer.sessions.remove(&id)?;
        let record = self.records.read(place)?;
        let session = record.session(|_| None);
        for (index, key) in self.keys(&session) {
            index.remove(key, place);
        }
        self.records.remove(place);
        let usage = self.records.usage(place);
        // A batch that is under way may still count for it: the place waits for its turn.
        writer.free.push_back(place);
        if self.reports {
            writer.removed.push((id, record.user(), usage));
        }
        Some(usage)
    }

    /// The place of the other end of tunnels.
    fn peer_of(&self, writer: &mut Writer, peer: IpAddr) -> Result<u16, Refused> {
        if let Some(place) = writer.peers.get(&peer) {
            return Ok(*place);
        }
        let mut own = self.options.addresses.iter();
        let own = own.find(|own| own.is_ipv4() == peer.is_ipv4());
        let own = *own.ok_or(Refused::Version(peer))?;
        let place = writer.peers.len();
        let free = self.peers.get(place).ok_or(Refused::Peers)?;
        let kept = (self.options.ttl, None, self.options.dont_fragment);
        let outer = Outer::between([own, peer], Some([PORT; 2]), protocol::UDP, kept);
        let _ = free.set((peer, outer));
        writer.peers.insert(peer, place as u16);
        Ok(place as u16)
    }

    /// The outer header to the peer at a place.
    #[inline]
    pub(super) fn outer(&self, peer: u16) -> Option<&Outer> {
        Some(&self.peers.get(usize::from(peer))?.get()?.1)
    }

    /// A session with its usage, by its number.
    pub fn session(&self, id: u64) -> Option<(Session, Usage)> {
        let writer = self.lock();
        let (place, _) = writer.sessions.get(&id)?;
        let record = self.records.read(*place)?;
        Some((self.described(&record), self.records.usage(*place)))
    }

    fn described(&self, record: &Record) -> Session {
        record.session(|place| Some(self.peers.get(usize::from(place))?.get()?.0))
    }

    /// Whether the address is one of this end's.
    #[inline]
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.options.addresses.contains(&address)
    }

    /// Where the session of a tunnel may be.
    #[inline]
    pub(super) fn prefetch_teid(&self, teid: u32) -> Buckets {
        self.teids.prefetch(teid.into())
    }

    /// Where the session of a user's address may be.
    #[inline]
    pub(super) fn prefetch_user(&self, address: IpAddr) -> Buckets {
        match address {
            IpAddr::V4(address) => self.addresses.prefetch(address.to_bits().into()),
            IpAddr::V6(address) => self.prefixes.prefetch((address.to_bits() >> 64) as u64),
        }
    }

    /// The first place that may be that of the session of a tunnel, to be fetched.
    #[inline]
    pub(super) fn guess_teid(&self, buckets: Buckets) -> Option<u32> {
        self.teids.find(buckets).next()
    }

    /// The first place that may be that of a user's session.
    #[inline]
    pub(super) fn guess_user(&self, address: IpAddr, buckets: Buckets) -> Option<u32> {
        match address {
            IpAddr::V4(_) => self.addresses.find(buckets).next(),
            IpAddr::V6(_) => self.prefixes.find(buckets).next(),
        }
    }

    /// The session of a tunnel.
    #[inline]
    pub(super) fn session_of_teid(&self, teid: u32, buckets: Buckets) -> Option<(u32, Record)> {
        let mut places = self.teids.find(buckets);
        places.find_map(|place| {
            let record = self.records.read(place)?;
            (record.teid == teid).then_some((place, record))
        })
    }

    /// The session of a user.
    #[inline]
    pub(super) fn session_of_user(&self, user: IpAddr, buckets: Buckets) -> Option<(u32, Record)> {
        let found = |place| {
            let record = self.records.read(place)?;
            record.is_of(user).then_some((place, record))
        };
        match user {
            IpAddr::V4(_) => self.addresses.find(buckets).find_map(found),
            IpAddr::V6(_) => self.prefixes.find(buckets).find_map(found),
        }
    }

    pub(super) fn find_teid(&self, teid: u32) -> Option<(u32, Record)> {
        self.session_of_teid(teid, self.prefetch_teid(teid))
    }

    pub(super) fn find_user(&self, user: IpAddr) -> Option<(u32, Record)> {
        self.session_of_user(user, self.prefetch_user(user))
    }

    pub(super) fn find_prefix(&self, prefix: u64) -> Option<(u32, Record)> {
        self.find_user(IpAddr::V6((u128::from(prefix) << 64).into()))
    }

    /// Whether one more error may be told now, of one of two kinds.
    #[inline]
    pub(super) fn may_tell(&self, kind: usize, now: Nanos) -> bool {
        self.options.errors_per_second > 0 && take(&self.errors, &self.error_buckets[kind], now, 1)
    }

    /// A worker has taken a batch.
    #[inline]
    pub(super) fn set_now(&self, now: Nanos) {
        // Written only when it is another millisecond: it is one line of all workers.
        if now.0 >> 20 != self.now.load(Ordering::Relaxed) >> 20 {
            self.now.store(now.0, Ordering::Relaxed);
        }
    }

    /// When the last batch was taken, since the run's start.
    pub fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    /// A report is due about the session at a place.
    #[inline]
    pub(super) fn set_due(&self, place: u32) {
        if let Some(word) = self.due.get(place as usize / 64) {
            word.fetch_or(1 << (place % 64), Ordering::Relaxed);
        }
    }

    fn clear_due(&self, place: u32) {
        if let Some(word) = self.due.get(place as usize / 64) {
            word.fetch_and(!(1 << (place % 64)), Ordering::Relaxed);
        }
    }

    /// Tells sessions of which a report is due: for their volume, then, with `times`, for their time.
    pub(super) fn take_due(&self, times: bool, mut each: impl FnMut(Due, &Record, Usage)) {
        for (at, word) in (0u32..).zip(&self.due) {
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::Relaxed),
            };
            while bits != 0 {
                let place = at * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(record) = self.records.read(place) {
                    each(Due::Volume, &record, self.records.usage(place));
                }
            }
        }
        if times && self.profiles.iter().any(|used| used.profile.time.is_some()) {
            let now = self.now().0;
            for place in 0..self.records.capacity() {
                if let Some(record) = self.records.read(place)
                    && let Some(time) = self.profile(record.forward.profile).and_then(|p| p.time)
                    && self.records.time_is_due(place, now, time.0)
                {
                    each(Due::Time, &record, self.records.usage(place));
                }
            }
        }
    }

    /// What sessions used that were removed since this was last asked.
    pub(super) fn take_removed(&self) -> Vec<(u64, IpAddr, Usage)> {
        std::mem::take(&mut self.lock().removed)
    }

    /// All sessions that there are, with what they used.
    pub(super) fn each(&self, mut each: impl FnMut(&Record, Usage)) {
        for place in 0..self.records.capacity() {
            if let Some(record) = self.records.read(place) {
                each(&record, self.records.usage(place));
            }
        }
    }
}

/// Why a report is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Volume,
    Time,
}

impl Record {
    /// Whether the address is the user's.
    #[inline]
    pub(super) fn is_of(&self, user: IpAddr) -> bool {
        match user {
            IpAddr::V4(address) => self.address == Some(address),
            IpAddr::V6(address) => self.prefix == Some((address.to_bits() >> 64) as u64),
        }
    }

    /// The user's IPv4 address, or the first of his IPv6 ones.
    pub(super) fn user(&self) -> IpAddr {
        let prefix = u128::from(self.prefix.unwrap_or(0)) << 64;
        let address = self.address.map(Ipv4Addr::into);
        address.unwrap_or(IpAddr::V6(prefix.into()))
    }
}

/// Takes a packet's tokens from a bucket that others take from at the same time, if there are as many.
#[inline]
pub(super) fn take(meter: &Meter, bucket: &AtomicU64, now: Nanos, bytes: usize) -> bool {
    // Only the number itself is shared, nothing that it would guard.
    let mut before = bucket.load(Ordering::Relaxed);
    loop {
        let mut after = before;
        if !meter.take(&mut after, now, bytes) {
            return false;
        }
        match bucket.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => before = now,
        }
    }
}
