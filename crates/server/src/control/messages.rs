//! Messages of the control API from and to the server's types.

use super::generated as message;
use crate::admission::{Placement, Promise};
use crate::cache::{CacheClass, CacheWays};
use crate::chain::Manifest;
use crate::configuration::ControlError;
use crate::details::{CoreDetails, CoreRole, FunctionDetails, PortDetails};
use crate::events::{Event, Severity, start_of};
use crate::machine::{LatencyObservation, PacketRates};
use crate::request::{Applied, ApplyRequest, Outcome};
use crate::status::{ChainStatus, Condition, ConditionStatus, Phase};
use std::net::IpAddr;
use std::path::PathBuf;
use tailwater_api::Slo;
use tailwater_policy::server::ClassLoad;
use tonic::{Code, Status};

/// Longest error in bytes: it is sent in a head, percent-encoded.
const LONGEST_ERROR: usize = 8 << 10;

/// Request of a message.
pub(super) fn apply_request(request: &message::ApplyRequest) -> ApplyRequest {
    let manifest = |manifest: &message::Manifest| Manifest {
        source: manifest.source.clone(),
        path: (!manifest.path.is_empty()).then(|| PathBuf::from(&manifest.path)),
        yaml: manifest.yaml.clone(),
    };
    ApplyRequest {
        manifests: request.manifests.iter().map(manifest).collect(),
        dry_run: request.dry_run,
        force: request.force,
    }
}

/// Message of an outcome.
pub(super) fn applied(applied: Applied) -> message::AppliedManifest {
    let outcome = match applied.outcome {
        Outcome::Unchanged => message::Outcome::Unchanged,
        Outcome::Created => message::Outcome::Created,
        Outcome::Configured => message::Outcome::Configured,
        Outcome::Replaced => message::Outcome::Replaced,
    };
    message::AppliedManifest {
        name: applied.name,
        outcome: outcome.into(),
        placement: Some(placement(&applied.placement)),
    }
}

/// Message of a chain.
pub(super) fn chain(status: &ChainStatus) -> message::Chain {
    let phase = match status.phase {
        Phase::Pending => message::Phase::Pending,
        Phase::Starting => message::Phase::Starting,
        Phase::Running => message::Phase::Running,
        Phase::Draining => message::Phase::Draining,
        Phase::Drained => message::Phase::Drained,
        Phase::Failed => message::Phase::Failed,
    };
    let observation = status.observation.as_ref();
    let slo = &status.chain.settings.slo;
    let packets = observation.map(|observation| observation.packets);
    let cores = observation.map(|observation| &observation.cores);
    let latency = observation.map(|observation| observation.latency).unwrap_or_default();
    message::Chain {
        name: status.chain.name.clone(),
        phase: phase.into(),
        reason: status.reason.clone(),
        port: status.chain.port.clone(),
        source: status.chain.manifest.source.clone(),
        functions: status.chain.kinds(),
        generation: status.generation,
        since_unix_nanos: status.since.0,
        conditions: status.conditions.iter().map(condition).collect(),
        packets: packets.map(|packets| message::Packets {
            offered: packets.offered,
            delivered: packets.delivered,
            dropped: packets.dropped,
            lost: packets.lost,
        }),
        latency: Some(latency_message(&latency, slo)),
        cores: cores.map(|cores| message::Cores {
            dedicated: cores.dedicated.clone(),
            auxiliary: cores.auxiliary,
        }),
        forced: status.chain.forced,
        placement: Some(placement(&status.chain.placement)),
        rates: observation.and_then(|observation| observation.rates).map(rates),
        total_latency: observation.map(|observation| latency_message(&observation.total, slo)),
        cache: observation
            .and_then(|observation| observation.cache.as_ref())
            .map(cache),
        bound_state: observation
            .and_then(|observation| observation.bound_state.clone())
            .unwrap_or_default(),
    }
}

/// Message of a chain's load, if it runs and has some.
pub(super) fn load(status: &ChainStatus) -> Option<message::ChainLoad> {
    let load = status.observation.as_ref()?.load.as_ref()?;
    let counters = load.counters;
    let class = |load: &ClassLoad| message::FlowClass {
        destination: match load.class.destination() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        },
        source_bits: load.class.hash().into(),
        packets: load.packets,
    };
    Some(message::ChainLoad {
        name: status.chain.name.clone(),
        measured_nanos: load.measured.0,
        offered: counters.offered,
        processed: counters.processed,
        late: counters.late,
        busy_nanos: counters.busy.0,
        classes: load.classes.iter().map(class).collect(),
    })
}

/// Message of a chain's figures, if it runs and has some.
pub(super) fn figures(status: &ChainStatus) -> Option<message::ChainFigures> {
    let details = status.observation.as_ref()?.details.as_ref()?;
    let count = |(name, packets): (&str, &u64)| message::Count {
        name: name.to_owned(),
        packets: *packets,
    };
    let function = |function: &FunctionDetails| message::FunctionFigures {
        name: function.name.clone(),
        packets: function.packets,
        dropped: function.dropped,
        timed_packets: function.timed.0,
        timed_nanos: function.timed.1.0,
    };
    let late = details.late.iter().map(|(cause, packets)| (*cause, packets));
    let reasons = details
        .reasons
        .iter()
        .map(|(reason, packets)| (reason.as_str(), packets));
    Some(message::ChainFigures {
        name: status.chain.name.clone(),
        measured_nanos: details.measured.0,
        late: late.map(count).collect(),
        reasons: reasons.map(count).collect(),
        functions: details.functions.iter().map(function).collect(),
        to_auxiliary: details.offloaded[0],
        to_dedicated: details.offloaded[1],
        flows: details.flows,
        preemptions: details.preemptions,
    })
}

