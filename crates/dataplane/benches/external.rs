//! Cost of an external function: additional time per packet on the worker's core, and delay.
//!
//! `cargo bench -p tailwater-dataplane --features dpdk --bench external` prints one JSON line per figure; without the
//! feature, those of kernel interfaces only.
//! `external/net_ring/SIZE/added-ns`: additional time in a chain of two functions on one core for an external function
//! between them that takes no time, a DPDK ring looped back. It covers sending, receiving, matching, and the second
//! part's turn. All rows are run in turn, and the figure is the median of the differences.
//! `external/interface/SIZE/added-ns`, `external/net_af_packet/SIZE/added-ns`: the same over a veth pair whose ends are
//! both ports of the function, by packet sockets without and with DPDK. The kernel's work is included: it is done
//! within the call that sends. Skipped unless run as root.
//! `external/veth/added-us-p50`, `-p99`: the additional latency of a chain through the kernel's firewall and address
//! translation in a namespace (`examples/external/firewall.sh`), at 20,000 packets per second. Skipped unless run as
//! root.

use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::default_core;
#[cfg(feature = "dpdk")]
use tailwater_dataplane::dpdk::{ExternalPorts, HugePages};
use tailwater_dataplane::external::Functions;
use tailwater_dataplane::external::kernel::KernelPorts;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_dataplane::{Packets, RunConfig, RunControl, RunPlan, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

/// Number of runs per row, after a warm-up.
const RUNS: usize = 7;

/// Duration of a run.
const DURATION: Nanos = Nanos::from_millis(300);

#[derive(Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    runs: usize,
}

fn print(name: String, unit: &'static str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let figure = Figure {
        name,
        value: rounded(values[values.len() / 2]),
        unit,
        min: rounded(values[0]),
        max: rounded(values[values.len() - 1]),
        runs: values.len(),
    };
    match serde_json::to_string(&figure) {
        Ok(line) => println!("{line}"),
        Err(error) => panic!("{error}"),
    }
}

fn trace(bytes: u16, rate_pps: u64, packets: u64) -> Trace {
    let config = UniformConfig {
        seed: 1,
        flows: 1_000,
        size: FrameSize::Fixed(bytes),
        transport: Transport::Udp,
        rate_pps,
        packets,
    };
    let mut source = Uniform::new(config).unwrap_or_else(|error| panic!("{error}"));
    let trace = Trace::load(&mut source, &LoadOptions::default());
    trace.unwrap_or_else(|error| panic!("{error}"))
}

/// A chain of two functions, with something between them.
fn spec(between: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: external}}\nspec:\n  \
         slo: {{latency: 10ms}}\n  functions:\n    - {{name: first, forward: {{destinationMac: \
         '02:00:00:00:00:01'}}}}\n{between}    - {{name: last, forward: {{}}}}\n"
    );
    let spec = ChainSpec::parse(&text, "external", Path::new("."));
    spec.unwrap_or_else(|error| panic!("{error}"))
}

