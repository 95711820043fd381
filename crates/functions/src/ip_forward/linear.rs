//! Longest-prefix match by looking at every route: what the fast structures are checked against.

use super::{Route, Target};
use std::net::IpAddr;

/// The target of the longest prefix that holds the address; of equal prefixes the last one's.
pub fn find(routes: &[Route], address: IpAddr) -> Option<Target> {
    routes
        .iter()
        .filter(|route| route.prefix.contains(&address))
        .max_by_key(|route| route.prefix.prefix_len())
        .map(|route| route.target)
}