/// Message of a core, on which these chains are placed.
pub(super) fn core(details: &CoreDetails, chains: Vec<String>) -> message::CoreFigures {
    let role = match details.role {
        CoreRole::Dedicated => message::CoreRole::Dedicated,
        CoreRole::Auxiliary => message::CoreRole::Auxiliary,
    };
    message::CoreFigures {
        core: details.core,
        role: role.into(),
        busy_nanos: details.busy.0,
        chains,
    }
}

/// Message of a port.
pub(super) fn port(details: &PortDetails) -> message::Port {
    message::Port {
        name: details.name.clone(),
        received: details.received,
        unmatched: details.unmatched,
        lost: details.lost,
        damaged: details.damaged,
        interval_nanos: details.interval.0,
        interval_received: details.interval_received,
        interval_lost: details.interval_lost,
        losing_cores: details.losing_cores.clone(),
    }
}

fn cache(cache: &CacheWays) -> message::Cache {
    let class = match cache.class {
        CacheClass::Reserved => message::CacheClass::Reserved,
        CacheClass::Isolated => message::CacheClass::Isolated,
        CacheClass::Shared => message::CacheClass::Shared,
        CacheClass::None => message::CacheClass::None,
    };
    message::Cache {
        class: class.into(),
        ways: cache.ways.into(),
        cores: cache.cores.into(),
        reason: cache.reason.clone(),
    }
}

fn placement(placement: &Placement) -> message::Placement {
    let promise = match placement.promise {
        Promise::Promised => message::Promise::Promised,
        Promise::None => message::Promise::None,
        Promise::Unchecked => message::Promise::Unchecked,
    };
    let predicted = placement.predicted.as_ref();
    message::Placement {
        cores: placement.cores.clone(),
        promise: promise.into(),
        reason: placement.reason.clone(),
        share: predicted.map(|predicted| predicted.share),
        latency_nanos: predicted.map(|predicted| predicted.latency.0),
        cost_nanos: predicted.map(|predicted| predicted.cost),
        packets_per_second: placement.claim.as_ref().map(|claim| claim.throughput),
        cap_packets_per_second: placement.cap.map(|cap| cap.rate),
    }
}

fn latency_message(latency: &LatencyObservation, slo: &Slo) -> message::Latency {
    message::Latency {
        p50_nanos: latency.p50.map(|latency| latency.0),
        p99_nanos: latency.p99.map(|latency| latency.0),
        objective_nanos: slo.budget().0,
        percentile: slo.percentile,
        met: latency.met,
        port_lost: latency.port_lost,
    }
}

fn rates(rates: PacketRates) -> message::Rates {
    message::Rates {
        offered: rates.offered,
        delivered: rates.delivered,
        dropped: rates.dropped,
        lost: rates.lost,
        cores: rates.cores,
    }
}

fn condition(condition: &Condition) -> message::Condition {
    let status = match condition.status {
        ConditionStatus::True => message::ConditionStatus::True,
        ConditionStatus::False => message::ConditionStatus::False,
        ConditionStatus::Unknown => message::ConditionStatus::Unknown,
    };
    message::Condition {
        r#type: condition.name.to_owned(),
        status: status.into(),
        reason: condition.reason.to_owned(),
        message: condition.message.clone(),
        since_unix_nanos: condition.since.0,
    }
}

/// Message of an event.
pub(super) fn event(event: &Event) -> message::Event {
    let severity = match event.severity {
        Severity::Normal => message::Severity::Normal,
        Severity::Warning => message::Severity::Warning,
    };
    message::Event {
        sequence: event.sequence,
        unix_nanos: event.time.0,
        severity: severity.into(),
        chain: event.chain.clone().unwrap_or_default(),
        reason: event.reason.to_owned(),
        message: event.message.clone(),
    }
}

/// Status of an error: its code, and its lines as far as they fit.
pub(super) fn status(error: &ControlError) -> Status {
    let code = match error {
        ControlError::Invalid(_) => Code::InvalidArgument,
        ControlError::NotFound(_) => Code::NotFound,
        ControlError::Refused(_) => Code::FailedPrecondition,
        ControlError::Failed(_) => Code::Aborted,
    };
    Status::new(code, shortened(&error.to_string()))
}

fn shortened(text: &str) -> String {
    let start = start_of(text, LONGEST_ERROR);
    match start.rfind('\n').filter(|_| start.len() < text.len()) {
        None => start.to_owned(),
        Some(end) => format!("{}\n{} more errors", &text[..end], text[end + 1..].lines().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_are_cut_at_a_line() {
        let lines: Vec<String> = (0..1000).map(|line| format!("line {line} of an error")).collect();
        let status = status(&ControlError::Invalid(lines.join("\n")));
        let message = status.message();
        let shown = message.lines().count() - 1;
        assert!(message.len() < LONGEST_ERROR + 50 && shown > 300);
        assert!(message.ends_with(&format!("error\n{} more errors", 1000 - shown)));
        assert_eq!(shortened(&"\u{e9}".repeat(LONGEST_ERROR)).len(), LONGEST_ERROR);
        assert_eq!(shortened("one line"), "one line");
    }
}
