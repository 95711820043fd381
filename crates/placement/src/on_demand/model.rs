//! A server in a closed loop: what instances do with the cache that they are given, so that policies can be tried.
//!
//! Alone in a class an instance holds its ways, up to its working set; instances of one class share as
//! [`contention`](crate::contention) says. A way that was another's a tick ago counts half: it is filled
//! within the tick. Its curves say how fast an instance is with that, and how late its packets are at its load. The
//! chance in measurements is passed in.

use super::allocation::{Allocation, Class, Kind};
use super::mask::WayMask;
use super::relief::Policing;
use super::situation::{Cache, Observed, Reserved};
use crate::contention::{Shared, shares};
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// How much later than at full load packets are that are too many.
const OVERLOADED: u64 = 10;

/// An instance of an on-demand SLO.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// What it does.
    pub curves: Arc<Curves>,
    /// Whether the policy knows these curves.
    pub known: bool,
    /// References to the cache for each packet.
    pub references: f64,
    /// What was promised.
    pub objective: Nanos,
    /// Packets per second that come.
    pub offered: f64,
    /// Instances of its SLO, and how many there may be.
    pub instances: (u16, u16),
}

/// How a tenant fared in a tick, without the noise of measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fare {
    /// Bytes of cache that it held.
    pub held: f64,
    /// Packets per second that it could do.
    pub capacity: f64,
    /// Packets per second that it was given: what was offered, up to a limit.
    pub admitted: f64,
    /// How late its packets were.
    pub latency: Nanos,
    /// Whether that is within the objective.
    pub on_time: bool,
}

/// A server with one cache.
#[derive(Clone, Debug)]
pub struct Model {
    /// The cache.
    pub cache: Cache,
    /// On-demand instances.
    pub tenants: Vec<Tenant>,
    before: Allocation,
}

impl Model {
    /// A server whose cache is in one part.
    pub fn new(cache: Cache, tenants: Vec<Tenant>) -> Self {
        Model {
            cache,
            tenants,
            before: Allocation::default(),
        }
    }

    /// A tick with this allocation, and some tenants policed: how each fares. One without a class gets nothing.
    pub fn tick(&mut self, allocation: &Allocation, policing: &[Policing]) -> Vec<Fare> {
        let fares = self.fares(allocation, policing);
        self.before = allocation.clone();
        fares
    }

    /// Bytes that a class's members can hold in its first tick with these ways.
    fn warm(&self, class: &Class, member: &str) -> f64 {
        let before = self.before.class_of(member).map(|class| class.mask);
        let fresh = match self.before.classes.is_empty() {
            true => 0,
            false => class.mask.fresh(before),
        };
        let ways = f64::from(class.mask.ways()) - f64::from(fresh) / 2.0;
        ways * self.cache.way_bytes as f64
    }

    fn fares(&self, allocation: &Allocation, policing: &[Policing]) -> Vec<Fare> {
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
            Fare {
                held,
                capacity,
                admitted: admitted(tenant),
                latency,
                on_time: latency <= tenant.objective,
            }
        };
        self.tenants.iter().zip(held).map(fare).collect()
    }

    /// What an agent measures of these fares. `noise` gives the part by which a measurement is off, anew each time.
    pub fn observed(&self, fares: &[Fare], mut noise: impl FnMut() -> f64) -> Vec<Observed> {
        let mut off = |value: f64| (value * (1.0 + noise())).max(0.0);
        let pairs = self.tenants.iter().zip(fares).enumerate();
        let observed = pairs.map(|(number, (tenant, fare))| Observed {
            name: tenant.name.clone(),
            tasks: vec![number as u32 + 1],
            latency: Some(Nanos(off(fare.latency.0 as f64) as u64)),
            objective: tenant.objective,
            offered: off(tenant.offered),
            occupancy: Some(off(fare.held) as u64),
            // The part that is slower for want of cache, near enough.
            misses: Some(off(
                1.0 - fare.capacity.min(tenant.curves.cache.most()) / tenant.curves.cache.most()
            )),
            curves: tenant.known.then(|| tenant.curves.clone()),
            instances: tenant.instances.0,
            most: tenant.instances.1,
        });
        observed.collect()
    }

    /// All tenants in one class: no more than reserved instances are kept from them.
    pub fn together(&self, usable: u32) -> Allocation {
        let first = usable.trailing_zeros() as u16;
        let ways = (usable >> first).trailing_ones() as u16;
        self.cut(&[self.tenants.len()], first, ways)
    }

    /// The ways dealt evenly among the tenants, each in a class of its own.
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

    /// Whether a reserved instance can do what was promised in the tick with this allocation, which is the next one.
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
