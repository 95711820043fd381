//! Tables of example reports.

use super::{capacity, curves, report};
use std::path::Path;
use tailwater_dataplane::report::{
    ArrivalReport, ArrivalTimes, CoreReport, DropOutcome, DropReport, FlowReport, LatencyReport, LinkReport, NoVerdict,
    PacketEventReport, PacketReport, PortReport, QueueReport, ReloadCounters, ReloadEvent, ReloadOutcome, ReloadReport,
    RunReport, SloReport, TimelineReport, WindowsReport,
};
use tailwater_dataplane::scaling::ScalingCounters;
use tailwater_dataplane::scaling::buckets::ServerReport;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, DetailedCosts, Pause, RateFrontier, ServiceCosts, SplitPoint, SplitProfile, Wake,
};
use tailwater_policy::core::Load;
use tailwater_profile::curve::{Measured, Point};
use tailwater_profile::profiles::{ChainProfile, Key, LatencyProfile, Machine};

fn latencies(scale: f64) -> LatencyReport {
    LatencyReport {
        p50: 5.12 * scale,
        p90: 8.4 * scale,
        p99: 31.2 * scale,
        p999: 180.0 * scale,
        max: 411.7 * scale,
        mean: 6.03 * scale,
    }
}

fn dropped(function: Option<&str>, reason: &str, outcome: DropOutcome, packets: u64) -> DropReport {
    DropReport {
        function: function.map(str::to_owned),
        reason: reason.to_owned(),
        outcome,
        packets,
    }
}

fn example() -> RunReport {
    let packets = PacketReport {
        offered: 600_000,
        delivered: 599_000,
        dropped_by_nf: 900,
        lost: 100,
        not_matched: 0,
        drops: vec![
            dropped(Some("edge"), "denied", DropOutcome::Dropped, 900),
            dropped(None, "nic-ring-full", DropOutcome::Lost, 100),
        ],
        packet_events: Vec::new(),
        reasons: [("edge/denied".to_owned(), 900), ("nic-ring-full".to_owned(), 100)].into(),
    };
    RunReport {
        chain: "acl-nat".to_owned(),
        traffic: "bursty".to_owned(),
        slo: SloReport {
            latency_us: 200.0,
            network_us: 0.0,
            percentile: 99.0,
        },
        slo_met: Some(true),
        no_verdict: None,
        latency_us: latencies(1.0),
        latency_distribution: Vec::new(),
        packets,
        loss_rate: 100.0 / 600_000.0,
        throughput_mpps: 0.19967,
        throughput_gbps: 1.578,
        duration_s: 3.0,
        cores: CoreReport {
            dedicated: 1,
            dedicated_avg: 1.0,
            auxiliary_avg: 0.0,
            avg: 1.0,
        },
        late_by_cause: [
            ("service", 0),
            ("queued-behind-own-flow", 0),
            ("queued-behind-others", 20),
            ("descheduled", 480),
            ("nic-ring-full", 100),
        ]
        .into(),
        scaling: None,
        wake_us: None,
        server: None,
        state: None,
        isolation: None,
        reloads: ReloadReport::default(),
        flows: Some(FlowReport {
            active: 81_000,
            opened: 91_000,
            expired: 10_000,
            evicted: 0,
            refused: 0,
            memory_bytes: 12_600_000,
            capacity: 100_000,
            bytes_per_flow: 126.0,
            content_bytes: 80,
            state_bytes: 20,
        }),
        windows: WindowsReport {
            length_ms: 300.0,
            count: 10,
            flagged: 2,
            unflagged_judged: 8,
            unflagged_slo_met: Some(1.0),
            median_latency_us: latencies(0.97),
            omitted: 0,
            list: Vec::new(),
        },
        timeline: TimelineReport::default(),
        arrivals: ArrivalReport::default(),
        interrupted: false,
        began_us: 0,
        ports: Vec::new(),
        externals: Vec::new(),
    }
}

