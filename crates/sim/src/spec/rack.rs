//! Machines of a rack spec.

use super::fields::{DELAY, INGRESS, MOST_BUFFER, MOST_ROWS, SERVER, SWITCH, TIMING};
use super::model::SimulationModel;
use crate::rack::{CoreSharing, Rack, Server, Switch, Timing};
use crate::simulation::LONGEST_RUN;
use std::ops::RangeInclusive;
use tailwater_api::document::{Fields, Located, duration, throughput};
use tailwater_api::{SpecError, Throughput};
use tailwater_net::Nanos;
use tailwater_policy::server::IngressConfig;

/// Valid link rates, in bits per second.
const LINK: RangeInclusive<u64> = 1_000_000..=10_000_000_000_000;

/// Parses the rack of a spec for a model.
pub(super) fn rack(fields: &Fields<'_>, model: SimulationModel) -> Result<Rack, SpecError> {
    let (most_servers, most_cores) = model.most();
    let node = fields.required("servers", "a list of servers")?;
    let mut servers = Vec::new();
    for group in node.list("servers", most_servers)? {
        let (count, server) = server(&group, most_servers, model)?;
        servers.extend(std::iter::repeat_n(server, count));
        if servers.len() > most_servers {
            let what = format!("at most {most_servers} servers in all, found more");
            return Err(group.error(format!("expected {what}")));
        }
    }
    let rack = Rack {
        servers,
        switch: match fields.optional("switch") {
            None => Switch::default(),
            Some(node) => switch(&node)?,
        },
        timing: match fields.optional("timing") {
            None => Timing::default(),
            Some(node) => timing(&node)?,
        },
        pace: None,
        interruptions: Vec::new(),
        sharing: sharing(fields, model)?,
        homes: Vec::new(),
    };
    // A check across fields: the total number of cores.
    let checked = rack.check_within(most_servers, most_cores);
    checked.map_err(|error| node.error(error.to_string()))?;
    Ok(rack)
}

/// Parses the sharing of cores among chains.
fn sharing(fields: &Fields<'_>, model: SimulationModel) -> Result<CoreSharing, SpecError> {
    let Some(node) = fields.optional("coreSharing") else {
        return Ok(CoreSharing::default());
    };
    let sharing = node.word(&[
        ("first-come", CoreSharing::FirstCome),
        ("own", CoreSharing::Own),
        ("broker", CoreSharing::Broker),
    ])?;
    match model {
        SimulationModel::Flows if sharing != CoreSharing::FirstCome => {
            Err(node.error("expected first-come: a broker needs model: packets".to_owned()))
        }
        _ => Ok(sharing),
    }
}

/// Parses a whole number, with a default.
fn whole(fields: &Fields<'_>, name: &str, default: u64, range: RangeInclusive<u64>) -> Result<u64, SpecError> {
    let node = fields.optional(name);
    node.map_or(Ok(default), |node| node.whole(range))
}

/// Parses a delay, with a default.
fn delay(fields: &Fields<'_>, name: &str, default: Nanos) -> Result<Nanos, SpecError> {
    let node = fields.optional(name);
    node.map_or(Ok(default), |node| duration(&node, DELAY))
}

/// Parses equal servers, and their number.
fn server(node: &Located<'_>, most: usize, model: SimulationModel) -> Result<(usize, Server), SpecError> {
    let default = Server::default();
    let fields = node.fields_of(&SERVER)?;
    let cores = whole(&fields, "cores", default.cores.into(), 1..=512)?;
    let nodes = u64::from(default.numa_nodes).min(cores);
    let server = Server {
        cores: cores as u16,
        numa_nodes: whole(&fields, "numaNodes", nodes, 1..=cores)? as u16,
        link_bps: match fields.optional("link") {
            None => default.link_bps,
            Some(node) => link(&node)?,
        },
        ring: whole(&fields, "ring", default.ring.into(), 1..=1 << 20)? as u32,
        reta_delay: delay(&fields, "retaDelay", default.reta_delay)?,
        buffers: whole(&fields, "buffers", default.buffers.into(), 64..=65_535)? as u32,
        fails_at: match fields.optional("failsAt") {
            None => None,
            Some(node) if model == SimulationModel::Flows => {
                return Err(
                    node.error("expected no failsAt: lost servers are not modelled with model: flows".to_owned())
                );
            }
            Some(node) => Some(duration(&node, Nanos::ZERO..=LONGEST_RUN)?),
        },
    };
    let count = whole(&fields, "count", 1, 1..=most as u64)?;
    Ok((count as usize, server))
}

