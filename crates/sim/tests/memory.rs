//! Memory of a streamed run: it depends on active flows and packets, not on past ones.

mod common;

use common::{SLO, policy, profile};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sim::{
    BoundedChain, ChainModel, ChainRun, FlowOptions, OracleReport, Rack, RunOptions, SimReport, Workload, oracle,
    simulate,
};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::{Notice, TrafficError};

/// `flows` flows, one after the other, each with two packets 1 ms apart.
struct Short {
    flows: u64,
    next: u64,
}

/// Nanoseconds between the starts of flows.
const GAP: u64 = 2_000;
/// Number of packets between a flow's two.
const APART: u64 = 500;

impl Arrivals for Short {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let number = self.next;
        self.next += 1;
        if number / 2 >= self.flows {
            return Ok(None);
        }
        // Alternately a flow's first packet, and the second one of an earlier flow.
        let flow = match number % 2 {
            0 => number / 2,
            _ => (number / 2).saturating_sub(APART),
        };
        Ok(Some(Arrival {
            time: Nanos(number * GAP / 2),
            flow: Some(flow),
            bytes: 100,
        }))
    }

    fn flow_key(&self) -> FlowKey {
        let source = (0x0a00_0000 + self.next as u32).into();
        FlowKey::v4(source, 0xc612_0001.into(), 17, 1, 2)
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "short flows"
    }
}

/// Flows are removed after 20 ms of silence.
const FORGETFUL: FlowOptions = FlowOptions {
    idle_timeout: Nanos::from_millis(20),
    most: 1 << 24,
};

/// Runs `flows` flows on `cores` cores. Returns the report and the maximum of allocated bytes.
fn run(flows: u64, name: &str, cores: u16, options: FlowOptions) -> (SimReport, u64) {
    let mut report = None;
    let info = allocation_counter::measure(|| {
        let chain = ChainRun {
            model: ChainModel::from_profile(&profile()).unwrap(),
            slo: SLO,
            policy: policy(name),
            workload: Workload::stream(Box::new(Short { flows, next: 0 }), options),
        };
        let run = RunOptions {
            window: Nanos::from_millis(100),
            ..RunOptions::default()
        };
        report = Some(simulate(&Rack::of_one(cores), vec![chain], &run).unwrap());
    });
    (report.unwrap(), info.bytes_max)
}

#[test]
fn ten_times_the_flows_take_no_more_memory() {
    for name in ["static", "tailwater"] {
        let (_, less) = run(40_000, name, 16, FORGETFUL);
        let (report, more) = run(400_000, name, 16, FORGETFUL);
        let packets = &report.chains[0].packets;
        assert_eq!((packets.offered, packets.flows), (800_000, 400_000), "{name}");
        // Only epochs and windows of the report grow.
        assert!(more < less + 300_000, "{name}: {less} bytes, then {more}");
        assert!(more < 16 << 20, "{name}: {more} bytes");
    }
}

/// Returns the bound for `flows` flows, and the maximum of allocated bytes.
fn bound(flows: u64) -> (OracleReport, u64) {
    let mut report = None;
    let info = allocation_counter::measure(|| {
        let options = FlowOptions {
            idle_timeout: Nanos::from_millis(20),
            ..FlowOptions::default()
        };
        let chain = BoundedChain {
            model: ChainModel::from_profile(&profile()).unwrap(),
            slo: SLO,
            workload: Workload::stream(Box::new(Short { flows, next: 0 }), options),
        };
        report = Some(oracle(vec![chain], &RunOptions::default()).unwrap());
    });
    (report.unwrap(), info.bytes_max)
}

#[test]
fn the_oracle_takes_no_more_memory_for_more_packets() {
    let (_, less) = bound(40_000);
    let (report, more) = bound(400_000);
    let chain = &report.chains[0];
    assert_eq!((chain.packets, chain.flows), (800_000, 400_000));
    assert!(more <= less + 1000, "{less} bytes, then {more}");
    assert!(more < 4 << 20, "{more} bytes");
}

/// A core processes 0.2 million packets per second, and one million arrive.
#[test]
fn five_times_overload_takes_no_more_memory_the_longer_it_lasts() {
    for name in ["static", "quadrant", "tailwater"] {
        let (_, less) = run(40_000, name, 1, FORGETFUL);
        let (report, more) = run(200_000, name, 1, FORGETFUL);
        let loss = report.chains[0].loss_rate;
        assert!((0.75..0.85).contains(&loss), "{name}: {loss}");
        // A controller stores flows for a second.
        assert!(more < less + 500_000, "{name}: {less} bytes, then {more}");
    }
}

/// No flow is removed, so there is no room for more.
#[test]
fn flows_beyond_the_most_are_lost_and_take_no_memory() {
    let options = FlowOptions {
        idle_timeout: Nanos::MAX,
        most: 10_000,
    };
    for name in ["static", "quadrant", "tailwater"] {
        let (_, less) = run(20_000, name, 16, options);
        let (report, more) = run(200_000, name, 16, options);
        let packets = &report.chains[0].packets;
        // Both packets of the first flows arrive, and the very first flow's extra ones. All other packets are lost.
        let kept = 2 * 10_000 + APART;
        assert_eq!(packets.flows, 10_000, "{name}");
        assert_eq!(packets.lost_by_reason["no-resources"], 400_000 - kept, "{name}");
        assert!(more < less + 150_000, "{name}: {less} bytes, then {more}");
    }
}
