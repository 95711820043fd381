//! Attribution of packets that are late because their RSS bucket migrated.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::TraceNicConfig;
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::server::{Move, ServerMapper, ServerView};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// One packet, a pause, and then more than a core can process.
struct Burst {
    frame: Vec<u8>,
    sent: u64,
}

const QUIET: Nanos = Nanos::from_millis(20);
const PACKETS: u64 = 400_000;
const SPACING: Nanos = Nanos(100);

impl PacketSource for Burst {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let number = self.sent;
        self.sent += 1;
        let key = FlowKey::v4(
            Ipv4Addr::from_bits(0x0a00_0000 + (number % 1000) as u32),
            Ipv4Addr::new(198, 51, 100, 1),
            protocol::UDP,
            1000,
            53,
        );
        self.frame = FrameBuilder::new(&key).payload(b"burst").to_vec().unwrap();
        Ok((number < PACKETS).then(|| Packet {
            timestamp: match number {
                0 => Nanos::ZERO,
                _ => QUIET + Nanos(number * SPACING.0),
            },
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "burst"
    }
}

/// Keeps all buckets on one core before the burst. Then it moves all of them to the other core, which was idle, and
/// back, at each decision. The burst's rate as counted is what the core processes, without optimisation some 40,000
/// packets a second.
struct AllAtOnce {
    to: u16,
}

impl ServerMapper for AllAtOnce {
    fn period(&self) -> Nanos {
        Nanos::from_millis(2)
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let rate: f64 = view.buckets.iter().map(|bucket| bucket.rate).sum();
        if rate > 1e4 {
            self.to = 1 - self.to;
        }
        for (bucket, load) in view.buckets.iter().enumerate() {
            if load.core != self.to {
                moves.push(Move {
                    bucket: bucket as u16,
                    to: self.to,
                });
            }
        }
    }
}

fn moved() -> RunReport {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  \
                slo: {latency: 200us}\n  functions: [{nat: {external: [203.0.113.0/28]}}]\n";
    let spec = ChainSpec::parse(text, "test", Path::new(".")).unwrap();
    let available = cores::available();
    let config = RunConfig {
        // Workers may share a core: slower, but equally correct.
        cores: (0..2).map(|i| available[i % available.len()]).collect(),
        nic: TraceNicConfig {
            // No packet is lost before the chain.
            ring: 1 << 20,
            reta_delay: Nanos::from_micros(200),
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(5),
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: None,
        isolation: None,
        server: Some(ServerConfig {
            mapper: Arc::new(|| Box::new(AllAtOnce { to: 0 })),
        }),
    };
    let mut burst = Burst {
        frame: Vec::new(),
        sent: 0,
    };
    let trace = Trace::load(&mut burst, &LoadOptions::default()).unwrap();
    let plan = RunPlan::new(spec, config).unwrap();
    run(&plan, trace, RunControl::new(&AtomicBool::new(false))).unwrap()
}

/// The first core has a backlog when the buckets leave it, so the second one buffers packets until that is worked off.
/// A busy machine may be late for the burst, even several times.
#[test]
fn packets_late_for_want_of_their_bucket_are_put_down_to_migration() {
    let found = (0..40).map(|_| moved()).find(|report| {
        let server = report.server.unwrap();
        let late: u64 = report.late_by_cause.values().sum();
        let windows = report.windows.list.iter();
        let counted: u64 = windows.map(|window| window.late + window.lost).sum();
        assert_eq!(late, counted, "each late or lost packet has one cause");
        let migration = report.late_by_cause["migration"];
        let steps = report.timeline.list.iter();
        let over_time: u64 = steps.map(|step| step.late_by_cause["migration"]).sum();
        assert_eq!(migration, over_time);
        // Packets that arrived meanwhile count, too: they were queued behind.
        assert!(server.packets_buffered > 0 || migration == 0, "{server:?}");
        migration > 0 && server.moves > 0 && server.buckets_moved > 0
    });
    assert!(found.is_some(), "40 runs");
}
