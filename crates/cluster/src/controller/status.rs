//! Conditions of chains.

use super::chains::{Chains, ReadChain};
use super::objects::{full_name, has_newest_spec, runs_newest_spec};
use super::pools::Pools;
use super::view::bound_state;
use crate::figures::{latency_text, rate_text};
use crate::resources::{Chain, ChainInstance, ChainStatus, InstancePhase, set_condition};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Nearest, Reason};
use tailwater_placement::demand::Unfit;
use tailwater_placement::plan::Resource;
use tailwater_placement::rack::{Risk, Verdict};

/// Reason of `Steered`: packets are steered, but by fewer rows than the ingress would have.
const TABLE_FULL: &str = "TableFull";

/// Reason of `SingleInstance`: flows cannot take all of their state to another instance.
const BOUND_STATE: &str = "BoundState";

/// Status of a chain with these instances.
pub fn chain_status(
    chain: &Chain,
    instances: &[&ChainInstance],
    (chains, pools): (&Chains, &Pools),
    verdict: Option<&Verdict>,
    now: Timestamp,
) -> ChainStatus {
    let generation = chain.metadata.generation;
    let mut status = chain.status.clone().unwrap_or_default();
    let name = full_name(chain);
    let mut set = |name: &str, holds: bool, reason: &str, message: &str| {
        set_condition(&mut status.conditions, now, (name, holds, reason, message), generation);
    };
    match chains.facts(&name) {
        Some(Err(rejection)) => set("Accepted", false, rejection.reason, &rejection.message),
        _ => set("Accepted", true, "Valid", ""),
    }
    let is_active =
        |instance: &&&ChainInstance| !instance.spec.draining && instance.metadata.deletion_timestamp.is_none();
    let active: Vec<&ChainInstance> = instances.iter().filter(is_active).copied().collect();
    let phase = |instance: &ChainInstance| instance.status.as_ref().map(|status| status.phase).unwrap_or_default();
    let ready = active
        .iter()
        .filter(|instance| phase(instance) == InstancePhase::Running)
        .count();
    let problem = pools.problem(chain.spec.pool.as_deref());
    let (holds, reason, message) = match (verdict, problem) {
        (Some(_), Some((reason, message))) => (false, reason, message),
        _ => placed(verdict, chains.get(&name)),
    };
    set("Placed", holds, reason, &message);
    let failed = active.iter().find(|instance| phase(instance) == InstancePhase::Failed);
    match failed {
        Some(failed) => {
            let reason = failed.status.as_ref().map(|status| &*status.reason).unwrap_or_default();
            let message = format!("{} on {}: {reason}", failed.name_any(), failed.spec.server);
            set("Ready", false, "InstanceFailed", &message);
        }
        None if active.is_empty() => set("Ready", false, "NoInstance", "no instance yet"),
        None if ready < active.len() => {
            let message = format!("{ready} of {} instances process packets", active.len());
            set("Ready", false, "Starting", &message);
        }
        None => set("Ready", true, "Ready", ""),
    }
    let old = active
        .iter()
        .filter(|instance| !runs_newest_spec(instance, chain))
        .count();
    let stuck = active.iter().find(|instance| {
        has_newest_spec(instance, chain)
            && instance
                .status
                .as_ref()
                .is_some_and(|status| status.phase == InstancePhase::Running && !status.reason.is_empty())
    });
    match (stuck, old) {
        (Some(stuck), _) => {
            let reason = stuck.status.as_ref().map(|status| &*status.reason).unwrap_or_default();
            let message = format!(
                "{} on {} keeps its old spec: {reason}",
                stuck.name_any(),
                stuck.spec.server
            );
            set("Updated", false, "Refused", &message);
        }
        (None, 0) => set("Updated", true, "Updated", ""),
        (None, old) => {
            let message = format!("{old} of {} instances have an older spec", active.len());
            set("Updated", false, "RollingOut", &message);
        }
    }
    match active.iter().find_map(|instance| bound_state(instance)) {
        Some(reason) => {
            let message = format!("{reason}: it has one instance, which does not move, whatever spec.scale has");
            set("SingleInstance", true, BOUND_STATE, &message);
        }
        None => status.conditions.retain(|condition| condition.name != "SingleInstance"),
    }
    let mut set = |name: &str, holds: bool, reason: &str, message: &str| {
        set_condition(&mut status.conditions, now, (name, holds, reason, message), generation);
    };
    if !steered(&active, &mut set) {
        status.conditions.retain(|condition| condition.name != "Steered");
    }
    let mut set = |name: &str, holds: bool, reason: &str, message: &str| {
        set_condition(&mut status.conditions, now, (name, holds, reason, message), generation);
    };
    if !objective(&active, verdict, &mut set) {
        status.conditions.retain(|condition| condition.name != "ObjectiveMet");
    }
    let figures = || active.iter().filter_map(|instance| instance.status.as_ref()?.figures);
    let latency = figures()
        .map(|figures| figures.latency_nanos)
        .max()
        .filter(|latency| *latency > 0);
    status.observed_generation = generation.unwrap_or_default();
    status.instances = instances.len() as u32;
    status.ready_instances = format!("{ready}/{}", active.len());
    status.cores = active.iter().map(|instance| cores(instance)).sum();
    status.p99 = latency.map(|latency| latency_text(Nanos(latency)));
    status.rate = figures()
        .next()
        .is_some()
        .then(|| rate_text(figures().map(|figures| figures.offered).sum()));
    let failing = status.conditions.iter().find(|condition| condition.status == "False");
    status.reason = failing.map(|condition| condition.reason.clone()).unwrap_or_default();
    status
}

