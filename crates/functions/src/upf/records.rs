//! Session records as workers see them: two cache lines of atomic numbers each. One thread adds, changes and removes
//! sessions while workers read them without waiting.
//!
//! A session's identity is constant during its life. Its forwarding state is one number, and so changes atomically. A
//! generation shows whether the session existed throughout a read; one removed meanwhile counts as absent.

use super::direction::LinkDirection;
use super::lines::{Line, Lines};
use super::session::{Session, Tunnel};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tailwater_chain::region::prefetch;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};

// Words of the first line: identity and forwarding.
/// Odd while the slot holds a session.
const GENERATION: usize = 0;
/// The UE's IPv4 address, and the local TEID in the low half.
const OWN: usize = 1;
const PREFIX: usize = 2;
const FORWARD: usize = 3;
const ID: usize = 4;
const FLAGS: usize = 5;

const HAS_ADDRESS: u64 = 1;
const HAS_PREFIX: u64 = 2;

// Words of the second line: counters and buckets.
/// Buckets of the session's rates, up and down.
const RATE: usize = 0;
/// Bytes, up and down.
const BYTES: usize = 2;
/// Packets, up and down.
const PACKETS: usize = 4;
/// Bytes at the last volume report.
const VOLUME_MARK: usize = 6;
/// Time of the last time report, or of the session's start.
const TIME_MARK: usize = 7;

/// Value for a session without a peer.
pub(super) const NO_PEER: u16 = u16::MAX;

/// Forwarding state: remote tunnel end and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// TEID at the remote end.
    pub(super) teid: u32,
    /// Index of the peer, or [`NO_PEER`].
    pub(super) peer: u16,
    /// Index of the profile.
    pub(super) profile: u16,
}

impl Forward {
    fn word(self) -> u64 {
        u64::from(self.teid) << 32 | u64::from(self.peer) << 16 | u64::from(self.profile)
    }

    #[inline]
    fn of(word: u64) -> Forward {
        Forward {
            teid: (word >> 32) as u32,
            peer: (word >> 16) as u16,
            profile: word as u16,
        }
    }
}

/// Snapshot of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) generation: u64,
    pub(super) id: u64,
    pub(super) address: Option<Ipv4Addr>,
    pub(super) prefix: Option<u64>,
    pub(super) teid: u32,
    pub(super) forward: Forward,
}

/// Usage of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of inner packets, up and down.
    pub bytes: [u64; 2],
    /// Inner packets, up and down.
    pub packets: [u64; 2],
}

impl Usage {
    /// Returns the bytes of both directions.
    pub fn volume(&self) -> u64 {
        self.bytes[0].saturating_add(self.bytes[1])
    }
}

/// Records of all sessions.
#[derive(Debug)]
pub(super) struct Records {
    decided: Lines,
    counted: Lines,
    /// Buckets of rules' rates: `pairs` pairs per session.
    rates: CounterArray,
    pairs: usize,
}

impl Records {
    /// Takes `capacity` records, each with `pairs` pairs of rule rates, from the counters.
    pub(super) fn new(capacity: usize, pairs: usize, shared_counters: &SharedCounters) -> Records {
        Records {
            decided: Lines::new(capacity, shared_counters),
            counted: Lines::new(capacity, shared_counters),
            rates: shared_counters.take(capacity * pairs * 2),
            pairs,
        }
    }

    /// Returns the bytes of counters for `capacity` records.
    pub(super) fn shared_bytes(capacity: usize, pairs: usize) -> usize {
        2 * Lines::shared_bytes(capacity) + SharedCounters::bytes_of(capacity * pairs * 2)
    }

    pub(super) fn bytes(&self) -> usize {
        self.decided.bytes() + self.counted.bytes() + size_of_val(&*self.rates)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.decided.len() as u32
    }

    /// Prefetches a session.
    #[inline]
    pub(super) fn prefetch(&self, index: u32) {
        for lines in [&self.decided, &self.counted] {
            if let Some(line) = lines.get(index as usize) {
                prefetch(std::ptr::from_ref(line).cast());
            }
        }
    }

