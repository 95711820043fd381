//! Chains beside other programs that do the same, on the same device, traffic and core.
//!
//! `make bench-peers [PEERS="forward --runs 3 --flows 10k --sizes tcp-udp-64B"]` prints one JSON line per pair,
//! `peers/CHAIN/SIZE/FLOWS/PEER/ratio`: packets per second of `tailwater run` over the peer's, the median of pairs of
//! consecutive runs. Each run is a process. `TAILWATER`, `TESTPMD`, `L3FWD`, `FASTCLICK` are paths of programs, and
//! `PEERS_DEVICE` that of `device.c`'s library; `tools/peers.sh` builds what it can. Rows of a peer that is missing are
//! left out, with the reason on standard error.
//!
//! The device is `net_null`, whose packets `device.c` overwrites with the traffic: a copy, as by a NIC. It counts the
//! received packets and the processor time of the polling thread, so a core taken by others matters less.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
#[path = "../cases/mod.rs"]
mod cases;
mod frames;
#[allow(dead_code, reason = "other benchmarks use the rest of it")]
#[path = "../library/mod.rs"]
mod library;
mod programs;
#[path = "../routes/mod.rs"]
mod routes;

use cases::{Arguments, EXAMPLES, short, table_of};
use programs::{Peer, rules_file};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::{available, default_core};

/// Chains that some peer does.
const CHAINS: &[&str] = &[
    "forward",
    "router",
    "acl-uncached",
    "nat",
    "accounting",
    "load-balancer",
];
/// Packets before the measurement, and in it.
const WARM_UP: u64 = 4_000_000;
const PACKETS: u64 = 20_000_000;
/// Time until a run must have ended. `l3fwd` inserts its routes for some seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Peers of a chain.
fn peers(chain: &str) -> &'static [Peer] {
    match chain {
        "forward" => &[
            Peer::Testpmd {
                mode: "io",
                burst: "32",
            },
            Peer::Testpmd {
                mode: "io",
                burst: "64",
            },
            Peer::Testpmd {
                mode: "macswap",
                burst: "32",
            },
            Peer::FastClick {
                configuration: "forward",
            },
        ],
        "router" => &[
            Peer::L3fwd { lookup: "lpm" },
            Peer::FastClick {
                configuration: "router",
            },
        ],
        "acl-uncached" => &[Peer::L3fwd { lookup: "acl" }],
        "nat" => &[Peer::FastClick { configuration: "nat" }],
        "accounting" => &[Peer::FastClick {
            configuration: "accounting",
        }],
        _ => &[Peer::FastClick {
            configuration: "load-balancer",
        }],
    }
}

/// Figures of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    mpps: f64,
    /// Share of received packets that were sent.
    sent: f64,
}

/// Set-up common to all runs.
struct Bench {
    folder: PathBuf,
    tailwater: PathBuf,
    device: PathBuf,
    core: usize,
    other_core: usize,
}

impl Bench {
    /// Runs a program until it has processed the packets. Returns the reason if it does not.
    fn run(&self, mut command: Command, frames: &Path) -> Result<Run, String> {
        let (result, log) = (self.folder.join("result"), self.folder.join("log"));
        let _ = std::fs::remove_file(&result);
        let file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::piped()).stdout(file).stderr(errors);
        command
            .env("LD_PRELOAD", &self.device)
            .env("PEERS_FRAMES", frames)
            .env("PEERS_RESULT", &result);
        command
            .env("PEERS_WARM_UP", WARM_UP.to_string())
            .env("PEERS_PACKETS", PACKETS.to_string());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let start = Instant::now();
        let mut ended = false;
        while !result.exists() && !ended && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(20));
            ended = child.try_wait().is_ok_and(|status| status.is_some());
        }
        // Ends one that still runs.
        let _ = child.kill();
        let _ = child.wait();
        let text = std::fs::read_to_string(&result).map_err(|_| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(4).collect();
            format!(
                "no result of {command:?}: {}",
                last.into_iter().rev().collect::<Vec<_>>().join(" / ")
            )
        })?;
        let numbers: Vec<f64> = text
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        let [packets, nanoseconds, sent] = numbers[..] else {
            return Err(format!("unexpected result {text}"));
        };
        if sent < packets * 0.9 {
            return Err(format!("{command:?} sent {sent} of {packets} packets"));
        }
        Ok(Run {
            mpps: packets * 1e3 / nanoseconds,
            sent: sent / packets,
        })
    }

    /// Writes the chain's spec, with absolute names of files.
    fn chain(&self, chain: &str, flows: u32) -> PathBuf {
        let functions = cases::functions(chain, flows).unwrap_or_else(|| panic!("no functions of {chain}"));
        let functions = functions.replace("rulesFile: ", &format!("rulesFile: {EXAMPLES}/"));
        let path = self.folder.join(format!("{chain}.yaml"));
        write(&path, &cases::spec_text(chain, &functions, flows));
        path
    }

    /// Measures a chain with its peers, in turn.
    fn measure(&self, chain: &str, size: &str, flows: u32, runs: usize) {
        let is_there = |peer: &&Peer| match peer.find() {
            Err(why) => {
                eprintln!("{chain}: no rows of {}: {why}", peer.name());
                false
            }
            Ok(_) if !peer.takes(size) => {
                eprintln!(
                    "{chain}/{size}: no row of {}, which does not do this traffic",
                    peer.name()
                );
                false
            }
            Ok(_) => true,
        };
        let peers: Vec<Peer> = peers(chain).iter().filter(is_there).copied().collect();
        if peers.is_empty() {
            return;
        }
        let spec = self.chain(chain, flows);
        let frames = self.folder.join("frames");
        let trace = cases::traffic::trace(chain, size, flows, cases::trace_packets(chain, flows));
        frames::write(&trace, &frames).unwrap_or_else(|error| panic!("{}: {error}", frames.display()));
        drop(trace);
        let mut pairs: Vec<Vec<[Run; 2]>> = vec![Vec::new(); peers.len()];
        for run in 0..runs {
            for (peer, pairs) in peers.iter().zip(&mut pairs) {
                let own = self.run(programs::tailwater(&self.tailwater, &spec, self.core), &frames);
                let command = peer.command(self.core, self.other_core, &self.folder);
                let other = command.and_then(|command| self.run(command, &frames));
                eprintln!(
                    "{chain}/{size}/{} run {run}: {own:?}, {} {other:?}",
                    short(flows),
                    peer.name()
                );
                if let (Ok(own), Ok(other)) = (own, other) {
                    pairs.push([own, other]);
                }
            }
        }
        for (peer, pairs) in peers.iter().zip(&pairs).filter(|(_, pairs)| !pairs.is_empty()) {
            let name = format!("peers/{chain}/{size}/{}/{}/ratio", short(flows), peer.name());
            print(&name, *peer, pairs, table_of(chain).map(|table| table.name));
        }
    }
}

