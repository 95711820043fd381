//! Tailwater's side of the comparison.

use super::captures::Timed;
use crate::{Hit, processor_seconds};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use tailwater_ids::connection::Connection;
use tailwater_ids::inspector::{COUNTERS, Inspector, Settings};
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::packet::Input;
use tailwater_ids::ruleset::{BitNames, RuleSet};
use tailwater_ids::slots::OwnSlots;
use tailwater_ids::threshold::Thresholds;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, protocol};

/// Concurrent connections with streams.
const STREAMS: u32 = 16_384;

/// Compiles rules, and returns the set with the time it took from their text on.
pub fn compile(rules: &Path) -> (Arc<RuleSet>, f64) {
    let text = std::fs::read_to_string(rules).expect("rules");
    let [before, _] = processor_seconds();
    let mut variables = Variables::default();
    // The captures' home networks are unknown.
    variables.set("HOME_NET", "any");
    variables.set("EXTERNAL_NET", "any");
    let parsed = Reader::new(&variables).expect("right variables").read(&text);
    let (skipped, mistakes) = (parsed.skipped.len(), parsed.mistakes.len());
    let set = RuleSet::new(parsed.rules, &mut BitNames::default()).expect("the rules fit");
    let seconds = processor_seconds()[0] - before;
    eprintln!(
        "{} rules loaded, {skipped} not supported, {mistakes} invalid",
        set.len()
    );
    (Arc::new(set), seconds)
}

struct Rig {
    inspector: Inspector,
    connections: HashMap<FlowKey, Connection>,
    slots: OwnSlots,
    capture: usize,
}

impl Rig {
    fn new(rules: &Arc<RuleSet>) -> Rig {
        let settings = Settings {
            // Many captures were taken on hosts with checksum offload.
            checksums: false,
            ..Settings::default()
        };
        Rig {
            inspector: Inspector::new((1, Arc::clone(rules)), Arc::new(Thresholds::new(1)), settings),
            connections: HashMap::new(),
            slots: OwnSlots::new(STREAMS, settings.window),
            capture: 0,
        }
    }

    /// Inspects a packet; returns `false` if it is malformed.
    fn packet(&mut self, packet: &Timed) -> bool {
        if packet.capture != self.capture {
            // The connections of the previous capture have timed out.
            for connection in self.connections.values_mut() {
                Inspector::ended(connection, &mut self.slots);
            }
            self.connections.clear();
            self.capture = packet.capture;
        }
        let Ok(headers) = parse(&packet.frame) else {
            return false;
        };
        let (key, reversed) = headers.key.of_connection();
        let input = Input {
            frame: &packet.frame,
            headers: &headers,
            arrival: packet.time,
            reversed,
        };
        let connection = self.connections.entry(key).or_default();
        self.inspector.packet(&input, connection, &mut self.slots);
        true
    }
}

/// Returns the alerts on packets.
pub fn alerts(rules: &Arc<RuleSet>, packets: &[Timed]) -> BTreeSet<Hit> {
    let mut rig = Rig::new(rules);
    let mut hits = BTreeSet::new();
    for packet in packets {
        if !rig.packet(packet) {
            continue;
        }
        for alert in rig.inspector.alerts() {
            let key = alert.key;
            let has_ports = matches!(key.protocol(), protocol::TCP | protocol::UDP);
            let port = |port: u16| if has_ports { port } else { 0 };
            let ends = [
                (key.source(), port(key.source_port())),
                (key.destination(), port(key.destination_port())),
            ];
            let sid = rules.rule(alert.rule).map_or(0, |rule| rule.about.sid);
            hits.insert(Hit::new(packet.capture, ends, sid));
        }
    }
    for (name, count) in COUNTERS.iter().zip(rig.inspector.counters()) {
        if *count > 0 {
            eprintln!("{name}: {count}");
        }
    }
    hits
}

/// Returns the processor seconds of a pass over packets.
pub fn seconds(rules: &Arc<RuleSet>, packets: &[Timed]) -> f64 {
    let mut rig = Rig::new(rules);
    let [before, _] = processor_seconds();
    for packet in packets {
        rig.packet(packet);
    }
    processor_seconds()[0] - before
}

/// Returns for each capture whether an anomaly of HTTP was counted.
pub fn anomalies(rules: &Arc<RuleSet>, packets: &[Timed], captures: usize) -> Vec<bool> {
    let mut rig = Rig::new(rules);
    let mut signs = vec![false; captures];
    let mut before = 0;
    for packet in packets {
        rig.packet(packet);
        let counters = COUNTERS.iter().zip(rig.inspector.counters());
        let sum = counters
            .filter(|(name, _)| name.starts_with("http-"))
            .map(|(_, count)| count)
            .sum::<u64>();
        signs[packet.capture] |= sum > before;
        before = sum;
    }
    signs
}
