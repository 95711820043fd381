//! Random trees of branches, checked against a tree of closures that takes one packet at a time.

use super::{ClassifierRules, ClassifierTable};
use crate::acl::{Action, Rule};
use crate::build::ChainBuilder;
use crate::kind::AnyConfig;
use crate::own::OwnFunction;
use crate::spec::ChainSpec;
use bytemuck::{Pod, Zeroable};
use proptest::prelude::*;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction, NewFlow};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Packets each function saw, in order, each with the number of packets of its flow seen so far.
type Log = HashMap<String, Vec<(FlowKey, u32)>>;

/// Function that counts each flow's packets, records them, and drops every n-th.
struct Stamp {
    name: String,
    every: u32,
    /// Set if the function tracks connections, both directions as one flow. It then counts nothing.
    tracks: bool,
    stateful: bool,
    log: Arc<Mutex<Log>>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Seen {
    opened: u32,
    packets: u32,
}

impl NetworkFunction for Stamp {
    fn kind(&self) -> &'static str {
        "Stamp"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["stamped"]
    }

    fn state_bytes(&self) -> usize {
        if self.stateful { size_of::<Seen>() } else { 0 }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            tracks_connections: self.tracks,
            ..FunctionProperties::default()
        }
    }

    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let seen = flow.state::<Seen>();
        assert_eq!(
            (seen.opened, seen.packets),
            (0, 0),
            "{} is shown {:?} twice, though its rules are the same",
            self.name,
            packet.headers.key
        );
        seen.opened = 1;
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        assert!(!batch.is_empty(), "a function of a branch not taken runs");
        let mut log = self.log.lock().unwrap();
        let log = log.entry(self.name.clone()).or_default();
        for packet in batch.iter_mut() {
            let mut count = 0;
            if self.stateful {
                let seen = flows.state::<Seen>(packet);
                assert_eq!(seen.opened, 1, "{} was not shown its flow", self.name);
                seen.packets += 1;
                count = seen.packets;
            }
            if self.tracks {
                continue;
            }
            log.push((packet.headers.key, count));
            if self.every > 0 && count > 0 && count % self.every == 0 {
                packet.verdict = Verdict::Drop(0);
            }
        }
    }
}

/// Element of a random chain.
#[derive(Clone, Debug)]
enum Node {
    Stamp { every: u32, stateful: bool },
    Classifier(Fork),
}

#[derive(Clone, Debug)]
struct Fork {
    branches: Vec<(Vec<Node>, bool)>,
    /// Rules, each with its target: a branch, or, beyond the branches, next or send.
    rules: Vec<(Rule, usize)>,
    default: usize,
    both: bool,
}

fn rule() -> impl Strategy<Value = Rule> {
    let any = || Just(None::<ipnet::IpNet>);
    let host = || (0u8..4).prop_map(|host| Some(format!("10.0.0.{host}/32").parse().unwrap()));
    let ports = || (0u16..6, 0u16..6).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let all = || Just(0..=u16::MAX);
    (
        prop_oneof![any(), host()],
        prop_oneof![any(), host()],
        prop_oneof![all(), ports()],
        prop_oneof![all(), ports()],
        prop_oneof![Just(None), Just(Some(protocol::TCP))],
    )
        .prop_map(
            |(source, destination, source_ports, destination_ports, protocol)| Rule {
                source,
                destination,
                source_ports,
                destination_ports,
                protocol,
                action: Action::Allow,
            },
        )
}

fn stamp() -> impl Strategy<Value = Node> {
    (0u32..4, any::<bool>()).prop_map(|(every, stateful)| Node::Stamp { every, stateful })
}

fn list(depth: u32) -> BoxedStrategy<Vec<Node>> {
    let node = if depth == 0 {
        stamp().boxed()
    } else {
        prop_oneof![2 => stamp(), 3 => fork(depth - 1).prop_map(Node::Classifier)].boxed()
    };
    prop::collection::vec(node, 1..4).boxed()
}

