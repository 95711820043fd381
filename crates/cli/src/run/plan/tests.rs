//! Conflicts of arguments and spec, each with its message. Cores need not exist, and no test needs root.

use super::*;
use crate::values::Cores;
use clap::Parser;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    run: RunArgs,
}

/// Directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-plan-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A chain, by its functions and further lines of its spec.
#[derive(Clone, Copy)]
struct Chain {
    functions: &'static str,
    rest: &'static str,
}

const FORWARD: Chain = chain("{forward: }", "");

const fn chain(functions: &'static str, rest: &'static str) -> Chain {
    Chain { functions, rest }
}

/// Parses arguments. `DIR` is the folder. Lists of cores are not checked against the machine's.
fn arguments(folder: &Path, line: &str) -> RunArgs {
    let folder = folder.display().to_string();
    let (mut cores, mut auxiliary) = (None, None);
    let mut rest = vec!["run".to_owned(), format!("{folder}/chain.yaml")];
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        let list = match word {
            "--cores" => &mut cores,
            "--auxiliary" => &mut auxiliary,
            _ => {
                rest.push(word.replace("DIR", &folder));
                continue;
            }
        };
        let numbers = words.next().unwrap().split(',').map(|core| core.parse().unwrap());
        *list = Some(Cores(numbers.collect()));
    }
    let args = Command::try_parse_from(rest)
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .run;
    RunArgs {
        cores,
        auxiliary,
        ..args
    }
}

/// Plans a run of a chain with these arguments, in this folder.
fn planned(folder: &Folder, line: &str, chain: Chain) -> Result<Plan, CliError> {
    let Chain { functions, rest } = chain;
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 200us}}\n  functions: [{functions}]\n{rest}"
    );
    let path = folder.0.display().to_string();
    std::fs::write(folder.0.join("chain.yaml"), text.replace("DIR", &path)).unwrap();
    plan(&arguments(&folder.0, line))
}

/// Checks each row: arguments, chain, and the end of the message.
fn refused(rows: &[(&str, Chain, &str)]) {
    for (line, chain, expected) in rows {
        let folder = Folder::new();
        let expected = expected.replace("DIR", &folder.0.display().to_string());
        let error = planned(&folder, line, *chain).expect_err(line);
        let message = error.to_string();
        assert!(message.ends_with(&expected), "{line}: {message}");
        assert_eq!(
            format!("{:?}", error.exit_code()),
            format!("{:?}", std::process::ExitCode::from(crate::error::BAD_INPUT)),
            "{line}: {message}"
        );
    }
}

#[test]
fn a_plan_has_what_the_arguments_say() {
    let folder = Folder::new();
    let line = "--cores 3,5 --window 20ms --capture-out DIR/sent.pcap --seed 7 --ring 64 --duration 2s";
    let plan = planned(&folder, line, FORWARD).unwrap();
    let config = plan.run.config();
    assert_eq!(config.cores, [3, 5]);
    assert_eq!(config.window, Nanos::from_millis(20));
    assert_eq!(config.capture_out, Some(folder.0.join("sent.pcap")));
    assert_eq!(config.seed, 7);
    assert_eq!((config.nic.ring, config.nic.pacing), (64, Pacing::Arrivals));
    assert!(config.isolation.is_none() && config.scaling.is_none() && config.server.is_none());
    let Source::Traffic(traffic) = &plan.source else {
        panic!("{:?}", plan.source);
    };
    assert_eq!(traffic.duration, Some(Nanos::from_secs(2)));
    assert!(matches!(traffic.traffic, Traffic::Preset(_)) && !traffic.saturate);
    // Planning leaves no file behind.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn defaults_are_one_core_and_a_preset() {
    let plan = planned(&Folder::new(), "--saturate", FORWARD).unwrap();
    let config = plan.run.config();
    assert_eq!(config.cores, [tailwater_dataplane::cores::default_core()]);
    assert_eq!((config.nic.ring, config.nic.pacing), (RING as usize, Pacing::Saturate));
    assert_eq!(plan.mapping.policy.name(), "static");
    let offloading = planned(&Folder::new(), "--cores 1 --auxiliary 0", FORWARD).unwrap();
    assert_eq!(offloading.mapping.policy.name(), "tailwater");
    assert!(offloading.mapping.needs_profile() && !offloading.mapping.moves_buckets());
}

