//! Comparison of two versions of the program before a take-over.

use super::fields::{ChainOffer, FunctionOffer, MachineOffer, StateOffer};
use serde_json::Value;

/// Field of a port's traffic that may differ: its queues are divided among the cores of the new server.
const QUEUES: &str = "queues";

/// Returns `true` if two ports have the same traffic, on whichever cores.
fn is_same_traffic(one: &Value, other: &Value) -> bool {
    let without = |traffic: &Value| {
        let mut traffic = traffic.clone();
        traffic.as_object_mut().and_then(|fields| fields.remove(QUEUES));
        traffic
    };
    without(one) == without(other)
}

/// Differences for which a take-over is refused, one line each: `new` cannot continue what `old` does. With
/// `lose_state`, functions may lose their state.
pub fn differences(old: &MachineOffer, new: &MachineOffer, lose_state: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for name in new.ports.keys().filter(|name| !old.ports.contains_key(*name)) {
        lines.push(format!("port {name}: the running server does not have it"));
    }
    for (name, port) in &old.ports {
        let of_new = new.ports.get(name).map(|port| &port.traffic);
        match (&port.traffic, of_new) {
            (_, None) => lines.push(format!("port {name}: expected it in the server spec, as it is in use")),
            (None, _) | (_, Some(None)) => lines.push(format!(
                "port {name} is a device, which one process uses at a time: stop the running server and start this \
                 one without --take-over"
            )),
            (Some(traffic), Some(Some(of_new))) if !is_same_traffic(traffic, of_new) => {
                lines.push(format!(
                    "port {name}: expected the traffic of the running server, {traffic}, found {of_new}"
                ));
            }
            _ => {}
        }
    }
    for (name, chain) in &old.chains {
        match new.chains.get(name) {
            None => lines.push(format!("chain {name} does not run in this version")),
            Some(of_new) => of_chain(name, (chain, of_new), lose_state, &mut lines),
        }
    }
    lines
}