/// The ratio of output to input bytes is printed beside their counters, also if it exceeds one.
#[test]
fn bytes_out_are_told_as_a_part_of_bytes_in() {
    let mut saving = example();
    let counts = [
        ("a", "encoded-bytes-in", 4_000),
        ("a", "encoded-bytes-out", 1_000),
        ("b", "encoded-bytes-in", 1_000),
        ("b", "encoded-bytes-out", 1_044),
        ("c", "other-bytes-out", 7),
    ];
    saving.packets.packet_events = counts
        .map(|(function, counter, count)| PacketEventReport {
            function: Some(function.to_owned()),
            reason: counter.to_owned(),
            count,
        })
        .into();
    let text = report(&saving);
    let line = |name: &str| {
        let mut lines = text.lines().filter(|line| line.contains(name));
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        line("a/encoded-bytes-out"),
        "a/encoded-bytes-out 1,000 0.250 of bytes-in"
    );
    assert_eq!(
        line("b/encoded-bytes-out"),
        "b/encoded-bytes-out 1,044 1.044 of bytes-in"
    );
    assert_eq!(line("a/encoded-bytes-in"), "a/encoded-bytes-in 4,000");
    assert_eq!(line("c/other-bytes-out"), "c/other-bytes-out 7");
}

#[test]
fn ports_tell_what_they_counted() {
    let mut report = example();
    let port = |name: &str| PortReport {
        port: name.to_owned(),
        received: 1_000,
        sent: 900,
        ..PortReport::default()
    };
    report.ports = vec![port("net_ring0"), port("net_af_packet0,iface=veth0")];
    report.ports[0].arrival_times = ArrivalTimes::Device;
    report.ports[1].missed = 7;
    report.ports[1].gone = true;
    report.ports[0].link = LinkReport {
        up: Some(false),
        mbps: None,
        changes: 3,
    };
    let queue = |queue, received, receive_errors, sent| QueueReport {
        queue,
        received,
        receive_errors,
        sent,
    };
    report.ports[0].by_queue = vec![
        queue(0, Some(400), Some(0), Some(900)),
        queue(1, Some(600), Some(2), None),
    ];
    report.ports[1].by_queue = vec![queue(0, Some(1_000), None, None)];
    let text = super::report(&report);
    let end = "\
ports               net_ring0: link down
                    1,000 received, 900 sent
                    arrival times from the device
                    link changed 3 times
                      queue 0: 400 received, 900 sent
                      queue 1: 600 received, 2 damaged
                    net_af_packet0,iface=veth0: gone
                    1,000 received, 900 sent, 7 missed
                    arrival times from software
";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn a_whole_report() {
    let expected = "\
chain               acl-nat
traffic             bursty
                    3.00 s at 200kpps
SLO                 MET: 99.899 % of packets within 200us (objective 99 %)

latency, us              all packets   median window
  p50                           5.12            4.97
  p90                           8.40            8.15
  p99                          31.20           30.26
  p99.9                       180.00          174.60
  max                         411.70          399.35
  mean                          6.03            5.85

packets offered              600,000
  delivered                  599,000   99.833 %
  dropped by chain               900     0.15 %
  lost                           100    0.016 %
drops
  edge/denied                    900
  nic-ring-full                  100  lost

late or lost                     600
  queued-behind-others            20  waited behind packets of other flows (minnows)
  descheduled                    480  worker preempted
  nic-ring-full                  100  lost: the NIC's receive queue was full
                    80 % of them are put down to CPU interference

throughput          0.200 Mpps, 1.578 Gbit/s
cores               1 dedicated
flows               91,000 seen, 81,000 at the end (13 MB, 126 bytes for each that fits)
windows             10 of 300 ms
                    2 with CPU interference: worker preempted
                    SLO met in 8 of 8 others
";
    let found = report(&example());
    assert_eq!(found, expected, "\n{found}");
}

