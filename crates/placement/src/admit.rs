//! Admission: whether SLOs fit, where their instances go, and if not, why, and what would fit.

use crate::demand::Unfit;
use crate::plan::{Instance, Placed, Plan, PlanError, Resource};
use crate::schedule::{Request, Scheduler};
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
            nearest: match reason {
                Reason::Twice => Vec::new(),
                _ => nearest(plan, &slo, scheduler),
            },
            reason,
        }),
    }
}

/// Admits an SLO, or tells why not, without looking for what would fit.
///
/// # Errors
/// Why not; the plan is as before.
pub fn try_admit(
    plan: &mut Plan,
    slo: &Slo,
    scheduler: &dyn Scheduler,
) -> Result<Vec<Instance>, Reason> {
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
        Ok(()) => Ok(plan
            .get(&slo.name)
            .map(|placed| placed.instances.clone())
            .unwrap_or_default()),
        Err(PlanError::Twice(_)) => Err(Reason::Twice),
        Err(_) => Err(room(plan)),
    }
}

/// Gives an SLO that was admitted other terms. If they do not fit, the old ones stay.
pub fn change(plan: &mut Plan, slo: Slo, scheduler: &dyn Scheduler) -> Answer {
    let before = plan.remove(&slo.name);
    let answer = admit(plan, slo, scheduler);
    if let (Answer::Denied(_), Some(before)) = (&answer, before) {
        // Its place is free: it just left it.
        let _ = plan.put_again(before);
    }
    answer
}

/// What becomes of SLOs that were admitted, some of whose instances are gone: those that are left stay where they
/// are, and others are added. Where that is not possible all of its instances are placed anew.
pub fn repair(plan: &mut Plan, lost: Placed, scheduler: &dyn Scheduler) -> Answer {
    let Placed { slo, instances, .. } = lost;
    if let Some(instances) = completed(plan, &slo, &instances, scheduler) {
        return Answer::Admitted(instances);
    }
    admit(plan, slo, scheduler)
}

/// Instances that are left, and what they lack.
fn completed(
    plan: &mut Plan,
    slo: &Slo,
    instances: &[Instance],
    scheduler: &dyn Scheduler,
) -> Option<Vec<Instance>> {
    let Target::Reserved { throughput } = slo.target else {
        return None;
    };
    if instances.is_empty() {
        return None;
    }
    let mut request = Request::new(slo.clone(), plan.cluster()).ok()?;
    let rate: f64 = instances
        .iter()
        .map(|instance| {
            let kind = plan.cluster().servers()[instance.server].kind;
            request.demand.rate(kind, instance.ways)
        })
        .sum();
    let mut all = instances.to_vec();
    if !request.demand.is_met(rate) {
        // What is left is in its place while the rest is looked for.
        plan.put(&request, all.clone()).ok()?;
        request.slo.target = Target::Reserved {
            throughput: throughput - rate,
        };
        let more = Request::new(request.slo.clone(), plan.cluster()).ok();
        let found = more.and_then(|more| scheduler.place(plan, &more));
        plan.remove(&slo.name);
        all.extend(found?);
    }
    let request = Request::new(slo.clone(), plan.cluster()).ok()?;
    plan.put(&request, all).ok()?;
    plan.get(&slo.name).map(|placed| placed.instances.clone())
}

/// What there must be more of for an SLO to fit.
fn binding(plan: &Plan, request: &Request, scheduler: &dyn Scheduler) -> Vec<Resource> {
    let fits = |resource: &Resource| match resource {
        Resource::Servers => {
            let mut together = request.clone();
            (together.slo.spread, together.slo.apart) = (false, None);
            scheduler.place(plan, &together).is_some()
        }
        resource => scheduler
            .place(&plan.with_plenty(*resource), request)
            .is_some(),
    };
    let all = [
        Resource::Cores,
        Resource::Cache,
        Resource::Classes,
        Resource::Servers,
    ];
    all.into_iter().filter(fits).collect()
}

/// The same SLO with less throughput, or with more latency.
fn nearest(plan: &Plan, slo: &Slo, scheduler: &dyn Scheduler) -> Vec<Nearest> {
    let fits = |slo: &Slo| {
        Request::new(slo.clone(), plan.cluster())
            .is_ok_and(|request| scheduler.place(plan, &request).is_some())
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
    let with = |latency| Slo {
        latency,
        ..slo.clone()
    };
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
