//! A server with many chains, as a user runs it.
#![cfg(feature = "control")]

mod common;

use common::chain_server::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tailwater_functions::spec::ChainSpec;
use tailwater_profile::fingerprint;
use tailwater_profile::profiles::Machine;

/// Checks that a chain's packets add up.
fn assert_books(chain: &Value) {
    let packets = &chain["report"]["packets"];
    let count = |name: &str| number(&packets[name]);
    let ended = count("delivered") + count("dropped_by_nf") + count("lost");
    assert_eq!(count("offered"), ended, "{packets}");
}

#[test]
fn chains_are_applied_changed_drained_and_reported() {
    let folder = Folder::new();
    folder.server("");
    folder.chain("first", "10.0.0.0/17", "{nat: {external: [198.19.255.0/28]}}");
    let serving = Serving::start(&folder);
    let delivered = |name: &str| {
        let chains = folder.chains();
        let found = chains["chains"]
            .as_array()
            .unwrap()
            .iter()
            .find(|chain| chain["name"] == name)
            .cloned();
        found.map_or(0, |chain| number(&chain["packets"]["delivered"]))
    };
    wait("packets of the first chain", || delivered("first") > 100);
    folder.write(
        "second.yaml",
        &chain(
            "second",
            "10.0.128.0/17",
            "{acl: {rules: [{action: allow, protocol: tcp}], default: allow}}",
        ),
    );
    assert!(folder.ok(&["apply", "-f", "second.yaml"]).contains("created"));
    wait("packets of the second chain", || delivered("second") > 100);
    // Rates of functions are known while the chain runs.
    let top = |chain: &str| folder.ok(&["top", "--once", "--interval", "400ms", "--chain", chain]);
    let mut screen = String::new();
    wait("the rates of a function", || {
        screen = top("second");
        screen.contains(" ns ")
    });
    let function = screen.lines().find(|line| line.starts_with("acl ")).unwrap();
    let packets = function.split_whitespace().nth(1).unwrap();
    assert!(
        packets.parse::<f64>().is_ok_and(|packets| packets > 0.0) || packets.ends_with('k'),
        "{screen}"
    );
    assert!(
        folder
            .ok(&["top", "--once", "--interval", "1ms"])
            .contains("2 of 2 chains run")
    );
    // So are the steps of a packet.
    let of_first = [
        "trace",
        "packets",
        "--chain",
        "first",
        "--count",
        "3",
        "--match",
        "src net 10.0.0.0/17",
    ];
    let traced = folder.ok(&[&of_first[..], &["--write", "trace.pcapng"]].concat());
    assert_eq!(
        traced.lines().filter(|line| line.starts_with("packet ")).count(),
        3,
        "{traced}"
    );
    assert_eq!(traced.matches("now ").count(), 3, "each is translated: {traced}");
    let info = common::tailwater()
        .args(["trace", "info", "--output", "json"])
        .arg(folder.0.join("trace.pcapng"))
        .output();
    let info: Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
    assert_eq!(number(&info["packets"]), 6);
    let lines = folder.ok(&[&of_first[..], &["-o", "json"]].concat());
    let steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        steps.iter().filter(|step| step["function"] == "nat").count(),
        3,
        "{lines}"
    );
    let fails = |arguments: &[&str], code| {
        let output = folder.run(&[arguments, &["--socket", "edge.sock"]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(fails(&["trace", "packets", "--chain", "none"], 1).contains("none"));
    let wrong = fails(&["trace", "packets", "--chain", "first", "--match", "port x"], 2);
    assert!(wrong.contains("filter: expected a port, found \"x\""), "{wrong}");
    let none = [
        "trace",
        "packets",
        "--chain",
        "first",
        "--match",
        "port 7 and port 8",
        "--for",
        "300ms",
    ];
    assert!(fails(&none, 1).contains("0 of 10 packets came in 300ms"));
    let before = delivered("second");
    // Other rules, without a new start: its counters go on.
    folder.write(
        "second.yaml",
        &chain(
            "second",
            "10.0.128.0/17",
            "{acl: {rules: [{action: deny, protocol: tcp}], default: deny}}",
        ),
    );
    assert!(folder.ok(&["apply", "-f", "second.yaml"]).contains("configured"));
    wait("packets that the second chain drops", || {
        let chains = folder.chains();
        let mut chains = chains["chains"].as_array().unwrap().iter();
        chains.any(|chain| chain["name"] == "second" && chain["packets"]["dropped"] != 0)
    });
    assert!(delivered("second") >= before);
    folder.ok(&["drain", "chain", "first"]);
    // A chain that contradicts another one is refused, and nothing changes.
    folder.write("third.yaml", &chain("third", "10.0.128.0/17", "{forward: }"));
    let refused = folder.run(&["apply", "-f", "third.yaml", "--socket", "edge.sock"]);
    assert_eq!(refused.status.code(), Some(2));
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    // In the order in which they ended: the first one may still be draining.
    let names: BTreeSet<&str> = chains.iter().filter_map(|chain| chain["name"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["first", "second"]));
    chains.iter().for_each(assert_books);
    let offered: u64 = chains
        .iter()
        .map(|chain| number(&chain["report"]["packets"]["offered"]))
        .sum();
    let port = &report["ports"][0];
    assert_eq!(
        number(&port["received"]),
        offered + number(&port["unmatched"]) + number(&port["lost"]),
        "{port}"
    );
    assert!(!folder.0.join("edge.sock").exists());
}

#[test]
fn a_killed_server_starts_again_with_what_was_applied() {
    let folder = Folder::new();
    folder.server("");
    let serving = Serving::start(&folder);
    folder.write("kept.yaml", &chain("kept", "10.0.0.0/8", "{forward: }"));
    folder.ok(&["apply", "-f", "kept.yaml"]);
    // By SIGKILL.
    drop(serving);
    let serving = Serving::start(&folder);
    wait("the chain that was applied", || {
        let chains = folder.chains();
        chains["chains"].as_array().is_some_and(|chains| chains.len() == 1)
    });
    let report = serving.stop();
    assert_eq!(report["chains"][0]["name"], "kept");
}

/// Profile of a chain on this machine: a million packets per second, 50 us at full load.
fn profile(folder: &Folder, name: &str) -> String {
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let machine = Machine::of(core);
    let fields = Machine::FIELDS.map(|field| format!("{field}: {}", machine.value(field).unwrap()));
    let spec = ChainSpec::read(&folder.0.join(format!("{name}.yaml"))).unwrap();
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: ChainProfiles\nmetadata: {{name: {name}}}\nspec:\n  version: 2\n  \
         profiles:\n  - chain: {name}\n    configuration: \"{}\"\n    traffic: test\n    machine: {{{}}}\n    \
         cache: {{method: pirate, unitKibibytes: 1024, mostUnits: 2, points: [[1, 1000000, 0, 3], \
         [2, 1000000, 0, 3]], verified: [[1, 0], [2, 0]]}}\n    \
         latency: {{throughput: [1000000, 0, 3], percentile: 99, points: [[10, 5, 0, 3], [100, 50, 0, 3]], \
         objectiveMicroseconds: 1000, objectivePercentile: 99, nonDropRate: 900000, partialDropRate: 900000, \
         objectiveRate: 900000}}\n",
        fingerprint(&spec),
        fields.join(", ")
    )
}

#[test]
fn chains_are_admitted_by_their_profiles_or_by_force() {
    let folder = Folder::new();
    folder.server("  admission: {profiles: curves}\n");
    folder.chain("rest", "10.0.0.0/17", "{forward: }");
    let write = |name: &str, sources: &str, throughput: &str| {
        let text = chain(name, sources, "{forward: }");
        let slo = format!("latency: 100ms, throughput: {throughput}");
        folder.write(&format!("{name}.yaml"), &text.replace("latency: 100ms", &slo));
    };
    write("dns", "10.0.128.0/18", "582kpps");
    write("web", "10.0.192.0/18", "601.4kpps");
    fs::create_dir(folder.0.join("curves")).unwrap();
    let serving = Serving::start(&folder);
    // None of its name, and nothing at all in the folder.
    let refused = |name: &str, expected: &str| {
        let before = folder.chains();
        let count = |chains: &Value| chains["chains"].as_array().unwrap().len();
        let output = folder.run(&["apply", "-f", &format!("{name}.yaml"), "--socket", "edge.sock"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(count(&folder.chains()), count(&before));
    };
    refused("dns", "chain \"dns\": expected files *.curves.yaml in folder");
    folder.write("curves/dns.curves.yaml", &profile(&folder, "dns"));
    refused("web", "chain \"web\": has spec.slo.throughput and no profile in");
    folder.write("curves/web.curves.yaml", &profile(&folder, "web"));
    // 970,000 packets per second are the whole core.
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let dry = folder.ok(&["apply", "-f", "dns.yaml", "--dry-run=server"]);
    let promised = format!(
        "core {core}, promised: 0.60 of core {core} for 582k packets per second, predicted latency 30us, 1.031us a \
         packet"
    );
    let expected = format!("chain/dns created (server dry run), {promised}");
    assert!(dry.starts_with(&expected), "{dry}");
    assert_eq!(folder.chains()["chains"].as_array().unwrap().len(), 1);
    folder.ok(&["apply", "-f", "dns.yaml"]);
    let expected = format!("needs 0.62 of a core at 601kpps, 0.30 is free on core {core}: at most 29");
    refused("web", &expected);
    folder.ok(&["apply", "-f", "web.yaml", "--force"]);
    let promises = || -> Vec<(String, String)> {
        let chains = folder.chains();
        let of = |chain: &Value| {
            assert_eq!(chain["placement"]["cores"], serde_json::json!([core]));
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (
                text(&chain["placement"]["promise"]),
                text(&chain["placement"]["reason"]),
            )
        };
        chains["chains"].as_array().unwrap().iter().map(of).collect()
    };
    let pair = |promise: &str, reason: &str| (promise.to_owned(), reason.to_owned());
    let rest = pair("none", "no spec.slo.throughput");
    let expected = [pair("promised", ""), rest.clone(), pair("none", "applied with --force")];
    assert_eq!(promises(), expected);
    // Less fits. The chain's text has changed, and the force is not repeated.
    write("web", "10.0.192.0/18", "250kpps");
    folder.ok(&["apply", "-f", "web.yaml"]);
    assert_eq!(promises(), [pair("promised", ""), rest, pair("promised", "")]);
    let described = folder.ok(&["describe", "chain", "web"]);
    assert!(
        described.contains(&format!("Promise:      promised: 0.26 of core {core} for 250k")),
        "{described}"
    );
    assert!(folder.ok(&["get", "chains", "-o", "wide"]).contains("PROMISE"));
    serving.stop();
}

/// Found by changing one chain in a loop, by a named pipe in place of a rules file, and by two exports to one file.
#[test]
fn chains_are_applied_at_once_after_a_drain_and_refused_for_their_files() {
    let folder = Folder::new();
    folder.server("");
    let serving = Serving::start(&folder);
    let file = folder.0.join("one.yaml");
    fs::write(
        &file,
        chain("one", "10.0.0.0/8", "{accounting: {export: {file: flows.csv}}}"),
    )
    .unwrap();
    for _ in 0..3 {
        folder.ok(&["apply", "-f", "one.yaml"]);
        folder.ok(&["delete", "chain", "one"]);
    }
    folder.ok(&["apply", "-f", "one.yaml"]);
    let refused = |functions: &str, expected: &str| {
        folder.write("two.yaml", &chain("two", "192.0.2.0/24", functions));
        let began = Instant::now();
        let output = folder.run(&["apply", "-f", "two.yaml", "--socket", "edge.sock"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{error}");
        assert!(began.elapsed() < PATIENCE / 4, "{error}");
    };
    refused(
        "{accounting: {export: {file: flows.csv}}}",
        "written by chain one already",
    );
    let pipe = folder.0.join("r.rules");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(
        "{acl: {rulesFile: r.rules, matchAction: allow, default: deny}}",
        "r.rules",
    );
    // A wrong configuration of a function is a mistake of the input.
    folder.write("two.yaml", &chain("two", "192.0.2.0/24", "{acl: {default: alow}}"));
    let output = folder.run(&["apply", "-f", "two.yaml", "--socket", "edge.sock"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let chains = folder.chains();
    assert_eq!(chains["chains"].as_array().unwrap().len(), 1, "{chains}");
    let report = serving.stop();
    report["chains"].as_array().unwrap().iter().for_each(assert_books);
}

#[test]
fn wrong_servers_are_refused_in_one_line() {
    let folder = Folder::new();
    let refused = |expected: &str| {
        let output = folder.run(&["serve", "server.yaml", "--duration", "1s"]);
        let error = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((output.status.code(), errors.len()), (Some(2), 1), "{error}");
        assert!(errors[0].contains(expected), "{error}");
        assert!(!folder.0.join("edge.sock").exists());
    };
    refused("server.yaml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    folder.server(&format!("  metrics: {}\n", taken.local_addr().unwrap().port()));
    refused("spec.metrics: cannot listen on 127.0.0.1:");
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    folder.server(&format!("  auxiliary: \"{core}\"\n"));
    refused("spec.auxiliary: expected cores that are not in cores");
    folder.server("");
    // No such capture.
    refused("small.pcap");
    let capture = ["trace", "synth", "backbone", "--duration", "10ms", "-o", "small.pcap"];
    assert!(folder.run(&capture).status.success());
    folder.chain("wrong", "10.0.0.0/8", "{frwd: }");
    refused("frwd");
    folder.chain(
        "wrong",
        "10.0.0.0/8",
        "{name: fw, external: {port: interface=none, timeout: 1ms}}",
    );
    refused("interface none: no such interface");
}

#[test]
fn the_example_server_runs_its_chains() {
    let folder = Folder::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/server/server.yaml");
    let text = fs::read_to_string(&example).unwrap().replace("500kpps", "3kpps");
    let examples = example.parent().unwrap().join("chains");
    let text = text.replace("[chains]", &format!("[{}]", examples.display()));
    folder.write(
        "server.yaml",
        &(text + "  control: {socket: edge.sock}\n  stateDirectory: state\n"),
    );
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let core = core.to_string();
    let arguments = [
        "serve",
        "server.yaml",
        "--cores",
        &core,
        "--duration",
        "3s",
        "--output",
        "json",
    ];
    let output = folder.run(&arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), 6);
    for chain in chains {
        assert_books(chain);
        assert!(number(&chain["report"]["packets"]["delivered"]) > 0, "{chain}");
    }
}

/// A promised chain that gets more than its promise is limited to it, and its flows stay when the cap goes.
#[test]
fn a_cap_is_put_in_front_of_a_promised_chain_and_taken_away_again() {
    let folder = Folder::new();
    folder.server("  admission: {profiles: curves, cap: promise}\n");
    let text = chain("web", "10.0.0.0/16", "{nat: {external: [203.0.113.0/28]}}");
    let promised = text.replace("latency: 100ms", "latency: 100ms, throughput: 1kpps");
    folder.write("web.yaml", &promised);
    fs::create_dir(folder.0.join("curves")).unwrap();
    folder.write("curves/web.curves.yaml", &profile(&folder, "web"));
    let serving = Serving::start(&folder);
    folder.ok(&["apply", "-f", "web.yaml"]);
    let described = folder.ok(&["describe", "chain", "web"]);
    assert!(described.contains(", capped at 1.00k"), "{described}");
    let delivered = || number(&folder.chains()["chains"][0]["packets"]["delivered"]);
    wait("packets beyond the cap", || {
        number(&folder.chains()["chains"][0]["packets"]["dropped"]) > 1000
    });
    folder.write("web.yaml", &text);
    folder.ok(&["apply", "-f", "web.yaml"]);
    assert!(folder.chains()["chains"][0]["placement"]["cap_packets_per_second"].is_null());
    wait("packets without a cap", || delivered() > 3000);
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), 2);
    let capped = |chain: &Value| {
        let reasons = chain["report"]["packets"]["reasons"].as_object().unwrap();
        let of_cap = reasons.iter().filter(|(reason, _)| reason.starts_with("cap/"));
        of_cap.map(|(_, count)| number(count)).sum::<u64>()
    };
    assert!(capped(&chains[0]) > 1000 && capped(&chains[1]) == 0, "{report}");
    // The second chain's flows are those of the first: fewer are opened than there are.
    let flows = |chain: &Value, what: &str| number(&chain["report"]["flows"][what]);
    assert!(flows(&chains[1], "opened") < flows(&chains[1], "active"), "{report}");
}

/// With another number of cores a chain begins anew, but for its files: all records are there, behind one header.
#[test]
fn a_chain_that_gets_another_number_of_cores_goes_on_with_its_file() {
    let folder = Folder::new();
    folder.server("");
    let core = folder.core();
    if core == 0 {
        println!("skipped: it needs two cores");
        return;
    }
    let server = fs::read_to_string(folder.0.join("server.yaml")).unwrap();
    let cores = format!("cores: \"{}-{core}\"", core - 1);
    let server = server.replace(&format!("cores: \"{core}\""), &cores);
    folder.write("server.yaml", &server.replace("5kpps", "1kpps"));
    let spec = |cores| {
        chain("only", "0.0.0.0/0", "{accounting: {export: {file: flows.csv}}}")
            + &format!("  cores: {cores}\n  flows: {{idleTimeout: 1s}}\n")
    };
    folder.write("chains/only.yaml", &spec(2));
    let serving = Serving::start(&folder);
    let delivered = || number(&folder.chains()["chains"][0]["packets"]["delivered"]);
    let records = || fs::read_to_string(folder.0.join("flows.csv")).unwrap();
    wait("records", || records().lines().count() > 10);
    folder.write("chains/only.yaml", &spec(1));
    folder.ok(&["apply", "-f", "chains/only.yaml"]);
    let before = delivered();
    wait("packets", || delivered() > before + 300);
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), 2, "{report:#}");
    let delivered = chains
        .iter()
        .map(|chain| number(&chain["report"]["packets"]["delivered"]));
    let records = records();
    let (headers, records): (Vec<_>, Vec<_>) = records.lines().partition(|line| line.starts_with("source,"));
    assert_eq!(headers.len(), 1);
    let counted = records
        .iter()
        .map(|record| record.split(',').nth(6).unwrap().parse::<u64>().unwrap());
    assert_eq!(counted.sum::<u64>(), delivered.sum::<u64>());
}

#[test]
fn a_chain_that_uses_no_auxiliary_core_says_why() {
    let folder = Folder::new();
    if folder.core() == 0 {
        println!("skipped: it needs two cores");
        return;
    }
    folder.server("  auxiliary: \"0\"\n");
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/programs/xdp/source_counter.o");
    let counter = format!("{{xdp: {{file: {}}}}}", object.display());
    folder.chain("counted", "10.0.0.0/9", &counter);
    folder.chain("plain", "10.128.0.0/9", "{accounting: }");
    let serving = Serving::start(&folder);
    let events = |chain: &str| folder.ok(&["events", "--chain", chain]);
    wait("both chains", || {
        ["counted", "plain"]
            .iter()
            .all(|chain| events(chain).contains("Running"))
    });
    let counted = events("counted");
    let why = "function xdp cannot run on auxiliary cores: its maps belong to one core";
    assert!(
        counted.contains("NoAuxiliaryCores") && counted.contains(why),
        "{counted}"
    );
    assert!(!events("plain").contains("NoAuxiliaryCores"));
    // Nor can its flows go to another server.
    let chains = folder.chains();
    let bound = |index: usize| chains["chains"][index]["bound_state"].as_str().unwrap_or_default();
    assert!(
        bound(0).starts_with("function xdp: its maps belong to one core"),
        "{chains}"
    );
    assert_eq!(bound(1), "");
    serving.stop();
}
