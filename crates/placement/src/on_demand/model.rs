//! Model of a server in a closed loop: performance of instances with their cache, for testing policies.
//!
//! An instance alone in a class occupies its ways, up to its working set. Instances of one class share as in
//! [`contention`](crate::contention). A way that belonged to another class in the previous tick counts half, since it
//! is filled during the tick. The curves give the rate with that cache, and the latency at the load. Measurement noise
//! is an input.

use super::allocation::{Allocation, Class, Kind};
use super::mask::WayMask;
use super::relief::Policing;
use super::situation::{Cache, Observed, Reserved};
use crate::contention::{Shared, shares};
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Factor on the latency at full load for packets beyond the capacity.
const OVERLOADED: u64 = 10;

/// Instance of an on-demand SLO.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Name.
    pub name: String,
    /// True performance.
    pub curves: Arc<Curves>,
    /// `true` if the policy has these curves.
    pub known: bool,
    /// References to the cache per packet.
    pub references: f64,
    /// Latency objective.
    pub objective: Nanos,
    /// Offered packets per second.
    pub offered: f64,
    /// Current and maximum number of instances of its SLO.
    pub instances: (u16, u16),
}

/// Performance of a tenant in a tick, without measurement noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantPerformance {
    /// Bytes of cache that it occupied.
    pub held: f64,
    /// Packets per second that it could process.
    pub capacity: f64,
    /// Packets per second that passed its policer.
    pub admitted: f64,
    /// Latency of its packets.
    pub latency: Nanos,
    /// `true` if the latency is within the objective.
    pub on_time: bool,
}

/// Server with one cache.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its cache.
    pub cache: Cache,
    /// On-demand instances.
    pub tenants: Vec<Tenant>,
    before: Allocation,
}

impl Model {
    /// Creates a server whose cache is not partitioned.
    pub fn new(cache: Cache, tenants: Vec<Tenant>) -> Self {
        Model {
            cache,
            tenants,
            before: Allocation::default(),
        }
    }

    /// Runs a tick with this allocation and policing. Returns the performance of each tenant. A tenant without a class
    /// has no cache.
    pub fn tick(&mut self, allocation: &Allocation, policing: &[Policing]) -> Vec<TenantPerformance> {
        let fares = self.fares(allocation, policing);
        self.before = allocation.clone();
        fares
    }

    /// Returns the bytes that a class's members can occupy in its first tick with these ways.
    fn warm(&self, class: &Class, member: &str) -> f64 {
        let before = self.before.class_of(member).map(|class| class.mask);
        let fresh = match self.before.classes.is_empty() {
            true => 0,
            false => class.mask.fresh(before),
        };
        let ways = f64::from(class.mask.ways()) - f64::from(fresh) / 2.0;
        ways * self.cache.way_bytes as f64
    }

    fn fares(&self, allocation: &Allocation, policing: &[Policing]) -> Vec<TenantPerformance> {
        let admitted = |tenant: &Tenant| {
            let limit = policing.iter().find(|limit| limit.name == tenant.name);
            tenant
                .offered
                .min(limit.map_or(f64::INFINITY, |limit| limit.rate as f64))
        };
        let mut held = vec![0.0; self.tenants.len()];
        for class in allocation.classes.iter().filter(|class| class.kind != Kind::Reserved) {
            let members = (0..self.tenants.len()).filter(|&i| class.instances.contains(&self.tenants[i].name));
            let members: Vec<usize> = members.collect();
            let sharing: Vec<Shared<'_>> = members
                .iter()
                .map(|&i| Shared {
                    cache: &self.tenants[i].curves.cache,
                    references: self.tenants[i].references,
                    offered: admitted(&self.tenants[i]),
                })
                .collect();
            let bytes = members.iter().map(|&i| self.warm(class, &self.tenants[i].name));
            let bytes = bytes.fold(f64::INFINITY, f64::min);
            if bytes.is_finite() {
                for (&i, share) in members.iter().zip(shares(&sharing, bytes as u64)) {
                    held[i] = share;
                }
            }
        }
        let fare = |(tenant, held): (&Tenant, f64)| {
            let capacity = tenant.curves.cache.extended(held).max(1.0);
            let load = admitted(tenant) / capacity;
            let latency = match load <= 1.0 {
                true => tenant.curves.load.latency(load),
                false => Nanos(tenant.curves.load.latency(1.0).0.saturating_mul(OVERLOADED)),
            };
            TenantPerformance {
                held,
                capacity,
                admitted: admitted(tenant),
                latency,
                on_time: latency <= tenant.objective,
            }
        };
        self.tenants.iter().zip(held).map(fare).collect()
    }

