//! Time from the start of `tailwater run` to its first packet.
//!
//! `cargo bench -p tailwater --bench start [-- --runs N]` prints a JSON line per row: the median of `runs` starts (9)
//! with minimum and maximum, in milliseconds. Rows take turns. The time ends when the first packet arrives at a worker
//! that waits for it; the longest latency of the run's few packets is added, so that they have been processed by then.
//!
//! - `start/forward`: a chain without tables, the floor;
//! - `start/acl-router`: 1,500 access rules and a full BGP table of 1,062,046 prefixes. Left out without
//!   `TAILWATER_TEST_DATA`.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{PacketSource, PcapWriter};

/// Default number of starts.
const RUNS: usize = 9;

/// Full BGP table below the folder of test data.
const FULL_TABLE: &str = "prefixes/bgp_fulltable_2023-12_iprbench.txt.xz";

/// Directory with chains and traffic, removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new() -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("tailwater-start-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        let mut packets = Uniform::new(UniformConfig {
            seed: 1,
            flows: 100,
            size: FrameSize::Fixed(64),
            transport: Transport::Udp,
            rate_pps: 100_000,
            packets: 1_000,
        })
        .unwrap();
        let mut writer = PcapWriter::create(folder.0.join("traffic.pcap")).unwrap();
        while let Some(packet) = packets.next_packet().unwrap() {
            writer.write(&packet).unwrap();
        }
        writer.finish().unwrap();
        folder
    }

    fn chain(&self, name: &str, functions: &str) {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  \
             functions: {functions}\n  slo: {{latency: 100us, percentile: 99}}\n"
        );
        std::fs::write(self.0.join(format!("{name}.yaml")), text).unwrap();
    }

    /// Starts the program, and returns the milliseconds until the first packet was processed.
    fn start(&self, chain: &str) -> f64 {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tailwater"))
            .current_dir(&self.0)
            .args(["run", &format!("{chain}.yaml"), "--traffic", "traffic.pcap"])
            .args(["--output", "json"])
            .stderr(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{chain}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["packets"]["lost"], 0, "{chain}");
        let began = report["began_us"].as_f64().unwrap();
        let latency = report["latency_us"]["max"].as_f64().unwrap();
        (began + latency) / 1e3 - before.as_secs_f64() * 1e3
    }
}

/// Writes the full BGP table as a routes file. Returns `false` if there is no test data.
fn write_full_table(to: &Path) -> bool {
    let Some(data) = std::env::var_os("TAILWATER_TEST_DATA") else {
        return false;
    };
    let packed = Path::new(&data).join(FULL_TABLE);
    let output = Command::new("xz").arg("-dc").arg(packed).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return false;
    };
    std::fs::write(to, output.stdout).unwrap();
    true
}

/// Number of starts: the argument after `--runs`.
fn runs() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--runs").skip(1);
    arguments
        .next()
        .map_or(RUNS, |runs| runs.parse().expect("--runs: expected a number"))
}

fn main() {
    let folder = Folder::new();
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules/acl-1500.rules");
    let rules = rules.canonicalize().unwrap();
    folder.chain("forward", "[{forward: {}}]");
    let mut chains = vec!["forward"];
    if write_full_table(&folder.0.join("bgp.routes")) {
        let functions = format!(
            "[{{acl: {{rulesFile: {}, matchAction: allow, default: allow}}}}, {{ipForward: {{routesFile: bgp.routes, \
             sourceMac: '02:00:00:00:00:01', nextHops: [{{name: core, mac: '02:00:00:00:01:01'}}, \
             {{name: east, mac: '02:00:00:00:01:02'}}], default: core}}}}]",
            rules.display()
        );
        folder.chain("acl-router", &functions);
        chains.push("acl-router");
    } else {
        eprintln!("start/acl-router left out: TAILWATER_TEST_DATA has no {FULL_TABLE}");
    }
    let runs = runs();
    let mut times = vec![Vec::new(); chains.len()];
    for _ in 0..runs {
        for (chain, times) in chains.iter().zip(&mut times) {
            times.push(folder.start(chain));
        }
    }
    for (chain, times) in chains.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let figure = json!({
            "name": format!("start/{chain}"), "value": times[runs / 2], "unit": "ms",
            "min": times[0], "max": times[runs - 1], "runs": runs,
        });
        println!("{figure}");
    }
}
