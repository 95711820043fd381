//! State shared by all workers of a user plane function: sessions, profiles and peers.

use super::index::{Buckets, Index};
use super::peers::{MAX_PEERS, NoPeer, Peers};
use super::records::{Forward, NO_PEER, Record, Records, Usage};
use super::session::{MAX_RATES, Profile, Role, Session};
use crate::ipsec::DontFragment;
use crate::ipsec::headers::Outer;
use crate::policer::{Meter, Rate};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_api::PacketAction;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_net::Nanos;

/// Options of a user plane function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// End of the tunnels.
    pub role: Role,
    /// Local addresses, where tunnels end. The first of each IP version is the source of outer packets.
    pub addresses: Vec<IpAddr>,
    /// Largest number of sessions.
    pub capacity: usize,
    /// Largest outer IP packet, in bytes.
    pub mtu: u16,
    /// Source addresses of ICMP "too big" errors, by IP version; `None` sends none.
    pub error_sources: [Option<IpAddr>; 2],
    /// Action on packets that belong to no session and come outside tunnels.
    pub others: PacketAction,
    /// If `true`, packets whose QFI is not their rule's are dropped.
    pub check_qfi: bool,
    /// If `true`, the outer source port depends on the inner flow.
    pub flow_ports: bool,
    /// If `true`, UDP over IPv4 has a checksum.
    pub checksums: bool,
    /// Time to live of outer headers.
    pub ttl: u8,
    /// "Don't fragment" bit of outer IPv4 headers.
    pub dont_fragment: DontFragment,
    /// Largest number of error indications per second, and of ICMP errors per second.
    pub errors_per_second: u64,
    /// If `true`, decisions for packets to be encapsulated are cached in the flow state.
    pub cached: bool,
}

/// Owner of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The file of sessions. A reload removes its sessions that are no longer listed.
    File,
    /// A client of the API.
    Api,
}

/// Reasons a session is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// An identifier belongs to another session.
    #[error("the {what} is in use by session {other}")]
    Taken {
        /// Identifier.
        what: &'static str,
        /// Number of the session that has it.
        other: u64,
    },
    /// The limit of sessions is reached.
    #[error("expected at most {0} sessions (capacity), found more")]
    Full(usize),
    /// The limit of peers is reached.
    #[error("expected at most {MAX_PEERS} peers since the start, found more")]
    Peers,
    /// There is no local address of the peer's IP version.
    #[error("no local address has the IP version of {0}")]
    Version(IpAddr),
    /// The sessions of a file are being applied; other changes must be retried.
    #[error("the sessions of the file are being applied: retry")]
    Replacing,
    /// The profile does not exist.
    #[error("unknown profile {0}")]
    Profile(u16),
}

/// Effect of setting a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// The session is new.
    Added,
    /// The session was changed.
    Changed,
    /// The session was already the same.
    Nothing,
}

/// State of the single writer of sessions.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) sessions: HashMap<u64, (u32, Owner)>,
    /// Free slots; the one free the longest is used first.
    free: VecDeque<u32>,
    pub(super) peers: HashMap<IpAddr, u16>,
    pub(super) removed: Vec<(u64, IpAddr, Usage)>,
    /// `true` while a replacement of the file's sessions is prepared.
    pub(super) replacing: bool,
    /// Number of replacements so far.
    pub(super) version: u32,
}

/// Profile with the indices of its rates.
#[derive(Debug)]
pub(super) struct CompiledProfile {
    pub(super) profile: Profile,
    /// Per treatment, the index of its pair of rates within the session's.
    pub(super) pairs: Vec<u8>,
}

/// Sessions and profiles, shared by all workers.
#[derive(Debug)]
pub struct UpfTable {
    pub(super) options: Options,
    pub(super) profiles: Vec<CompiledProfile>,
    pub(super) records: Records,
    teids: Index,
    addresses: Index,
    prefixes: Index,
    peers: Peers,
    writer: Mutex<Writer>,
    /// Bitmap of sessions due for a volume report.
    pub(super) due: CounterArray,
    pub(super) numbers: CounterArray,
    errors: Meter,
    /// `true` if the usage of removed sessions is to be reported.
    reports: bool,
}

