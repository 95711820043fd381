//! What is kept of each connection in the flow table.

use crate::rule::{App, Bit, Direction};
use crate::signature::BitStep;
use bytemuck::{Pod, Zeroable};

/// Most bits of a connection that are set at a time.
const MAX_BITS: usize = 8;

/// A right to a stream's memory, as long as that is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which, from 1 on.
    pub place: u32,
    /// How often it had been taken.
    pub generation: u32,
}

/// What is known of a connection: of any packets with the same addresses, ports and protocol, either way. All zero is a
/// connection of which nothing was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Connection {
    place: u32,
    generation: u32,
    /// The sequence numbers of the streams' first bytes, by [`Direction`].
    pub(crate) firsts: [u32; 2],
    /// Bytes of the streams so far.
    pub(crate) sizes: [u32; 2],
    bits: [u16; MAX_BITS],
    flags: u16,
    /// The protocol above: an [`App`], or 0.
    app: u8,
    /// One more than the group that its ports are of, by the rules below; or 0.
    port_group: u8,
    /// The number of the rules by which that is so.
    rules: u32,
}

/// Something was seen.
pub(crate) const SEEN: u16 = 1;
/// What goes against the key's direction goes to the server.
const SWAPPED: u16 = 2;
/// A packet to the server, and one to the client, was seen: bits by direction.
pub(crate) const STARTED: u16 = 4;
/// The sequence number of the first byte is known: bits by direction.
pub(crate) const NUMBERED: u16 = 16;
/// The stream has ended: bits by direction.
pub(crate) const ENDED: u16 = 64;
/// Both ends have spoken.
pub(crate) const ESTABLISHED: u16 = 256;
/// The streams can no longer be followed.
pub(crate) const LOST: u16 = 512;
/// Packets are dropped.
pub(crate) const BLOCKED: u16 = 1024;
/// Packets pass, whatever they are.
pub(crate) const PASSED: u16 = 2048;
/// The last request was for a head only.
pub(crate) const HEAD_REQUEST: u16 = 4096;
/// The last request was for a tunnel.
pub(crate) const CONNECT_REQUEST: u16 = 8192;

impl Connection {
    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u16, on: bool) {
        self.flags = self.flags & !flag | if on { flag } else { 0 };
    }

    /// Whether a flag that there is for each direction is set.
    #[inline]
    pub(crate) fn has_for(&self, flag: u16, direction: Direction) -> bool {
        self.has(flag << direction.index())
    }

    #[inline]
    pub(crate) fn set_for(&mut self, flag: u16, direction: Direction) {
        self.flags |= flag << direction.index();
    }

    /// Which way a packet goes that goes along the key, or against it.
    #[inline]
    pub(crate) fn direction(&self, reversed: bool) -> Direction {
        match reversed == self.has(SWAPPED) {
            true => Direction::ToServer,
            false => Direction::ToClient,
        }
    }

    /// Begins anew, with what goes this way going so.
    pub(crate) fn begin(&mut self, reversed: bool, direction: Direction) {
        *self = Connection {
            flags: SEEN,
            ..Connection::default()
        };
        self.set(SWAPPED, reversed == (direction == Direction::ToServer));
    }

    pub(crate) fn app(&self) -> Option<App> {
        let known = App::NAMES.iter().find(|(_, app)| *app as u8 == self.app);
        known.map(|(_, app)| *app)
    }

    #[inline]
    pub(crate) fn is_app(&self, app: App) -> bool {
        self.app == app as u8
    }

    pub(crate) fn set_app(&mut self, app: Option<App>) {
        self.app = app.map_or(0, |app| app as u8);
    }

    /// The group that its ports are of by the rules of this number, if it was noted.
    #[inline]
    pub(crate) fn port_group(&self, rules: u32) -> Option<u8> {
        match self.rules == rules {
            true => self.port_group.checked_sub(1),
            false => None,
        }
    }

    pub(crate) fn set_port_group(&mut self, rules: u32, group: u8) {
        (self.rules, self.port_group) = (rules, group + 1);
    }

    /// The memory of its streams.
    #[inline]
    pub fn lease(&self) -> Option<Lease> {
        (self.place != 0).then_some(Lease {
            place: self.place,
            generation: self.generation,
        })
    }

    pub(crate) fn set_lease(&mut self, lease: Option<Lease>) {
        (self.place, self.generation) = match lease {
            Some(lease) => (lease.place, lease.generation),
            None => (0, 0),
        };
    }

    fn has_bit(&self, bit: u16) -> bool {
        self.bits.contains(&bit)
    }

    /// Whether its bits are as a rule asks.
    pub(crate) fn bits_are(&self, step: &BitStep) -> bool {
        let any = step.bits.iter().any(|bit| self.has_bit(*bit));
        any == (step.what == Bit::IsSet)
    }

    /// Does with its bits what a rule says. `false` if there is no room for another.
    pub(crate) fn change_bits(&mut self, step: &BitStep) -> bool {
        let mut room = true;
        for &bit in &step.bits {
            let known = self.bits.iter_mut().find(|known| **known == bit);
            match (known, step.what) {
                (Some(known), Bit::Unset | Bit::Toggle) => *known = 0,
                (None, Bit::Set | Bit::Toggle) => match self.bits.iter_mut().find(|known| **known == 0) {
                    Some(free) => *free = bit,
                    None => room = false,
                },
                _ => {}
            }
        }
        room
    }
}
