//! Route table for both IP versions.

use super::error::TableError;
use super::prefixes::{MOST_EXPLAINED, Prefixes};
use super::route::{Decision, MAX_NEXT_HOPS, MAX_ROUTES, NextHop, Route, Target};
use super::v4::{self, V4Table};
use super::v6::{self, V6Table};
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_chain::function::Explanation;

/// Compiled routes, shared by all workers.
pub struct RouteTable {
    pub(super) v4: V4Table,
    pub(super) v6: V6Table,
    /// Destination and source MAC address of each next hop, as laid out in a frame.
    pub(super) addresses: Box<[[u8; 12]]>,
    /// For explanations.
    prefixes: Prefixes,
    names: Box<[Box<str>]>,
}

impl RouteTable {
    /// Builds a table of routes. Of equal prefixes the last counts. `default` is the target for destinations without a
    /// route, in both IP versions. `source_mac` applies to next hops without their own.
    ///
    /// # Errors
    /// If there are too many routes, long prefixes or next hops. If a route refers to an unknown next hop, or if memory
    /// runs out.
    pub fn new(
        routes: &[Route],
        default: Option<Target>,
        next_hops: &[NextHop],
        source_mac: [u8; 6],
    ) -> Result<RouteTable, TableError> {
        if routes.len() > MAX_ROUTES {
            return Err(TableError::TooManyRoutes);
        }
        let is_unknown = |target| matches!(target, Target::NextHop(hop) if usize::from(hop) >= next_hops.len());
        let mut targets = routes.iter().map(|route| route.target).chain(default);
        if next_hops.len() > MAX_NEXT_HOPS || targets.any(is_unknown) {
            return Err(TableError::NextHops);
        }
        let v4_routes = routes
            .iter()
            .filter(|route| matches!(route.prefix, IpNet::V4(_)))
            .count();
        let mut v4_entries: Vec<v4::Entry> = Vec::with_capacity(v4_routes);
        let mut v6_entries: Vec<v6::Entry> = Vec::with_capacity(routes.len() - v4_routes);
        for route in routes {
            let decision = Decision::of(Some(route.target));
            match route.prefix.trunc() {
                IpNet::V4(prefix) => {
                    v4_entries.push((prefix.addr().to_bits(), prefix.prefix_len(), decision));
                }
                IpNet::V6(prefix) => {
                    v6_entries.push((prefix.addr().to_bits(), prefix.prefix_len(), decision));
                }
            }
        }
        let default = Decision::of(default);
        let addresses = next_hops.iter().map(|hop| {
            let mut addresses = [0; 12];
            let (destination, source) = addresses.split_at_mut(6);
            destination.copy_from_slice(&hop.mac);
            source.copy_from_slice(&hop.source_mac.unwrap_or(source_mac));
            addresses
        });
        Ok(RouteTable {
            v4: V4Table::new(v4_entries, default)?,
            v6: V6Table::new(v6_entries, default)?,
            addresses: addresses.collect(),
            prefixes: Prefixes::new(routes),
            names: next_hops.iter().map(|hop| hop.name.as_str().into()).collect(),
        })
    }

    pub(super) fn decide(&self, address: IpAddr) -> Decision {
        match address {
            IpAddr::V4(address) => self.v4.find(address.to_bits()),
            IpAddr::V6(address) => self.v6.find(address.to_bits()),
        }
    }

    /// Returns the target of packets to an address, or `None` if there is no route.
    pub fn find(&self, address: IpAddr) -> Option<Target> {
        self.decide(address).target()
    }

    /// Appends the route of packets to an address.
    pub(super) fn explain(&self, address: IpAddr, text: &mut Explanation) {
        match self.prefixes.longest(address) {
            Some(prefix) => text.add(format_args!("route {prefix}")),
            None if self.prefixes.are_known() => text.add(format_args!("default route")),
            None => text.add(format_args!("one of more than {MOST_EXPLAINED} routes")),
        }
        match self.find(address) {
            None => text.add_part(format_args!("no next hop")),
            Some(Target::Local) => text.add_part(format_args!("local")),
            Some(Target::Blackhole) => text.add_part(format_args!("blackhole")),
            Some(Target::NextHop(hop)) => {
                if let Some(name) = self.names.get(usize::from(hop)) {
                    text.add_part(format_args!("next hop {name}"));
                }
                if let Some([a, b, c, d, e, f, ..]) = self.addresses.get(usize::from(hop)) {
                    text.add(format_args!(" {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"));
                }
            }
        }
    }

    /// Returns the memory of the look-up structures in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes() + size_of_val(&*self.addresses) + self.prefixes.memory_bytes()
    }
}
