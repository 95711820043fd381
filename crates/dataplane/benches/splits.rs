//! Throughput of one flow that exceeds one core's capacity, on two cores.
//!
//! `cargo bench -p tailwater-dataplane --bench splits [-- --runs N]` prints one JSON line per figure: the highest rate
//! of one TCP connection, in packets per second, that passes a chain of `examples/` with at most 1 % loss. `one-core`:
//! without an auxiliary core. `helper`: the whole flow is offloaded to one. `last-N`: it is split, and the auxiliary
//! core runs the last N functions. All rows are run in turn, `runs` times, and the value is the median. The auxiliary
//! worker gets the first core, the dispatcher the last.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, Split, View};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

const CHAINS: [&str; 2] = ["acl-urlfilter-encrypt", "acl-lb-accounting"];
const SIZES: [(&str, u16); 2] = [("64B", 64), ("1024B", 1024)];
/// Duration of the arrivals at each rate.
const RUN: Nanos = Nanos::from_millis(60);
/// Permitted share of lost packets.
const LOSS: f64 = 0.01;
/// Highest rate to try, as a multiple of one core's capacity without pacing.
const MOST: f64 = 2.0;
/// Number of bisection steps.
const HALVINGS: usize = 6;

/// Processing of the flow.
#[derive(Clone, Copy)]
enum Way {
    OneCore,
    Helper,
    Split(usize),
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::OneCore => "one-core".to_owned(),
            Way::Helper => "helper".to_owned(),
            Way::Split(last) => format!("last-{last}"),
        }
    }
}

/// Mapper that treats every flow the same way.
struct Fixed {
    way: Way,
    next: Nanos,
}

impl CoreMapper for Fixed {
    fn split_points(&mut self, _: usize) -> u64 {
        match self.way {
            Way::Split(last) => 1 << last,
            Way::OneCore | Way::Helper => 0,
        }
    }

    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.next
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.next = view.now + Nanos::from_micros(20);
        let Way::Split(last_functions) = self.way else {
            return;
        };
        let flows = view.queued.iter().enumerate();
        let movable = flows.filter(|(_, flow)| !flow.bound);
        plan.splits.extend(movable.map(|(flow, _)| Split {
            flow,
            last_functions,
            auxiliary: 0,
        }));
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        match self.way {
            Way::Helper => Destination::auxiliary(0),
            Way::OneCore | Way::Split(_) => Destination::OWN_CORE,
        }
    }
}

fn spec(chain: &str) -> ChainSpec {
    let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let text = std::fs::read_to_string(examples.join(format!("{chain}.yaml")));
    let text = text.unwrap_or_else(|error| panic!("{chain}: {error}"));
    let mut spec = ChainSpec::parse(&text, chain, examples).unwrap_or_else(|error| panic!("{error}"));
    // The examples drop packets that their rules do not allow, which could be the only flow.
    spec.functions.iter_mut().for_each(|function| {
        if let Some(acl) = function.config.get_mut::<tailwater_functions::acl::AclConfig>() {
            acl.default = tailwater_functions::acl::Action::Allow;
        }
    });
    spec
}

/// Single TCP connection.
fn whale(bytes: u16, rate: f64) -> Trace {
    let config = UniformConfig {
        seed: 1,
        flows: 1,
        size: FrameSize::Fixed(bytes),
        transport: Transport::Tcp,
        rate_pps: rate as u64,
        packets: 1 << 14,
    };
    let source = Uniform::new(config).map_err(|error| error.to_string());
    let trace = source
        .and_then(|mut source| Trace::load(&mut source, &LoadOptions::default()).map_err(|error| error.to_string()));
    trace.unwrap_or_else(|error| panic!("{error}"))
}

/// Report of a run at this rate, or without pacing.
fn report(spec: &ChainSpec, bytes: u16, rate: Option<f64>, way: Way) -> RunReport {
    let cores = cores::available();
    let (Some(helper), Some(own)) = (cores.first(), cores.last()) else {
        panic!("there is no core");
    };
    let config = RunConfig {
        cores: vec![*own],
        nic: TraceNicConfig {
            pacing: match rate {
                Some(_) => Pacing::Arrivals,
                None => Pacing::Saturate,
            },
            duration: Some(RUN),
            // The host preempts a core now and then, which must not affect the result.
            ring: 1 << 14,
            ..TraceNicConfig::default()
        },
        window: RUN,
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: rate.map(|_| ScalingConfig {
            auxiliary: vec![*helper],
            dedicated_help: false,
            mapper: Arc::new(move || Box::new(Fixed { way, next: Nanos::ZERO })),
            park: Mode::Sleep,
            buffers: 2048,
        }),
        server: None,
        isolation: None,
    };
    let trace = whale(bytes, rate.unwrap_or(1e6));
    let stop = AtomicBool::new(false);
    let report = RunPlan::new(spec.clone(), config).and_then(|plan| run(&plan, trace, RunControl::new(&stop)));
    report.unwrap_or_else(|error| panic!("{error}"))
}

/// Highest rate, in packets per second, at which the loss is permitted.
fn highest(spec: &ChainSpec, bytes: u16, way: Way) -> f64 {
    let alone = report(spec, bytes, None, Way::OneCore);
    let (mut low, mut high) = (0.0, MOST * alone.throughput_mpps * 1e6);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        match report(spec, bytes, Some(middle), way).loss_rate <= LOSS {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runs = arguments.iter().position(|argument| argument == "--runs");
    let runs = runs.and_then(|at| arguments.get(at + 1)?.parse().ok());
    let runs: usize = runs.unwrap_or(5);
    let mut rows = Vec::new();
    for chain in CHAINS {
        let spec = spec(chain);
        for (size, bytes) in SIZES {
            let splits = (1..spec.functions.len()).map(Way::Split);
            for way in [Way::OneCore, Way::Helper].into_iter().chain(splits) {
                rows.push((spec.clone(), chain, size, bytes, way, Vec::new()));
            }
        }
    }
    for run in 0..runs {
        eprintln!("run {} of {runs}", run + 1);
        for (spec, _, _, bytes, way, found) in &mut rows {
            found.push(highest(spec, *bytes, *way) / 1e6);
        }
    }
    for (_, chain, size, _, way, mut found) in rows {
        found.sort_by(f64::total_cmp);
        let (least, most) = (found[0], found[found.len() - 1]);
        println!(
            "{{\"name\": \"split/{chain}/{size}/{}\", \"value\": {:.3}, \"unit\": \"Mpps\", \
             \"min\": {least:.3}, \"max\": {most:.3}, \"runs\": {runs}}}",
            way.name(),
            found[found.len() / 2],
        );
    }
}
