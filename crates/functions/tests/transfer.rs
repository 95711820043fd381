//! Flow state that passes to another process: the functions there give the same answers.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::branches::PathTable;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, TransferState};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::firewall::FirewallTable;
use tailwater_functions::kind::{BuildContext, StateTransfer};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

const FUNCTIONS: &str = "
    - acl: {rules: [{action: deny, destinationPorts: 22, protocol: tcp}], default: allow}
    - nat: {external: [203.0.113.0/30], internal: [10.0.0.0/8], ports: 1024-3071}
    - loadBalancer:
        services:
          - address: 198.18.0.0/15
            port: any
            protocol: udp
            backends: [{address: 192.0.2.1, port: 80}, {address: 192.0.2.2, weight: 3}, {address: 192.0.2.3}]
    - accounting:
";

/// Chain of these functions.
fn text(functions: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  slo: {{latency: \
         200us}}\n  flows: {{capacity: 4096}}\n  functions: {functions}"
    )
}

struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

impl Rig {
    fn new(functions: &str) -> Rig {
        let spec = ChainSpec::parse(&text(functions), "test", Path::new(".")).unwrap();
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap();
        let pool = BufferPool::new(64, 2048).unwrap();
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 32),
            pool,
            rss,
        }
    }

    /// Passes a packet. Returns it as it leaves, if it does.
    fn run(&mut self, frame: &[u8], now: Nanos) -> Option<Vec<u8>> {
        let hash = self.rss.hash_headers(&parse(frame).unwrap());
        assert!(self.batch.push(&mut self.pool, frame, now, hash));
        self.chain.process(&mut self.batch, now);
        let sent = (!self.batch.is_empty()).then(|| self.batch.frame(0).to_vec());
        self.batch.release(&mut self.pool);
        sent
    }

    /// Chain of another process, with these flows.
    fn pass_over(&mut self, functions: &str, now: Nanos) -> Rig {
        let origin = Nanos::from_secs(1_000_000);
        let (bytes, flows) = self.chain.export_flows(now, origin, 1 << 24).unwrap();
        let mut new = Rig::new(functions);
        let imported = new.chain.import_flows(&bytes, now, origin).unwrap();
        assert_eq!((imported.flows, imported.refused), (flows, 0));
        assert_eq!(new.chain.flows(), self.chain.flows());
        // Nothing has changed on the way, whatever the order of the flows in the tables.
        let again = new.chain.export_flows(now, origin, 1 << 24).unwrap().0;
        assert_eq!(again.len(), bytes.len());
        new
    }
}

fn frame((client, port, to, service): (u8, u16, u8, bool)) -> Vec<u8> {
    let protocol = if service { protocol::UDP } else { protocol::TCP };
    let source = Ipv4Addr::new(10, 0, 0, client);
    let key = FlowKey::v4(
        source,
        Ipv4Addr::new(198, 18, 0, to),
        protocol,
        port,
        if to == 0 { 22 } else { 443 },
    );
    FrameBuilder::new(&key).payload(b"question").to_vec().unwrap()
}

/// The other direction of a packet that has left.
fn answer(sent: &[u8]) -> Vec<u8> {
    let key = parse(sent).unwrap().key.reversed();
    FrameBuilder::new(&key).payload(b"answer").to_vec().unwrap()
}

fn flow() -> impl Strategy<Value = (u8, u16, u8, bool)> {
    (0..4u8, 5000..5008u16, 0..4u8, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Known flows, new ones and answers leave the same, whether the state has passed over in between or not. New
    /// connections get no port that is taken.
    #[test]
    fn functions_give_the_same_answers_after_their_state_has_passed_over(
        before in prop::collection::vec(flow(), 1..60),
        after in prop::collection::vec(flow(), 1..60),
    ) {
        let mut old = Rig::new(FUNCTIONS);
        let mut answers = Vec::new();
        for (number, flow) in (0..).zip(&before) {
            let sent = old.run(&frame(*flow), Nanos::from_millis(number));
            answers.extend(sent.iter().filter(|_| !flow.3).map(|sent| answer(sent)));
        }
        let now = Nanos::from_secs(1);
        let mut new = old.pass_over(FUNCTIONS, now);
        for frame in after.iter().map(|flow| frame(*flow)).chain(answers) {
            prop_assert_eq!(old.run(&frame, now), new.run(&frame, now));
        }
        // Once more, as the next version does.
        let mut next = new.pass_over(FUNCTIONS, now);
        for frame in before.iter().map(|flow| frame(*flow)) {
            prop_assert_eq!(old.run(&frame, now), next.run(&frame, now));
        }
    }
}

/// A backend that is gone in the new version loses its flows, the others keep theirs.
#[test]
fn flows_of_a_backend_that_is_gone_get_another_one() {
    let mut old = Rig::new(FUNCTIONS);
    let now = Nanos::from_secs(1);
    let flows: Vec<_> = (5000..5064).map(|port| frame((1, port, 1, true))).collect();
    let target = |sent: Option<Vec<u8>>| parse(&sent.unwrap()).unwrap().key.destination();
    let before: Vec<_> = flows.iter().map(|frame| target(old.run(frame, now))).collect();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3);
    let fewer = FUNCTIONS.replace("{address: 192.0.2.1, port: 80}, ", "");
    let mut new = old.pass_over(&fewer, now);
    for (frame, before) in flows.iter().zip(before) {
        let after = target(new.run(frame, now));
        let is_gone = before == Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(after != before, is_gone, "{before} {after}");
    }
}

