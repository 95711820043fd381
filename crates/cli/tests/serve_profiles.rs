//! A server that measures the profiles of its chains itself.
#![cfg(feature = "control")]

mod common;

use common::chain_server::{Folder, PATIENCE, Serving, chain, wait};
use std::fs;
use std::process::{Child, Stdio};
use std::time::Instant;

/// Reasons for which a measurement on a busy machine has no result.
const NOISE: [&str; 3] = ["not repeatable", "CPU interference", "not measured within"];

/// Server that measures on core 0 for at most so long, with a chain that needs a profile; `None` on a machine without
/// another core.
fn folder(time: &str) -> Option<Folder> {
    let folder = Folder::new();
    if folder.core() == 0 {
        eprintln!("skipped: one core cannot be both measured and served");
        return None;
    }
    folder.server(&format!(
        "  admission: {{profiles: curves, profile: auto, measure: {{time: {time}, core: 0}}}}\n"
    ));
    let text = chain("dns", "10.0.0.0/8", "{forward: }");
    folder.write(
        "dns.yaml",
        &text.replace("latency: 100ms", "latency: 100ms, throughput: 5kpps"),
    );
    Some(folder)
}

/// Applies the chain, and waits until its profile is being measured.
fn apply(folder: &Folder) -> Child {
    let mut command = folder.command(&["apply", "-f", "dns.yaml", "--socket", "edge.sock"]);
    let applying = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("the measurement", || {
        folder.ok(&["events", "--chain", "dns"]).contains("Profiling")
    });
    applying
}

/// Names of the files in the folder of profiles.
fn files(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.0.join("curves")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_chain_without_a_profile_is_measured_first_and_promised_by_it() {
    let Some(folder) = folder("15s") else {
        return;
    };
    let serving = Serving::start(&folder);
    let dry = folder.ok(&["apply", "-f", "dns.yaml", "--dry-run=server"]);
    let core = folder.core();
    let expected = format!("chain/dns created (server dry run), core {core}, none: would be profiled first, on core 0");
    assert!(dry.starts_with(&expected), "{dry}");
    assert!(files(&folder).is_empty());
    let applying = apply(&folder);
    // Reads are answered meanwhile, and the chain is not there half.
    assert_eq!(folder.chains()["chains"].as_array().unwrap().len(), 0);
    let output = applying.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    if NOISE.iter().any(|noise| error.contains(noise)) {
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(files(&folder).is_empty());
        eprintln!("skipped: this machine is too busy to measure: {error}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{error}");
    let chains = folder.chains();
    assert_eq!(chains["chains"][0]["placement"]["promise"], "promised");
    let names = files(&folder);
    assert!(
        names.len() == 1 && names[0].starts_with("dns-") && names[0].ends_with(".curves.yaml"),
        "{names:?}"
    );
    let events = folder.ok(&["events", "--chain", "dns"]);
    assert!(events.contains("Profiled") && events.contains("Started"), "{events}");
    let described = folder.ok(&["describe", "chain", "dns"]);
    assert!(described.contains("PromiseKept"), "{described}");
    // By the same profile, at once.
    folder.ok(&["delete", "chain", "dns"]);
    folder.ok(&["apply", "-f", "dns.yaml"]);
    assert_eq!(folder.ok(&["events", "--chain", "dns"]).matches("Profiling").count(), 1);
    serving.stop();
}

#[test]
fn a_measurement_ends_with_its_server() {
    let Some(folder) = folder("300s") else {
        return;
    };
    let is_measuring = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        let file = folder.0.join("curves").into_os_string().into_encoded_bytes();
        lines.any(|line| line.windows(file.len()).any(|part| part == file))
    };
    let serving = Serving::start(&folder);
    let applying = apply(&folder);
    wait("the process", is_measuring);
    let began = Instant::now();
    serving.stop();
    assert!(began.elapsed() < PATIENCE && !is_measuring());
    let output = applying.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(files(&folder).is_empty());
    // Also if that is killed; the next one removes what was left.
    let mut serving = Serving::start_again(&folder);
    let applying = apply(&folder);
    wait("the process", is_measuring);
    serving.kill();
    wait("the end of the process", || !is_measuring());
    applying.wait_with_output().unwrap();
    fs::write(folder.0.join("curves/.dns-1.measuring"), "").unwrap();
    let serving = Serving::start_again(&folder);
    assert!(files(&folder).is_empty());
    serving.stop();
}

#[test]
fn profiles_that_cannot_be_used_are_found_at_the_start() {
    let folder = Folder::new();
    let capture = ["trace", "synth", "backbone", "--duration", "10ms", "-o", "small.pcap"];
    assert!(folder.run(&capture).status.success());
    let refused = |admission: &str, expected: &str| {
        folder.server(&format!("  admission: {{{admission}}}\n"));
        let output = folder.run(&["serve", "server.yaml", "--duration", "1s"]);
        let error = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((output.status.code(), errors.len()), (Some(2), 1), "{error}");
        assert!(errors[0].contains(expected), "{error}");
    };
    refused("profiles: curves", "spec.admission.profiles: curves: No such file");
    refused(
        "profiles: small.pcap, profile: auto",
        "spec.admission.profiles: small.pcap: ",
    );
    let core = folder.core();
    refused(
        &format!("profiles: curves, profile: auto, measure: {{core: {core}}}"),
        "spec.admission.measure.core: expected a core that is not dedicated",
    );
    refused(
        "profiles: curves, profile: auto, measure: {core: 60000}",
        "spec.admission.measure.core: ",
    );
}

/// With `profile: auto` it was created without a word, also where the name was mistyped.
#[test]
fn a_missing_folder_of_profiles_is_told() {
    let folder = Folder::new();
    let capture = ["trace", "synth", "backbone", "--duration", "10ms", "-o", "small.pcap"];
    assert!(folder.run(&capture).status.success());
    folder.server("  admission: {profiles: curvse, profile: auto}\n");
    let mut told = (0..2).map(|_| {
        let output = folder.run(&["serve", "server.yaml", "--duration", "100ms"]);
        let said = String::from_utf8(output.stderr).unwrap();
        let mut lines = said.lines().filter(|line| line.contains("spec.admission.profiles"));
        (lines.next().map(str::to_owned), lines.count())
    });
    let (first, second) = (told.next().unwrap(), told.next().unwrap());
    let line = first.0.unwrap();
    let expected = "curvse: no such folder, created for profiles that the server measures";
    assert!(
        line.starts_with("notice: spec.admission.profiles: ") && line.ends_with(expected),
        "{line}"
    );
    assert_eq!((first.1, second), (0, (None, 0)));
    assert!(folder.0.join("curvse").is_dir());
}
