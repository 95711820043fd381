use super::*;
use crate::chain::{ChainModel, Jitter, SplitCost};
use crate::rack::{CoreSharing, Server};
use tailwater_api::WhenOverloaded;
use tailwater_policy::capacity::{Pause, ServiceCosts, SplitPoint, Wake};

/// Returns a spec with these fields, one server and one chain.
fn spec(servers: &str, chain: &str, more: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {{name: test}}\nspec:\n  \
         servers: {servers}\n  chains:\n    - {chain}\n{more}"
    )
}

const SERVERS: &str = "[{cores: 8}]";
const CHAIN: &str = "{name: a, slo: 200us, costs: {packetNanoseconds: 500}, traffic: {source: bursty}}";

fn parse(text: &str) -> Result<RackSpec, SpecError> {
    RackSpec::parse(text, "rack.yaml", Path::new("no-such-folder"))
}

#[test]
fn what_is_left_out_has_defaults() {
    let spec = parse(&spec(SERVERS, CHAIN, "")).unwrap();
    assert_eq!(spec.name, "test");
    let server = Server {
        cores: 8,
        ..Server::default()
    };
    assert_eq!(spec.rack.servers, [server]);
    assert_eq!((spec.seed, spec.duration), (1, None));
    assert_eq!(spec.window, Nanos::from_millis(10));
    let chain = &spec.chains[0];
    // Half of the cores are reserved for bursts.
    assert_eq!(chain.ingress.threshold, 4);
    let model = chain.model();
    assert_eq!((model.name.as_str(), model.packet_nanos(0.0)), ("a", 500.0));
    // An epoch is half of the objective.
    let profile = chain.profile(chain.slo, 900.0);
    assert_eq!(profile.frontier.largest(), 200);
    assert_eq!(profile.rates.largest(), 1.7e6);
    let tight = chain.profile(Nanos::from_micros(100), 900.0);
    assert_eq!(tight.frontier.largest(), 100);
}

#[test]
fn everything_can_be_said() {
    let servers = "[{count: 2, cores: 64, numaNodes: 4, link: 40Gbps, ring: 512, \
                   retaDelay: 1ms, buffers: 4096, failsAt: 1500ms}, {cores: 16, link: unlimited}]";
    let chain = "{name: a, slo: 1ms, costs: {batchNanoseconds: 320, packetNanoseconds: 500, \
                 byteNanoseconds: 0.5, newFlowNanoseconds: 7}, traffic: {source: as, \
                 flowsScale: 2, rateScale: 0.5, seed: 9}}";
    let more = "  switch: {table: 9, ruleLatency: 2ms, held: 10, bufferBytes: 100000, flowHash: false}\n  \
                timing: {poll: 1ns, wake: 2ns, spin: 3ns, handOver: 4ns, receipt: 5ns, \
                migration: 6ns, look: 7ns, rpc: 8ns, flowTransfer: 9ns}\n  \
                ingress: {prefixV4: 16, prefixV6: 32, threshold: 6, scaleIn: true}\n  \
                policies: [tailwater, static]\n  duration: 20ms\n  \
                warmUp: 4ms\n  window: 2ms\n  seed: 5\n";
    let spec = parse(&spec(servers, chain, more)).unwrap();
    let [first, second, third] = &spec.rack.servers[..] else {
        panic!("{:?}", spec.rack.servers);
    };
    assert_eq!(first, second);
    let large = Server {
        cores: 64,
        numa_nodes: 4,
        link_bps: 40_000_000_000,
        ring: 512,
        reta_delay: Nanos::from_millis(1),
        buffers: 4096,
        fails_at: Some(Nanos::from_millis(1500)),
    };
    assert_eq!(first, &large);
    assert_eq!((third.cores, third.link_bps), (16, 0));
    let switch = &spec.rack.switch;
    assert_eq!((switch.table, switch.max_buffered), (9, 10));
    assert_eq!(switch.rule_latency, Nanos::from_millis(2));
    assert_eq!(switch.buffer_bytes, 100_000);
    assert!(!switch.flow_hash && !spec.chains[0].ingress.flow_hash);
    let t = spec.rack.timing;
    let times = [
        t.poll,
        t.wake,
        t.spin,
        t.hand_over,
        t.receipt,
        t.migration,
        t.poll_interval,
        t.rpc,
        t.flow_transfer,
    ];
    assert_eq!(times, [1, 2, 3, 4, 5, 6, 7, 8, 9].map(Nanos));
    assert_eq!(spec.policies, ["tailwater", "static"]);
    assert_eq!((spec.seed, spec.duration), (5, Some(Nanos::from_millis(20))));
    assert_eq!(spec.warm_up, Nanos::from_millis(4));
    assert_eq!(spec.window, Nanos::from_millis(2));
    let chain = &spec.chains[0];
    let costs = ServiceCosts {
        batch: 320.0,
        packet: 500.0,
        byte: 0.5,
        new_flow: 7.0,
    };
    assert_eq!(chain.model().costs, costs);
    let ingress = (chain.ingress.prefix_v4, chain.ingress.prefix_v6);
    assert_eq!((ingress, chain.ingress.threshold), ((16, 32), 6));
    assert!(chain.ingress.scale_in);
    let traffic = TrafficSpec {
        source: TrafficSource::Preset("as".to_owned()),
        flows_scale: 2.0,
        rate_scale: 0.5,
        seed: Some(9),
    };
    assert_eq!(chain.traffic, traffic);
}