fn fork(depth: u32) -> BoxedStrategy<Fork> {
    let branches = prop::collection::vec((list(depth), any::<bool>()), 1..4);
    (
        branches,
        prop::collection::vec((rule(), any::<prop::sample::Index>()), 0..5),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(branches, rules, default, both)| {
            let targets = branches.len() + 2;
            let rules = rules.into_iter();
            let mut rules: Vec<_> = rules.map(|(r, to)| (r, to.index(targets))).collect();
            // Every branch is reachable, by a rule that no other rule shadows.
            for branch in 0..branches.len() {
                let own = Rule {
                    source: None,
                    destination: None,
                    source_ports: 0..=u16::MAX,
                    destination_ports: branch as u16..=branch as u16,
                    protocol: Some(protocol::UDP),
                    action: Action::Allow,
                };
                rules.insert(0, (own, branch));
            }
            Fork {
                branches,
                rules,
                default: default.index(targets),
                both,
            }
        })
        .boxed()
}

impl Fork {
    fn target(&self, target: usize) -> String {
        match target.checked_sub(self.branches.len()) {
            None => format!("b{target}"),
            Some(0) => "next".to_owned(),
            Some(_) => "send".to_owned(),
        }
    }

    /// Returns the target of a packet by linear search of the rules.
    fn decide(&self, rules: &[(Rule, usize)], key: &FlowKey) -> usize {
        let matches = |rule: &Rule, key: &FlowKey| {
            let prefix = |p: Option<ipnet::IpNet>, a| p.is_none_or(|p| p.contains(&a));
            prefix(rule.source, key.source())
                && prefix(rule.destination, key.destination())
                && rule.source_ports.contains(&key.source_port())
                && rule.destination_ports.contains(&key.destination_port())
                && rule.protocol.is_none_or(|p| p == key.protocol())
        };
        let found = rules
            .iter()
            .find(|(rule, _)| matches(rule, key) || self.both && matches(rule, &key.reversed()));
        found.map_or(self.default, |(_, target)| *target)
    }
}

/// YAML spec of a tree, and its names in order.
struct Text {
    yaml: String,
    stamps: Vec<(String, u32, bool)>,
    count: usize,
}

impl Text {
    fn list(&mut self, nodes: &[Node]) {
        self.yaml.push('[');
        for node in nodes {
            let name = format!("f{}", self.count);
            self.count += 1;
            match node {
                Node::Stamp { every, stateful } => {
                    write!(self.yaml, "{{name: {name}, forward: {{}}}},").unwrap();
                    self.stamps.push((name, *every, *stateful));
                }
                Node::Classifier(fork) => {
                    write!(self.yaml, "{{name: {name}, classifier: {{default: ").unwrap();
                    self.yaml.push_str(&fork.target(fork.default));
                    let directions = if fork.both { "both" } else { "each" };
                    write!(self.yaml, ", directions: {directions}, rules: [").unwrap();
                    for (rule, target) in &fork.rules {
                        let host = |p: Option<ipnet::IpNet>| p.map_or("any".into(), |p| p.to_string());
                        let ports = |p: &std::ops::RangeInclusive<u16>| format!("{}-{}", p.start(), p.end());
                        let protocol = rule.protocol.map_or("any".into(), |p| p.to_string());
                        write!(
                            self.yaml,
                            "{{to: {}, source: {}, destination: {}, sourcePorts: {}, destinationPorts: {}, \
                             protocol: {protocol}}},",
                            fork.target(*target),
                            host(rule.source),
                            host(rule.destination),
                            ports(&rule.source_ports),
                            ports(&rule.destination_ports),
                        )
                        .unwrap();
                    }
                    self.yaml.push_str("], branches: {");
                    for (batch_index, (nodes, ends)) in fork.branches.iter().enumerate() {
                        let then = if *ends { "send" } else { "next" };
                        write!(self.yaml, "b{batch_index}: {{then: {then}, functions: ").unwrap();
                        self.list(nodes);
                        self.yaml.push_str("},");
                    }
                    self.yaml.push_str("}}},");
                }
            }
        }
        self.yaml.push(']');
    }
}

/// Rules in force for each classifier, by name.
type Rules = HashMap<String, Vec<(Rule, usize)>>;

