//! Connection state kept in the flow table.

use crate::rule::{App, Bit, Direction};
use crate::signature::BitStep;
use bytemuck::{Pod, Zeroable};

/// Largest number of flowbits set on a connection at a time.
const MAX_BITS: usize = 8;

/// Lease of a stream slot, valid until the slot is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Slot number, from 1.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// State of a connection: all packets with the same addresses, ports and protocol, in either direction. All zeros is a
/// connection without packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Connection {
    slot: u32,
    generation: u32,
    /// Sequence numbers of the streams' first bytes, by [`Direction`].
    pub(crate) firsts: [u32; 2],
    /// Bytes of the streams so far, by direction.
    pub(crate) sizes: [u32; 2],
    bits: [u16; MAX_BITS],
    flags: u16,
    /// Application protocol: an [`App`], or 0.
    app: u8,
    /// Port group plus one, under the rule set below; 0 if unknown.
    port_group: u8,
    /// Version of the rule set the port group belongs to.
    rules: u32,
}

/// Flag: a packet was seen.
pub(crate) const SEEN: u16 = 1;
/// Flag: packets against the key's direction go to the server.
const SWAPPED: u16 = 2;
/// Flags by direction: a packet to the server, or to the client, was seen.
pub(crate) const STARTED: u16 = 4;
/// Flags by direction: the first byte's sequence number is known.
pub(crate) const NUMBERED: u16 = 16;
/// Flags by direction: the stream has ended.
pub(crate) const ENDED: u16 = 64;
/// Flag: both ends have sent packets.
pub(crate) const ESTABLISHED: u16 = 256;
/// Flag: the streams can no longer be followed.
pub(crate) const LOST: u16 = 512;
/// Flag: packets are dropped.
pub(crate) const BLOCKED: u16 = 1024;
/// Flag: packets pass without inspection.
pub(crate) const PASSED: u16 = 2048;
/// Flag: the last request's method was HEAD.
pub(crate) const HEAD_REQUEST: u16 = 4096;
/// Flag: the last request's method was CONNECT.
pub(crate) const CONNECT_REQUEST: u16 = 8192;
/// Flags by direction: rules on the application protocol were evaluated.
pub(crate) const DETECTED: u16 = 16_384;

impl Connection {
    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u16, on: bool) {
        self.flags = self.flags & !flag | if on { flag } else { 0 };
    }

    /// Returns `true` if a per-direction flag is set.
    #[inline]
    pub(crate) fn has_for(&self, flag: u16, direction: Direction) -> bool {
        self.has(flag << direction.index())
    }

    #[inline]
    pub(crate) fn set_for(&mut self, flag: u16, direction: Direction) {
        self.flags |= flag << direction.index();
    }

    /// Returns the direction of a packet that goes along the key, or against it if `reversed`.
    #[inline]
    pub(crate) fn direction(&self, reversed: bool) -> Direction {
        match reversed == self.has(SWAPPED) {
            true => Direction::ToServer,
            false => Direction::ToClient,
        }
    }

    /// Restarts the connection; packets with this `reversed` have this `direction`.
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

    /// Returns `true` if rules for a protocol apply to the connection: those for HTTP apply to any version.
    #[inline]
    pub(crate) fn runs(&self, app: App) -> bool {
        match app {
            App::Http => self.is_app(App::Http) || self.is_app(App::Http2),
            App::Http1 => self.is_app(App::Http),
            app => self.is_app(app),
        }
    }

    pub(crate) fn set_app(&mut self, app: Option<App>) {
        self.app = app.map_or(0, |app| app as u8);
    }

    /// Returns the port group under this rule set version, if cached.
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

    /// Returns the lease of its streams' slot.
    #[inline]
    pub fn lease(&self) -> Option<Lease> {
        (self.slot != 0).then_some(Lease {
            slot: self.slot,
            generation: self.generation,
        })
    }

    pub(crate) fn set_lease(&mut self, lease: Option<Lease>) {
        (self.slot, self.generation) = match lease {
            Some(lease) => (lease.slot, lease.generation),
            None => (0, 0),
        };
    }

    /// Forgets what depends on the rule set: flowbits, and the port group.
    pub(crate) fn forget_rules(&mut self) {
        (self.bits, self.rules, self.port_group) = ([0; MAX_BITS], 0, 0);
    }

    fn has_bit(&self, bit: u16) -> bool {
        self.bits.contains(&bit)
    }

    /// Returns `true` if the flowbits satisfy a rule's condition.
    pub(crate) fn bits_are(&self, step: &BitStep) -> bool {
        let any = step.bits.iter().any(|bit| self.has_bit(*bit));
        any == (step.operation == Bit::IsSet)
    }

    /// Applies a rule's change to the flowbits. Returns `false` if there is no room for another bit.
    pub(crate) fn change_bits(&mut self, step: &BitStep) -> bool {
        let mut room = true;
        for &bit in &step.bits {
            let known = self.bits.iter_mut().find(|known| **known == bit);
            match (known, step.operation) {
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
