//! Reasons why no server takes an instance, and the verdict on a chain.

use super::actions::{Risk, Verdict};
use super::fleet::Server;
use super::resize::{ChainMemory, Shortage};
use super::round::{Group, Round};
use super::view::{InstancePhase, RackPromise, RackThroughput};
use crate::admit::{Nearest, Reason};
use crate::core_shares::Wanted;
use crate::demand::Unfit;
use crate::plan::Resource;
use std::sync::Arc;

/// Maximum number of searches for alternatives in a round: each takes hundreds of predictions.
const MOST_EXPLAINED: u64 = 8;
/// Rounds after which an explanation is made anew.
const EXPLAINED_FOR: u64 = 32;

impl Round<'_, '_> {
    /// Returns the verdict on a chain after its actions.
    pub fn verdict(
        &mut self,
        group: &Group<'_>,
        (shortage, risk): (Option<&Shortage>, Option<Risk>),
        memory: &mut ChainMemory,
        round: u64,
    ) -> Verdict {
        let (instances, rate) = (group.slots.len() as u16, group.rate());
        if let Some(shortage) = shortage {
            let (reason, nearest) = self.explain(group, shortage, memory, round);
            return Verdict::TooFew {
                instances,
                rate,
                wanted: shortage.wanted,
                reason,
                nearest,
            };
        }
        memory.explained = None;
        match risk.or_else(|| measured_risk(group)) {
            Some(risk) => Verdict::AtRisk(risk),
            None => Verdict::Placed { instances, rate },
        }
    }

    fn explain(
        &mut self,
        group: &Group<'_>,
        shortage: &Shortage,
        memory: &mut ChainMemory,
        round: u64,
    ) -> (Reason, Vec<Nearest>) {
        if let Some((rate, at, reason, nearest)) = &memory.explained
            && *rate == shortage.rate
            && round - at < EXPLAINED_FOR
        {
            return (reason.clone(), nearest.clone());
        }
        let (reason, nearest, is_complete) = self.reason(group, shortage);
        if is_complete {
            memory.explained = Some((shortage.rate, round, reason.clone(), nearest.clone()));
        }
        (reason, nearest)
    }

    /// Returns the reason, alternatives, and `false` if too many were searched for in this round.
    fn reason(&mut self, group: &Group<'_>, shortage: &Shortage) -> (Reason, Vec<Nearest>, bool) {
        let simple = |reason| (reason, Vec::new(), true);
        if shortage.rate <= 0.0 && group.chain.promise.is_some() {
            return simple(Reason::Instances);
        }
        let pool = group.chain.pool.as_deref();
        if self.fleet.roomiest_for(pool).next().is_none() {
            return simple(Reason::Room(vec![Resource::Servers]));
        }
        if let Some(unfit) = group
            .chain
            .promise
            .as_ref()
            .and_then(|promise| self.unfit(group, promise))
        {
            return simple(Reason::Unfit(unfit));
        }
        let request = group.request(&group.chain.name, shortage.rate, shortage.exclusive);
        if !shortage.not_on.is_empty() && self.fleet.find(&request, usize::MAX, &|_| true).is_some() {
            return simple(Reason::Room(vec![Resource::Servers]));
        }
        let Some(promise) = request.promise.filter(|_| !shortage.exclusive) else {
            return simple(Reason::Room(vec![Resource::Cores]));
        };
        if self.fleet.work.explained >= MOST_EXPLAINED {
            return (Reason::Room(vec![Resource::Cores]), Vec::new(), false);
        }
        self.fleet.work.explained += 1;
        let cores = usize::from(group.chain.cores);
        let candidates = self.fleet.roomiest_for(pool);
        let candidates = candidates.filter(|server| !shortage.not_on.contains(server));
        let refused = candidates.take(MOST_EXPLAINED as usize).find_map(|server| {
            let (shared, others) = self.fleet.parts(server);
            let claim = promise.claim(&self.fleet.servers[server].view.machine, shortage.rate)?;
            let wanted = Wanted {
                name: &group.chain.name,
                cores,
                claim: Some(&Arc::new(claim)),
                before: &[],
            };
            (1..=shared.cores.len())
                .contains(&cores)
                .then(|| shared.admit(others, wanted).err())?
        });
        match refused {
            Some(refused) => (refused.reason, refused.nearest, true),
            None => simple(Reason::Room(vec![Resource::Cores])),
        }
    }

    /// Returns why no server could hold an instance, even an empty one.
    fn unfit(&self, group: &Group<'_>, promise: &RackPromise) -> Option<Unfit> {
        let pool = group.chain.pool.as_deref();
        let is_usable = |server: &&Server<'_>| server.takes && server.view.is_for(pool);
        let servers = || self.fleet.servers.iter().filter(is_usable);
        let measured = || servers().filter_map(|server| promise.on(&server.view.machine));
        let Some(least) = measured().map(|curves| curves.load.least()).min() else {
            let measured = promise.curves.iter().map(|curves| curves.machine.clone());
            return Some(Unfit::NoCurves {
                measured: measured.collect(),
            });
        };
        if least > promise.latency {
            return Some(Unfit::Latency { least });
        }
        let cores = group.chain.cores;
        let bytes = measured().map(|curves| curves.cache.points()[0].0).min()?;
        let is_large = servers().all(|server| server.view.cores.len() < usize::from(cores));
        is_large.then_some(Unfit::Size { cores, bytes })
    }
}

/// Returns the risk by measurements.
fn measured_risk(group: &Group<'_>) -> Option<Risk> {
    let ready = || group.observed.iter().filter(|one| one.phase == InstancePhase::Ready);
    if let Some(objective) = group.chain.objective {
        let latencies = ready().filter_map(|one| Some((one.load.p99?, &one.name)));
        let worst = latencies.max_by(|one, two| one.0.cmp(&two.0).then_with(|| two.1.cmp(one.1)));
        if let Some((p99, name)) = worst.filter(|(p99, _)| *p99 > objective) {
            return Some(Risk::Latency {
                instance: name.clone(),
                p99,
            });
        }
    }
    let throughput = group.chain.promise.as_ref().map(|promise| promise.throughput);
    let offered = group.chain.demand.offered;
    let is_short = throughput == Some(RackThroughput::OnDemand) && offered > group.ready_rate;
    is_short.then_some(Risk::Overload {
        offered,
        promised: group.ready_rate,
    })
}