/// Path of a packet through a list: returns `Some(true)` if the packet is sent there, `Some(false)` if it is dropped,
/// and `None` if it continues after the list.
type Way<'t> = Box<dyn FnMut(&FlowKey, &Rules, &mut Log) -> Option<bool> + 't>;

/// Builds the path through a list.
fn path<'t>(nodes: &'t [Node], count: &mut usize) -> Way<'t> {
    let mut steps: Vec<Way<'t>> = Vec::new();
    for node in nodes {
        let name = format!("f{count}");
        *count += 1;
        match node {
            Node::Stamp { every, stateful } => {
                let mut seen: HashMap<FlowKey, u32> = HashMap::new();
                steps.push(Box::new(move |key, _, log| {
                    let mut count = 0;
                    if *stateful {
                        let flow = seen.entry(*key).or_default();
                        *flow += 1;
                        count = *flow;
                    }
                    log.entry(name.clone()).or_default().push((*key, count));
                    (*every > 0 && count > 0 && count % every == 0).then_some(false)
                }));
            }
            Node::Classifier(fork) => {
                let branches = fork.branches.iter();
                let mut paths: Vec<_> = branches.map(|(nodes, ends)| (path(nodes, count), *ends)).collect();
                steps.push(Box::new(move |key, rules, log| match fork.decide(&rules[&name], key) {
                    target if target < paths.len() => {
                        let (path, ends) = &mut paths[target];
                        path(key, rules, log).or(ends.then_some(true))
                    }
                    target => (target > paths.len()).then_some(true),
                }));
            }
        }
    }
    Box::new(move |key, rules, log| steps.iter_mut().find_map(|step| step(key, rules, log)))
}

fn classifiers<'n>(nodes: &'n [Node], count: &mut usize, into: &mut Vec<(String, &'n Fork)>) {
    for node in nodes {
        let name = format!("f{count}");
        *count += 1;
        if let Node::Classifier(fork) = node {
            into.push((name, fork));
            for (nodes, _) in &fork.branches {
                classifiers(nodes, count, into);
            }
        }
    }
}

fn key() -> impl Strategy<Value = FlowKey> {
    (0u8..4, 0u8..4, 0u16..6, 0u16..6, any::<bool>()).prop_map(|(a, b, c, d, tcp)| {
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let host = |host| std::net::Ipv4Addr::new(10, 0, 0, host);
        FlowKey::v4(host(a), host(b), protocol, c, d)
    })
}

fn spec(functions: &str) -> Result<ChainSpec, String> {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\n\
         spec:\n  slo: {{latency: 200us}}\n  functions: {functions}\n"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).map_err(|error| error.to_string())
}

