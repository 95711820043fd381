//! Compiled rules: finds the zones of a packet and the first rule that matches.

use super::rules::{Action, MAX_ZONES, Rule, State, States, Zone, ZonePort};
use crate::acl::classifier::{Classifier, ClassifierError};
use crate::acl::naming::{Conditions, file_name};
use crate::acl::{self, Rule as FiveTuple};
use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::function::Explanation;
use tailwater_net::FlowKey;

/// Maximum number of entries in all lists together. Each pair of zones has a list, and a rule without zones is in all
/// distinct lists.
const MAX_LISTED: usize = 2_000_000;

/// Failure to compile rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// A list cannot be compiled into a classifier.
    #[error(transparent)]
    Classifier(#[from] ClassifierError),
    /// The lists together have too many entries. Contains their number.
    #[error(
        "the rules expand to {0} entries in the rule lists of zone pairs, at most {MAX_LISTED} are supported: name \
         both zones in more rules"
    )]
    Listed(usize),
}

/// Ordered rules of a pair of zones and a state.
struct List {
    classifier: Classifier,
    actions: Vec<Action>,
    /// Index of each rule in [`RuleSet::rules`].
    rules: Vec<u32>,
}

/// Index that is no list's, for an empty batch.
const NOTHING: u16 = u16::MAX;

/// One compiled version of a firewall's rules.
pub(crate) struct RuleSet {
    zones: Option<Zones>,
    lists: Vec<List>,
    /// List of each pair of zones and state. Addresses outside all zones come last.
    of_pair: Vec<[u16; State::ALL.len()]>,
    /// States that at least one rule is about.
    states: States,
    default: Action,
    /// All rules, for explanations.
    rules: Box<[Rule]>,
    /// File that they come from, if any.
    file: OnceLock<Box<str>>,
}

impl std::fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleSet")
            .field("lists", &self.lists.len())
            .finish_non_exhaustive()
    }
}

/// Map from addresses and ports to zones.
struct Zones {
    /// Classifiers of the source address and of the destination address.
    by_address: [Classifier; 2],
    /// Zone of each prefix.
    of_prefix: Vec<u8>,
    /// Zones behind the entry port and the exit port.
    behind: [Option<u8>; 2],
    count: usize,
}

impl Zones {
    fn new(zones: &[Zone]) -> Result<Zones, ClassifierError> {
        let prefixes = zones.iter().enumerate();
        let mut prefixes: Vec<_> = prefixes
            .flat_map(|(i, zone)| zone.prefixes.iter().map(move |prefix| (*prefix, i as u8)))
            .collect();
        // Longest prefixes first, so that the first match is the longest.
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        let any = |action| Rule::any(action, 0).five_tuple();
        let sources = prefixes.iter().map(|(prefix, _)| FiveTuple {
            source: Some(*prefix),
            ..any(Action::Allow)
        });
        let destinations = prefixes.iter().map(|(prefix, _)| FiveTuple {
            destination: Some(*prefix),
            ..any(Action::Allow)
        });
        let behind = |port| {
            let zone = zones.iter().position(|zone| zone.port == Some(port));
            zone.map(|zone| zone as u8)
        };
        Ok(Zones {
            by_address: [
                Classifier::new(&sources.collect::<Vec<_>>())?,
                Classifier::new(&destinations.collect::<Vec<_>>())?,
            ],
            of_prefix: prefixes.iter().map(|(_, zone)| *zone).collect(),
            behind: [ZonePort::Entry, ZonePort::Exit].map(behind),
            count: zones.len(),
        })
    }

    /// Writes the index of each packet's pair of source and destination zone. `ports` are the packets' ingress ports.
    fn pairs(&self, keys: &[FlowKey], ports: &[u8], pairs: &mut [u16]) {
        let mut found = [[None; MAX_BATCH]; 2];
        for (classifier, found) in self.by_address.iter().zip(&mut found) {
            classifier.classify_batch(keys, &mut found[..keys.len()]);
        }
        let [sources, destinations] = &found;
        for (i, (pair, port)) in pairs.iter_mut().zip(ports).enumerate() {
            let by_address = |prefix: Option<u32>| {
                let zone = prefix.and_then(|prefix| self.of_prefix.get(prefix as usize));
                zone.map_or(self.count, |zone| usize::from(*zone))
            };
            let port = usize::from(*port != 0);
            let mut from = by_address(sources[i]);
            // If zones have ports, the ingress port takes precedence over the address, which the sender chooses.
            if let Some(zone) = self.behind[port] {
                let zone = usize::from(zone);
                // A source address of another zone is spoofed: the packet belongs to no zone.
                from = if from == self.count || from == zone {
                    zone
                } else {
                    self.count
                };
            } else if self.behind[1 - port] == Some(from as u8) {
                from = self.count;
            }
            let mut to = by_address(destinations[i]);
            if to == self.count
                && let Some(zone) = self.behind[1 - port]
            {
                to = usize::from(zone);
            }
            *pair = (from * (self.count + 1) + to) as u16;
        }
    }
}