    /// Returns an agent's measurements. `noise` returns the relative error of each measurement.
    pub fn observed(&self, fares: &[TenantPerformance], mut noise: impl FnMut() -> f64) -> Vec<Observed> {
        let mut off = |value: f64| (value * (1.0 + noise())).max(0.0);
        let pairs = self.tenants.iter().zip(fares).enumerate();
        let observed = pairs.map(|(number, (tenant, fare))| Observed {
            name: tenant.name.clone(),
            tasks: vec![number as u32 + 1],
            latency: Some(Nanos(off(fare.latency.0 as f64) as u64)),
            objective: tenant.objective,
            offered: off(tenant.offered),
            occupancy: Some(off(fare.held) as u64),
            // Approximated by the relative loss of rate due to lack of cache.
            misses: Some(off(
                1.0 - fare.capacity.min(tenant.curves.cache.most()) / tenant.curves.cache.most()
            )),
            curves: tenant.known.then(|| tenant.curves.clone()),
            instances: tenant.instances.0,
            most: tenant.instances.1,
        });
        observed.collect()
    }

    /// Returns an allocation with all tenants in one class, which uses all `usable` ways.
    pub fn together(&self, usable: u32) -> Allocation {
        let first = usable.trailing_zeros() as u16;
        let ways = (usable >> first).trailing_ones() as u16;
        self.cut(&[self.tenants.len()], first, ways)
    }

    /// Returns an allocation with the ways split evenly, and a class per tenant.
    pub fn evenly(&self, usable: u32) -> Allocation {
        let first = usable.trailing_zeros() as u16;
        let ways = (usable >> first).trailing_ones() as u16;
        self.cut(&vec![1; self.tenants.len()], first, ways)
    }

    fn cut(&self, groups: &[usize], first: u16, ways: u16) -> Allocation {
        let (count, mut tenant) = (groups.len() as u16, 0);
        let mut next = first;
        let mut allocation = Allocation::default();
        for (i, &members) in groups.iter().enumerate() {
            let part = ways / count + u16::from((i as u16) < ways % count);
            let members = tenant..(tenant + members).min(self.tenants.len());
            tenant = members.end;
            let Some(mask) = WayMask::new(next, part) else {
                continue;
            };
            next += part;
            allocation.classes.push(Class {
                name: format!("static-{i}"),
                kind: match members.len() {
                    1 => Kind::Isolated,
                    _ => Kind::Shared,
                },
                mask,
                tasks: members.clone().map(|i| i as u32 + 1).collect(),
                instances: self.tenants[members].iter().map(|t| t.name.clone()).collect(),
            });
        }
        allocation
    }

    /// Returns `true` if a reserved instance reaches `rate` in the next tick, with this allocation.
    pub fn keeps(&self, allocation: &Allocation, reserved: &Reserved, curves: &Curves, rate: f64) -> bool {
        let class = allocation.class(&reserved.name);
        let held = class.map_or(0.0, |class| {
            let starts = self.before.class(&reserved.name).is_none();
            match starts {
                true => f64::from(class.mask.ways()) * self.cache.way_bytes as f64,
                false => self.warm(class, &reserved.name),
            }
        });
        curves.cache.rate(held as u64) >= rate * (1.0 - 1e-9)
    }
}