// Indices of the table's numbers.
/// Time of the last batch.
const NOW: usize = 0;
/// Buckets that limit error indications and ICMP errors.
const ERROR_BUCKETS: usize = 1;
/// Reports that could not be written and that no worker has counted.
pub(super) const NUMBERS_UNWRITTEN: usize = 3;
const NUMBERS: usize = 4;

impl UpfTable {
    /// Creates a table without sessions. `seed` keys the hashes; `reports` keeps the usage of removed sessions.
    pub fn new(options: Options, profiles: &[Profile], reports: bool, seed: u64) -> UpfTable {
        let shared_counters = SharedCounters::of_this_process();
        UpfTable::with_shared_counters(options, profiles, (reports, seed), &shared_counters)
    }

    /// Creates a table as [`new`](UpfTable::new) does, for one of several processes. All of them use the same
    /// `shared_counters` of [this size](UpfTable::shared_bytes), which hold the sessions with their rates and usage.
    /// One process, which does not process packets, sets and removes sessions.
    pub fn sharing(
        options: Options,
        profiles: &[Profile],
        reports: bool,
        shared_counters: &SharedCounters,
    ) -> UpfTable {
        let seed = shared_counters.take_seed();
        UpfTable::with_shared_counters(options, profiles, (reports, seed), shared_counters)
    }

    /// Returns the bytes of state shared by processes.
    pub fn shared_bytes(options: &Options, profiles: &[Profile]) -> usize {
        let capacity = options.capacity;
        let others = [1, Peers::WORDS, capacity.div_ceil(64), NUMBERS];
        Records::shared_bytes(capacity, pairs(profiles))
            + 3 * Index::shared_bytes(capacity)
            + others.map(SharedCounters::bytes_of).iter().sum::<usize>()
    }

    fn with_shared_counters(
        options: Options,
        profiles: &[Profile],
        (reports, seed): (bool, u64),
        shared_counters: &SharedCounters,
    ) -> UpfTable {
        let capacity = options.capacity;
        let used = |profile: &Profile| {
            let mut next = 0;
            let pairs = profile.treatments().map(|treatment| {
                let pair = next;
                next += u8::from(treatment.rates.iter().any(Option::is_some));
                pair
            });
            CompiledProfile {
                pairs: pairs.collect(),
                profile: profile.clone(),
            }
        };
        let errors = options.errors_per_second.max(1);
        UpfTable {
            profiles: profiles.iter().map(used).collect(),
            records: Records::new(capacity, pairs(profiles), shared_counters),
            teids: Index::new(capacity, seed, shared_counters),
            addresses: Index::new(capacity, seed, shared_counters),
            prefixes: Index::new(capacity, seed, shared_counters),
            peers: Peers::new(
                &options.addresses,
                (options.ttl, options.dont_fragment),
                shared_counters,
            ),
            writer: Mutex::new(Writer {
                free: (0..capacity as u32).collect(),
                ..Writer::default()
            }),
            due: shared_counters.take(capacity.div_ceil(64)),
            numbers: shared_counters.take(NUMBERS),
            errors: Meter::new(Rate::Packets(errors), errors),
            reports,
            options,
        }
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the profiles' names with their indices, and the IP versions of the local addresses.
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

    /// Returns the profile with this index.
    pub fn profile(&self, place: u16) -> Option<&Profile> {
        self.profiles.get(usize::from(place)).map(|used| &used.profile)
    }

    /// Returns the bytes allocated for the data path, independent of the number of sessions. The writer's state is
    /// excluded.
    pub fn memory_bytes(&self) -> usize {
        let indices = [&self.teids, &self.addresses, &self.prefixes];
        let indices: usize = indices.iter().map(|index| index.bytes()).sum();
        self.records.bytes() + indices + self.peers.bytes() + size_of_val(&*self.due)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Adds a session, or changes the one with its number. Workers see the change with their next packet.
    ///
    /// # Errors
    /// The session is refused; the table is then unchanged.
    pub fn set(&self, session: &Session, owner: Owner) -> Result<SessionChange, SessionError> {
        let mut writer = self.lock();
        if writer.replacing {
            return Err(SessionError::Replacing);
        }
        self.set_locked(&mut writer, session, owner)
    }

    pub(super) fn set_locked(
        &self,
        writer: &mut Writer,
        session: &Session,
        owner: Owner,
    ) -> Result<SessionChange, SessionError> {
        if usize::from(session.profile) >= self.profiles.len() {
            return Err(SessionError::Profile(session.profile));
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
                    return Ok(SessionChange::Nothing);
                }
                self.records.redirect(place, forward);
                return Ok(SessionChange::Changed);
            }
            // Changed identifiers make it a new session with the same number.
            self.remove_locked(writer, session.id);
            return self
                .add(writer, session, forward, owner)
                .map(|()| SessionChange::Changed);
        }
        self.add(writer, session, forward, owner).map(|()| SessionChange::Added)
    }