#[cfg(feature = "dpdk")]
fn dpdk(spec: &ChainSpec) -> Box<dyn Functions<TraceNic>> {
    let ports = ExternalPorts::find(spec, &[], HugePages::No);
    Box::new(ports.unwrap_or_else(|error| panic!("{error}")))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(_: &ChainSpec) -> Box<dyn Functions<TraceNic>> {
    unreachable!("rows with DPDK are left out")
}

fn measured(spec: &ChainSpec, trace: Trace, pacing: Pacing) -> RunReport {
    let config = RunConfig {
        cores: vec![default_core()],
        nic: TraceNicConfig {
            pacing,
            duration: Some(DURATION),
            ..TraceNicConfig::default()
        },
        window: DURATION,
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: None,
        server: None,
        isolation: None,
    };
    let stop = AtomicBool::new(false);
    let packets = match spec.externals().next() {
        None => Packets::Trace(trace),
        Some((_, external)) => {
            let functions = match external.port.is_kernel() {
                true => Box::new(KernelPorts::find(spec, 1).unwrap_or_else(|error| panic!("{error}"))),
                false => dpdk(spec),
            };
            Packets::TraceWithExternals { trace, functions }
        }
    };
    let report = RunPlan::new(spec.clone(), config).and_then(|plan| run(&plan, packets, RunControl::new(&stop)));
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    if let Some(external) = report.externals.first() {
        let missing = external.sent - external.returned;
        assert!(external.sent > 0 && external.own == 0, "{external:?}");
        if missing + external.refused > 0 {
            eprintln!(
                "{missing} packets of {} did not come back, {} were refused",
                external.sent, external.refused
            );
        }
    }
    report
}

/// Prints the time that a function adds, whose ports in a run with this number are `ports`.
fn added_time(kind: &str, (size, bytes): (&str, u16), ports: impl Fn(usize) -> String) {
    let without = spec("");
    let mut added = Vec::new();
    for number in 0..=RUNS {
        let ports = ports(number);
        let with = spec(&format!(
            "    - {{name: function, external: {{{ports}, timeout: 1s}}}}\n"
        ));
        let nanos = |spec| {
            let report = measured(spec, trace(bytes, 1_000_000, 20_000), Pacing::Saturate);
            1e3 / report.throughput_mpps
        };
        let [before, after] = [nanos(&without), nanos(&with)];
        eprintln!("{kind} {size} run {number}: {before:.1} ns a packet, {after:.1} with the function");
        if number > 0 {
            added.push(after - before);
        }
    }
    print(format!("external/{kind}/{size}/added-ns"), "ns", added);
}

/// Sets up the firewall's namespace, or removes it. Returns `true` on success.
fn firewall(what: &str) -> bool {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/external/firewall.sh");
    let status = Command::new(script).arg(what).status();
    status.is_ok_and(|status| status.success())
}

fn added_latency() {
    if !firewall("up") {
        eprintln!("external/veth: left out: no namespace with a firewall can be set up");
        return;
    }
    let without = spec("");
    let with =
        spec("    - {name: firewall, external: {port: interface=fw-in, returnPort: interface=fw-out, timeout: 1s}}\n");
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for number in 0..=RUNS {
        let latency = |spec| measured(spec, trace(64, 20_000, 6_000), Pacing::Arrivals).latency_us;
        let [before, after] = [latency(&without), latency(&with)];
        eprintln!(
            "veth run {number}: p50 {:.1} us, {:.1} with the function; p99 {:.1}, {:.1}",
            before.p50, after.p50, before.p99, after.p99
        );
        if number > 0 {
            p50.push(after.p50 - before.p50);
            p99.push(after.p99 - before.p99);
        }
    }
    firewall("down");
    print("external/veth/added-us-p50".to_owned(), "us", p50);
    print("external/veth/added-us-p99".to_owned(), "us", p99);
}

/// Ends of the veth pair.
const ENDS: [&str; 2] = ["tw-bench0", "tw-bench1"];

/// Runs `ip`. Returns `true` on success.
fn ip(line: &str) -> bool {
    let output = Command::new("ip").args(line.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Sets up a veth pair on which the kernel sends nothing itself. Returns `true` on success.
fn veth_pair() -> bool {
    let [one, other] = ENDS;
    ip(&format!("link del {one}"));
    let added = ip(&format!("link add {one} type veth peer name {other}"));
    added
        && ENDS.iter().all(|end| {
            let quiet = format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6");
            std::fs::write(quiet, "1").is_ok() && ip(&format!("link set {end} up"))
        })
}

fn main() {
    const SIZES: [(&str, u16); 2] = [("64B", 64), ("1024B", 1024)];
    let [one, other] = ENDS;
    if cfg!(feature = "dpdk") {
        for size in SIZES {
            added_time("net_ring", size, |number| format!("port: net_ring{number}{}", size.1));
        }
    }
    if veth_pair() {
        for size in SIZES {
            added_time("interface", size, |_| {
                format!("port: interface={one}, returnPort: interface={other}")
            });
            if cfg!(feature = "dpdk") {
                added_time("net_af_packet", size, |number| {
                    let device = |end: usize| format!("net_af_packet{}{number}{end},iface={}", size.1, ENDS[end]);
                    format!("port: '{}', returnPort: '{}'", device(0), device(1))
                });
            }
        }
        ip(&format!("link del {one}"));
    } else {
        eprintln!("external/interface: left out: no veth pair can be set up");
    }
    added_latency();
}
