//! Hostile function that follows a [`Script`].

use super::calls;
use super::honest::{BATCH, DENIED, LEAST, LIVE, LOOT, POLICY, SECRET, TAG, UNSEEN};
use super::raw::{Raw, masks};
use super::script::{Random, Script, Step, Verb};
use rustix::thread::sched_yield;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tailwater_net::FlowKey;
use tailwater_sdk::protocol::layout::{
    CHAIN_ENDED, CompanionRequest, CompanionRequestKind, MASKS, MAX_BATCH, PacketMasks, PacketResponse,
    RESPONSE_AREA_BYTES, slots,
};

/// Yields before it sleeps, as an honest function does.
const YIELDS: u32 = 8;

/// A frame that is its own in this turn.
#[derive(Clone, Copy)]
struct Own {
    slot: usize,
    start: usize,
    length: usize,
}

/// Hostile function with its script.
pub(crate) struct Behaviours {
    raw: Raw,
    script: Script,
    /// Its frames of the batch.
    own: Vec<Own>,
    /// Packets of the batch.
    count: usize,
    /// Sightings of other functions' secrets, and of frames before its turn.
    sightings: [u64; 2],
    /// Set once it has said that the turn is done.
    said: bool,
    random: Random,
    buffer: Vec<u8>,
}

impl Behaviours {
    pub(crate) fn new(raw: Raw, script: Script) -> Behaviours {
        Behaviours {
            buffer: vec![0; raw.packets.len()],
            raw,
            script,
            own: Vec::with_capacity(MAX_BATCH),
            count: 0,
            sightings: [0; 2],
            said: false,
            random: Random(0),
        }
    }

    /// Returns the round of its turn, if that is due.
    fn due(&self) -> Option<u64> {
        let round = self.raw.board.round();
        let in_front = self.raw.in_front.as_ref();
        let due = round != self.raw.last && in_front.is_none_or(|(_, slate)| slate.done() == round);
        due.then_some(round)
    }

    pub(crate) fn take_turns(mut self) -> io::Result<()> {
        let mut waited = 0;
        loop {
            if let Some(round) = self.due() {
                let over = self.raw.board.flags() & CHAIN_ENDED != 0;
                self.begin();
                self.said = false;
                for step in self.steps() {
                    self.act(step, round);
                }
                if !self.said {
                    self.respond(round);
                    self.raw.slate.set_done(round);
                }
                self.raw.last = round;
                if over {
                    return Ok(());
                }
                waited = 0;
            }
            if waited < YIELDS || self.script.restless {
                waited += 1;
                sched_yield();
            } else {
                waited = 0;
                self.raw.slate.sleep(|| self.due().is_some());
            }
        }
    }

    /// Notes which frames are its own in this turn.
    fn begin(&mut self) {
        let Raw { board, in_front, .. } = &self.raw;
        let round = board.round();
        self.count = board.count();
        self.own.clear();
        for word in 0..MASKS {
            let PacketMasks { left, moved } = self.raw.came(word);
            for slot in slots(word, left) {
                let told = in_front.as_ref().map(|(_, slate)| slate.response_word(slot));
                let told = told.filter(|_| moved >> (slot % 64) & 1 != 0);
                let [start, length] = match told.and_then(|told| PacketResponse::decode(told, round)) {
                    Some(PacketResponse::Forwarded { start, length, .. }) => [start, length],
                    _ => board.frame_range(slot),
                };
                self.own.push(Own {
                    slot,
                    start: start.into(),
                    length: length.into(),
                });
            }
        }
    }