/// Number of cores of an instance.
fn cores(instance: &ChainInstance) -> u32 {
    let cores = instance
        .status
        .as_ref()
        .map(|status| &*status.cores)
        .unwrap_or_default();
    cores.split(',').filter(|core| !core.is_empty()).count() as u32
}

/// `Placed`: if it holds, its reason, and its message.
fn placed(verdict: Option<&Verdict>, read: Option<&ReadChain>) -> (bool, &'static str, String) {
    let unpromised = match read {
        Some(ReadChain {
            unusable: Some(reason), ..
        }) => format!("without a promise: {reason}"),
        Some(read) if read.curves.is_empty() => "without a promise: it has no Profile".to_owned(),
        _ => String::new(),
    };
    match verdict {
        None => (
            false,
            "NotAccepted",
            "it has no instance of an accepted spec".to_owned(),
        ),
        Some(Verdict::AtRisk(Risk::Bound { instance })) => {
            let name = instance.rsplit_once('/').map_or(&**instance, |(_, name)| name);
            let message = format!(
                "{name} stays where it is, though its server is to become empty or is not one of its pool, since its \
                 flows would leave state behind: delete the ChainInstance to begin anew elsewhere"
            );
            (true, "CannotMove", message)
        }
        Some(Verdict::AtRisk(Risk::CannotMove { instance, reason })) => {
            let name = instance.rsplit_once('/').map_or(&**instance, |(_, name)| name);
            let message = format!(
                "{name} stays where it is, though its server is to become empty or is not one of its pool: {}",
                binding(reason)
            );
            (true, "CannotMove", message)
        }
        Some(Verdict::Placed { .. } | Verdict::AtRisk(_)) => (true, "Placed", unpromised),
        Some(Verdict::TooFew {
            rate,
            wanted,
            reason,
            nearest,
            ..
        }) => {
            let word = match reason {
                Reason::Unfit(_) | Reason::ViolatedByCurves => "Unfit",
                Reason::Instances => "TooManyInstances",
                Reason::Room(_) | Reason::Twice => "NoRoom",
            };
            let mut message = match *wanted > 0.0 {
                true => format!(
                    "{} of {} are promised: {}",
                    rate_text(*rate),
                    rate_text(*wanted),
                    binding(reason)
                ),
                false => binding(reason),
            };
            let fits: Vec<String> = nearest.iter().map(fitting).collect();
            if !fits.is_empty() {
                message += &format!("; {} would fit", fits.join(", or "));
            }
            (false, word, message)
        }
    }
}

fn binding(reason: &Reason) -> String {
    match reason {
        Reason::Unfit(Unfit::Latency { least }) => {
            format!("its profile has a latency of {least} at any load, which is above the objective")
        }
        Reason::Unfit(_) | Reason::ViolatedByCurves => "no server can hold an instance, even an empty one".to_owned(),
        Reason::Instances => {
            "spec.scale.max allows no more instances, and no server has room for larger ones".to_owned()
        }
        Reason::Twice => "another chain has its name".to_owned(),
        Reason::Room(resources) if resources.is_empty() => "no server has room".to_owned(),
        Reason::Room(resources) => {
            let names: Vec<&str> = resources.iter().map(resource).collect();
            format!("no server has room: more {} would suffice", names.join(" or "))
        }
    }
}