#[test]
fn cores_and_policy() {
    const NO_DECISIONS: &str = "makes no decisions without --auxiliary or several --cores";
    refused(&[
        (
            "--cores 0,1 --auxiliary 2,1",
            FORWARD,
            "core 1 is both in --cores and in --auxiliary: a dedicated core cannot also be an auxiliary core",
        ),
        (
            "--cores 0 --policy rss++",
            FORWARD,
            "--policy rss++ moves RSS buckets between dedicated cores: set two or more with --cores",
        ),
        (
            "--cores 0 --policy tailwater",
            FORWARD,
            "--policy tailwater offloads packets to auxiliary cores, and moves RSS buckets between dedicated ones: set \
             --auxiliary, or two or more cores with --cores",
        ),
        (
            "--cores 0,1 --policy rss++ --saturate",
            FORWARD,
            "--saturate: --policy rss++ makes no decisions, since packets are generated on demand and do not queue",
        ),
        ("--cores 0 --record DIR/run.decisions", FORWARD, NO_DECISIONS),
        (
            "--cores 0 --auxiliary 1 --policy static --record DIR/run.decisions",
            FORWARD,
            NO_DECISIONS,
        ),
        (
            "--cores 0 --profile DIR/none.yaml",
            FORWARD,
            "--profile: --policy static uses no profile in this run",
        ),
        (
            "--cores 0 --auxiliary 1 --profile DIR/none.yaml",
            FORWARD,
            "DIR/none.yaml: cannot be read: No such file or directory (os error 2)",
        ),
    ]);
}

#[cfg(feature = "redis")]
#[test]
fn flow_state_in_redis() {
    let stored = chain(
        "{nat: {external: [203.0.113.0/28]}}",
        "  state: {redis: {socket: DIR/redis.sock}}\n",
    );
    refused(&[
        (
            "--cores 0 --auxiliary 1 --policy netblaze",
            stored,
            "spec.state: auxiliary cores use flow state in Redis only with a policy that offloads RSS buckets: \
             expected --policy tailwater, found one that offloads flows",
        ),
        (
            "--cores 0 --auxiliary 1 --isolation process",
            stored,
            "spec.state: isolated functions cannot keep flow state in Redis on auxiliary cores: remove --auxiliary, or \
             set --isolation none",
        ),
    ]);
    planned(&Folder::new(), "--cores 0,1", stored).unwrap();
    planned(&Folder::new(), "--cores 0 --auxiliary 1", stored).unwrap();
}

#[test]
fn ports() {
    let matching = chain("{forward: }", "  match: {protocols: [tcp]}\n");
    refused(&[
        (
            "--no-promiscuous",
            FORWARD,
            "--no-promiscuous applies to ports only: set one with --port or in the spec",
        ),
        (
            "--nap 1ms",
            FORWARD,
            "--nap applies to ports only: set one with --port or in the spec",
        ),
        (
            "--port net_null0 --port net_null1 --port net_null2",
            FORWARD,
            "--port: expected one port, or an entry port and an exit port",
        ),
        (
            "--port net_null0 --port net_null0",
            FORWARD,
            "--port: expected two different devices, found the same one twice; with one --port, packets leave through \
             the port they arrived at",
        ),
        (
            "--port net_null0 --rate 1000",
            FORWARD,
            "--rate and --rate-scale apply to traffic from a file or preset, not from ports",
        ),
        (
            "--port net_null0",
            matching,
            "spec.match: not supported on ports, where a chain processes all received packets; remove it, and filter \
             in the NIC or switch",
        ),
    ]);
    refused(&[(
        "--port interface=a --port net_null0",
        FORWARD,
        "--port: expected two ports of one kind, found \"interface=a\" and \"net_null0\": either both interface=NAME, \
         or both of DPDK",
    )]);
    let built_without = "this program was built without DPDK ports: cargo build --release --features dpdk (which needs \
                         DPDK: make deps); for a kernel interface write interface=NAME";
    match cfg!(feature = "dpdk") {
        false => refused(&[("--port net_null0", FORWARD, built_without)]),
        true => refused(&[(
            "--port net_null0 --ring 65536",
            FORWARD,
            "--ring: expected at most 65535 descriptors for ports, found 65536",
        )]),
    }
}