#[test]
fn lost_and_emptied_servers_are_refused_at_flow_level() {
    let flows =
        |servers: &str, more: &str| parse(&spec(servers, CHAIN, &format!("  model: flows\n{more}"))).unwrap_err();
    let error = flows("[{cores: 8}, {cores: 8, failsAt: 1s}]", "").to_string();
    assert!(
        error.contains("spec.servers[1].failsAt") && error.contains("model: flows"),
        "{error}"
    );
    let error = flows(SERVERS, "  ingress: {scaleIn: true}\n").to_string();
    assert!(
        error.contains("spec.ingress.scaleIn") && error.contains("model: flows"),
        "{error}"
    );
    let good = parse(&spec(SERVERS, CHAIN, "  model: flows\n  ingress: {scaleIn: false}\n")).unwrap();
    assert!(!good.chains[0].ingress.scale_in);
    let error = parse(&spec("[{cores: 8, failsAt: 2h}]", CHAIN, ""))
        .unwrap_err()
        .to_string();
    assert!(error.contains("failsAt"), "{error}");
}

#[test]
fn what_is_beside_the_costs_can_be_said() {
    let good = "name: a, slo: 200us, costs: {batchNanoseconds: 320, packetNanoseconds: 490}, \
                traffic: {source: bursty}";
    let read = |more: &str| {
        let chain = format!("{{{good}{more}}}");
        parse(&spec(SERVERS, &chain, "")).unwrap().chains.remove(0)
    };
    // Values of the live data plane.
    let live = read("");
    let live = live.model();
    assert_eq!((live.receive_packet, live.decide, live.batch), (35.0, 500.0, 32));
    assert!(live.jitter.is_none() && live.splits.is_empty() && !live.opens_at_home);

    let stated = read(
        ", dispatch: {receiveBatchNanoseconds: 320, receivePacketNanoseconds: 2, \
         queuePacketNanoseconds: 3, handOverBatchNanoseconds: 4, handOverPacketNanoseconds: 5, \
         receiptPacketNanoseconds: 6, decisionNanoseconds: 7, decisionFlowNanoseconds: 8, \
         movePacketNanoseconds: 9, helperBatchNanoseconds: 10, helperPacketNanoseconds: 11, \
         numaPacketNanoseconds: 12, migratedFlowNanoseconds: 13, ringPacketNanoseconds: 14, \
         coldAfterPackets: 15, coldBatchNanoseconds: 16, coldPacketNanoseconds: 17, \
         newBatchNanoseconds: 18, leasePacketNanoseconds: 19}, batch: 64, opensAtHome: true, \
         jitter: 0.3, wakes: [{asleepNanoseconds: 1000, p50Nanoseconds: 10, p90Nanoseconds: 20, \
         p99Nanoseconds: 30}], pauses: [{perSecond: 900.5, nanoseconds: 5000}], splits: [{lastFunctions: 1, first: 0.5, last: 0.6}, \
         {lastFunctions: 2, first: 0.25, last: 0.9}]",
    );
    let expected = ChainModel {
        receive_batch: 320.0,
        receive_packet: 2.0,
        dispatch_packet: 3.0,
        lease_packet: 19.0,
        hand_over_batch: 4.0,
        hand_over_packet: 5.0,
        receipt_packet: 6.0,
        decide: 7.0,
        decide_flow: 8.0,
        move_packet: 9.0,
        auxiliary_batch: 10.0,
        auxiliary_packet: 11.0,
        numa_packet: 12.0,
        migrated_flow: 13.0,
        ring_packet: 14.0,
        cold_after: 15,
        cold_batch: 16.0,
        cold_packet: 17.0,
        new_batch: 18.0,
        batch: 64,
        opens_at_home: true,
        jitter: Jitter::log_normal(0.3),
        wakes: vec![Wake {
            asleep: 1000,
            p50: 10,
            p90: 20,
            p99: 30,
        }],
        pauses: vec![Pause {
            per_second: 900.5,
            nanos: 5000,
        }],
        splits: vec![
            SplitCost {
                last_functions: 1,
                first: 0.5,
                last: 0.6,
            },
            SplitCost {
                last_functions: 2,
                first: 0.25,
                last: 0.9,
            },
        ],
        ..live.clone()
    };
    assert_eq!(stated.model(), &expected);
    // A packet takes 495 ns. The profile has the rest for each core of a cut.
    let profile = stated.profile(stated.slo, 900.0);
    let points = profile.splits.points().iter();
    let points: Vec<_> = points
        .map(|point| (point.last_functions, point.first, point.last))
        .collect();
    assert_eq!(points, [(1, 404, 336), (2, 808, 224)]);

    assert!(read(", jitter: 0").model().jitter.is_none());
    assert_eq!(live.when_overloaded, WhenOverloaded::InOrder);
    let fresh = read(", whenOverloaded: serve-fresh");
    assert_eq!(fresh.model().when_overloaded, WhenOverloaded::ServeFresh);
}