/// Runs frames through a chain, first up to a segment and then from it. Returns the keys of the frames that are sent.
fn run(
    chain: &mut Chain,
    (pool, batch): (&mut BufferPool, &mut Batch),
    (keys, rss): (&[FlowKey], &RssHasher),
    segment: usize,
    between: impl FnOnce(),
) -> Vec<FlowKey> {
    for key in keys {
        let frame = FrameBuilder::new(key).to_vec().unwrap();
        let headers = tailwater_net::parse::parse(&frame).unwrap();
        assert!(batch.push(pool, &frame, Nanos::ZERO, rss.hash_headers(&headers)));
    }
    chain.look_up(batch, Nanos::ZERO);
    chain.run_before(segment, batch, Nanos::ZERO);
    between();
    chain.run_from(segment, batch, Nanos::ZERO);
    let sent = batch.iter().map(|packet| packet.headers.key).collect();
    batch.release(pool);
    assert_eq!(pool.available(), pool.capacity(), "a buffer is lost");
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    /// For random trees, cuts and traffic, each function sees the same packets in the same order as in closures over
    /// single packets. The same packets are sent in the same order. Replaced rules do not change this.
    #[test]
    fn packets_go_as_through_a_tree_of_closures(
        nodes in list(2),
        tracks in any::<bool>(),
        cuts in any::<u64>(),
        batches in prop::collection::vec((prop::collection::vec(key(), 1..40), any::<prop::sample::Index>()), 1..8),
        new_rules in prop::collection::vec(prop::collection::vec((rule(), any::<prop::sample::Index>()), 1..5), 1..8),
        new_at in any::<prop::sample::Index>(),
        new_between in any::<bool>(),
    ) {
        let mut text = Text { yaml: String::new(), stamps: Vec::new(), count: 0 };
        text.list(&nodes);
        let yaml = match tracks {
            true => text.yaml.replacen('[', "[{name: tracker, forward: {}},", 1),
            false => text.yaml,
        };
        // Most rejected trees have too many functions, or functions that no packet reaches.
        let spec = spec(&yaml);
        prop_assume!(spec.is_ok());
        let mut spec = spec.unwrap();
        let log = Arc::new(Mutex::new(Log::new()));
        if tracks {
            text.stamps.push(("tracker".to_owned(), 0, true));
        }
        for (name, every, stateful) in text.stamps {
            let log = Arc::clone(&log);
            let function = spec.functions.iter_mut().find(|function| function.name == name).unwrap();
            function.config = AnyConfig::from(OwnFunction::new("Stamp", move || Box::new(Stamp {
                name: name.clone(),
                tracks: name == "tracker",
                every,
                stateful,
                log: Arc::clone(&log),
            })));
        }
        let rss = spec.rss();
        let mut builder = ChainBuilder::with_cuts(&spec, &rss, 1, Cuts::before_last(cuts)).unwrap();
        let mut chain = builder.instance(|_| true);
        let mut forks = Vec::new();
        classifiers(&nodes, &mut 0, &mut forks);
        let mut rules: Rules = forks.iter().map(|(name, fork)| (name.clone(), fork.rules.clone())).collect();
        let mut oracle = path(&nodes, &mut 0);
        let mut expected = Log::new();
        let mut pool = BufferPool::new(64, 2048).unwrap();
        let mut batch = Batch::new(&pool, 64);
        let new_at = new_at.index(batches.len());
        for (turn, (keys, segment)) in batches.iter().enumerate() {
            let segment = segment.index(chain.segments());
            let mut next = rules.clone();
            if turn == new_at {
                for ((name, fork), new) in forks.iter().zip(new_rules.iter().cycle()) {
                    // Targets are fixed: "send" exists only if a rule or the default names it at the start.
                    let sends = fork.rules.iter().any(|(_, to)| *to > fork.branches.len()) || fork.default > fork.branches.len();
                    let targets = fork.branches.len() + 1 + usize::from(sends);
                    let new = new.iter().map(|(rule, to)| (rule.clone(), to.index(targets)));
                    next.insert(name.clone(), new.collect());
                }
            }
            let put = |next: &Rules| {
                for (name, fork) in &forks {
                    let (rules, targets): (Vec<_>, Vec<_>) =
                        next[name].iter().map(|(rule, to)| (rule.clone(), *to as u8)).unzip();
                    let rules = ClassifierRules::new(&rules, targets, fork.default as u8, fork.both).unwrap();
                    builder.table::<ClassifierTable>(name).unwrap().live().replace(rules);
                }
            };
            let late = new_between && turn == new_at;
            if turn == new_at && !late {
                put(&next);
            }
            // The classifiers in front of the segment have decided by then.
            let functions = spec.functions.len();
            let first = (1..=functions).find(|last| segment > 0 && chain.segment_of_last(*last) == Some(segment));
            let in_front = first.map_or(0, |last| functions - last);
            let batch_index = |name: &str| spec.functions.iter().position(|function| function.name == name).unwrap();
            let now: Rules = next.iter().map(|(name, new)| {
                let old = late && batch_index(name) < in_front;
                (name.clone(), if old { rules[name].clone() } else { new.clone() })
            }).collect();
            let sent = run(&mut chain, (&mut pool, &mut batch), (keys, &rss), segment, || {
                if late {
                    put(&next);
                }
            });
            let mut through = Vec::new();
            for key in keys {
                if oracle(key, &now, &mut expected).unwrap_or(true) {
                    through.push(*key);
                }
            }
            prop_assert_eq!(sent, through);
            rules = next;
        }
        let mut log = log.lock().unwrap();
        log.retain(|_, packets| !packets.is_empty());
        prop_assert_eq!(&*log, &expected);
    }
}