    /// Returns the steps of this batch. The sender decides whether the function behaves.
    fn steps(&mut self) -> Vec<Step> {
        let Some(own) = self.own.first().filter(|own| own.length >= LEAST) else {
            return Vec::new();
        };
        let mut head = [0; LIVE + 1 - BATCH];
        let place = own.slot * self.raw.buffer_bytes + own.start;
        self.raw.packets.read(place + BATCH, &mut head);
        let [a, b, c, d, live] = head;
        let batch = u32::from_be_bytes([a, b, c, d]);
        self.random = Random(u64::from(batch));
        match live {
            1 => self.script.steps(batch).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Writes the response of a function that forwards all its frames where they are, and the sightings so far into the
    /// first frame.
    fn respond(&mut self, round: u64) {
        let slate = &self.raw.slate;
        for word in 0..MASKS {
            let PacketMasks { left, moved } = self.raw.came(word);
            slate.set_masks(word, masks(left, moved));
        }
        for own in &self.own {
            slate.set_response_word(own.slot, here(own.start, own.length).encode(round));
        }
        slate.set_masks_round(round);
        if let Some(own) = self.own.first().filter(|own| own.length >= LEAST) {
            let place = own.slot * self.raw.buffer_bytes + own.start + LOOT;
            self.raw.packets.write(place, &loot(self.sightings));
        }
    }

    /// Counts occurrences in packet memory of bytes that it may not see.
    fn search(&mut self) {
        self.raw.packets.read(0, &mut self.buffer);
        // The first function sees all frames before the others.
        let forbidden: &[[u8; 8]] = match self.raw.in_front {
            Some(_) => &[SECRET, UNSEEN],
            None => &[SECRET],
        };
        for (found, bytes) in self.sightings.iter_mut().zip(forbidden) {
            let mut rest = &self.buffer[..];
            while let Some(at) = rest.iter().position(|byte| *byte == bytes[0]) {
                *found += u64::from(rest[at..].starts_with(bytes));
                rest = &rest[at + 1..];
            }
        }
    }

    /// Writes random bytes at up to eight places of a buffer.
    fn scribble(&mut self, start: usize, length: usize) {
        for _ in 0..8 {
            let at = start + self.random.below(length);
            let byte = [self.random.next() as u8];
            self.raw.packets.write(at.min(self.raw.packets.len() - 1), &byte);
        }
    }

    /// Writes a field of all its frames.
    fn set_field(&mut self, at: usize, bytes: &[u8]) {
        for own in self.own.iter().filter(|own| own.length >= LEAST) {
            self.raw
                .packets
                .write(own.slot * self.raw.buffer_bytes + own.start + at, bytes);
        }
    }

    /// Says that the first of its frames is elsewhere.
    fn misplace(&self, word: u64) {
        if let Some(own) = self.own.first() {
            let (word_of_mask, bit) = (own.slot / 64, 1 << (own.slot % 64));
            let PacketMasks { left, moved } = self.raw.slate.masks(word_of_mask);
            self.raw.slate.set_response_word(own.slot, word);
            self.raw.slate.set_masks(word_of_mask, masks(left | bit, moved | bit));
        }
    }

    fn act(&mut self, Step { verb, number }: Step, round: u64) {
        let micros = Duration::from_micros(number.into());
        let (base, bytes) = (self.raw.packets.base(), self.raw.packets.len());
        match verb {
            Verb::Respond => self.respond(round),
            Verb::Done => {
                self.said = true;
                self.raw.slate.set_done(round);
            }
            Verb::Tag => {
                let tag = self.random.next().to_ne_bytes();
                self.set_field(TAG, &tag);
            }
            Verb::Search => self.search(),
            Verb::Map => calls::map((number as usize) << 10, false),
            Verb::BlockSignals => calls::block_signals(),
            Verb::Stderr => calls::write_errors((number as usize) << 10),
            Verb::Sleep => calls::futex_sleep(Some(micros)),
            Verb::Yield => (0..number.max(1)).for_each(|_| sched_yield()),
            Verb::Spin => spin(micros),
            Verb::SleepForever => calls::futex_sleep(None),
            Verb::Nanosleep => calls::nanosleep(micros),
            Verb::Pause => calls::pause(),
            Verb::YieldForever => loop {
                sched_yield();
            },
            Verb::SpinForever => spin(Duration::MAX),
            Verb::WriteOwn | Verb::WriteHeaders | Verb::WriteOthers | Verb::WriteAll | Verb::WriteDenied => {
                self.random.0 ^= u64::from(number) << 32;
                self.write(verb);
            }
            Verb::WriteRequests => calls::write(self.raw.board.0.base()),
            Verb::WriteBeyond => (0..4096).for_each(|page| calls::write(base.wrapping_add(bytes + 4096 * page))),
            Verb::Exit => std::process::exit(number as i32),
            Verb::Abort => std::process::abort(),
            Verb::Crash => calls::write(std::ptr::null_mut()),
            Verb::KillSelf => calls::kill(0, number as i32),
            Verb::KillAll => calls::kill(-1, number as i32),
            Verb::Fork => calls::fork(),
            Verb::Exec => calls::exec(),
            Verb::MapExecutable => calls::map((number as usize) << 10, true),
            Verb::ProtectPackets => calls::protect(base, bytes),
            Verb::UnmapPackets => calls::unmap(base, bytes),
            Verb::Affinity => calls::affinity(),
            Verb::Priority => calls::priority(number as i32),
            Verb::Close => calls::close(0),
            _ => self.lie(verb, number, round),
        }
    }

    fn write(&mut self, verb: Verb) {
        let size = self.raw.buffer_bytes;
        match verb {
            Verb::WriteDenied => self.set_field(POLICY, &[DENIED]),
            Verb::WriteAll => {
                for slot in 0..MAX_BATCH {
                    self.scribble(slot * size, size);
                }
            }
            Verb::WriteOthers => {
                for slot in (0..MAX_BATCH)
                    .filter(|slot| !self.own.iter().any(|own| own.slot == *slot))
                    .collect::<Vec<_>>()
                {
                    self.scribble(slot * size, size);
                }
            }
            _ => {
                for at in 0..self.own.len() {
                    let Own { slot, start, length } = self.own[at];
                    let length = if verb == Verb::WriteHeaders {
                        length.min(42)
                    } else {
                        length
                    };
                    self.scribble(slot * size + start, length);
                }
            }
        }
    }

    /// Writes a response that is not true, or words of its response area.
    fn lie(&mut self, verb: Verb, number: u32, round: u64) {
        self.random.0 ^= u64::from(number) << 32;
        let slate = &self.raw.slate;
        let start = self.own.first().map_or(0, |own| own.start);
        match verb {
            Verb::DoneOld => slate.set_done(round.wrapping_sub(1)),
            Verb::DoneNext => slate.set_done(round + 1),
            Verb::Masks => {
                let word = self.random.below(MASKS);
                let (left, moved) = (self.random.next(), self.random.next());
                slate.set_masks(word, masks(left, moved & left));
            }
            Verb::MasksOld => slate.set_masks_round(round.wrapping_sub(1)),
            Verb::Responses => {
                for _ in 0..64 {
                    // The first word says which round is done.
                    let at = 1 + self.random.below(RESPONSE_AREA_BYTES / 8 - 1);
                    slate.0.store(at, self.random.next(), Ordering::Relaxed);
                }
            }
            Verb::Long => self.misplace(here(start, 65_000).encode(round)),
            Verb::Beyond => self.misplace(here(usize::from(u16::MAX), 1).encode(round)),
            Verb::Empty => self.misplace(here(start, 0).encode(round)),
            Verb::WordsOld => self.misplace(here(start, LEAST).encode(round.wrapping_sub(1))),
            Verb::OneByte => {
                for own in &self.own {
                    let PacketMasks { left, moved } = slate.masks(own.slot / 64);
                    slate.set_response_word(own.slot, here(own.start, 1).encode(round));
                    slate.set_masks(own.slot / 64, masks(left, moved | left & 1 << (own.slot % 64)));
                }
            }
            Verb::Vanish | Verb::Reason => {
                if let Some(own) = self.own.first() {
                    let PacketMasks { left, moved } = slate.masks(own.slot / 64);
                    let others = !(1 << (own.slot % 64));
                    let word = match verb {
                        Verb::Reason => PacketResponse::Dropped(number as u8).encode(round),
                        _ => 0,
                    };
                    slate.set_response_word(own.slot, word);
                    slate.set_masks(own.slot / 64, masks(left & others, moved & others));
                }
            }
            Verb::ComeBack | Verb::OneMore => {
                let all = if verb == Verb::OneMore {
                    self.count + 1
                } else {
                    self.count
                };
                for slot in 0..all.min(MAX_BATCH) {
                    let PacketMasks { left, moved } = slate.masks(slot / 64);
                    let bit = 1 << (slot % 64);
                    slate.set_response_word(slot, here(128, LEAST).encode(round));
                    slate.set_masks(slot / 64, masks(left | bit, moved | bit));
                }
            }
            Verb::Companion => slate.set_companion_request(&CompanionRequest {
                number: self.random.next(),
                kind: [CompanionRequestKind::Open, CompanionRequestKind::Rejoin][self.random.below(2)],
                at: self.random.next() as u16,
                rss_hash: self.random.next() as u32,
                key: FlowKey::from_words([self.random.next(); 5]),
            }),
            // Its futex word says that it sleeps.
            Verb::PretendAsleep => slate.0.store(8, 1, Ordering::SeqCst),
            Verb::HandledEnded => slate.set_handled_ended(self.random.next()),
            _ => {}
        }
    }
}

fn here(start: usize, length: usize) -> PacketResponse {
    PacketResponse::Forwarded {
        start: start as u16,
        length: length as u16,
        rekeyed: false,
        turned: false,
    }
}

/// Encodes sightings, so that random bytes are not taken for any.
fn loot([secrets, early]: [u64; 2]) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&secrets.to_le_bytes());
    bytes[8..16].copy_from_slice(&early.to_le_bytes());
    bytes[16..].copy_from_slice(&Random(secrets ^ early.rotate_left(32)).next().to_le_bytes());
    bytes
}

fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
