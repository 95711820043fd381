//! Samples of a running server, over its control socket.

use super::sample::{ChainSample, CoreSample, Counters, EventSample, FunctionSample, PortSample, Sample};
use crate::control::{ports, view};
use crate::dates::timestamp;
use std::collections::BTreeMap;
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;
use tailwater_server::control::{Client, ClientError};

/// Longest wait for an event; those that are kept come at once.
const WAIT: Duration = Duration::from_secs(1);

/// Takes a sample.
///
/// # Errors
/// The connection fails.
pub fn sample(client: &mut Client) -> Result<Sample, ClientError> {
    let health = client.health()?;
    let list = client.list()?;
    let figures = client.figures("")?;
    let mut events = Vec::new();
    client.events(message::EventsRequest::default(), WAIT, |event| {
        events.extend(event.as_ref().map(of_event));
        true
    })?;
    let mut counters: BTreeMap<String, Counters> = figures
        .chains
        .into_iter()
        .map(|chain| (chain.name.clone(), of_figures(chain)))
        .collect();
    let ready = if health.ready { "ready" } else { "not ready" };
    Ok(Sample {
        title: format!("{} (tailwater {})", health.server, health.version),
        state: format!(
            "generation {}, {ready}, {} of {} chains run",
            health.generation, health.running, health.chains
        ),
        at: Nanos(figures.unix_nanos),
        chains: list
            .chains
            .iter()
            .map(|chain| of_chain(chain, counters.remove(&chain.name)))
            .collect(),
        cores: figures.cores.iter().map(of_core).collect(),
        ports: list.ports.iter().map(of_port).collect(),
        events,
    })
}

fn of_chain(chain: &message::Chain, counters: Option<Counters>) -> ChainSample {
    let latency = chain.latency.unwrap_or_default();
    let cores = chain.cores.clone().unwrap_or_default();
    let fails = |condition: &&message::Condition| {
        let is_unknown = condition.status() == message::ConditionStatus::Unknown;
        (is_unknown || condition.status() == message::ConditionStatus::False) && !condition.message.is_empty()
    };
    let conditions = chain.conditions.iter().filter(fails);
    let mut notes: Vec<String> = conditions
        .map(|condition| format!("{}: {}", condition.reason, condition.message))
        .collect();
    if !chain.reason.is_empty() && notes.iter().all(|note| !note.ends_with(&chain.reason)) {
        notes.insert(0, chain.reason.clone());
    }
    let rates = chain.rates.as_ref();
    ChainSample {
        name: chain.name.clone(),
        phase: view::phase(chain.phase()).to_owned(),
        notes,
        promise: chain
            .placement
            .as_ref()
            .map_or("", |placement| view::promise(placement.promise()))
            .to_owned(),
        rates: rates.map(|rates| [rates.offered, rates.delivered, rates.dropped, rates.lost]),
        latency: [latency.p50_nanos.map(Nanos), latency.p99_nanos.map(Nanos)],
        objective: Nanos(latency.objective_nanos),
        is_met: latency.met,
        port_lost: latency.port_lost,
        cores: cores.dedicated,
        auxiliary: cores.auxiliary,
        counters,
    }
}

fn of_figures(figures: message::ChainFigures) -> Counters {
    let counts = |counts: Vec<message::Count>| counts.into_iter().map(|count| (count.name, count.packets)).collect();
    let function = |function: message::FunctionFigures| FunctionSample {
        name: function.name,
        packets: function.packets,
        dropped: function.dropped,
        timed: [function.timed_packets, function.timed_nanos],
    };
    Counters {
        at: Nanos(figures.measured_nanos),
        late: counts(figures.late),
        reasons: counts(figures.reasons),
        functions: figures.functions.into_iter().map(function).collect(),
        to_auxiliary: figures.to_auxiliary,
        flows: Some(figures.flows),
        preemptions: figures.preemptions,
    }
}

fn of_core(core: &message::CoreFigures) -> CoreSample {
    CoreSample {
        core: core.core,
        is_auxiliary: core.role() == message::CoreRole::Auxiliary,
        busy: Nanos(core.busy_nanos),
        chains: core.chains.clone(),
    }
}

fn of_port(port: &message::Port) -> PortSample {
    PortSample {
        name: port.name.clone(),
        rate: ports::per_second(port, port.interval_lost),
        lost: port.lost,
    }
}

fn of_event(event: &message::Event) -> EventSample {
    EventSample {
        time: timestamp(event.unix_nanos),
        is_warning: event.severity() == message::Severity::Warning,
        chain: event.chain.clone(),
        text: format!("{} {}", event.reason, event.message).trim_end().to_owned(),
    }
}
