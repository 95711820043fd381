//! The table of made-up reports.

use super::report;
use tailwater_dataplane::report::{
    ArrivalReport, CoreReport, FlowReport, LatencyReport, PacketReport, RunReport, SloReport,
    TimelineReport, WindowsReport,
};

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

fn example() -> RunReport {
    let packets = PacketReport {
        offered: 600_000,
        delivered: 599_000,
        dropped_by_nf: 900,
        lost: 100,
        not_matched: 0,
        reasons: [
            ("edge/denied".to_owned(), 900),
            ("nic-ring-full".to_owned(), 100),
        ]
        .into(),
    };
    RunReport {
        chain: "acl-nat".to_owned(),
        traffic: "bursty".to_owned(),
        slo: SloReport {
            latency_us: 200.0,
            percentile: 99.0,
        },
        slo_met: true,
        latency_us: latencies(1.0),
        latency_distribution: Vec::new(),
        packets,
        loss_rate: 100.0 / 600_000.0,
        throughput_mpps: 0.19967,
        throughput_gbps: 1.578,
        duration_s: 3.0,
        cores: CoreReport {
            dedicated: 1,
            auxiliary_avg: 0.0,
            avg: 1.0,
        },
        late_by_cause: [
            ("service", 0),
            ("whale", 0),
            ("minnows", 20),
            ("descheduled", 480),
            ("nic-ring-full", 100),
        ]
        .into(),
        scaling: None,
        flows: Some(FlowReport {
            active: 81_000,
            opened: 91_000,
            expired: 10_000,
            evicted: 0,
            refused: 0,
            memory_bytes: 12_600_000,
        }),
        windows: WindowsReport {
            length_ms: 300.0,
            count: 10,
            flagged: 2,
            unflagged_slo_met: 1.0,
            median_latency_us: latencies(0.97),
            omitted: 0,
            list: Vec::new(),
        },
        timeline: TimelineReport::default(),
        arrivals: ArrivalReport::default(),
        interrupted: false,
    }
}

#[test]
fn a_whole_report() {
    let expected = "\
chain               acl-nat
traffic             bursty
                    3.00 s at 200kpps
SLO                 MET: 99.899 % of packets within 200us (99 % promised)

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
reasons
  edge/denied                    900
  nic-ring-full                  100

late or lost                     600
  minnows                         20  waited behind other flows
  descheduled                    480  the worker was off its core
  nic-ring-full                  100  lost: the NIC's queue was full
                    80 % of them would have been in time had the machine not taken
                    the core away meanwhile

throughput          0.200 Mpps, 1.578 Gbit/s
cores               1 dedicated
flows               91,000 seen, 81,000 at the end (13 MB)
windows             10 of 300 ms
                    2 disturbed: a worker was off its core
                    SLO met in 8 of 8 others
";
    let found = report(&example());
    assert_eq!(found, expected, "\n{found}");
}

#[test]
fn large_figures_keep_the_columns() {
    let mut big = example();
    big.packets.offered = 1_234_567_890_123;
    big.packets.delivered = 1_234_567_890_000;
    big.packets.reasons = [("a-function/some-long-reason".to_owned(), 12_345_678)].into();
    big.latency_us = latencies(1e5);
    big.traffic = "file\nname".to_owned();
    (big.throughput_mpps, big.throughput_gbps) = (1234.5, 12345.6);
    let found = report(&big);
    assert!(
        found.lines().all(|line| line.chars().count() <= 90),
        "{found}"
    );
    assert!(found.contains("file\\nname"), "{found}");
}

#[test]
fn a_run_without_packets_has_a_table() {
    let mut empty = example();
    empty.packets = PacketReport::default();
    empty.late_by_cause.clear();
    empty.windows = WindowsReport::default();
    (empty.flows, empty.duration_s) = (None, 0.0);
    let found = report(&empty);
    assert!(found.contains("no packet was to be delivered"), "{found}");
    assert!(!found.contains("NaN") && !found.contains("inf"), "{found}");
}
