//! File of the rules in force, by which a new process goes on with the same rows: OpenFlow messages, first the ports
//! with their names, then the rules.

use crate::ingress::openflow::{FlowStatistics, Message, Multipart, PortDescription, length_of};
use crate::ingress::rows::RuleSet;
use crate::ingress::rule::{Action, FlowRule, PortNumber};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// Largest file.
const MOST_BYTES: u64 = 256 << 20;
/// Rules in a message: at most 32 KiB.
const IN_MESSAGE: usize = 40;

/// File without usable rules.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It has another content.
    #[error("expected the rules that an ingress has written, found {0}")]
    Content(String),
}

/// Writes the rules as a whole.
pub(super) fn save(path: &Path, ports: &[PortDescription], rules: &RuleSet) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(256 * (rules.len() + 1));
    let items = ports.to_vec();
    Message::Ports(Multipart { items, more: false }).encode(0, &mut bytes);
    let statistics = |rule: &FlowRule| FlowStatistics {
        rule: rule.clone(),
        packets: 0,
        bytes: 0,
    };
    let all: Vec<&FlowRule> = rules.values().collect();
    for part in all.chunks(IN_MESSAGE) {
        let items = part.iter().map(|rule| statistics(rule)).collect();
        Message::Flows(Multipart { items, more: true }).encode(0, &mut bytes);
    }
    let items = Vec::new();
    Message::Flows(Multipart { items, more: false }).encode(0, &mut bytes);
    tailwater_files::write_whole(path, &bytes)
}

/// Reads rules, for a switch with these ports: those of ports of the same name are renumbered, and rules of ports that
/// are gone are left out. Without a file there are none.
///
/// # Errors
/// The file cannot be read, or has another content.
pub(super) fn load(path: &Path, ports: &[PortDescription]) -> Result<RuleSet, StoreError> {
    let bytes = match tailwater_files::read(path, MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RuleSet::new()),
        bytes => bytes?,
    };
    let (before, rules) = decode(&bytes).map_err(StoreError::Content)?;
    let number = |name: &str| ports.iter().find(|port| port.name == name).map(|port| port.number);
    let numbers: HashMap<PortNumber, PortNumber> = before
        .iter()
        .filter_map(|port| Some((port.number, number(&port.name)?)))
        .collect();
    let moved = rules.into_iter().filter_map(|rule| renumbered(rule, &numbers));
    Ok(moved
        .map(|rule| ((rule.priority, rule.matching.clone()), rule))
        .collect())
}

fn decode(bytes: &[u8]) -> Result<(Vec<PortDescription>, Vec<FlowRule>), String> {
    let (mut ports, mut rules, mut is_complete, mut at) = (Vec::new(), Vec::new(), false, 0);
    while let Some(length) = length_of(&bytes[at..]).map_err(|error| error.to_string())? {
        let message = bytes.get(at..at + length).ok_or("an incomplete message")?;
        match Message::decode(message).map_err(|error| error.to_string())?.1 {
            Message::Ports(part) => ports.extend(part.items),
            Message::Flows(part) => {
                rules.extend(part.items.into_iter().map(|one| one.rule));
                is_complete = !part.more;
            }
            _ => return Err("another message".to_owned()),
        }
        at += length;
    }
    match is_complete && at == bytes.len() {
        true => Ok((ports, rules)),
        false => Err(format!("{} bytes that end too early", bytes.len())),
    }
}

/// Returns the rule with other numbers of ports, or `None` if it needs one that is gone.
fn renumbered(mut rule: FlowRule, numbers: &HashMap<PortNumber, PortNumber>) -> Option<FlowRule> {
    if let Some(port) = &mut rule.matching.in_port {
        *port = *numbers.get(port)?;
    }
    match &mut rule.action {
        Action::Server { port, .. } => *port = *numbers.get(port)?,
        Action::Ports(ports) => {
            let new = ports.iter().map(|port| numbers.get(port).copied());
            *ports = new.collect::<Option<_>>()?;
        }
        Action::Drop | Action::Normal | Action::Controller => {}
        Action::Other => return None,
    }
    Some(rule)
}