#[test]
fn external_functions() {
    let external = chain("{name: fw, external: {port: net_fw0, timeout: 1ms}}", "");
    let kernel = chain("{name: fw, external: {port: interface=in}}", "");
    let numbered = chain("{name: fw, external: {port: interface=in%d}}", "");
    let both = chain(
        "{name: fw, external: {port: interface=in}}, {name: ids, external: {port: net_ids0}}",
        "",
    );
    refused(&[
        (
            "--cores 0,1",
            external,
            "function fw is external, and 2 cores cannot share port net_fw0: set one core with --cores, or give each \
             core an interface: port: interface=NAME%d, where %d is 0, 1, ...",
        ),
        (
            "--cores 0,1",
            kernel,
            "function fw is external, and 2 cores cannot share port interface=in: set one core with --cores, or give \
             each core an interface: port: interface=in%d, where %d is 0, 1, ...",
        ),
        (
            "--cores 0 --auxiliary 1",
            kernel,
            "function fw is external: its packets cannot be offloaded; remove --auxiliary",
        ),
        (
            "--cores 0,1 --policy tailwater",
            numbered,
            "--policy tailwater: the flows of external function fw cannot move between cores; use --policy static",
        ),
        (
            "",
            both,
            "function ids has DPDK ports and function fw kernel interfaces: expected ports of one kind for all \
             external functions of a chain",
        ),
    ]);
    for (args, text) in [("", kernel), ("--cores 0,1", numbered), ("--cores 0", numbered)] {
        planned(&Folder::new(), args, text).unwrap();
    }
}

#[test]
fn isolation_of_functions() {
    let exporting = chain("{accounting: {export: {file: DIR/flows.csv}}}", "");
    let nat = chain("{forward: }, {nat: {external: [203.0.113.0/28]}}", "");
    refused(&[
        (
            "--isolation-overhead 5",
            FORWARD,
            "--isolation-overhead requires --isolation process or container",
        ),
        (
            "--isolation-without root",
            FORWARD,
            "--isolation-without requires --isolation process or container",
        ),
        (
            "--isolation-except forward",
            FORWARD,
            "--isolation-except requires --isolation process or container",
        ),
        (
            "--isolation container --isolation-without all",
            FORWARD,
            "--isolation container: container defences cannot be disabled: expected --isolation process with \
             --isolation-without all",
        ),
        (
            "--isolation process --isolation-without all --isolation-except other",
            FORWARD,
            "--isolation-except: expected a function of the chain, found other",
        ),
        (
            "--isolation process --isolation-without all --isolation-except nat",
            nat,
            "--isolation-except: expected a function with shared state or an export, which prevents isolation, found \
             nat",
        ),
        (
            "--isolation process --isolation-without all --cores 0,1",
            exporting,
            "--isolation: accounting: export requires a single process: remove it, or run on one core",
        ),
    ]);
    let plan = planned(
        &Folder::new(),
        "--isolation process --isolation-without all --isolation-overhead 7",
        nat,
    )
    .unwrap();
    let isolation = plan.run.config().isolation.as_ref().unwrap();
    let functions: Vec<&str> = isolation.programs.iter().map(|program| &*program.function).collect();
    assert_eq!((functions, isolation.batch.overhead), (vec!["forward", "nat"], 0.07));
}