/// A chain is cut after its branches. Flows stay bound to their core until they have been opened, whichever branch they
/// took.
#[test]
fn flows_of_branches_are_bound_until_they_are_opened() {
    let spec = spec(
        "[{classifier: {rules: [{to: a, protocol: tcp}], branches: {a: {functions: [{accounting: {}}]}}}}, \
         {nat: {external: [203.0.113.1]}}]",
    );
    let spec = spec.unwrap();
    let mut builder = ChainBuilder::with_cuts(&spec, &spec.rss(), 1, Cuts::EVERYWHERE).unwrap();
    let mut chain = builder.instance(|_| true);
    let mut pool = BufferPool::new(4, 2048).unwrap();
    let mut batch = Batch::new(&pool, 4);
    for turn in 0..2 {
        for protocol in [protocol::TCP, protocol::UDP] {
            let hosts = [[10, 0, 0, 1], [198, 51, 100, 1]].map(std::net::Ipv4Addr::from);
            let key = FlowKey::v4(hosts[0], hosts[1], protocol, 4000, 80);
            let frame = FrameBuilder::new(&key).to_vec().unwrap();
            let headers = tailwater_net::parse::parse(&frame).unwrap();
            let hash = spec.rss().hash_headers(&headers);
            assert!(batch.push(&mut pool, &frame, Nanos::ZERO, hash));
            chain.look_up(&mut batch, Nanos::ZERO);
            let bound = chain.is_bound(batch.packet(0));
            assert_eq!(bound, turn == 0, "turn {turn} of {key}");
            chain.run(&mut batch, Nanos::ZERO);
            assert_eq!(batch.len(), 1, "it is sent");
            batch.release(&mut pool);
        }
    }
}

/// A classifier must store its decisions with the flows if they determine which stateful functions a packet passes.
#[test]
fn decisions_are_kept_where_functions_with_state_need_them() {
    let built = |functions: &str| {
        let spec = spec(functions).unwrap();
        let built = ChainBuilder::new(&spec, &RssHasher::default(), 1);
        built.map(drop).map_err(|error| error.to_string())
    };
    let classifier = |rules: &str, branch: &str| {
        format!("{{classifier: {{cache: none, rules: [{rules}], branches: {{a: {{functions: [{branch}]}}}}}}}}")
    };
    let (forward, state) = ("{forward: {}}", "{accounting: {}}");
    let to = "{to: a, protocol: tcp}";
    assert_eq!(built(&format!("[{}, {state}]", classifier(to, forward))), Ok(()));
    let sends = format!("{to}, {{to: send, protocol: udp}}");
    for (functions, wrong) in [
        (format!("[{}]", classifier(to, state)), "accounting"),
        (format!("[{}, {state}]", classifier(&sends, forward)), "accounting"),
    ] {
        let expected = format!("function {wrong} keeps state per flow, and classifier selects");
        let error = built(&functions).unwrap_err();
        assert!(error.starts_with(&expected), "{error}");
    }
}

/// Packets decapsulated in one branch belong to other flows than packets of the other branches. So a function with flow
/// state behind both branches is rejected.
#[test]
fn flows_are_mixed_on_the_way_behind_a_tunnel_only() {
    let key = "cipher: aes-128-gcm, key: '000102030405060708090a0b0c0d0e0f10111213'";
    let tunnel = format!("{{ipsec: {{inbound: [{{name: a, spi: 256, {key}, destination: 192.0.2.1}}]}}}}");
    let built = |then: &str, behind: &str| {
        let spec = spec(&format!(
            "[{{classifier: {{rules: [{{to: esp, protocol: esp}}, {{to: other}}], branches: {{\
             esp: {{then: {then}, functions: [{tunnel}]}}, other: {{functions: [{{accounting: {{}}}}]}}}}}}}}{behind}]"
        ));
        ChainBuilder::new(&spec.unwrap(), &RssHasher::default(), 1).is_ok()
    };
    let state = ", {name: behind, accounting: {}}";
    assert!(built("next", "") && built("send", state));
    assert!(!built("next", state));
}
