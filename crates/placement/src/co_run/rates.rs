//! Rates of instances beside others on their nodes.

use super::predictor::{Band, CoRunPredictor, Effect, Member};
use crate::cluster::ServerKind;
use crate::plan::Plan;
use crate::slo::{Curves, ISOLATED, Slo, Target};
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Returns the packets per second that an instance keeps within its latency objective.
///
/// Throughput with its cache is multiplied by the relative throughput beside the others. The latency curve is stretched
/// by the relative latency, and gives the highest load that meets the objective. No rate exceeds that by the curves
/// with the discount for isolation.
pub fn instance_rate(curves: &Curves, bytes: u64, latency: Nanos, effect: &Effect) -> Band {
    let alone = curves.cache.rate(bytes);
    let most = alone * curves.load.load_within(latency) * ISOLATED;
    let rate = |throughput: f64, stretch: f64| {
        let within = Nanos((latency.0 as f64 / stretch.max(1.0)) as u64);
        (alone * throughput * curves.load.load_within(within)).min(most)
    };
    Band {
        low: rate(effect.throughput.low, effect.latency.high),
        value: rate(effect.throughput.value, effect.latency.value),
        high: rate(effect.throughput.high, effect.latency.low),
    }
}

/// An SLO with instances on nodes.
#[derive(Clone, Debug)]
pub struct Tenant<'a> {
    /// The SLO.
    pub slo: &'a Slo,
    /// Its instances: indices of [rooms](Plan::rooms), and ways.
    pub instances: Vec<(usize, u16)>,
    /// Number of its chain on each kind of servers.
    members: Vec<Option<Member>>,
}

/// SLO whose rate cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpredicted {
    /// Index of a room.
    pub room: usize,
    /// Reason.
    pub why: Arc<str>,
}

/// Instances of a plan by node.
pub struct Occupancy<'a> {
    plan: &'a Plan,
    predictor: &'a dyn CoRunPredictor,
    tenants: Vec<Tenant<'a>>,
    by_name: HashMap<&'a str, usize>,
    /// Indices of the tenants of each room, once per instance.
    rooms: Vec<Vec<usize>>,
}

impl<'a> Occupancy<'a> {
    /// Returns the instances of a plan.
    pub fn new(plan: &'a Plan, predictor: &'a dyn CoRunPredictor) -> Self {
        let mut occupancy = Occupancy {
            plan,
            predictor,
            tenants: Vec::new(),
            by_name: HashMap::new(),
            rooms: vec![Vec::new(); plan.rooms().len()],
        };
        for placed in plan.placed() {
            let tenant = occupancy.tenant(&placed.slo);
            for instance in &placed.instances {
                if let Some(room) = plan.room(instance.server, instance.node) {
                    occupancy.add(tenant, room, instance.ways);
                }
            }
        }
        occupancy
    }

    /// Returns the index of an SLO, which is added without instances if it has none.
    pub fn tenant(&mut self, slo: &'a Slo) -> usize {
        if let Some(&tenant) = self.by_name.get(&*slo.name) {
            return tenant;
        }
        let kinds = self.plan.cluster().kinds().iter();
        let members = kinds.map(|kind| self.predictor.member(&slo.chain.name, &kind.machine));
        self.tenants.push(Tenant {
            slo,
            instances: Vec::new(),
            members: members.collect(),
        });
        self.by_name.insert(&slo.name, self.tenants.len() - 1);
        self.tenants.len() - 1
    }

    /// Returns the index of an SLO that has instances.
    pub fn by_name(&self, slo: &str) -> Option<usize> {
        self.by_name.get(slo).copied()
    }

