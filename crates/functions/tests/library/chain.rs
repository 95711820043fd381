//! Libraries in chains.

use crate::compile::{item, library, spec};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::function::MAX_EXPLANATION;
use tailwater_chain::packet_traces::{PacketFilter, PacketTraces, TracePlace};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::library::{LibraryFunction, load};
use tailwater_functions::load_balancer::{LoadBalancerConfig, LoadBalancerTable};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Chain on one core.
struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

impl Rig {
    fn new(spec: &ChainSpec) -> Rig {
        Rig::with_builder(spec).0
    }

    fn with_builder(spec: &ChainSpec) -> (Rig, ChainBuilder) {
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(spec, &rss, 1).unwrap();
        let pool = BufferPool::new(MAX_BATCH as u32, 256).unwrap();
        let rig = Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, MAX_BATCH),
            pool,
            rss,
        };
        (rig, builder)
    }

    /// Returns the frames that are sent.
    fn run(&mut self, frames: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        for frame in frames {
            let hash = self.rss.hash(&parse(frame).unwrap().key);
            assert!(self.batch.push(&mut self.pool, frame, now, hash));
        }
        self.chain.process(&mut self.batch, now);
        let sent = (0..self.batch.len()).map(|i| self.batch.frame(i).to_vec());
        let sent = sent.collect();
        self.batch.release(&mut self.pool);
        sent
    }

    /// Passes one frame, and returns the functions' explanations of it, as traces show them.
    fn explain(&mut self, frame: &[u8]) -> Vec<String> {
        let traces = Arc::<PacketTraces>::default();
        let read = || Nanos::ZERO;
        self.chain
            .sample_functions(Box::new(read), Arc::clone(&traces), TracePlace::default());
        let stream = traces.begin(PacketFilter::all(), 1).unwrap();
        self.run(&[frame.to_vec()], Nanos::ZERO);
        let steps = std::iter::from_fn(|| stream.next_step()).filter(|step| step.function.is_some());
        steps.map(|step| step.explanation.as_str().to_owned()).collect()
    }

    fn counts(&self) -> HashMap<String, u64> {
        let names = self.chain.reasons().into_iter().map(|reason| reason.name);
        names.zip(self.chain.reason_counts()).collect()
    }
}

fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let (client, server) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 51, 100, 7));
    let key = FlowKey::v4(client, server, protocol::UDP, port, 53);
    FrameBuilder::new(&key).payload(payload).to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Compares with a map: every flow has its own state, zero at first, and its packets their verdicts, in batches of
    /// any composition. Expired flows are reported, and start anew.
    #[test]
    fn verdicts_state_and_counters_are_those_of_a_map(
        batches in prop::collection::vec((prop::collection::vec((0u16..40, prop::bool::weighted(0.1)), 0..60), any::<bool>()), 1..12),
        limit in 0u64..8,
    ) {
        static FILE: LazyLock<PathBuf> = LazyLock::new(|| library("COUNT", "chain"));
        let spec = spec(&format!("[{}]", item(&FILE, &format!("{{limits: [{{packets: {limit}}}]}}"))));
        let mut rig = Rig::new(&spec.unwrap());
        let mut oracle: HashMap<u16, u64> = HashMap::new();
        let [mut flows, mut ended, mut over, mut fun] = [0u64; 4];
        let mut now = Nanos::ZERO;
        for (packets, long_after) in batches {
            // UDP flows expire after a minute, or slightly later.
            now += Nanos::from_secs(if long_after { 600 } else { 1 });
            let frames: Vec<_> = packets.iter().map(|(port, bang)| frame(1000 + port, if *bang { b"!" } else { b"." })).collect();
            while long_after && rig.chain.flows() > 0 {
                rig.chain.expire(now);
            }
            if long_after {
                ended += oracle.drain().map(|(_, count)| count).sum::<u64>();
            }
            let mut expected = Vec::new();
            for ((port, bang), frame) in packets.iter().zip(&frames) {
                flows += u64::from(!oracle.contains_key(port));
                let count = oracle.entry(*port).or_insert(0);
                *count += 1;
                match (bang, *count > limit) {
                    (true, _) => fun += 1,
                    (false, true) => over += 1,
                    (false, false) => expected.push(frame.clone()),
                }
            }
            prop_assert_eq!(rig.run(&frames, now), expected);
        }
        let counts = rig.counts();
        prop_assert_eq!(counts["count/lost-for-fun"], fun);
        prop_assert_eq!(counts["count/over-limit"], over);
        prop_assert_eq!(counts["count/flows"], flows);
        prop_assert_eq!(counts["count/packets-of-ended-flows"], ended);
        prop_assert_eq!(rig.chain.lost(), fun);
        rig.chain.drain();
    }
}