/// A client's segments of one connection: its SYN, then each part of the data, answered by nobody.
fn segments(port: u16, parts: &[&str]) -> Vec<Vec<u8>> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [198, 51, 100, 1].into(), protocol::TCP, port, 80);
    let segment = |sequence: u32, flags, data: &str| {
        let fields = TcpFields {
            sequence,
            acknowledgment: 500,
            flags,
            ..TcpFields::default()
        };
        let frame = FrameBuilder::new(&key).tcp(fields).payload(data.as_bytes());
        frame.to_vec().unwrap()
    };
    let mut frames = vec![segment(99, TcpFlags::SYN, "")];
    let mut sequence = 100;
    for part in parts {
        frames.push(segment(sequence, TcpFlags::ACK, part));
        sequence += part.len() as u32;
    }
    frames
}

/// The findings in a stream do not depend on whether its flow has passed over between two segments, nor do
/// those behind a hole.
#[test]
fn streams_are_inspected_across_the_take_over() {
    const FILTER: &str = "[urlFilter: {patterns: [blocked.example/secret]}]";
    const RULES: &str = "[ids: {mode: drop, rules: ['drop tcp any any -> any any (flow:to_server; content:\"blocked\"; \
                         content:\"secret\"; sid:1;)']}]";
    let request = ["GET /sec", "ret HTTP/1.1\r\nHost: bl", "ocked.example\r\n\r\n"];
    let rules = ["first blo", "cked and", " then sec", "ret. "];
    let harmless = ["GET /ope", "n HTTP/1.1\r\nHost: bl", "ocked.example\r\n\r\n"];
    let now = Nanos::from_secs(1);
    for (functions, parts, is_found) in [
        (FILTER, &request[..], true),
        (RULES, &rules, true),
        (FILTER, &harmless, false),
        (RULES, &harmless, false),
    ] {
        let frames = segments(5000, parts);
        for at in 1..frames.len() {
            // The segment behind the take-over comes one too early, if it can.
            for swapped in [false, true] {
                let mut frames = frames.clone();
                if swapped && at + 1 < frames.len() {
                    frames.swap(at, at + 1);
                }
                let mut old = Rig::new(functions);
                let mut passed: Vec<bool> = frames[..at].iter().map(|frame| old.run(frame, now).is_some()).collect();
                let mut new = old.pass_over(functions, now);
                drop(old);
                passed.extend(frames[at..].iter().map(|frame| new.run(frame, now).is_some()));
                let dropped = passed.iter().filter(|passed| !**passed).count();
                assert_eq!(
                    dropped > 0,
                    is_found,
                    "{functions}: {passed:?} at {at}, swapped {swapped}"
                );
            }
        }
    }
}

/// Other rules in the new process find what they say, and forget what the old ones had found: here a flowbit.
#[test]
fn flowbits_stay_with_the_rules_that_set_them() {
    let rules = |more: &str| {
        format!(
            "[ids: {{mode: drop, rules: [{more}'alert tcp any any -> any any (content:\"one\"; flowbits:set,seen; \
             noalert; sid:1;)', 'drop tcp any any -> any any (content:\"two\"; flowbits:isset,seen; sid:2;)']}}]"
        )
    };
    let (same, other) = (
        rules(""),
        rules("'alert tcp any any -> any any (content:\"x\"; flowbits:set,other; noalert; sid:3;)', "),
    );
    let now = Nanos::from_secs(1);
    let frames = segments(5000, &["one ", "two "]);
    for (next, is_dropped) in [(&same, true), (&other, false)] {
        let mut old = Rig::new(&same);
        assert!(frames[..2].iter().all(|frame| old.run(frame, now).is_some()));
        let mut new = old.pass_over(next, now);
        assert_eq!(new.run(&frames[2], now).is_none(), is_dropped, "{next}");
    }
}