#[test]
fn profiles_are_read_and_stretched() {
    let folder = std::env::temp_dir().join(format!("tailwater-rack-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("short.pro"), "1 352\n310 96\n").unwrap();
    std::fs::write(folder.join("long.pro"), "1 2140000\n").unwrap();
    let chain = "{name: a, slo: 200us, costs: {packetNanoseconds: 500}, frontier: short.pro, \
                 rates: long.pro, traffic: {source: bursty}}";
    let published = RackSpec::parse(&spec(SERVERS, chain, ""), "rack.yaml", &folder).unwrap();
    let chain = &published.chains[0];
    let profile = chain.profile(chain.slo, 900.0);
    assert_eq!((profile.frontier.capacity(1), profile.frontier.capacity(2)), (352, 96));
    assert_eq!(profile.rates.largest(), 2.14e6);
    let mut profile = chain.profile(Nanos::from_micros(400), 900.0);
    assert_eq!(
        (profile.frontier.capacity(1), profile.frontier.capacity(310)),
        (704, 192)
    );

    // A profile file of Tailwater, as written.
    profile.splits.insert(SplitPoint {
        last_functions: 1,
        first: 500,
        last: 300,
    });
    std::fs::write(folder.join("a.profile.yaml"), profile.to_string()).unwrap();
    let chain = "{name: b, slo: 400us, profile: a.profile.yaml, traffic: {source: bursty}}";
    let ours = RackSpec::parse(&spec(SERVERS, chain, ""), "rack.yaml", &folder).unwrap();
    let again = ours.chains[0].profile(Nanos::from_micros(400), 900.0);
    assert_eq!(again.frontier, profile.frontier);
    assert_eq!(again.splits, profile.splits);
    let half = ours.chains[0].profile(Nanos::from_micros(200), 900.0);
    let half = half.splits.best().unwrap();
    assert_eq!((half.first, half.last), (250, 150));
    assert_eq!(ours.chains[0].model().name, "b");

    std::fs::write(folder.join("short.pro"), "1 352\nmany\n").unwrap();
    let chain = "{name: a, slo: 200us, costs: {packetNanoseconds: 500}, frontier: short.pro, \
                 traffic: {source: bursty}}";
    let error = RackSpec::parse(&spec(SERVERS, chain, ""), "rack.yaml", &folder).unwrap_err();
    assert!(error.to_string().contains("short.pro:2: expected flows"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn wrong_fields_are_named() {
    let chain = |fields: &str| spec(SERVERS, &format!("{{{fields}}}"), "");
    let good = "name: a, slo: 200us, traffic: {source: bursty}";
    for (text, expected) in [
        (String::new(), "rack.yaml: expected a rack spec, found an empty file"),
        ("kind: Chain".to_owned(), "apiVersion: missing"),
        (
            spec("[{cores: 0}]", CHAIN, ""),
            "rack.yaml:5:21: spec.servers[0].cores: expected a whole number from 1 to 512, found 0",
        ),
        (
            spec("[{core: 8}]", CHAIN, ""),
            "found \"core\"; did you mean \"cores\"?",
        ),
        (
            spec("[{cores: 4, numaNodes: 8}]", CHAIN, ""),
            "spec.servers[0].numaNodes: expected a whole number from 1 to 4",
        ),
        (
            spec("[{link: 3Mpps}]", CHAIN, ""),
            "link: expected a rate from 1Mbps to 10000Gbps, or unlimited",
        ),
        (
            spec("[{count: 200}, {count: 100}]", CHAIN, ""),
            "spec.servers[1]: expected at most 256 servers in all",
        ),
        (
            spec("[{count: 256, cores: 64}]", CHAIN, ""),
            "spec.servers: servers: expected at most 4096 cores in all, found 16384",
        ),
        (
            spec(SERVERS, CHAIN, "  timing: {look: 0s}\n"),
            "spec.timing.look: expected a duration from 1ns to 10s",
        ),
        (
            spec(SERVERS, CHAIN, "  policies: [tailwatr]\n"),
            "spec.policies[0]: expected static or",
        ),
        (
            spec(SERVERS, CHAIN, "  seed: -1\n"),
            "spec.seed: expected a whole number from 0 to 9007199254740992",
        ),
        (
            spec(SERVERS, CHAIN, &format!("    - {CHAIN}\n")),
            "spec.chains[1]: expected a different name for each chain",
        ),
        (chain(good), "expected profile or costs, found neither"),
        (
            chain(&format!("{good}, costs: {{batchNanoseconds: 1}}")),
            "costs.packetNanoseconds: missing, expected nanoseconds",
        ),
        (
            chain(&format!("{good}, costs: {{packetNanoseconds: 0}}")),
            "expected `packet` or `batch` above 0",
        ),
        (
            chain(&format!("{good}, costs: {{packetNanoseconds: 2000000000}}")),
            "expected nanoseconds from 0 to 1000000000, found 2000000000",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, dispatch: {{receivePacketNanoseconds: 31}}"
            )),
            "spec.chains[0].dispatch.receivePacketNanoseconds: expected nanoseconds from 0 to 30, found 31",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, dispatch: {{decisionNanosecond: 1}}"
            )),
            "did you mean \"decisionNanoseconds\"?",
        ),
        (
            chain(&format!("{good}, costs: {{packetNanoseconds: 30}}, jitter: 2.5")),
            "spec.chains[0].jitter: expected a number from 0 to 2, found 2.5",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, pauses: [{{perSecond: 0, nanoseconds: 5}}]"
            )),
            "spec.chains[0].pauses[0].perSecond: expected a number above 0, at most 1000000, found 0",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, pauses: [{{perSecond: 1000, nanoseconds: 500000}}]"
            )),
            "spec.chains[0].pauses: expected pauses that take less than half of the time in total",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, wakes: [{{asleepNanoseconds: 9, \
                 p50Nanoseconds: 3, p90Nanoseconds: 2, p99Nanoseconds: 4}}]"
            )),
            "spec.chains[0].wakes[0]: expected sleeps in order of length",
        ),
        (
            chain(&format!("{good}, costs: {{packetNanoseconds: 30}}, batch: 0")),
            "spec.chains[0].batch: expected a whole number from 1 to 1024, found 0",
        ),
        (
            chain(&format!("{good}, costs: {{packetNanoseconds: 30}}, opensAtHome: maybe")),
            "spec.chains[0].opensAtHome: expected true or false, found \"maybe\"",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, \
                 splits: [{{lastFunctions: 1, first: 1.5, last: 1}}]"
            )),
            "spec.chains[0].splits[0].first: expected a share of the packets' costs from 0 to 1",
        ),
        (
            chain(&format!(
                "{good}, costs: {{packetNanoseconds: 30}}, splits: [{{lastFunctions: 1, first: 1, \
                 last: 1}}, {{lastFunctions: 1, first: 1, last: 1}}]"
            )),
            "splits[1].lastFunctions: expected each cut once, found it as in splits[0]",
        ),
        (
            chain(&format!("{good}, profile: x, splits: []")),
            "splits: expected costs instead of profile with this field",
        ),
        (
            spec(SERVERS, CHAIN, "  warmUp: 2s\n  duration: 2s\n"),
            "spec.warmUp: expected less than the duration of 2s, found \"2s\"",
        ),
        (
            spec(SERVERS, CHAIN, "  window: 10us\n"),
            "spec.window: expected a duration from 100us to 3600s",
        ),
        (
            spec(SERVERS, CHAIN, "  window: 100us\n  duration: 101s\n"),
            "spec.window: expected longer windows for a duration of 101s, found \"100us\"",
        ),
        (
            chain(&format!("{good}, profile: missing.yaml")),
            "spec.chains[0].profile: cannot read no-such-folder/missing.yaml",
        ),
        (
            chain(&format!("{good}, profile: x, costs: {{packetNanoseconds: 1}}")),
            "expected either profile or costs, found both",
        ),
        (
            chain(&format!("{good}, profile: x, rates: y")),
            "rates: expected costs instead of profile with this field",
        ),
        (
            chain("name: a, slo: 200, costs: {packetNanoseconds: 1}, traffic: {source: as}"),
            "spec.chains[0].slo: expected a duration",
        ),
        (
            chain("name: a, slo: 200us, costs: {packetNanoseconds: 1}, traffic: {source: backbon}"),
            "found \"backbon\"; did you mean \"backbone\"?",
        ),
        (
            chain(
                "name: a, slo: 200us, costs: {packetNanoseconds: 1}, \
                 traffic: {source: as, rateScale: 0}",
            ),
            "rateScale: expected a number from 0.001 to 1000000, found 0",
        ),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected} is not in {error}");
        assert!(error.starts_with("rack.yaml"), "{error}");
    }
}