/// Median, least and greatest value.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    [values[values.len() / 2], values[0], values[values.len() - 1]].map(rounded)
}

fn print(name: &str, peer: Peer, pairs: &[[Run; 2]], table: Option<&str>) {
    let [value, min, max] = spread(pairs.iter().map(|[own, peer]| own.mpps / peer.mpps));
    let of = |which: usize| spread(pairs.iter().map(|pair| pair[which].mpps));
    let sent = |which: usize| spread(pairs.iter().map(|pair| pair[which].sent))[0];
    let mut line = serde_json::json!({
        "name": name, "value": value, "unit": "ratio", "min": min, "max": max, "runs": pairs.len(),
        "tailwater_mpps": of(0), "peer_mpps": of(1), "tailwater_sent": sent(0), "peer_sent": sent(1),
        "peer_does_not": peer.does_not(),
    });
    if let Some(table) = table {
        line["table"] = table.into();
    }
    println!("{line}");
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Configuration of FastClick with routes to its only output.
fn router_click(routes: &str) -> String {
    format!(
        "FromDPDKDevice(0, BURST 32, NDESC 1024, PROMISC true) -> MarkMACHeader -> Strip(14)\n    \
         -> CheckIPHeader(CHECKSUM false) -> DirectIPLookup({}) -> DecIPTTL\n    \
         -> EtherEncap(0x0800, 02:00:00:00:00:01, 02:00:00:00:01:00)\n    \
         -> ToDPDKDevice(0, BURST 32, NDESC 1024, BLOCKING false);\n",
        routes.trim_end_matches(',')
    )
}

/// Writes the routes and rules of `l3fwd`: the same as those of the chains.
fn write_rules(folder: &Path) {
    let (mut v4, mut v6) = (String::new(), String::new());
    let routes = std::fs::read_to_string(&routes::table().file).unwrap_or_else(|error| panic!("{error}"));
    for prefix in routes.lines().filter(|line| line.contains('/')) {
        let text = if prefix.contains(':') { &mut v6 } else { &mut v4 };
        let _ = writeln!(text, "R{} 0", prefix.split_whitespace().next().unwrap_or_default());
    }
    write(&rules_file(folder, "lpm", 4), &v4);
    write(&rules_file(folder, "lpm", 6), &v6);
    let routes: Vec<String> = v4.lines().map(|route| format!("{},", &route[1..])).collect();
    write(&folder.join("router.click"), &router_click(&routes.concat()));
    let rules = std::fs::read_to_string(Path::new(EXAMPLES).join("rules/acl-1500.rules"));
    let rules = rules.unwrap_or_else(|error| panic!("{error}"));
    let mut text = String::new();
    for rule in rules.lines().filter(|line| line.starts_with('@')) {
        // Without the column of TCP flags.
        let columns: Vec<&str> = rule.split('\t').take(5).collect();
        // The rules allow, which to `l3fwd` is a route: rules with `@` drop.
        let _ = writeln!(text, "R{} 0", &columns.join(" ")[1..]);
    }
    text.push_str("R0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0\n");
    write(&rules_file(folder, "acl", 4), &text);
    write(
        &rules_file(folder, "acl", 6),
        "R0:0:0:0:0:0:0:0/0 0:0:0:0:0:0:0:0/0 0 : 65535 0 : 65535 0x00/0x00 0\n",
    );
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test --benches` has nothing to check here.
        return;
    }
    let arguments = Arguments::read(CHAINS, &["64B", "tcp-udp-64B", "mixed-64B"], &[10_000, 1_000_000]);
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(tailwater), Some(device)) = (path("TAILWATER"), path("PEERS_DEVICE")) else {
        eprintln!("no figures: TAILWATER and PEERS_DEVICE are not set: run `make bench-peers`");
        return;
    };
    if std::env::var_os("VPP").is_some() {
        eprintln!("no rows of VPP: it has DPDK linked into its plugin, so the device cannot be put below it");
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("peers");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    write_rules(&folder);
    let core = default_core();
    let other_core = available().into_iter().find(|&other| other != core).unwrap_or(core);
    let bench = Bench {
        folder,
        tailwater,
        device,
        core,
        other_core,
    };
    for chain in arguments.chains() {
        for size in &arguments.sizes {
            for &flows in &arguments.flows {
                bench.measure(chain, size, flows, arguments.runs);
            }
        }
    }
}
