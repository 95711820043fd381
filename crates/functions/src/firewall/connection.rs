//! What is kept of a connection.

use super::table::Timeouts;
use super::tcp::{Phase, Tcp};
use bytemuck::{Pod, Zeroable};
use tailwater_chain::region::write_in_order;
use tailwater_net::{FlowKey, Nanos};

/// What a flow is.
pub(super) type Kind = u8;
/// Nothing that is known: no packet of it has passed.
pub(super) const NONE: Kind = 0;
/// Allowed with its first packet, which is being processed.
pub(super) const OPENING: Kind = 1;
pub(super) const DENIED: Kind = 2;
pub(super) const REJECTED: Kind = 3;
pub(super) const TCP: Kind = 4;
pub(super) const UDP: Kind = 5;
/// ICMP or ICMPv6 echo.
pub(super) const ECHO: Kind = 6;
/// Any other protocol.
pub(super) const OTHER: Kind = 7;

/// The initiator sends against the direction of the flow's key.
pub(super) const REVERSED: u8 = 1;
/// The other end has sent something.
pub(super) const ANSWERED: u8 = 2;
/// All cores know of it.
pub(super) const LISTED: u8 = 4;
/// It counts as half open.
pub(super) const HALF_OPEN: u8 = 8;
/// Rules about established connections forbid what the initiator sends, and what the other end does.
pub(super) const FORBIDDEN: [u8; 2] = [16, 32];

/// Its first packet, while that is [`OPENING`], came by the chain's second port.
pub(super) const BY_EXIT: u8 = 64;

/// What is kept of a connection: with what the chain keeps, a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Connection {
    /// Its last packet that counted, in milliseconds.
    pub(super) last: u32,
    pub(super) kind: Kind,
    /// Of [`REVERSED`] to [`FORBIDDEN`].
    pub(super) flags: u8,
    /// Not 0 while a function changes it.
    changing: u16,
    pub(super) tcp: Tcp,
}

const _: () = assert!(size_of::<Connection>() <= 48);

/// A time as connections keep it: it comes round after 49 days.
pub(super) fn millis(time: Nanos) -> u32 {
    (time.0 / 1_000_000) as u32
}

impl Connection {
    /// Changes it. Should the process be killed meanwhile, whoever comes next [knows](Connection::is_torn).
    #[inline]
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Connection) -> T) -> T {
        self.changing = 1;
        write_in_order();
        let made = change(self);
        write_in_order();
        self.changing = 0;
        made
    }

    /// Whether a process was killed while it changed this.
    pub(super) fn is_torn(&self) -> bool {
        self.changing != 0
    }

    /// Nothing is known of it any more.
    pub(super) fn clear(&mut self) {
        *self = Connection {
            changing: self.changing,
            ..Connection::zeroed()
        };
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether it is one that packets belong to.
    pub(super) fn is_tracked(&self) -> bool {
        self.kind >= TCP
    }

    /// Which end sends packets of a direction: the initiator (0) or the other (1).
    pub(super) fn side(&self, reversed: bool) -> usize {
        usize::from(reversed != self.has(REVERSED))
    }

    /// The key of what the initiator sends, from that of the flow.
    pub(super) fn initiators(&self, key: &FlowKey) -> FlowKey {
        match self.has(REVERSED) {
            true => key.reversed(),
            false => *key,
        }
    }

    /// How long it lasts after its last packet.
    pub(super) fn timeout(&self, timeouts: &Timeouts) -> Nanos {
        let answered = self.has(ANSWERED);
        match self.kind {
            TCP => match self.tcp.phase() {
                Phase::SynSent | Phase::SynReceived => timeouts.handshake,
                Phase::Established => timeouts.established,
                Phase::Closing => timeouts.closing,
                Phase::TimeWait => timeouts.time_wait,
                Phase::Closed => timeouts.closed,
            },
            UDP if answered => timeouts.udp_answered,
            UDP => timeouts.udp,
            ECHO => timeouts.icmp,
            OTHER if answered => timeouts.other_answered,
            OTHER => timeouts.other,
            DENIED | REJECTED => timeouts.denied,
            _ => NOT_KEPT,
        }
    }

    /// Whether its time was up before a packet that arrives now, in milliseconds.
    pub(super) fn is_over(&self, now: u32, timeouts: &Timeouts) -> bool {
        // A packet of another core may have arrived later.
        let idle = (now.wrapping_sub(self.last) as i32).max(0) as u64;
        idle * 1_000_000 >= self.timeout(timeouts).0
    }
}

/// How long the table keeps flows of which nothing is known.
const NOT_KEPT: Nanos = Nanos::from_secs(1);