#[test]
fn at_flow_level_a_chain_stands_for_many_on_some_servers() {
    let chain = "{name: a, count: 3, servers: 2, slo: 200us, costs: {packetNanoseconds: 500}, traffic: {source: as, \
                 seed: 7}}";
    let flows = spec("[{count: 1000, cores: 8}]", chain, "  model: flows\n");
    let found = parse(&flows).unwrap();
    assert_eq!((found.model, found.rack.servers.len()), (SimulationModel::Flows, 1000));
    let names: Vec<_> = found.chains.iter().map(|chain| chain.name.as_str()).collect();
    assert_eq!(names, ["a-1", "a-2", "a-3"]);
    let seeds: Vec<_> = found.chains.iter().map(|chain| chain.traffic.seed).collect();
    assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
    assert!(found.chains.iter().all(|chain| chain.servers == Some(2)));
    // No server has two chains: half of its cores are for bursts.
    assert_eq!(found.chains[0].ingress.threshold, 4);
    let error = |text: &str| parse(text).unwrap_err().to_string();
    let packets = flows.replace("  model: flows\n", "");
    assert!(error(&packets).contains("256"), "{}", error(&packets));
    let few = packets.replace("count: 1000", "count: 4");
    assert!(
        error(&few).contains("expected model: flows with this field"),
        "{}",
        error(&few)
    );
    let copied = parse(&few.replace(", servers: 2", "")).unwrap();
    assert_eq!(copied.chains.len(), 3);
    let twice = flows.replace(
        "  model:",
        "    - {name: a-2, slo: 1ms, costs: {packetNanoseconds: 500}, traffic: {source: as}}\n  model:",
    );
    assert!(
        error(&twice).contains("found \"a-2\" as in chains[0]"),
        "{}",
        error(&twice)
    );
    let many = flows.replace("count: 3", "count: 10000").replace(
        "  model:",
        "    - {name: b, slo: 1ms, costs: {packetNanoseconds: 500}, traffic: {source: as}}\n  model:",
    );
    assert!(error(&many).contains("at most 10000 chains"), "{}", error(&many));
}