    #[inline]
    fn decided(&self, index: u32) -> &Line {
        self.decided.line(index as usize)
    }

    #[inline]
    fn counted(&self, index: u32) -> &Line {
        self.counted.line(index as usize)
    }

    /// Reads the session in a slot, if there is one.
    #[inline]
    pub(super) fn read(&self, index: u32) -> Option<Record> {
        let words = self.decided.get(index as usize)?;
        let generation = words[GENERATION].load(Ordering::Acquire);
        if generation & 1 == 0 {
            return None;
        }
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let (own, prefix, id, flags) = (word(OWN), word(PREFIX), word(ID), word(FLAGS));
        // The acquire pairs with the peer's publication: its entry exists before a record names it.
        let forward = words[FORWARD].load(Ordering::Acquire);
        // If any word is a later session's, the generation has changed as well, and the check below sees that.
        fence(Ordering::Acquire);
        if words[GENERATION].load(Ordering::Relaxed) != generation {
            return None;
        }
        Some(Record {
            generation,
            id,
            address: (flags & HAS_ADDRESS != 0).then(|| Ipv4Addr::from_bits((own >> 32) as u32)),
            prefix: (flags & HAS_PREFIX != 0).then_some(prefix),
            teid: own as u32,
            forward: Forward::of(forward),
        })
    }

    /// Creates a session in an empty slot. Only one thread may call this and the following functions at a time.
    pub(super) fn create(&self, index: u32, session: &Session, forward: Forward, now: u64) {
        let words = self.decided(index);
        let generation = words[GENERATION].load(Ordering::Relaxed);
        let counted = self.counted(index);
        counted.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        counted[TIME_MARK].store(now, Ordering::Relaxed);
        let pairs = self.pairs * 2;
        let rates = &self.rates[index as usize * pairs..][..pairs];
        rates.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let address = session.address.map_or(0, Ipv4Addr::to_bits);
        let mut flags = 0;
        if session.address.is_some() {
            flags |= HAS_ADDRESS;
        }
        if session.prefix.is_some() {
            flags |= HAS_PREFIX;
        }
        for (at, word) in [
            (OWN, u64::from(address) << 32 | u64::from(session.teid)),
            (PREFIX, session.prefix.unwrap_or(0)),
            (FORWARD, forward.word()),
            (ID, session.id),
            (FLAGS, flags),
        ] {
            words[at].store(word, Ordering::Relaxed);
        }
        words[GENERATION].store(generation.wrapping_add(1), Ordering::Release);
    }

    /// Changes a session's forwarding state.
    pub(super) fn redirect(&self, index: u32, forward: Forward) {
        self.decided(index)[FORWARD].store(forward.word(), Ordering::Release);
    }

    /// Removes a session.
    pub(super) fn remove(&self, index: u32) {
        let generation = &self.decided(index)[GENERATION];
        // Any number, if a process wrote it.
        let next = generation.load(Ordering::Relaxed).wrapping_add(1);
        generation.store(next, Ordering::Relaxed);
        // Orders the generation before any write of the slot's next session.
        fence(Ordering::Release);
    }

    /// Returns the bucket of a session's rate.
    #[inline]
    pub(super) fn session_rate(&self, index: u32, direction: LinkDirection) -> &AtomicU64 {
        &self.counted(index)[RATE + direction.at()]
    }

    /// Returns the bucket of a rule's rate in a session.
    #[inline]
    pub(super) fn rule_rate(&self, index: u32, pair: u8, direction: LinkDirection) -> Option<&AtomicU64> {
        let pair = index as usize * self.pairs + usize::from(pair);
        self.rates.get(pair * 2 + direction.at())
    }

    /// Counts a packet. Returns the bytes used so far, both directions.
    #[inline]
    pub(super) fn count(&self, index: u32, direction: LinkDirection, bytes: u64) -> u64 {
        let words = self.counted(index);
        words[PACKETS + direction.at()].fetch_add(1, Ordering::Relaxed);
        let mine = words[BYTES + direction.at()].fetch_add(bytes, Ordering::Relaxed) + bytes;
        mine.wrapping_add(words[BYTES + 1 - direction.at()].load(Ordering::Relaxed))
    }

