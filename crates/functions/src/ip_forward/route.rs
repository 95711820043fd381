//! Routes and next hops, as they are configured.

use ipnet::IpNet;
use std::net::IpAddr;

/// The most next hops of a table.
pub const MAX_NEXT_HOPS: usize = 4096;

/// The most routes of a table, both IP versions together.
pub const MAX_ROUTES: usize = 4_000_000;

/// A router that packets can be sent to next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Its name in routes.
    pub name: String,
    /// Its MAC address: the destination of the frames sent to it.
    pub mac: [u8; 6],
    /// The MAC address of the egress towards it, if not the function's.
    pub source_mac: Option<[u8; 6]>,
    /// Its IP address: another name in routes.
    pub address: Option<IpAddr>,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The place of a next hop in their list, below [`MAX_NEXT_HOPS`].
    NextHop(u16),
    /// The router itself.
    Local,
    /// Nowhere: packets are dropped.
    Blackhole,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destinations it is for.
    pub prefix: IpNet,
    /// Where it leads.
    pub target: Target,
}

/// A route's target in the look-up structures: a number below [`Decision::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision(pub(super) u16);

impl Decision {
    /// No route.
    pub(super) const NONE: Decision = Decision(0);
    pub(super) const BLACKHOLE: Decision = Decision(1);
    pub(super) const LOCAL: Decision = Decision(2);
    /// The first next hop.
    const HOPS: u16 = 3;
    /// All are below: the upper half is for the structures' own use.
    pub(super) const LIMIT: u16 = 0x8000;

    pub(super) fn of(target: Option<Target>) -> Decision {
        match target {
            None => Decision::NONE,
            Some(Target::Blackhole) => Decision::BLACKHOLE,
            Some(Target::Local) => Decision::LOCAL,
            Some(Target::NextHop(hop)) => {
                const { assert!(MAX_NEXT_HOPS + (Decision::HOPS as usize) < 0x8000) };
                Decision(Decision::HOPS + hop.min(MAX_NEXT_HOPS as u16))
            }
        }
    }

    pub(super) fn target(self) -> Option<Target> {
        match self {
            Decision::NONE => None,
            Decision::BLACKHOLE => Some(Target::Blackhole),
            Decision::LOCAL => Some(Target::Local),
            Decision(number) => Some(Target::NextHop(number - Decision::HOPS)),
        }
    }

    /// The place of the next hop; beyond all of them for anything else.
    #[inline(always)]
    pub(super) fn hop(self) -> usize {
        usize::from(self.0.wrapping_sub(Decision::HOPS))
    }
}