fn of_chain(name: &str, (old, new): (&ChainOffer, &ChainOffer), lose_state: bool, lines: &mut Vec<String>) {
    if old.is_external != new.is_external {
        lines.push(format!(
            "chain {name}: one of both keeps its state in Redis: stop the running server and start this one without \
             --take-over"
        ));
        return;
    }
    if let Some(file) = old.outputs.first().or(new.outputs.first())
        && !(old.appends && new.appends)
    {
        lines.push(format!(
            "chain {name} writes {file}, which one of both versions can write only alone"
        ));
        return;
    }
    // The new process starts it at the end of the take-over, with the state in Redis.
    if old.is_external {
        return;
    }
    let list = |functions: &[FunctionOffer]| {
        let names = functions
            .iter()
            .map(|function| format!("{} ({})", function.name, function.kind));
        names.collect::<Vec<_>>().join(", ")
    };
    let is_same = |(old, new): (&FunctionOffer, &FunctionOffer)| old.name == new.name && old.kind == new.kind;
    let are_same = old.functions.len() == new.functions.len() && old.functions.iter().zip(&new.functions).all(is_same);
    if !are_same {
        lines.push(format!(
            "chain {name}: expected the functions {}, found {}",
            list(&old.functions),
            list(&new.functions)
        ));
        return;
    }
    for (old, new) in old.functions.iter().zip(&new.functions) {
        let function = &old.name;
        match (old.state, new.state) {
            (StateOffer::None, _) => {}
            (StateOffer::Portable { .. }, _) if old.state == new.state => {}
            (
                StateOffer::Portable { version, bytes },
                StateOffer::Portable {
                    version: own,
                    bytes: room,
                },
            ) => {
                lines.push(format!(
                    "function {function} of chain {name}: expected state of format version {own} with {room} bytes a \
                     flow, found version {version} with {bytes}"
                ));
            }
            _ if lose_state => {}
            _ => lines.push(format!(
                "--take-over would lose the state of function {function} of chain {name}; add --lose-state to accept"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::PortOffer;
    use super::*;
    use serde_json::json;

    fn offer(state: StateOffer) -> MachineOffer {
        let function = FunctionOffer {
            name: "nat".to_owned(),
            kind: "Nat".to_owned(),
            state,
        };
        let chain = ChainOffer {
            functions: vec![function],
            ..ChainOffer::default()
        };
        let port = PortOffer {
            traffic: Some(json!({"name": "small", "queues": 1})),
            sockets: None,
        };
        MachineOffer {
            ports: [("north".to_owned(), port)].into(),
            chains: [("edge".to_owned(), chain)].into(),
            ..MachineOffer::default()
        }
    }

    const STATE: StateOffer = StateOffer::Portable { version: 1, bytes: 16 };

    fn refused(new: &MachineOffer) -> String {
        differences(&offer(STATE), new, false).join("\n")
    }

    #[test]
    fn the_same_version_continues() {
        assert_eq!(refused(&offer(STATE)), "");
    }

    #[test]
    fn formats_that_differ_are_refused_even_if_state_may_be_lost() {
        let new = offer(StateOffer::Portable { version: 2, bytes: 16 });
        let expected = "function nat of chain edge: expected state of format version 2 with 16 bytes a flow, found \
                        version 1 with 16";
        assert_eq!(refused(&new), expected);
        assert_eq!(differences(&offer(STATE), &new, true), [expected]);
    }

    #[test]
    fn state_is_lost_only_on_request() {
        let local = offer(StateOffer::Local);
        let lines = differences(&local, &local, false);
        let expected = "--take-over would lose the state of function nat of chain edge; add --lose-state to accept";
        assert_eq!(lines, [expected]);
        assert!(differences(&local, &local, true).is_empty());
        assert_eq!(refused(&local), expected);
        let none = offer(StateOffer::None);
        assert!(differences(&none, &local, false).is_empty(), "nothing to lose");
    }

    /// Redis has the state of a chain, and a later process writes behind what is in a file.
    #[test]
    fn stored_state_and_appended_files_pass() {
        let (mut old, mut new) = (offer(STATE), offer(STATE));
        for side in [&mut old, &mut new] {
            let chain = side.chains.get_mut("edge").unwrap();
            (chain.outputs, chain.appends) = (vec!["/tmp/flows".to_owned()], true);
        }
        assert!(differences(&old, &new, false).is_empty());
        old.chains.get_mut("edge").unwrap().appends = false;
        let line = "chain edge writes /tmp/flows, which one of both versions can write only alone";
        assert_eq!(differences(&old, &new, true), [line]);
        old.chains.get_mut("edge").unwrap().appends = true;
        for side in [&mut old, &mut new] {
            side.chains.get_mut("edge").unwrap().is_external = true;
        }
        // Its functions are not compared: they begin with what they find.
        new.chains.get_mut("edge").unwrap().functions.clear();
        assert!(differences(&old, &new, false).is_empty());
    }

    #[test]
    fn ports_and_chains_have_to_be_there() {
        let mut new = offer(STATE);
        new.ports.get_mut("north").unwrap().traffic = Some(json!({"name": "small", "queues": 2}));
        assert_eq!(refused(&new), "", "on other cores");
        new.ports.get_mut("north").unwrap().traffic = Some(json!({"name": "large", "queues": 1}));
        assert!(refused(&new).starts_with("port north: expected the traffic of the running server"));
        new.ports.get_mut("north").unwrap().traffic = None;
        assert!(refused(&new).contains("port north is a device, which one process uses at a time: stop"));
        let south = new.ports.remove("north").unwrap();
        assert!(refused(&new).contains("port north: expected it in the server spec"));
        new = offer(STATE);
        new.ports.insert("south".to_owned(), south);
        assert!(refused(&new).contains("port south: the running server does not have it"));
        new = offer(STATE);
        new.chains.get_mut("edge").unwrap().functions[0].kind = "Acl".to_owned();
        assert!(refused(&new).contains("chain edge: expected the functions nat (Nat), found nat (Acl)"));
        new.chains.get_mut("edge").unwrap().outputs = vec!["/tmp/flows".to_owned()];
        assert!(refused(&new).contains("chain edge writes /tmp/flows"));
        new.chains.get_mut("edge").unwrap().is_external = true;
        assert!(refused(&new).contains("chain edge: one of both keeps its state in Redis"));
        new.chains.clear();
        assert!(refused(&new).contains("chain edge does not run in this version"));
    }
}
