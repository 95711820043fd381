//! Admission: decides if SLOs fit and places their instances. Denials carry a reason and the nearest SLO that fits.

use crate::check::check;
use crate::demand::Unfit;
use crate::plan::{Instance, Placed, Plan, PlanError, Resource};
use crate::schedule::{MAX_INSTANCES, Request, Scheduler};
use crate::slo::{Slo, Target};
use tailwater_net::Nanos;

/// Bisection steps in the search for the nearest SLO that fits: to a thousandth of the requested value.
pub(crate) const HALVINGS: usize = 12;

/// Result of an admission.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The SLO is met by these instances.
    Admitted(Vec<Instance>),
    /// The SLO cannot be met.
    Denied(Denial),
}

/// Reason of a denial, and alternatives that would be admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// Reason of the denial.
    pub reason: Reason,
    /// Alternatives that would be admitted now: the same SLO with less throughput, or with more latency.
    pub nearest: Vec<Nearest>,
}

/// Reason why an SLO is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No server can hold a useful instance, even an empty one.
    Unfit(Unfit),
    /// The SLO needs more instances than allowed.
    Instances,
    /// There is no room. More of any one of these resources would suffice. If empty, several are needed at once.
    Room(Vec<Resource>),
    /// Another SLO has the same name.
    Twice,
    /// The placement does not meet the SLO according to its curves.
    ViolatedByCurves,
}

/// Alternative SLO that would be admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nearest {
    /// Throughput in packets per second, with the same latency.
    Throughput(f64),
    /// Latency, with the same throughput.
    Latency(Nanos),
}

/// Admits an SLO. If it is denied, the plan is unchanged and the answer holds the reason.
pub fn admit(plan: &mut Plan, slo: Slo, scheduler: &dyn Scheduler) -> Answer {
    match try_admit(plan, &slo, scheduler) {
        Ok(instances) => Answer::Admitted(instances),
        Err(reason) => Answer::Denied(Denial {
            nearest: nearest(plan, &slo, scheduler),
            reason,
        }),
    }
}

/// Admits an SLO, without a search for alternatives.
///
/// # Errors
/// Returns the reason of a denial. The plan is then unchanged.
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
        Ok(()) => keep_if_met(plan, slo, scheduler).ok_or(Reason::ViolatedByCurves),
        Err(PlanError::Twice(_)) => Err(Reason::Twice),
        Err(_) => Err(room(plan)),
    }
}

/// Returns the instances of an SLO that was just added to a plan, if they meet it by its curves and by the scheduler's
/// predictions. Otherwise removes the SLO.
pub(crate) fn keep_if_met(plan: &mut Plan, slo: &Slo, scheduler: &dyn Scheduler) -> Option<Vec<Instance>> {
    let placed = plan.get(&slo.name)?;
    if check(plan.cluster(), [placed]).is_empty() && scheduler.is_met(plan, &slo.name) {
        return Some(placed.instances.clone());
    }
    plan.remove(&slo.name);
    None
}

/// Repairs an admitted SLO that has lost instances. The remaining useful instances stay, and others are added. Where
/// that is impossible, all of its instances are placed again.
///
/// # Errors
/// Returns the reason if neither is possible. The SLO is then not in the plan.
pub fn repair(plan: &mut Plan, lost: Placed, scheduler: &dyn Scheduler) -> Result<Vec<Instance>, Reason> {
    let Placed { slo, instances, .. } = lost;
    match completed(plan, &slo, &instances, scheduler) {
        Some(instances) => Ok(instances),
        None => try_admit(plan, &slo, scheduler),
    }
}

/// Returns the remaining instances, completed by the missing ones.
fn completed(plan: &mut Plan, slo: &Slo, instances: &[Instance], scheduler: &dyn Scheduler) -> Option<Vec<Instance>> {
    let request = Request::new(slo.clone(), plan.cluster()).ok()?;
    let rate_of = |instance: &Instance| {
        let kind = plan.cluster().servers()[instance.server].kind;
        request.demand.rate(kind, instance.ways)
    };
    // With new curves an instance may be too slow, or have too little cache, to count.
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
            // The remaining instances occupy their room during the search for the others.
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
    keep_if_met(plan, slo, scheduler)
}

/// Returns the resources of which more is needed for an SLO to fit.
fn binding(plan: &Plan, request: &Request, scheduler: &dyn Scheduler) -> Vec<Resource> {
    let fits = |resource: &Resource| match resource {
        Resource::Servers => {
            let mut together = request.clone();
            (together.slo.spread, together.slo.apart) = (false, None);
            scheduler.place(plan, &together).is_some()
        }
        Resource::Quiet => {
            let ignoring = scheduler.without_contention();
            ignoring.is_some_and(|scheduler| scheduler.place(plan, request).is_some())
        }
        resource => scheduler.place(&plan.with_plenty(*resource), request).is_some(),
    };
    let all = [
        Resource::Cores,
        Resource::Cache,
        Resource::Classes,
        Resource::Servers,
        Resource::Quiet,
    ];
    all.into_iter().filter(fits).collect()
}

/// Returns the same SLO with less throughput, or with more latency, for which a plan has room now. Empty if the plan
/// already contains the SLO.
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
        // Bisection between a value that fits and one that does not.
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