    /// Returns an SLO by its index.
    pub fn get(&self, tenant: usize) -> &Tenant<'a> {
        &self.tenants[tenant]
    }

    /// Returns the SLOs with instances in a room, each once.
    pub fn in_room(&self, room: usize) -> Vec<usize> {
        let mut tenants = self.rooms[room].clone();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }

    /// Adds an instance to a room.
    pub fn add(&mut self, tenant: usize, room: usize, ways: u16) {
        self.tenants[tenant].instances.push((room, ways));
        self.rooms[room].push(tenant);
    }

    /// Removes an instance that was [added](Self::add).
    pub fn remove(&mut self, tenant: usize, room: usize, ways: u16) {
        let instances = &mut self.tenants[tenant].instances;
        if let Some(at) = instances.iter().rposition(|of| *of == (room, ways)) {
            instances.remove(at);
            let there = &mut self.rooms[room];
            if let Some(at) = there.iter().rposition(|of| *of == tenant) {
                there.remove(at);
            }
        }
    }

    /// Returns the numbers of an instance of a tenant in a room, and of all others there.
    ///
    /// # Errors
    /// A chain without a model shares the node.
    pub fn members(&self, tenant: usize, room: usize) -> Result<(Option<Member>, Vec<Member>), Unpredicted> {
        let kind = usize::from(self.plan.rooms()[room].kind);
        let here = &self.rooms[room];
        let own = self.tenants[tenant].members[kind];
        let itself = here.iter().position(|of| *of == tenant);
        let others = (0..here.len()).filter(|at| Some(*at) != itself).map(|at| here[at]);
        let mut members = Vec::with_capacity(here.len());
        for other in others {
            match (own, self.tenants[other].members[kind]) {
                (Some(_), Some(member)) => members.push(member),
                (of, _) => {
                    let unknown = if of.is_none() { tenant } else { other };
                    let chain = &self.tenants[unknown].slo.chain.name;
                    let machine = &self.plan.cluster().kinds()[kind].machine;
                    let why = format!("there is no model of chain {chain} on machine {machine}");
                    return Err(Unpredicted { room, why: why.into() });
                }
            }
        }
        Ok((own, members))
    }

    /// Returns the rate of an instance of a tenant in a room, beside all others there.
    ///
    /// # Errors
    /// There is no prediction.
    pub fn rate(&self, tenant: usize, room: usize, ways: u16) -> Result<Band, Unpredicted> {
        let kind: &ServerKind = &self.plan.cluster().kinds()[usize::from(self.plan.rooms()[room].kind)];
        let slo = self.tenants[tenant].slo;
        let Some(curves) = slo.chain.on(&kind.machine) else {
            return Ok(Band::exact(0.0));
        };
        let (own, others) = self.members(tenant, room)?;
        let effect = match own {
            Some(own) if !others.is_empty() => {
                let effect = self.predictor.effect(own, &others);
                effect.map_err(|why| Unpredicted { room, why })?
            }
            _ => Effect::NONE,
        };
        let bytes = u64::from(ways) * kind.way_bytes;
        Ok(instance_rate(curves, bytes, slo.latency, &effect))
    }

    /// Returns the rate of all instances of a tenant.
    ///
    /// # Errors
    /// The first instance for which there is no prediction.
    pub fn total(&self, tenant: usize) -> Result<Band, Unpredicted> {
        let mut sum = Band::exact(0.0);
        for &(room, ways) in &self.tenants[tenant].instances {
            sum = sum.plus(self.rate(tenant, room, ways)?);
        }
        Ok(sum)
    }

    /// Returns `true` if the lower end of a tenant's rate meets its target.
    pub fn is_met(&self, tenant: usize) -> bool {
        self.total(tenant)
            .is_ok_and(|rate| meets(&self.tenants[tenant].slo.target, rate.low))
    }

    /// Returns the SLOs that are not met.
    pub fn unmet(&self) -> impl Iterator<Item = usize> {
        (0..self.tenants.len()).filter(move |tenant| !self.is_met(*tenant))
    }
}

/// Returns `true` if a rate meets a target: for an on-demand SLO any rate above 0.
pub fn meets(target: &Target, rate: f64) -> bool {
    match target {
        Target::Reserved { throughput } => rate >= throughput * (1.0 - 1e-9),
        Target::OnDemand { .. } => rate > 0.0,
    }
}