/// Parses the rate of a link. 0 stands for no limit.
fn link(node: &Located<'_>) -> Result<u64, SpecError> {
    const WHAT: &str = "a rate from 1Mbps to 10000Gbps, or unlimited";
    if node.text(WHAT)? == "unlimited" {
        return Ok(0);
    }
    match throughput(node)? {
        Throughput::BitsPerSecond(rate) if LINK.contains(&rate) => Ok(rate),
        _ => Err(node.expected(WHAT)),
    }
}

fn switch(node: &Located<'_>) -> Result<Switch, SpecError> {
    let default = Switch::default();
    let fields = node.fields_of(&SWITCH)?;
    Ok(Switch {
        table: whole(&fields, "table", default.table as u64, 0..=MOST_ROWS)? as usize,
        rule_latency: delay(&fields, "ruleLatency", default.rule_latency)?,
        max_buffered: whole(&fields, "held", default.max_buffered as u64, 0..=MOST_ROWS)? as usize,
        buffer_bytes: whole(
            &fields,
            "bufferBytes",
            default.buffer_bytes,
            // The buffer has room for a frame of any length.
            65_536..=MOST_BUFFER,
        )?,
        flow_hash: match fields.optional("flowHash") {
            None => default.flow_hash,
            Some(node) => node.word(&[("true", true), ("false", false)])?,
        },
    })
}

fn timing(node: &Located<'_>) -> Result<Timing, SpecError> {
    let default = Timing::default();
    let fields = node.fields_of(&TIMING)?;
    Ok(Timing {
        poll: delay(&fields, "poll", default.poll)?,
        wake: delay(&fields, "wake", default.wake)?,
        spin: delay(&fields, "spin", default.spin)?,
        hand_over: delay(&fields, "handOver", default.hand_over)?,
        receipt: delay(&fields, "receipt", default.receipt)?,
        migration: delay(&fields, "migration", default.migration)?,
        poll_interval: match fields.optional("look") {
            None => default.poll_interval,
            Some(node) => duration(&node, Nanos(1)..=*DELAY.end())?,
        },
        rpc: delay(&fields, "rpc", default.rpc)?,
        flow_transfer: delay(&fields, "flowTransfer", default.flow_transfer)?,
    })
}

/// Parses the steering of prefixes to servers, for a rack with this number of chains on a server.
pub(super) fn ingress(
    fields: &Fields<'_>,
    rack: &Rack,
    chains: usize,
    model: SimulationModel,
) -> Result<IngressConfig, SpecError> {
    let least = rack.servers.iter().map(|server| server.cores).min();
    let share = u64::from(least.unwrap_or(1)) / chains as u64;
    // Half of the cores that a chain can have are reserved for bursts.
    let threshold = (share / 2).max(1);
    let table = rack.switch.table;
    let default = IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        threshold: threshold as u16,
        table,
        flow_hash: rack.switch.flow_hash,
        rebalance: false,
        scale_in: false,
    };
    let Some(node) = fields.optional("ingress") else {
        return Ok(default);
    };
    let fields = node.fields_of(&INGRESS)?;
    let scale_in = match fields.optional("scaleIn") {
        None => default.scale_in,
        Some(node) => match node.word(&[("true", true), ("false", false)])? {
            true if model == SimulationModel::Flows => {
                return Err(node.error("expected false: servers are not emptied with model: flows".to_owned()));
            }
            scale_in => scale_in,
        },
    };
    Ok(IngressConfig {
        scale_in,
        prefix_v4: whole(&fields, "prefixV4", default.prefix_v4.into(), 0..=32)? as u8,
        prefix_v6: whole(&fields, "prefixV6", default.prefix_v6.into(), 0..=128)? as u8,
        threshold: whole(&fields, "threshold", threshold, 1..=512)? as u16,
        ..default
    })
}