#[test]
fn frames_change_within_their_buffers_only() {
    let file = library("REWRITE", "rewrite");
    // The next function sees the packets as rewritten.
    let behind = "{acl: {default: allow, rules: [{action: deny, destinationPorts: 52, protocol: udp}]}}";
    let spec = spec(&format!("[{}, {behind}]", item(&file, ""))).unwrap();
    let mut rig = Rig::new(&spec);
    let of = |payload: &[u8]| frame(1, payload);
    let tagged = {
        let mut frame = of(b"V");
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    let (grown, shrunk) = (parse(&of(b"G+")).unwrap(), parse(&of(b"")).unwrap());
    let sent = rig.run(&[of(b"."), of(b"V"), of(b"G"), of(b"S"), of(b"W")], Nanos::ZERO);
    assert_eq!(sent.len(), 5);
    assert_eq!((&sent[0], &sent[1], &sent[4]), (&of(b"."), &tagged, &of(b"W")));
    assert_eq!(parse(&sent[2]).unwrap(), grown);
    assert!(sent[2].ends_with(b"G+"));
    assert_eq!(parse(&sent[3]).unwrap(), shrunk);
    for wrong in [b"M", b"F", b"L", b"O"] {
        assert!(rig.run(&[of(wrong)], Nanos::ZERO).is_empty());
    }
    assert!(rig.run(&[of(b"D")], Nanos::ZERO).is_empty());
    // If a port changes in the middle of a flow, the access list does not decide again, since the flow is the same. On
    // a flow's first packet, it does.
    assert!(rig.run(&[frame(2, b"P")], Nanos::ZERO).is_empty());
    let counts = rig.counts();
    assert_eq!(counts["rewrite/invalid"], 4);
    assert_eq!(counts["rewrite/other"], 1);
    assert_eq!(counts["acl/denied"], 1);
    assert_eq!(rig.chain.lost(), 4, "what is invalid is lost");
    assert_eq!(rig.pool.available(), MAX_BATCH);
}

#[test]
fn libraries_explain_traced_packets() {
    let count = item(&library("COUNT", "explains"), "{limits: [{packets: 2}]}");
    let earlier = item(&library("EARLIER", "explains"), "");
    let mut rig = Rig::new(&spec(&format!("[{count}, {earlier}]")).unwrap());
    let explained = rig.explain(&frame(7, b"*"));
    let flow: u32 = explained[0].split(' ').nth(2).unwrap().parse().unwrap();
    let expected = format!("new flow {flow} from 7: 1 of 2, starred");
    assert_eq!(explained, [expected, String::new()]);
    rig.run(&[frame(7, b".")], Nanos::ZERO);
    let last = rig.explain(&frame(7, b"."));
    assert_eq!(
        last,
        [format!("flow {flow} from 7: 3 of 2")],
        "the packet that is dropped"
    );
    assert_eq!(rig.counts()["count/over-limit"], 1);
    // No text, and without end.
    let wrong = rig.explain(&frame(7, b"!"));
    assert!(
        wrong[0].starts_with('\u{fffd}') && wrong[0].len() <= MAX_EXPLANATION,
        "{wrong:?}"
    );
}

#[test]
#[should_panic(expected = "the function overrun wrote beyond its explanation")]
fn a_library_that_writes_beyond_its_explanation_ends_its_worker() {
    let file = library("OVERRUN", "overrun");
    let mut rig = Rig::new(&spec(&format!("[{}]", item(&file, ""))).unwrap());
    rig.run(&[frame(7, b".")], Nanos::ZERO);
    rig.explain(&frame(7, b"."));
}

#[test]
#[should_panic(expected = "the function count failed (code 5)")]
fn a_function_that_fails_ends_its_worker() {
    let file = library("COUNT", "fails");
    let spec = spec(&format!("[{}]", item(&file, "{limits: [{packets: 9}]}")));
    let mut rig = Rig::new(&spec.unwrap());
    rig.run(&[frame(1, b"?")], Nanos::ZERO);
}

/// The end of the payload may still be written at its original position.
#[test]
fn a_function_of_headers_changes_no_length() {
    let file = library("REWRITE_HEADERS", "headers");
    let mut rig = Rig::new(&spec(&format!("[{}]", item(&file, ""))).unwrap());
    let sent = rig.run(&[frame(1, b"P"), frame(1, b".")], Nanos::ZERO);
    assert_eq!(parse(&sent[0]).unwrap().key.destination_port(), 53 ^ 1);
    assert_eq!(sent[1], frame(1, b"."));
    assert!(
        rig.run(&[frame(1, b"V"), frame(1, b"G"), frame(1, b"S")], Nanos::ZERO)
            .is_empty()
    );
    assert_eq!(rig.counts()["rewrite/invalid"], 3);
}

/// Behind a load balancer whose backends change, a function sees moved flows again, and keeps its state of them.
#[test]
fn flows_that_go_elsewhere_are_shown_again() {
    let news = item(&library("NEWS", "news"), "");
    let balancer = |backend: &str| {
        let text = format!(
            "[{{loadBalancer: {{services: [{{address: 198.51.100.7, port: 53, protocol: udp, backends: \
             [{{address: {backend}}}]}}]}}}}, {news}]"
        );
        spec(&text).unwrap()
    };
    let (before, after) = (balancer("192.0.2.1"), balancer("192.0.2.2"));
    let Some(changed) = after.functions[0].config_as::<LoadBalancerConfig>() else {
        panic!("a load balancer");
    };
    let (mut rig, builder) = Rig::with_builder(&before);
    let frames: Vec<_> = (0..20).map(|i| frame(1000 + i % 10, b"x")).collect();
    assert_eq!(rig.run(&frames, Nanos::ZERO).len(), 20);
    let shown = |rig: &Rig| ["news/shown", "news/shown-again"].map(|name| rig.counts()[name]);
    assert_eq!(shown(&rig), [10, 0]);
    let table = builder.table::<LoadBalancerTable>("loadBalancer").unwrap();
    table.replace(&changed.services).unwrap();
    assert_eq!(rig.run(&frames, Nanos::ZERO).len(), 20);
    assert_eq!(shown(&rig), [10, 10]);
    assert_eq!(rig.run(&frames, Nanos::ZERO).len(), 20);
    assert_eq!(shown(&rig), [10, 10]);
}

#[test]
fn chains_without_state_look_no_flow_up() {
    let file = library("PLAIN", "plain");
    let mut rig = Rig::new(&spec(&format!("[{}]", item(&file, ""))).unwrap());
    assert!(!rig.chain.has_flows());
    assert_eq!(rig.run(&[frame(1, b"x")], Nanos::ZERO), [frame(1, b"x")]);
}

/// Failed: the linker of a child that was forked while another thread loaded a library refused to load anything.
#[test]
fn a_library_is_tried_out_while_another_thread_loads_others() {
    let file = library("COUNT", "tried");
    let source = file.clone();
    let loads = std::thread::spawn(move || {
        for copy in 0..200 {
            let other = source.with_file_name(format!("tried-copy-{copy}.so"));
            std::fs::copy(&source, &other).unwrap();
            load(&other).unwrap();
            std::fs::remove_file(&other).unwrap();
        }
    });
    let mut trials = 0;
    while !loads.is_finished() || trials < 10 {
        LibraryFunction::open(&file, r#"{"limits": [{"packets": 1}]}"#).unwrap();
        trials += 1;
    }
    loads.join().unwrap();
}