    /// Returns `true` if the session used `threshold` bytes since the last volume report, and marks this as the next
    /// one. Only one caller gets `true`.
    #[inline]
    pub(super) fn volume_is_due(&self, index: u32, used: u64, threshold: u64) -> bool {
        let mark = &self.counted(index)[VOLUME_MARK];
        let before = mark.load(Ordering::Relaxed);
        used.saturating_sub(before) >= threshold
            && mark
                .compare_exchange(before, used, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns `true` if `threshold` has passed since the last time report, and marks this as the next one. Only one
    /// thread may call it at a time.
    pub(super) fn time_is_due(&self, index: u32, now: u64, threshold: u64) -> bool {
        let mark = &self.counted(index)[TIME_MARK];
        let due = now.saturating_sub(mark.load(Ordering::Relaxed)) >= threshold;
        if due {
            mark.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Returns the usage of the session in a slot.
    pub(super) fn usage(&self, index: u32) -> Usage {
        let words = self.counted(index);
        let pair = |at: usize| [at, at + 1].map(|at| words[at].load(Ordering::Relaxed));
        Usage {
            bytes: pair(BYTES),
            packets: pair(PACKETS),
        }
    }
}

impl Record {
    /// Returns the session in its configured form.
    pub(super) fn session(&self, peer: impl FnOnce(u16) -> Option<std::net::IpAddr>) -> Session {
        let Forward {
            teid,
            peer: index,
            profile,
        } = self.forward;
        Session {
            id: self.id,
            address: self.address,
            prefix: self.prefix,
            teid: self.teid,
            tunnel: peer(index).map(|peer| Tunnel { peer, teid }),
            profile,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Sessions are created and removed in one slot: a reader always sees one session's values together.
    #[test]
    fn nobody_reads_half_of_a_session() {
        let records = Records::new(1, 1, &SharedCounters::of_this_process());
        let session = |number: u32| Session {
            id: number.into(),
            address: Some(Ipv4Addr::from_bits(number)),
            prefix: Some(number.into()),
            teid: number,
            tunnel: None,
            profile: 0,
        };
        let forward = |number: u32| Forward {
            teid: number,
            peer: number as u16,
            profile: (number >> 16) as u16,
        };
        const ENOUGH: u32 = 50;
        let (over, seen) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let Some(record) = records.read(0) else {
                        continue;
                    };
                    let number = record.teid;
                    let expected = Record {
                        generation: record.generation,
                        id: number.into(),
                        address: Some(Ipv4Addr::from_bits(number)),
                        prefix: Some(number.into()),
                        teid: number,
                        forward: forward(number),
                    };
                    assert_eq!(record, expected);
                    if number != last {
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    last = number;
                }
            });
            // Runs until the reader has seen some of the sessions, however late it starts.
            for number in 1..u32::MAX {
                let enough = seen.load(Ordering::Relaxed) >= ENOUGH || reader.is_finished();
                if number > 200_000 && enough {
                    break;
                }
                records.create(0, &session(number), forward(number), 0);
                records.remove(0);
            }
            over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert!(seen.into_inner() >= ENOUGH);
    }

    #[test]
    fn volume_is_due_once_for_each_threshold() {
        let records = Records::new(2, 0, &SharedCounters::of_this_process());
        let mut due = 0;
        for packet in 0..1000 {
            let direction = if packet % 3 == 0 {
                LinkDirection::Up
            } else {
                LinkDirection::Down
            };
            let used = records.count(1, direction, 100);
            due += u32::from(records.volume_is_due(1, used, 1000));
        }
        assert_eq!(due, 100);
        let usage = records.usage(1);
        assert_eq!((usage.bytes, usage.packets), ([33_400, 66_600], [334, 666]));
        assert_eq!(usage.volume(), 100_000);
        assert_eq!(records.usage(0), Usage::default());
        assert!(!records.time_is_due(0, 99, 100) && records.time_is_due(0, 100, 100));
        assert!(!records.time_is_due(0, 199, 100) && records.time_is_due(0, 300, 100));
    }
}
