//! Longest-prefix match by linear scan, the oracle for the fast structures.

use super::{Route, Target};
use std::net::IpAddr;

/// Returns the target of the longest prefix that contains the address. Of equal prefixes the last counts.
pub fn find(routes: &[Route], address: IpAddr) -> Option<Target> {
    routes
        .iter()
        .filter(|route| route.prefix.contains(&address))
        .max_by_key(|route| route.prefix.prefix_len())
        .map(|route| route.target)
}