fn resource(resource: &Resource) -> &'static str {
    match resource {
        Resource::Cores => "cores",
        Resource::Cache => "cache",
        Resource::Classes => "classes of cache",
        Resource::Servers => "servers",
        Resource::Quiet => "memory bandwidth",
    }
}

fn fitting(nearest: &Nearest) -> String {
    match nearest {
        Nearest::Throughput(most) => format!("at most {} more", rate_text(*most)),
        Nearest::Latency(least) => format!("an objective of {least}"),
    }
}

/// Sets `Steered`, as the ingress has said of the instances that run. Returns `false` if it has said nothing: there may
/// be none.
fn steered(active: &[&ChainInstance], set: &mut impl FnMut(&str, bool, &str, &str)) -> bool {
    let statuses = || active.iter().filter_map(|instance| instance.status.as_ref());
    let running = || statuses().filter(|status| status.phase == InstancePhase::Running);
    let limit = statuses().find_map(|status| status.steering_limit.as_ref());
    if let Some(reason) = statuses().find_map(|status| status.steering_reason.as_deref()) {
        set("Steered", false, "Refused", reason);
    } else if let Some(limit) = limit.filter(|limit| limit.reason != TABLE_FULL) {
        set("Steered", false, &limit.reason, &limit.message);
    } else if running().any(|status| status.steered == Some(true)) {
        match limit {
            Some(limit) => set("Steered", true, &limit.reason, &limit.message),
            None => set("Steered", true, "Steered", ""),
        }
    } else if running().next().is_some() && running().all(|status| status.steered == Some(false)) {
        let message =
            "the ingress sends no instance packets: do their agents report to it, and are their switch ports up?";
        set("Steered", false, "NoRows", message);
    } else {
        return false;
    }
    true
}

/// Sets `ObjectiveMet`, of all instances. Returns `false` if nothing is known of it: none has packets.
fn objective(
    active: &[&ChainInstance],
    verdict: Option<&Verdict>,
    set: &mut impl FnMut(&str, bool, &str, &str),
) -> bool {
    let of = |instance: &ChainInstance| {
        let conditions = instance
            .status
            .as_ref()
            .map(|status| &*status.conditions)
            .unwrap_or_default();
        conditions
            .iter()
            .find(|condition| condition.name == "ObjectiveMet")
            .cloned()
    };
    let mut known = active.iter().filter_map(|instance| Some((instance, of(instance)?)));
    if let Some((instance, missed)) = known.clone().find(|(_, condition)| condition.status == "False") {
        let message = format!(
            "{} on {}: {}",
            instance.name_any(),
            instance.spec.server,
            missed.message
        );
        set("ObjectiveMet", false, "Missed", &message);
        return true;
    }
    match verdict {
        Some(Verdict::AtRisk(Risk::Overload { offered, promised })) => {
            let message = format!(
                "{} are offered, {} are promised",
                rate_text(*offered),
                rate_text(*promised)
            );
            set("ObjectiveMet", false, "Overload", &message);
        }
        _ if known.next().is_some() => set("ObjectiveMet", true, "Met", ""),
        _ => return false,
    }
    true
}

/// Events for conditions that have changed: if it is a warning, its reason, and one line.
pub fn events_between(before: Option<&ChainStatus>, after: &ChainStatus) -> Vec<(bool, String, String)> {
    let old = before.map(|status| &*status.conditions).unwrap_or_default();
    let mut events = Vec::new();
    for condition in &after.conditions {
        let was = old.iter().find(|old| old.name == condition.name);
        let is_new = was.is_none_or(|was| was.status != condition.status || was.reason != condition.reason);
        let holds = condition.status == "True";
        // These hold, but an operator should do something.
        let is_warning = !holds || ["CannotMove", TABLE_FULL, BOUND_STATE].contains(&&*condition.reason);
        // A condition that holds from the start is no news; nor is a chain that starts.
        let is_expected = was.is_none() && !is_warning
            || ["Starting", "RollingOut", "NoInstance", "Profiling"].contains(&&*condition.reason);
        if is_new && !is_expected {
            let note = match condition.message.is_empty() {
                true => format!("{} is {}", condition.name, condition.status),
                false => condition.message.clone(),
            };
            events.push((is_warning, condition.reason.clone(), note));
        }
    }
    events
}
