//! Honest functions around a hostile one, whose work shows in the frames, and the frames' layout.
//!
//! The sender and each honest function *stamp* a frame: they write a hash of all of it. The next function, or the test
//! where the frame leaves the chain, computes it again. A change in between was made outside any turn.

use super::script::Random;
use std::fmt;
use tailwater_chain::batch::{Batch, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction};

/// Number of the batch, four bytes.
pub(crate) const BATCH: usize = 42;
/// 1 if the hostile function behaves in this batch, 0 if it pauses.
pub(crate) const LIVE: usize = 46;
/// Policy field: a [`Role::Deny`] drops packets that have [`DENIED`] in it.
pub(crate) const POLICY: usize = 47;
pub(crate) const DENIED: u8 = 23;
/// [`UNSEEN`] until the first honest function writes [`SEEN`].
const MARK: usize = 48;
pub(crate) const UNSEEN: [u8; 8] = *b"not seen";
const SEEN: [u8; 8] = *b"was seen";
/// Field that belongs to the hostile function, of which [`LOOT`] is the second part.
pub(crate) const TAG: usize = 56;
/// Bytes that the hostile function may not see, and did: two counts and a check.
pub(crate) const LOOT: usize = 64;
/// Field that functions behind the hostile one set to [`SECRET`].
const SECRET_AT: usize = 88;
pub(crate) const SECRET: [u8; 8] = [0xc5, b's', b'e', b'c', b'r', b'e', b't', 0x7e];
/// Stamps: of the sender, then of each function.
pub(crate) const STAMPS: usize = 96;
/// Most functions of a chain.
pub(crate) const MOST_FUNCTIONS: usize = 5;
/// Bytes that each frame has.
pub(crate) const LEAST: usize = STAMPS + 8 * (MOST_FUNCTIONS + 1);
/// Bytes that a function adds or removes.
const RESIZED: usize = 16;

/// Work of an honest function, except for its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing else.
    Stamp,
    /// Drops the packets that the policy field denies.
    Deny,
    /// Makes frames longer.
    Grow,
    /// Makes frames shorter.
    Shrink,
    /// Moves frames within their buffers.
    Shift,
}

impl Role {
    pub(crate) const ALL: [(Role, &str); 5] = [
        (Role::Stamp, "stamp"),
        (Role::Deny, "deny"),
        (Role::Grow, "grow"),
        (Role::Shrink, "shrink"),
        (Role::Shift, "shift"),
    ];

    pub(crate) fn parse(name: &str) -> Option<Role> {
        Role::ALL.iter().find(|(_, it)| *it == name).map(|(role, _)| *role)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Role::ALL[*self as usize];
        f.write_str(name)
    }
}

/// Honest function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Honest {
    pub(crate) role: Role,
    /// Index in the chain.
    pub(crate) position: usize,
    /// `true` if the sender or an honest function is in front, whose stamp it checks.
    pub(crate) checks: bool,
    /// `true` if it is behind the hostile function, which may not see its secret.
    pub(crate) behind: bool,
}

impl Honest {
    /// Parses `ROLE POSITION CHECKS BEHIND`.
    pub(crate) fn parse(text: &str) -> Option<Honest> {
        let mut words = text.split(' ');
        let role = Role::parse(words.next()?)?;
        let mut number = || words.next()?.parse::<usize>().ok();
        Some(Honest {
            role,
            position: number()?,
            checks: number()? != 0,
            behind: number()? != 0,
        })
    }

    /// Processes packet `i`. Returns the reason if it is dropped.
    fn one(&self, batch: &mut Batch, i: usize) -> Option<u8> {
        let frame = batch.packet_mut(i).1;
        if frame.len() < LEAST + RESIZED {
            return Some(SHORT);
        }
        if self.checks && !is_stamped(frame, self.position) {
            return Some(CHANGED);
        }
        if frame[MARK..].starts_with(&UNSEEN) {
            frame[MARK..MARK + 8].copy_from_slice(&SEEN);
        }
        let filler = match self.behind {
            true => SECRET,
            false => [0xee; 8],
        };
        if self.behind {
            frame[SECRET_AT..SECRET_AT + 8].copy_from_slice(&SECRET);
        }
        match self.role {
            Role::Stamp => {}
            Role::Deny if frame[POLICY] == DENIED => return Some(REFUSED),
            Role::Deny => {}
            Role::Grow => {
                if let Some((packet, frame)) = batch.grow_back(i, RESIZED) {
                    let end = usize::from(packet.headers.end);
                    frame[end - RESIZED..end - RESIZED + 8].copy_from_slice(&filler);
                    frame[end - 8..end].copy_from_slice(&filler);
                    set_lengths(frame, end);
                }
            }
            Role::Shrink => {
                if let Some((packet, frame)) = batch.shrink_back(i, RESIZED) {
                    let end = usize::from(packet.headers.end);
                    set_lengths(frame, end);
                }
            }
            Role::Shift => {
                let packet = batch.packet(i);
                let (headers, length) = (packet.headers, packet.length());
                if let Some((packet, frame)) = batch.grow_front(i, RESIZED) {
                    frame.copy_within(RESIZED.., 0);
                    packet.headers = headers;
                    packet.set_location(packet.start() as u16, length as u16);
                }
            }
        }
        let frame = batch.packet_mut(i).1;
        if frame.len() < LEAST {
            return Some(SHORT);
        }
        stamp(frame, self.position + 1);
        None
    }
}

impl fmt::Display for Honest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [checks, behind] = [self.checks, self.behind].map(u8::from);
        write!(f, "{} {} {checks} {behind}", self.role, self.position)
    }
}

const REASONS: &[&str] = &["refused", "changed", "short"];
/// The policy denies the packet.
const REFUSED: u8 = 0;
/// The packet was changed after the turn of the function in front.
const CHANGED: u8 = 1;
/// The hostile function left a frame that is too short.
const SHORT: u8 = 2;

impl NetworkFunction for Honest {
    fn kind(&self) -> &'static str {
        "Honest"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        REASONS
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            if let Some(reason) = self.one(batch, i) {
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
            }
        }
    }
}

/// Writes the lengths of a UDP datagram that ends at `end` in its frame, and the IPv4 header checksum.
pub(crate) fn set_lengths(frame: &mut [u8], end: usize) {
    frame[16..18].copy_from_slice(&(end.saturating_sub(14) as u16).to_be_bytes());
    frame[38..40].copy_from_slice(&(end.saturating_sub(34) as u16).to_be_bytes());
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[24..26].copy_from_slice(&folded.to_be_bytes());
}

fn slot(number: usize) -> std::ops::Range<usize> {
    STAMPS + 8 * number..STAMPS + 8 * number + 8
}

/// Returns a hash of the frame, without stamp `number`.
fn hash(frame: &[u8], number: usize) -> [u8; 8] {
    let slot = slot(number);
    let mut state = Random(frame.len() as u64 ^ (number as u64) << 32);
    let mut sum = state.next();
    for part in [&frame[..slot.start], &frame[slot.end..]] {
        for chunk in part.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sum ^= sum >> 29;
        }
    }
    sum.to_le_bytes()
}

/// Stamps a frame: number 0 is the sender's stamp, `k + 1` that of function `k`.
pub(crate) fn stamp(frame: &mut [u8], number: usize) {
    let stamp = hash(frame, number);
    frame[slot(number)].copy_from_slice(&stamp);
}

/// Returns `true` if the frame is as it was when it got stamp `number`.
pub(crate) fn is_stamped(frame: &[u8], number: usize) -> bool {
    frame.len() >= LEAST && frame[slot(number)] == hash(frame, number)
}