    /// Checks that no other session has one of the session's identifiers.
    fn check_free(&self, session: &Session) -> Result<(), SessionError> {
        match self.identifier_conflicts(session).next() {
            None => Ok(()),
            Some((what, other)) => Err(SessionError::Taken { what, other }),
        }
    }

    /// Iterates over conflicts: identifiers that belong to other sessions, with those sessions' numbers.
    pub(super) fn identifier_conflicts(&self, session: &Session) -> impl Iterator<Item = (&'static str, u64)> {
        let teid = self.find_teid(session.teid);
        let address = session.address.and_then(|address| self.find_user(address.into()));
        let prefix = session.prefix.and_then(|prefix| self.find_prefix(prefix));
        let (found, id) = ([("teid", teid), ("ue", address), ("ue6", prefix)], session.id);
        let others = found.into_iter().filter_map(|(what, found)| Some((what, found?.1.id)));
        others.filter(move |(_, other)| *other != id)
    }

    fn add(&self, writer: &mut Writer, session: &Session, forward: Forward, owner: Owner) -> Result<(), SessionError> {
        let full = || SessionError::Full(self.options.capacity);
        let place = writer.free.pop_front().ok_or_else(full)?;
        let now = self.numbers[NOW].load(Ordering::Relaxed);
        // A report due for the slot's previous session does not concern this one.
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

    /// Returns the index keys of a session.
    fn keys(&self, session: &Session) -> Vec<(&Index, u64)> {
        let teid = Some((&self.teids, session.teid.into()));
        let address = session.address.map(|a| (&self.addresses, a.to_bits().into()));
        let prefix = session.prefix.map(|prefix| (&self.prefixes, prefix));
        [teid, address, prefix].into_iter().flatten().collect()
    }

    /// Removes a session and returns its usage, which is also queued for the reports. Returns `None` if it does not
    /// exist.
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
        // A batch in progress may still count for the session, so its slot goes to the end of the queue.
        writer.free.push_back(place);
        if self.reports {
            writer.removed.push((id, record.user(), usage));
        }
        Some(usage)
    }

    /// Returns the index of a peer, and adds it if new.
    fn peer_of(&self, writer: &mut Writer, peer: IpAddr) -> Result<u16, SessionError> {
        if let Some(place) = writer.peers.get(&peer) {
            return Ok(*place);
        }
        let place = writer.peers.len();
        self.peers.add(place, peer).map_err(|why| match why {
            NoPeer::Version => SessionError::Version(peer),
            NoPeer::Full => SessionError::Peers,
        })?;
        writer.peers.insert(peer, place as u16);
        Ok(place as u16)
    }

    /// Returns the outer header to the peer with this index.
    #[inline]
    pub(super) fn outer(&self, peer: u16) -> Option<&Outer> {
        self.peers.get(peer).map(|(_, outer)| outer)
    }

    /// Returns a session and its usage by number.
    pub fn session(&self, id: u64) -> Option<(Session, Usage)> {
        let writer = self.lock();
        let (place, _) = writer.sessions.get(&id)?;
        let record = self.records.read(*place)?;
        Some((self.described(&record), self.records.usage(*place)))
    }

