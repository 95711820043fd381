//! Latency objectives of isolated functions, and their interference with another chain whose function crashes
//! repeatedly. Uses the program as an operator does, with confined functions.
//!
//! `cargo bench -p tailwater --bench isolation_slo [-- --runs N]`, as root, prints a JSON line per figure: the median
//! of `runs` rounds with minimum and maximum. In each round every row is run in turn, on the last core. Meanwhile the
//! kernel reserves no time of the core for other than real-time programs (`kernel.sched_rt_runtime_us`).
//!
//! - `isolation/slo/WAY/capacity`: capacity of an `acl`, `urlFilter`, `encrypt` chain, Mpps; WAY is `one-process` or
//!   `isolated`;
//! - `isolation/slo/WAY/p50`, `/p99`, `/p99.9`, `/loss`, `/kept`: the same chain on evenly spaced packets at 60 % of
//!   that, with an objective of 200 µs at p99: latencies over all packets, µs; the loss ratio; the share of rounds that
//!   met it;
//! - `isolation/slo/WAY/p99-window`: p99 of the median window of 100 ms, that is, without CPU interference;
//! - `isolation/crash-loop/alone/...` and `.../beside/...`: the isolated chain at 60 % of its capacity alone, and while
//!   another run on the other core, at ordinary priority, has a function that crashes on every packet.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tailwater_dataplane::cores;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{PacketSource, PcapWriter};

/// Offered load as a share of the chain's capacity.
const LOAD: f64 = 0.6;

/// Source of a function that crashes on its first packet.
const CRASHES: &str = "#include <stdlib.h>\n#include <tailwater_nf.h>\n\
    static int process(void *instance, struct tw_batch *batch) {\n\
    (void)instance; if (batch->count) abort(); return 0; }\n\
    const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = \"crashes\", .process = process};\n";

/// Directory with chains and traffic, removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("tailwater-slo-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let examples = here.join("../../examples").canonicalize().unwrap();
        let examples = examples.display();
        folder.chain(
            "chain",
            &format!(
                "[{{acl: {{rulesFile: {examples}/rules/acl-1500.rules, matchAction: allow, default: allow}}}}, \
                 {{urlFilter: {{patternsFile: {examples}/patterns/blocked.txt}}}}, \
                 {{encrypt: {{key: {}, mtu: 1508, midstream: encrypt}}}}]",
                "0f".repeat(32)
            ),
        );
        let source = folder.0.join("crashes.c");
        std::fs::write(&source, CRASHES).unwrap();
        let built = Command::new("cc")
            .args(["-std=c11", "-O2", "-fPIC", "-shared", "-I"])
            .arg(here.join("../sdk/include"))
            .arg("-o")
            .args([folder.0.join("crashes.so"), source])
            .status();
        assert!(built.unwrap().success(), "cc failed");
        folder.chain("crashes", "[{library: {file: crashes.so}}]");
        let mut packets = Uniform::new(UniformConfig {
            seed: 1,
            flows: 10_000,
            size: FrameSize::Imix,
            transport: Transport::Tcp,
            rate_pps: 100_000,
            packets: 400_000,
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
             functions: {functions}\n  slo: {{latency: 200us, percentile: 99}}\n"
        );
        std::fs::write(self.0.join(format!("{name}.yaml")), text).unwrap();
    }

    fn command(&self, chain: &str, core: usize, way: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command
            .current_dir(&self.0)
            .args(["run", &format!("{chain}.yaml"), "--traffic", "traffic.pcap"])
            .args(["--output", "json", "--window", "100ms", "--isolation", way])
            .args(["--cores", &core.to_string()]);
        command
    }

    fn run(&self, way: &str, core: usize, more: &[&str]) -> Value {
        let output = self
            .command("chain", core, way)
            .args(more)
            .stderr(Stdio::inherit())
            .output();
        let output = output.unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// A second run in parallel, ended when dropped.
struct BackgroundRun(Child);

impl Drop for BackgroundRun {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Disables real-time throttling by the kernel until dropped.
struct NotThrottled(Option<String>);

const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

impl NotThrottled {
    fn new() -> NotThrottled {
        let before = std::fs::read_to_string(THROTTLE).ok();
        NotThrottled(before.filter(|_| std::fs::write(THROTTLE, "-1").is_ok()))
    }
}

impl Drop for NotThrottled {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = std::fs::write(THROTTLE, before);
        }
    }
}