#[test]
fn chains_share_cores_on_their_servers() {
    let read = |chain: &str, more: &str| {
        let chain = format!("{{{chain}{}", &CHAIN[1..]);
        parse(&spec("[{count: 2, cores: 8}]", &chain, more))
    };
    let broker = read("", "  coreSharing: broker\n").unwrap().rack;
    assert_eq!(broker.sharing, CoreSharing::Broker);
    // In turn, unless a server is named.
    assert_eq!([0, 1, 2].map(|chain| broker.home(chain)), [Some(0), Some(1), Some(0)]);
    let named = read("server: 2, rate: 1500000, ", "  coreSharing: own\n").unwrap();
    assert_eq!(named.rack.home(0), Some(1));
    assert_eq!(named.chains[0].model().planned_rate, 1.5e6);
    assert_eq!(read("", "").unwrap().rack.home(0), None);
    for (chain, more, part) in [
        ("server: 3, ", "  coreSharing: broker\n", "chains[0].server"),
        ("server: 1, ", "", "coreSharing: own or broker"),
        ("rate: 0, ", "", "packets per second"),
        ("", "  coreSharing: all\n", "first-come"),
        ("", "  coreSharing: own\n  model: flows\n", "needs model: packets"),
    ] {
        let error = read(chain, more).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_example_of_shared_cores_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shared-cores.yaml");
    let read = RackSpec::read(&path).unwrap();
    assert_eq!((read.chains.len(), read.rack.sharing), (6, CoreSharing::Broker));
}
