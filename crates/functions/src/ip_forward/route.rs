//! Configured routes and next hops.

use ipnet::IpNet;
use std::net::IpAddr;

/// Maximum number of next hops of a table.
pub const MAX_NEXT_HOPS: usize = 4096;

/// Maximum number of routes of a table, both IP versions together.
pub const MAX_ROUTES: usize = 4_000_000;

/// Next-hop router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Name used in routes.
    pub name: String,
    /// MAC address, the destination of frames sent to the router.
    pub mac: [u8; 6],
    /// Source MAC address of the egress port, if it differs from the function's.
    pub source_mac: Option<[u8; 6]>,
    /// IP address, which routes can use instead of the name.
    pub address: Option<IpAddr>,
}

/// Target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A next hop by its index in the list, below [`MAX_NEXT_HOPS`].
    NextHop(u16),
    /// The router itself.
    Local,
    /// None: packets are dropped.
    Blackhole,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations of the route.
    pub prefix: IpNet,
    /// Target of the route.
    pub target: Target,
}

/// Encoded target of a route in the look-up structures, below [`Decision::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision(pub(super) u16);

impl Decision {
    /// No route.
    pub(super) const NONE: Decision = Decision(0);
    pub(super) const BLACKHOLE: Decision = Decision(1);
    pub(super) const LOCAL: Decision = Decision(2);
    /// Number of the first next hop.
    const HOPS: u16 = 3;
    /// Upper bound of all decisions. The look-up structures use the values from here on.
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

    /// Returns the index of the next hop, or an index beyond the list for any other decision.
    #[inline(always)]
    pub(super) fn hop(self) -> usize {
        usize::from(self.0.wrapping_sub(Decision::HOPS))
    }
}