impl RuleSet {
    pub(super) fn new(zones: &[Zone], rules: &[Rule], default: Action) -> Result<RuleSet, RuleSetError> {
        assert!(zones.len() <= MAX_ZONES, "zones fit pairs");
        let mut set = RuleSet {
            zones: match zones {
                [] => None,
                _ => Some(Zones::new(zones)?),
            },
            lists: Vec::new(),
            of_pair: Vec::new(),
            states: rules
                .iter()
                .flat_map(|rule| State::ALL.map(|(_, state)| (rule, state)))
                .filter(|(rule, state)| rule.states.has(*state))
                .fold(States::NEW, |states, (_, state)| states.with(state)),
            default,
            rules: rules.into(),
            file: OnceLock::new(),
        };
        let mut known: HashMap<Vec<u32>, u16> = HashMap::new();
        let mut listed = 0;
        for from in 0..=zones.len() {
            for to in 0..=zones.len() {
                let lists = State::ALL.map(|(_, state)| {
                    let of_zone = |zone: Option<u8>, it| zone.is_none_or(|zone| usize::from(zone) == it);
                    let applies =
                        |rule: &Rule| rule.states.has(state) && of_zone(rule.from, from) && of_zone(rule.to, to);
                    let rules = rules.iter().enumerate();
                    let list: Vec<u32> = rules.filter(|(_, rule)| applies(rule)).map(|(i, _)| i as u32).collect();
                    let next = known.len() as u16;
                    *known.entry(list).or_insert_with_key(|list| {
                        listed += list.len();
                        next
                    })
                });
                set.of_pair.push(lists);
                if listed > MAX_LISTED {
                    return Err(RuleSetError::Listed(listed));
                }
            }
        }
        let mut lists: Vec<(Vec<u32>, u16)> = known.into_iter().collect();
        lists.sort_by_key(|(_, number)| *number);
        for (list, _) in lists {
            let chosen = || list.iter().map(|i| &rules[*i as usize]);
            let tuples: Vec<acl::Rule> = chosen().map(Rule::five_tuple).collect();
            set.lists.push(List {
                classifier: Classifier::new(&tuples)?,
                actions: chosen().map(|rule| rule.action).collect(),
                rules: list.clone(),
            });
        }
        Ok(set)
    }

    /// Returns `true` if any rule is about this state.
    pub(super) fn is_about(&self, state: State) -> bool {
        self.states.has(state)
    }

    /// Decides on packets, each the first of a connection. `ports` are their ingress ports.
    pub(super) fn decide_new(&self, keys: &[FlowKey], ports: &[u8], actions: &mut [Action]) {
        let mut lists = [0; MAX_BATCH];
        let lists = &mut lists[..keys.len()];
        if let Some(zones) = &self.zones {
            zones.pairs(keys, ports, lists);
        }
        for list in lists.iter_mut() {
            *list = self.of_pair[usize::from(*list)][State::New as usize];
        }
        let mut rules = [None; MAX_BATCH];
        let first = lists.first().copied().unwrap_or(NOTHING);
        if lists.iter().all(|list| *list == first) {
            let Some(list) = self.lists.get(usize::from(first)) else {
                return;
            };
            list.classifier.classify_batch(keys, &mut rules[..keys.len()]);
            for (action, rule) in actions.iter_mut().zip(rules) {
                *action = self.action(list, rule);
            }
            return;
        }
        for ((key, list), action) in keys.iter().zip(lists).zip(actions) {
            let list = &self.lists[usize::from(*list)];
            *action = self.action(list, list.classifier.classify(key));
        }
    }

    /// Returns the rules' action for a packet in a state, or `None` if no rule matches.
    pub(super) fn find(&self, key: &FlowKey, port: u8, state: State) -> Option<Action> {
        let list = self.list(key, port, state);
        let rule = list.classifier.classify(key)?;
        list.actions.get(rule as usize).copied()
    }

    fn list(&self, key: &FlowKey, port: u8, state: State) -> &List {
        let mut pair = [0];
        if let Some(zones) = &self.zones {
            zones.pairs(&[*key], &[port], &mut pair);
        }
        let list = self.of_pair[usize::from(pair[0])][state as usize];
        &self.lists[usize::from(list)]
    }

    /// Names the file of the rules in explanations. Only the first call counts.
    pub(super) fn set_file(&self, file: &Path) {
        let _ = self.file.set(file_name(file));
    }

    /// Appends the rule that decides about a packet in a state.
    pub(super) fn explain(&self, key: &FlowKey, port: u8, state: State, text: &mut Explanation) {
        let name = |action| match action {
            Action::Allow => "allow",
            Action::Deny => "deny",
            Action::Reject => "reject",
        };
        let list = self.list(key, port, state);
        let found = list.classifier.classify(key);
        let index = found.and_then(|rule| list.rules.get(rule as usize).copied());
        let Some((index, rule)) = index.and_then(|index| Some((index, self.rules.get(index as usize)?))) else {
            match state {
                State::New => text.add_part(format_args!("no rule, default {}", name(self.default))),
                _ => text.add_part(format_args!("no rule about this state")),
            }
            return;
        };
        text.add_part(format_args!("rule {}", index + 1));
        if let Some(file) = self.file.get() {
            text.add(format_args!(" ({file}:{})", rule.line));
        }
        text.add(format_args!(
            ": {} {}",
            name(rule.action),
            Conditions(&rule.five_tuple())
        ));
    }

    /// Returns the action for the first packet of a connection.
    pub(super) fn decide(&self, key: &FlowKey, port: u8) -> Action {
        self.find(key, port, State::New).unwrap_or(self.default)
    }

    fn action(&self, list: &List, rule: Option<u32>) -> Action {
        rule.and_then(|rule| list.actions.get(rule as usize))
            .copied()
            .unwrap_or(self.default)
    }
}