#[test]
fn isolation_of_the_spec() {
    const TRUSTED: &str = "  isolation: {mode: process, without: [all], overhead: 5}\n";
    let overhead = |line: &str, isolation: &'static str| {
        let plan = planned(&Folder::new(), line, chain("{forward: }", isolation)).unwrap();
        plan.run
            .config()
            .isolation
            .as_ref()
            .map(|isolation| isolation.batch.overhead)
    };
    assert_eq!(overhead("", TRUSTED), Some(0.05));
    assert_eq!(overhead("--isolation-overhead 7", TRUSTED), Some(0.07));
    assert_eq!(overhead("--isolation process", TRUSTED), Some(0.05));
    assert_eq!(overhead("--isolation none", TRUSTED), None);
    assert_eq!(overhead("", "  isolation: none\n"), None);
    let of_spec = |isolation| chain("{forward: }", isolation);
    refused(&[
        (
            "--cores 0 --auxiliary 1 --policy netblaze",
            of_spec(TRUSTED),
            "--policy netblaze: expected --profile, since none is measured of isolated functions",
        ),
        // A function that keeps one account for all cores is named, and nothing else is wrong with the chain.
        (
            "--cores 0 --auxiliary 1",
            chain("{accounting: }, {dnsGuard: {limits: {responses: 20}}}", TRUSTED),
            "--auxiliary: isolated function dnsGuard cannot run on auxiliary cores: it counts responses and queries of \
             all cores together; remove --auxiliary, or set --isolation none",
        ),
        (
            "--cores 0 --auxiliary 1",
            chain(
                "{accounting: }, {name: told, accounting: {export: {file: DIR/told.csv}}}",
                TRUSTED,
            ),
            "--auxiliary: isolated function told cannot run on auxiliary cores: it exports from a single process; \
             remove --auxiliary, or set --isolation none",
        ),
        (
            "",
            of_spec("  isolation: {mode: process, without: [all], except: [other]}\n"),
            "spec.isolation.except[0]: expected a function of the chain, found other",
        ),
        (
            "--isolation-without all",
            of_spec("  isolation: container\n"),
            "spec.isolation container: container defences cannot be disabled: expected spec.isolation process with \
             --isolation-without all",
        ),
    ]);
}

#[test]
fn outputs() {
    let exporting = chain("{accounting: {export: {file: DIR/flows.csv}}}", "");
    refused(&[
        (
            "--report DIR/chain.yaml",
            FORWARD,
            "--report: DIR/chain.yaml would overwrite the input DIR/chain.yaml",
        ),
        (
            "--report DIR/missing/report.html",
            FORWARD,
            "--report: DIR/missing/report.html: cannot write: No such file or directory (os error 2)",
        ),
        (
            "--report DIR/out --capture-out DIR/out",
            FORWARD,
            "--report and --capture-out are both DIR/out",
        ),
        (
            "--cores 0,1 --policy netblaze-on-demand-rss --record DIR/out --report DIR/out",
            FORWARD,
            "--record and --report are both DIR/out",
        ),
        (
            "--cores 0,1 --policy netblaze-on-demand-rss --record DIR/out --capture-out DIR/out",
            FORWARD,
            "--record and --capture-out are both DIR/out",
        ),
        (
            "--report DIR/flows.csv",
            exporting,
            "DIR/flows.csv is also written by --report",
        ),
    ]);
}

#[test]
fn traffic_has_a_name() {
    let folder = Folder::new();
    let error = planned(&folder, "--traffic burtsy", FORWARD).unwrap_err().to_string();
    assert!(error.contains("did you mean \"bursty\"?"), "{error}");
}