#[test]
fn what_was_handed_over_is_told() {
    let mut scaled = example();
    scaled.cores.auxiliary_avg = 0.214;
    scaled.scaling = Some(ScalingCounters {
        flows_moved: 9_000,
        packets_offloaded: 120_000,
        splits: 12,
        joins: 3,
        relieved: 7,
        packets_parked: 900,
        activated: 345,
        boosts: 2,
        out_of_cores: 1_671,
        ..ScalingCounters::default()
    });
    let found = report(&scaled);
    let expected = "\
cores               1 dedicated, 0.21 auxiliary on average
offloaded           120,000 packets (20 %), 9,000 flows moved out of the queue
                    auxiliary cores activated 345 times, boost mode entered 2 times
                    flow split between cores 12 times
                    parts of a split flow joined 3 times
                    auxiliary core overloaded 7 times, 900 packets parked
                    policy reported insufficient cores 1,671 times
flows ";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn help_among_dedicated_cores_is_told() {
    let mut helped = example();
    helped.cores.dedicated = 2;
    helped.cores.dedicated_avg = 2.0;
    helped.scaling = Some(ScalingCounters {
        packets_offloaded: 120_000,
        packets_to_dedicated: 120_000,
        dedicated_activated: 345,
        ..ScalingCounters::default()
    });
    let found = report(&helped);
    let expected = "\
cores               2 dedicated
offloaded           120,000 packets (20 %), 0 flows moved out of the queue
                    120,000 of them (20 %) to dedicated cores, which helped 345 times
flows ";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn what_moved_is_told() {
    let mut moved = example();
    moved.cores.dedicated = 2;
    moved.cores.dedicated_avg = 1.42;
    moved.server = Some(ServerReport {
        decisions: 1_234,
        ..ServerReport::default()
    });
    let table = report(&moved);
    let expected = "\
cores               2 dedicated, 1.42 of them in use
moved               0 RSS buckets, in 0 of 1,234 decisions
flows ";
    assert!(table.contains(expected), "{table}");
    moved.server = Some(ServerReport {
        decisions: 30,
        moves: 2,
        buckets_moved: 1_256,
        packets_buffered: 98_765,
        longest_move_us: 2_345.678,
    });
    moved.late_by_cause.insert("migration", 7);
    let table = report(&moved);
    for expected in [
        "\
moved               1,256 RSS buckets, in 2 of 30 decisions
                    98,765 packets buffered during migration; longest took 2,345.68 us
flows ",
        "  migration                        7  buffered during migration of their RSS bucket\n",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    assert!(table.lines().all(|line| line.len() <= 90), "{table}");
}

#[test]
fn a_whole_profile() {
    let mut profile = CapacityProfile {
        chain: "acl-nat".to_owned(),
        machine: "edge-3 (Some Processor)".to_owned(),
        slo: Nanos::from_micros(200),
        epoch: Nanos::from_micros(80),
        costs: Some(ServiceCosts {
            batch: 110.4,
            packet: 42.5,
            byte: 0.023,
            new_flow: 1234.0,
        }),
        details: Some(DetailedCosts {
            traffic_packet: 180.0,
            cold_after: 2048,
            cold_batch: 90.0,
            cold_packet: 30.0,
            new_batch: 210.0,
            receive_packet: 20.0,
            ring_packet: 4.5,
            queue_packet: 25.0,
            hand_over_packet: 40.0,
            take_over_packet: 35.0,
            poll: 33.0,
            wakes: vec![Wake {
                asleep: 350_000,
                p50: 4_000,
                p90: 7_000,
                p99: 12_000,
            }],
            pauses: [(1000.0, 3_400), (900.0, 5_600)]
                .map(|(per_second, nanos)| Pause { per_second, nanos })
                .to_vec(),
        }),
        ..CapacityProfile::default()
    };
    for (flows, packets) in [(1, 1352), (310, 96)] {
        profile.frontier.insert(Load { flows, packets });
    }
    profile.rates.insert(64, 2_140_000.0);
    profile.splits.insert(SplitPoint {
        last_functions: 1,
        first: 512,
        last: 700,
    });
    let expected = "\
chain               acl-nat
machine             edge-3 (Some Processor)
objective           latency within 200us
profile             acl-nat.profile.yaml

one core in 80us             packets  from at most this many flows
                               1,352  1
                                  96  310

rates in time              packets/s  from at most this many flows
                               2.14M  64

one flow, two cores          packets  in 80us, by split point
                                 512  last 1 on the second core: first core 512, second 700

costs                             ns
  batch                          110  independent of its packets
  packet                          42
  byte                          0.02
  new flow                      1234  in addition to the packet

costs in detail                   ns
  cold packet                     30  after 2,048 packets of other flows
  batch with a cold packet        90
  batch with a new flow          210
  packet with a backlog         4.50
  receiving                       20  of a packet's costs
  own queue                       25  each packet that waits
  offloading                      40  each packet, in addition
  receiving offloaded             35  each packet, auxiliary core
  finding a packet                33  a polling core

wake-up, median                   ns  99th percentile; time asleep before
                               4,000  12,000; 350us

pauses                         1,900  per second, 0.84 % of the time
";
    let file = Path::new("acl-nat.profile.yaml");
    let found = capacity(&profile, file);
    assert_eq!(found, expected, "\n{found}");

    // The first and the last step of many; no step without measurements.
    for step in 0..100 {
        let (flows, packets) = (400 + step, 95 - step.min(94));
        profile.frontier.insert(Load { flows, packets });
    }
    profile.rates = RateFrontier::new();
    (profile.splits, profile.costs) = (SplitProfile::new(), None);
    profile.details = None;
    let found = capacity(&profile, file);
    for part in ["1,352  1\n", "1  499\n", "(12 of ", "rates in time       none"] {
        assert!(found.contains(part), "{part} is not in\n{found}");
    }
    assert!(!found.contains("costs") && !found.contains("two cores"), "{found}");
}

#[test]
fn large_figures_keep_the_columns() {
    let mut big = example();
    big.packets.offered = 1_234_567_890_123;
    big.packets.delivered = 1_234_567_890_000;
    big.packets.drops = vec![dropped(
        Some("a-function"),
        "some-long-reason",
        DropOutcome::Lost,
        12_345_678,
    )];
    big.latency_us = latencies(1e5);
    big.traffic = "file\nname".to_owned();
    (big.throughput_mpps, big.throughput_gbps) = (1234.5, 12345.6);
    let found = report(&big);
    assert!(found.lines().all(|line| line.chars().count() <= 90), "{found}");
    assert!(found.contains("file\\nname"), "{found}");
}

#[test]
fn a_run_without_packets_has_a_table() {
    let mut empty = example();
    empty.packets = PacketReport::default();
    empty.late_by_cause.clear();
    (empty.slo_met, empty.no_verdict) = (None, Some(NoVerdict::NoPackets));
    empty.windows = WindowsReport::default();
    (empty.flows, empty.duration_s) = (None, 0.0);
    let found = report(&empty);
    assert!(
        found.contains("NO VERDICT: no packets arrived for the chain"),
        "{found}"
    );
    assert!(!found.contains("NaN") && !found.contains("inf"), "{found}");
}

#[test]
fn a_run_whose_packets_were_all_dropped_has_no_verdict() {
    let mut all = example();
    (all.packets.delivered, all.packets.lost) = (0, 0);
    (all.packets.offered, all.packets.dropped_by_nf) = (1_200, 1_200);
    all.packets.drops = vec![
        dropped(None, "non-ip", DropOutcome::Dropped, 200),
        dropped(Some("acl"), "denied", DropOutcome::Dropped, 1_000),
    ];
    all.late_by_cause.clear();
    (all.slo_met, all.no_verdict) = (None, Some(NoVerdict::AllDropped));
    (all.windows.unflagged_judged, all.windows.unflagged_slo_met) = (0, None);
    let found = report(&all);
    let line = "SLO                 NO VERDICT: the chain dropped all 1,200 packets (acl/denied 1,000, non-ip 200)\n";
    assert!(found.contains(line), "{found}");
    assert!(!found.contains("SLO met"), "{found}");
    // No window without CPU interference.
    all.windows.flagged = all.windows.count;
    let found = report(&all);
    assert!(found.contains("all windows had CPU interference\n"), "{found}");
}

#[test]
fn too_few_packets_for_the_percentile_have_no_verdict() {
    let mut few = example();
    (few.packets.delivered, few.packets.lost) = (12, 1);
    (few.packets.offered, few.packets.dropped_by_nf) = (1_213, 1_200);
    few.packets.drops = vec![dropped(Some("acl"), "denied", DropOutcome::Dropped, 1_200)];
    few.late_by_cause.clear();
    (few.slo_met, few.no_verdict) = (None, Some(NoVerdict::TooFewPackets));
    let found = report(&few);
    let line = "SLO                 NO VERDICT: 13 packets delivered or lost, at least 100 required for 99 %; the \
                chain dropped 1,200 of 1,213 packets (acl/denied 1,200)\n";
    assert!(found.contains(line), "{found}");
    assert!(!found.contains("SLO met"), "{found}");
}

#[test]
fn a_measurement_that_is_in_doubt_is_marked() {
    let measured = |value, noise| Measured {
        value,
        noise,
        runs: 5,
        disturbed: 0,
    };
    let profile = ChainProfile {
        key: Key {
            chain: "edge".to_owned(),
            configuration: "0".to_owned(),
            traffic: "backbone, seed 1".to_owned(),
            machine: Machine {
                processor: "any".to_owned(),
                megahertz: 2000,
                cache_kibibytes: 1,
                cache_ways: 1,
                private_kibibytes: 1,
            },
        },
        cache: None,
        latency: Some(LatencyProfile {
            throughput: measured(1e6, 1e4),
            percentile: 99.0,
            points: vec![
                Point {
                    at: 99,
                    measured: measured(10.0, 731.8),
                },
                Point {
                    at: 100,
                    measured: Measured {
                        disturbed: 2,
                        ..measured(10.0, 2.0)
                    },
                },
            ],
            objective_us: 200.0,
            objective_percentile: 99.0,
            ndr: None,
            pdr: Some(1e6),
            objective_rate: Some(420e3),
            hidden_bends: vec![99],
            disturbed_trials: 1,
        }),
        costs: None,
    };
    let found = curves::profile(&profile, None, Path::new("edge.curves.yaml"));
    assert!(
        found.contains("0.99 (± 7318.0 %, 5 runs) NOT REPEATABLE BEND?\n"),
        "{found}"
    );
    assert!(found.contains("1.00 (± 20.0 %, 5 runs, 2 DISTURBED)\n"), "{found}");
    // Each rate says what it is.
    for words in [
        "1.00M  saturated, load 1 (± 1.0 %, 5 runs)\n",
        "420k  highest kept, to 2 %: 99 % within 200us\n",
        "none  no packet lost: missed at 5 % of the load, too\n",
        "1.00M  at least, highest tried: at most 0.5 % lost\n",
    ] {
        assert!(found.contains(words), "{found}");
    }
    let doubts = "in doubt            1 value NOT REPEATABLE: `tailwater place` refuses this profile\n\
                  \u{20}                   CPU interference disturbed 2 runs of 1 value, 1 trial of rates\n\
                  \u{20}                   noise hides whether curves bend at 1 point (BEND?)\n\
                  \u{20}                   measure again on a quiet machine, or with a longer --run-time\n";
    assert!(found.contains(doubts), "{found}");
    assert!(found.lines().all(|line| line.chars().count() <= 90), "{found}");
}

#[test]
fn a_rejected_reload_is_in_the_report() {
    let mut changed = example();
    let event = |at_s, outcome, line: &str| ReloadEvent {
        at_s,
        outcome,
        lines: vec![line.to_owned()],
    };
    changed.reloads = ReloadReport {
        counters: ReloadCounters {
            applied: 1,
            rejected: 1,
            unchanged: 3,
            last_rejected: true,
        },
        list: vec![
            event(0.5, ReloadOutcome::Applied, "acl: 2 rules in force (version 2)"),
            event(1.25, ReloadOutcome::Rejected, "chain.yaml:7:81: spec: wrong"),
        ],
    };
    let found = report(&changed);
    let lines = "reloads             1 applied, 1 rejected\n\
                 \u{20}                   rejected at 1.25 s: chain.yaml:7:81: spec: wrong\n\
                 \u{20}                   the run ended with an older configuration than the files have\n";
    assert!(found.contains(lines), "{found}");
}
