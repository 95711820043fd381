//! Flow state of a connection.

use super::options::Timeouts;
use super::tcp::{Phase, Tcp};
use bytemuck::{Pod, Zeroable};
use tailwater_chain::region::write_in_order;
use tailwater_net::{FlowKey, Nanos};

/// Kind of a flow.
pub(super) type Kind = u8;
/// Unknown: no packet of the flow has passed.
pub(super) const NONE: Kind = 0;
/// Allowed by the rules on its first packet, which is being processed.
pub(super) const OPENING: Kind = 1;
pub(super) const DENIED: Kind = 2;
pub(super) const REJECTED: Kind = 3;
pub(super) const TCP: Kind = 4;
pub(super) const UDP: Kind = 5;
/// ICMP or ICMPv6 echo.
pub(super) const ECHO: Kind = 6;
/// Any other protocol.
pub(super) const OTHER: Kind = 7;

/// Flag: the initiator sends against the direction of the flow's key.
pub(super) const REVERSED: u8 = 1;
/// Flag: the responder has sent a packet.
pub(super) const ANSWERED: u8 = 2;
/// Flag: the connection is in the table shared by all cores.
pub(super) const LISTED: u8 = 4;
/// Flag: the connection is counted as half open.
pub(super) const HALF_OPEN: u8 = 8;
/// Flags: rules about established connections forbid packets of the initiator, and those of the responder.
pub(super) const FORBIDDEN: [u8; 2] = [16, 32];

/// Flag: the first packet arrived on the chain's second port. Used while the kind is [`OPENING`].
pub(super) const BY_EXIT: u8 = 64;

/// Flow state of a connection. Together with the chain's own state it fits a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Connection {
    /// Arrival of the last packet that refreshed the timeout, in milliseconds.
    pub(super) last: u32,
    pub(super) kind: Kind,
    /// Flags, from [`REVERSED`] to [`FORBIDDEN`], and [`BY_EXIT`].
    pub(super) flags: u8,
    /// Not 0 while the function changes the state.
    changing: u16,
    pub(super) tcp: Tcp,
}

const _: () = assert!(size_of::<Connection>() <= 48);

/// Converts a time to the milliseconds stored in connections. They wrap after 49 days.
pub(super) fn millis(time: Nanos) -> u32 {
    (time.0 / 1_000_000) as u32
}

impl Connection {
    /// Changes the state. If the process is killed meanwhile, its successor [detects this](Connection::is_torn).
    #[inline]
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Connection) -> T) -> T {
        self.changing = 1;
        write_in_order();
        let made = change(self);
        write_in_order();
        self.changing = 0;
        made
    }

    /// Returns `true` if a process was killed while it changed this state.
    pub(super) fn is_torn(&self) -> bool {
        self.changing != 0
    }

    /// Resets the state to unknown.
    pub(super) fn clear(&mut self) {
        *self = Connection {
            changing: self.changing,
            ..Connection::zeroed()
        };
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns `true` if this is an open connection.
    pub(super) fn is_tracked(&self) -> bool {
        self.kind >= TCP
    }

    /// Returns the sender of packets of a direction: 0 for the initiator, 1 for the responder.
    pub(super) fn side(&self, reversed: bool) -> usize {
        usize::from(reversed != self.has(REVERSED))
    }

    /// Returns the key of the initiator's packets, given the flow's key.
    pub(super) fn initiators(&self, key: &FlowKey) -> FlowKey {
        match self.has(REVERSED) {
            true => key.reversed(),
            false => *key,
        }
    }

    /// Returns the idle timeout.
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

    /// Returns `true` if the connection has timed out at `now`, in milliseconds.
    pub(super) fn is_over(&self, now: u32, timeouts: &Timeouts) -> bool {
        // The last packet may come from another core and may have arrived later.
        let idle = (now.wrapping_sub(self.last) as i32).max(0) as u64;
        idle * 1_000_000 >= self.timeout(timeouts).0
    }
}

/// Time for which the flow table keeps unknown flows.
const NOT_KEPT: Nanos = Nanos::from_secs(1);
