//! Admission: whether SLOs fit, where their instances go, and if not, why, and what would fit.

use crate::check::check;
use crate::demand::Unfit;
use crate::plan::{Instance, Placed, Plan, PlanError, Resource};
use crate::schedule::{MAX_INSTANCES, Request, Scheduler};
use crate::slo::{Slo, Target};
use tailwater_net::Nanos;

/// How often the nearest SLO that would fit is halved for: to a thousandth of what was asked for.
const HALVINGS: usize = 12;

/// What becomes of an SLO.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It is kept, by these instances.
    Admitted(Vec<Instance>),
    /// It cannot be kept.
    Denied(Denial),
}

/// Why an SLO is denied, and what would not be.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// Why.
    pub reason: Reason,
    /// The same SLO with less throughput, or more latency, that would be admitted now.
    pub nearest: Vec<Nearest>,
}

/// What an SLO fails by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No server can hold an instance that counts, however empty.
    Unfit(Unfit),
    /// More instances than an SLO may have.
    Instances,
    /// There is no room: more of any of these would make some. Of none: it takes more of several at once.
    Room(Vec<Resource>),
    /// Another SLO has the name.
    Twice,
    /// Where it was placed, its curves do not bear it out.
    Unkept,
}

/// An SLO that would be admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nearest {
    /// With this throughput, in packets per second, and the same latency.
    Throughput(f64),
    /// With this latency, and the same throughput.
    Latency(Nanos),
}

/// Admits an SLO, or tells why not and leaves the plan as it is.
pub fn admit(plan: &mut Plan, slo: Slo, scheduler: &dyn Scheduler) -> Answer {
    match try_admit(plan, &slo, scheduler) {
        Ok(instances) => Answer::Admitted(instances),
        Err(reason) => Answer::Denied(Denial {
            nearest: nearest(plan, &slo, scheduler),
            reason,
        }),
    }
}

/// Admits an SLO, or tells why not, without looking for what would fit.
///
/// # Errors
/// Why not; the plan is as before.
pub fn try_admit(plan: &mut Plan, slo: &Slo, scheduler: &dyn Scheduler) -> Result<Vec<Instance>, Reason> {
    if plan.get(&slo.name).is_some() {
        return Err(Reason::Twice);
    }
    let request = Request::new(slo.clone(), plan.cluster()).map_err(Reason::Unfit)?;
    if request.choices.list.is_empty() {
        return Err(Reason::Instances);
    }
    let room = |plan: &Plan| Reason::Room(binding(plan, &request, scheduler));
    let Some(instances) = scheduler.place(plan, &request) else {
        return Err(room(plan));
    };
    match plan.put(&request, instances) {
        Ok(()) => kept(plan, slo).ok_or(Reason::Unkept),
        Err(PlanError::Twice(_)) => Err(Reason::Twice),
        Err(_) => Err(room(plan)),
    }
}

/// The instances of an SLO that was just put into a plan, if they keep it by its curves; or it is taken out again.
pub(crate) fn kept(plan: &mut Plan, slo: &Slo) -> Option<Vec<Instance>> {
    let placed = plan.get(&slo.name)?;
    if check(plan.cluster(), [placed]).is_empty() {
        return Some(placed.instances.clone());
    }
    plan.remove(&slo.name);
    None
}

/// What becomes of SLOs that were admitted, some of whose instances are gone: those that are left and still do
/// something stay where they are, and others are added. Where that is not possible all of its instances are placed
/// anew.
///
/// # Errors
/// Why that is not possible either; it is not in the plan then.
pub fn repair(plan: &mut Plan, lost: Placed, scheduler: &dyn Scheduler) -> Result<Vec<Instance>, Reason> {
    let Placed { slo, instances, .. } = lost;
    match completed(plan, &slo, &instances, scheduler) {
        Some(instances) => Ok(instances),
        None => try_admit(plan, &slo, scheduler),
    }
}

/// Instances that are left, and what they lack.
fn completed(plan: &mut Plan, slo: &Slo, instances: &[Instance], scheduler: &dyn Scheduler) -> Option<Vec<Instance>> {
    let request = Request::new(slo.clone(), plan.cluster()).ok()?;
    let rate_of = |instance: &Instance| {
        let kind = plan.cluster().servers()[instance.server].kind;
        request.demand.rate(kind, instance.ways)
    };
    // By new curves an instance may be too slow, or have too little cache, to count.
    let mut all = instances.to_vec();
    all.retain(|instance| rate_of(instance) > 0.0);
    let rate: f64 = all.iter().map(rate_of).sum();
    if all.is_empty() {
        return None;
    }
    match slo.target {
        Target::OnDemand { most } => all.truncate(most.into()),
        Target::Reserved { .. } if request.demand.is_met(rate) => {}
        Target::Reserved { throughput } => {
            // What is left is in its place while the rest is looked for.
            plan.put(&request, all.clone()).ok()?;
            let rest = Target::Reserved {
                throughput: throughput - rate,
            };
            let more = Slo {
                target: rest,
                ..slo.clone()
            };
            let more = Request::new(more, plan.cluster()).ok();
            let found = more.and_then(|more| scheduler.place(plan, &more));
            plan.remove(&slo.name);
            all.extend(found?);
        }
    }
    if all.len() > MAX_INSTANCES {
        return None;
    }
    plan.put(&request, all).ok()?;
    kept(plan, slo)
}

/// What there must be more of for an SLO to fit.
fn binding(plan: &Plan, request: &Request, scheduler: &dyn Scheduler) -> Vec<Resource> {
    let fits = |resource: &Resource| match resource {
        Resource::Servers => {
            let mut together = request.clone();
            (together.slo.spread, together.slo.apart) = (false, None);
            scheduler.place(plan, &together).is_some()
        }
        resource => scheduler.place(&plan.with_plenty(*resource), request).is_some(),
    };
    let all = [Resource::Cores, Resource::Cache, Resource::Classes, Resource::Servers];
    all.into_iter().filter(fits).collect()
}

/// The same SLO with less throughput, or with more latency, that a plan has room for now; none if it has the SLO.
pub fn nearest(plan: &Plan, slo: &Slo, scheduler: &dyn Scheduler) -> Vec<Nearest> {
    if plan.get(&slo.name).is_some() {
        return Vec::new();
    }
    let fits = |slo: &Slo| {
        Request::new(slo.clone(), plan.cluster()).is_ok_and(|request| scheduler.place(plan, &request).is_some())
    };
    let mut found = Vec::new();
    if let Target::Reserved { throughput } = slo.target {
        let with = |throughput: f64| Slo {
            target: Target::Reserved { throughput },
            ..slo.clone()
        };
        // Between what fits and what does not.
        let (mut low, mut high) = (0.0, throughput);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            match fits(&with(middle)) {
                true => low = middle,
                false => high = middle,
            }
        }
        let whole = low.floor();
        if whole > 0.0 && fits(&with(whole)) {
            found.push(Nearest::Throughput(whole));
        }
    }
    let with = |latency| Slo { latency, ..slo.clone() };
    let curves = slo.chain.curves.iter();
    let latest = curves.map(|curves| curves.load.latency(1.0)).max();
    let latest = latest.filter(|&latest| latest > slo.latency && fits(&with(latest)));
    if let Some(latest) = latest {
        let (mut low, mut high) = (slo.latency.0, latest.0);
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2;
            match fits(&with(Nanos(middle))) {
                true => high = middle,
                false => low = middle,
            }
        }
        found.push(Nearest::Latency(Nanos(high)));
    }
    found
}