/// Row of figures, with a value per round.
#[derive(Default)]
struct Row {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn add(&mut self, name: String, unit: &'static str, value: f64) {
        let row = match self.0.iter_mut().find(|row| row.name == name) {
            Some(row) => row,
            None => {
                self.0.push(Row {
                    name,
                    unit,
                    values: Vec::new(),
                });
                self.0.last_mut().unwrap()
            }
        };
        row.values.push(value);
    }

    fn add_run(&mut self, name: &str, report: &Value) {
        let number = |value: &Value| value.as_f64().unwrap();
        for (figure, unit, field) in [("p50", "us", "p50"), ("p99", "us", "p99"), ("p99.9", "us", "p999")] {
            let value = number(&report["latency_us"][field]);
            self.add(format!("{name}/{figure}"), unit, value);
        }
        let median = number(&report["windows"]["median_latency_us"]["p99"]);
        self.add(format!("{name}/p99-window"), "us", median);
        self.add(format!("{name}/loss"), "share", number(&report["loss_rate"]));
        let kept = f64::from(u8::from(report["slo_met"] == true));
        self.add(format!("{name}/kept"), "share", kept);
    }

    fn print(mut self) {
        for row in &mut self.0 {
            row.values.sort_by(f64::total_cmp);
            let runs = row.values.len();
            let value = match row.name.ends_with("/kept") {
                true => row.values.iter().sum::<f64>() / runs as f64,
                false => row.values[runs / 2],
            };
            let figure = serde_json::json!({
                "name": format!("isolation/{}", row.name), "value": value, "unit": row.unit,
                "min": row.values[0], "max": row.values[runs - 1], "runs": runs,
            });
            println!("{figure}");
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--runs");
    let runs = arguments.nth(1).map_or(5, |runs| runs.parse().unwrap());
    let folder = Folder::new();
    let _not_throttled = NotThrottled::new();
    let cores = cores::available();
    let core = *cores.last().unwrap();
    let mut table = Table::default();
    for round in 0..runs {
        eprintln!("round {} of {runs}", round + 1);
        let mut rate = String::new();
        for (name, way) in [("one-process", "none"), ("isolated", "process")] {
            let report = folder.run(way, core, &["--saturate", "--duration", "1s"]);
            let capacity = report["throughput_mpps"].as_f64().unwrap();
            table.add(format!("slo/{name}/capacity"), "Mpps", capacity);
            rate = format!("{:.0}", capacity * LOAD * 1e6);
            let report = folder.run(way, core, &["--rate", &rate]);
            table.add_run(&format!("slo/{name}"), &report);
        }
        let [other, ..] = cores[..] else { continue };
        if other == core {
            continue;
        }
        let more = ["--rate", &*rate];
        let report = folder.run("process", core, &more);
        table.add_run("crash-loop/alone", &report);
        // Without real-time priority, and so without confinement: otherwise nothing else would run on a machine of two
        // cores.
        let crashing = folder.command("crashes", other, "process");
        let beside = Command::new("setpriv")
            .current_dir(&folder.0)
            .args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", "--"])
            .arg(crashing.get_program())
            .args(crashing.get_args())
            .args(["--isolation-without", "all", "--rate", "10000", "--duration", "60s"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let _beside = BackgroundRun(beside.unwrap());
        let report = folder.run("process", core, &more);
        table.add_run("crash-loop/beside", &report);
    }
    table.print();
}