/// Key streams and buckets go on where they were.
#[test]
fn keys_and_buckets_of_flows_pass_over() {
    let encrypt = format!("[encrypt: {{key: {}}}]", "5a".repeat(32));
    let frames = segments(5000, &["some text", "more text"]);
    let now = Nanos::from_secs(1);
    let mut old = Rig::new(&encrypt);
    frames[..2].iter().for_each(|frame| drop(old.run(frame, now)));
    let mut new = old.pass_over(&encrypt, now);
    let sent = new.run(&frames[2], now);
    assert!(sent.is_some() && sent != Some(frames[2].clone()));
    assert_eq!(sent, old.run(&frames[2], now));
    // A burst of two packets, which are gone before; and again after its time.
    const POLICER: &str = "[policer: {limits: [{per: flow, rate: 1pps, burst: 2}]}]";
    let mut old = Rig::new(POLICER);
    let packet = &frames[1];
    assert!((0..2).all(|_| old.run(packet, now).is_some()));
    let mut new = old.pass_over(POLICER, now);
    assert_eq!(new.run(packet, now), None);
    assert!(new.run(packet, Nanos::from_secs(3)).is_some());
}

/// Functions whose state another process cannot take are known as such.
#[test]
fn each_function_says_what_passes_over() {
    let state = |functions: &str| -> Vec<TransferState> {
        let functions = Rig::new(functions).chain.transfer_functions();
        functions.into_iter().map(|function| function.state).collect()
    };
    let [none, local] = [TransferState::None, TransferState::Local];
    let portable = |version, bytes| TransferState::Portable { version, bytes };
    assert_eq!(
        state(FUNCTIONS),
        [none, portable(1, 12), portable(2, 8), portable(1, 24)]
    );
    for (functions, expected) in [
        ("[forward: {}]", none),
        (
            "[firewall: {zones: {all: {prefixes: any}}, rules: [allow tcp]}]",
            portable(1, FirewallTable::STATE_BYTES),
        ),
        (
            "[policer: {limits: [{per: flow, rate: 1Mbps, burst: 1600}]}]",
            portable(1, 24),
        ),
        ("[mirror: {to: {file: /dev/null}}]", none),
        (
            "[ids: {rules: ['alert tcp any any -> any any (content:\"x\"; sid:1;)']}]",
            portable(1, 48),
        ),
        ("[urlFilter: {patterns: [a.example]}]", portable(1, 56)),
        ("[flowStats: {export: [{file: /dev/null}]}]", portable(1, 32)),
        ("[dnsGuard: {limits: {responses: 20}}]", local),
    ] {
        assert_eq!(state(functions), [expected], "{functions}");
    }
}

/// A server converts the state of isolated functions without them: as they would themselves.
#[test]
fn state_of_isolated_functions_is_converted_as_they_do() {
    const OTHERS: &str = "
    - firewall: {zones: {all: {prefixes: any}}, rules: [allow tcp]}
    - policer: {limits: [{per: flow, rate: 1Mbps, burst: 1600}]}
    - flowStats: {export: [{file: /dev/null}]}
    - synthetic: {newFlowCycles: 1}
    - urlFilter: {patterns: [a.example]}";
    let encrypt = format!("\n    - encrypt: {{key: {}}}\n", "5a".repeat(32));
    let (mut converted, origin) = (0, Nanos::from_secs(1_700_000_000));
    for functions in [FUNCTIONS, OTHERS, &encrypt] {
        let spec = ChainSpec::parse(&text(functions), "test", Path::new(".")).unwrap();
        for function in &spec.functions {
            let context = BuildContext {
                name: &function.name,
                rss: &spec.rss(),
                capacity: 4096,
                seed: 7,
                branches: &[],
                paths: &PathTable::without_branches(),
            };
            let mut instance = function.config.build(&context).unwrap().instance();
            let StateTransfer::Converted(format) = function.config.requirements(4096).transfer else {
                continue;
            };
            converted += 1;
            let bytes = instance.state_bytes();
            let portable = instance.portable().unwrap();
            assert_eq!((format.version, format.bytes), (portable.format_version(), bytes));
            // Any bytes, among them numbers of targets that there are.
            for (first, others) in [(0, 0), (1, 0), (2, 0), (7, 0), (0x40, 0xff), (0xff, 0xff), (0x5a, 0xa5)] {
                let mut state = vec![others; bytes];
                state[0] = first;
                let [mut own, mut theirs] = [state.clone(), state];
                portable.to_durable(&mut own, origin);
                (format.to_durable)(&mut theirs, origin);
                assert_eq!(own, theirs, "{}", function.name);
                portable.restore_durable(&mut own, origin);
                (format.restore_durable)(&mut theirs, origin);
                assert_eq!(own, theirs, "{}", function.name);
            }
        }
    }
    assert_eq!(converted, 8);
}