    fn described(&self, record: &Record) -> Session {
        record.session(|place| Some(self.peers.get(place)?.0))
    }

    /// Returns `true` if the address is local.
    #[inline]
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.options.addresses.contains(&address)
    }

    /// Prefetches the index buckets of a TEID.
    #[inline]
    pub(super) fn prefetch_teid(&self, teid: u32) -> Buckets {
        self.teids.prefetch(teid.into())
    }

    /// Prefetches the index buckets of a UE's address.
    #[inline]
    pub(super) fn prefetch_user(&self, address: IpAddr) -> Buckets {
        match address {
            IpAddr::V4(address) => self.addresses.prefetch(address.to_bits().into()),
            IpAddr::V6(address) => self.prefixes.prefetch((address.to_bits() >> 64) as u64),
        }
    }

    /// Returns the first slot that may hold the session of a TEID, for prefetching.
    #[inline]
    pub(super) fn guess_teid(&self, buckets: Buckets) -> Option<u32> {
        self.teids.find(buckets).next()
    }

    /// Returns the first slot that may hold the session of a UE, for prefetching.
    #[inline]
    pub(super) fn guess_user(&self, address: IpAddr, buckets: Buckets) -> Option<u32> {
        match address {
            IpAddr::V4(_) => self.addresses.find(buckets).next(),
            IpAddr::V6(_) => self.prefixes.find(buckets).next(),
        }
    }

    /// Returns the slot and session of a local TEID.
    #[inline]
    pub(super) fn session_of_teid(&self, teid: u32, buckets: Buckets) -> Option<(u32, Record)> {
        let mut places = self.teids.find(buckets);
        places.find_map(|place| {
            let record = self.records.read(place)?;
            (record.teid == teid).then_some((place, record))
        })
    }

    /// Returns the slot and session of a UE.
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

    /// Returns `true` if the rate permits one more error of this kind: 0 for indications, 1 for ICMP.
    #[inline]
    pub(super) fn may_send_error(&self, kind: usize, now: Nanos) -> bool {
        self.options.errors_per_second > 0 && take(&self.errors, &self.numbers[ERROR_BUCKETS + kind], now, 1)
    }

    /// Updates the clock with a batch's time.
    #[inline]
    pub(super) fn set_now(&self, now: Nanos) {
        // Written about once a millisecond only, since all workers share the cache line.
        if now.0 >> 20 != self.numbers[NOW].load(Ordering::Relaxed) >> 20 {
            self.numbers[NOW].store(now.0, Ordering::Relaxed);
        }
    }

    /// Returns the time of the last batch, since the run's start.
    pub fn now(&self) -> Nanos {
        Nanos(self.numbers[NOW].load(Ordering::Relaxed))
    }
}

/// Returns the pairs of rule rates that each session needs.
fn pairs(profiles: &[Profile]) -> usize {
    let limited = |profile: &Profile| {
        let treatments = profile.treatments();
        treatments
            .filter(|treatment| treatment.rates.iter().any(Option::is_some))
            .count()
    };
    let pairs = profiles.iter().map(limited).max().unwrap_or(0);
    pairs.min(MAX_RATES)
}

impl Record {
    /// Returns `true` if the address is the UE's.
    #[inline]
    pub(super) fn is_of(&self, user: IpAddr) -> bool {
        match user {
            IpAddr::V4(address) => self.address == Some(address),
            IpAddr::V6(address) => self.prefix == Some((address.to_bits() >> 64) as u64),
        }
    }

    /// Returns the UE's IPv4 address, or the first of its IPv6 addresses.
    pub(super) fn user(&self) -> IpAddr {
        let prefix = u128::from(self.prefix.unwrap_or(0)) << 64;
        let address = self.address.map(Ipv4Addr::into);
        address.unwrap_or(IpAddr::V6(prefix.into()))
    }
}

/// Takes a packet's tokens from a bucket shared with other cores, if it has them.
#[inline]
pub(super) fn take(meter: &Meter, bucket: &AtomicU64, now: Nanos, bytes: usize) -> bool {
    // Relaxed is enough: the number guards no other data.
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
