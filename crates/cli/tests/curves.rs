//! `tailwater profile latency`, `cache`, `all`, `diff` and `curves`.
//!
//! No measured values are asserted: the machine may be slow or busy.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::default_core;
use tailwater_profile::cache::sharing;
use tailwater_profile::profiles::{Machine, Profiles};

/// Writes a chain with an objective that any machine meets, and a small capture.
fn chain(folder: &Folder) -> [PathBuf; 2] {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
                spec:\n  functions: [{accounting: }]\n  slo: {latency: 50ms}\n  \
                flows: {capacity: 4096}\n";
    let chain = folder.write("chain.yaml", text);
    [chain, folder.capture("in.pcap", &mixture(2000))]
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn profile(args: &[&str]) -> Output {
    tailwater().arg("profile").args(args).output().unwrap()
}

/// Checks that curves were measured: on a busy machine, with doubts.
fn assert_measured(output: &Output) {
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 4)), "{code:?}: {}", text(&output.stderr));
}

/// Writes an example file of profiles, of this machine or of another one.
fn made_up(folder: &Folder, file: &str, here: bool, rate: u32) -> PathBuf {
    let mut machine = Machine::of(default_core());
    if !here {
        machine.cache_ways += 1;
    }
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: ChainProfiles\nmetadata: {{name: test}}\nspec:\n  version: 1\n  \
         profiles:\n    - chain: test\n      configuration: \"0\"\n      traffic: made up\n      machine: {{processor: \
         '{}', megahertz: {}, cacheKibibytes: {}, cacheWays: {}, privateKibibytes: {}}}\n      cache:\n        \
         method: pirate\n        unitKibibytes: 2048\n        mostUnits: 8\n        points: [[1, 1000, 5, 3], \
         [8, {rate}, 5, 3]]\n      latency:\n        throughput: [1700, 10, 3]\n        percentile: 99\n        \
         points: [[10, 5.5, 1, 3], [100, 900, 50, 5]]\n        objectiveMicroseconds: 50000\n        \
         objectivePercentile: 99\n",
        machine.processor, machine.megahertz, machine.cache_kibibytes, machine.cache_ways, machine.private_kibibytes
    );
    folder.write(file, text)
}

#[test]
fn curves_are_written_printed_drawn_and_merged() {
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let page = folder.path("curves.html");
    let output = profile(&[
        "latency",
        name(&chain),
        "--traffic",
        name(&traffic),
        "--run-time",
        "20ms",
        "--output",
        "json",
        "--report",
        name(&page),
    ]);
    assert_measured(&output);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = folder.path("chain.curves.yaml");
    let profiles = Profiles::read(&file).unwrap();
    assert_eq!(profiles.list.len(), 1);
    let first = &profiles.list[0];
    assert_eq!(first.key.chain, "test");
    assert!(first.key.traffic.starts_with("in.pcap, contents "));
    assert!(first.cache.is_none());
    let latency = first.latency.as_ref().unwrap();
    assert_eq!(document["file"], name(&file));
    // The exit code and the document agree on whether there are doubts.
    let doubts = document["doubts"].as_object().unwrap().values();
    let has_doubts = doubts.into_iter().any(|number| number.as_u64().unwrap() > 0);
    assert_eq!(output.status.code(), Some(if has_doubts { 4 } else { 0 }), "{document}");
    assert_eq!(document["latency"]["objective_us"], 50_000.0);
    let points = document["latency"]["points"].as_array().unwrap();
    assert_eq!(points.len(), latency.points.len());
    let functions = &document["costs"]["functions"];
    assert_eq!(functions.as_array().unwrap().len(), 1);
    assert_eq!(functions[0]["function"], "accounting");
    assert_eq!(functions[0]["share"], 1.0);
    assert!(functions[0]["packet_ns"].as_f64().unwrap() > 0.0);
    let costs = first.costs.as_ref().unwrap();
    assert_eq!(document["costs"]["packet_ns"], costs.whole.value);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("id=\"costs\"") && html.contains("<td>accounting</td>"));
    assert!(html.contains("id=\"latency\"") && html.contains("test (in.pcap, contents "));

    // Other traffic adds another profile to the same file.
    let output = profile(&["latency", name(&chain), "--flows", "10", "--run-time", "20ms"]);
    assert_measured(&output);
    assert!(text(&output.stdout).contains("10 flows, frames of 60 bytes, seed 1"));
    assert!(text(&output.stdout).contains("\n  accounting "));
    let profiles = Profiles::read(&file).unwrap();
    assert_eq!(profiles.list.len(), 2);
    assert_eq!(profiles.list[0], *first);
    // A file has no differences from itself.
    let output = profile(&["diff", name(&file), name(&file)]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

#[test]
fn throughput_over_cache_is_measured_beside_a_pirate() {
    if sharing(default_core()).is_empty() {
        return eprintln!("skipped: no other core shares the last-level cache");
    }
    let folder = Folder::new();
    let [chain, _] = chain(&folder);
    let args = ["cache", name(&chain), "--flows", "10", "--run-time", "20ms"];
    let output = profile(&[&args[..], &["--cache-by", "pirate"]].concat());
    if output.status.code() == Some(1) {
        // On a shared machine the cache may not be measurable: then there is an error, and no file.
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with("error: no curves: "), "{stderr}");
        assert!(!folder.path("chain.curves.yaml").exists());
        return eprintln!("skipped: {stderr}");
    }
    assert_measured(&output);
    let profiles = Profiles::read(&folder.path("chain.curves.yaml")).unwrap();
    let cache = profiles.list[0].cache.as_ref().unwrap();
    // The pirate is awake at every point, and its misses verify the share.
    let verified = cache.verified.iter().map(|verified| verified.at);
    assert!(verified.eq(cache.points.iter().map(|point| point.at)));
    assert!(cache.points.iter().all(|point| point.at <= cache.most_units));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("available (pirate)"), "{stdout}");
    assert!(stdout.contains("by pirate: selected by --cache-by"), "{stdout}");
}

#[test]
fn what_is_documented_is_what_is_printed() {
    let folder = Folder::new();
    let file = made_up(&folder, "a.yaml", true, 1500);
    let page = include_str!("../../../docs/reference/profile-files.md");
    let example = page
        .split_once("```yaml\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    Profiles::parse(example.expect("an example").0, "docs/reference/profile-files.md").unwrap();

    let output = profile(&["curves", name(&file)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let curves = text(&output.stdout);
    assert!(curves.contains("throughput: [[2048, 995], [16384, 1495]]"), "{curves}");
    assert!(curves.contains("latency: [[0.1, 6.500], [1, 950.000]]"), "{curves}");
    // The output is valid input of `place`.
    let machine = Machine::of(default_core()).label();
    let indented: String = curves.lines().map(|line| format!("  {line}\n")).collect();
    let slos = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: SloSet\nmetadata: {{name: t}}\nspec:\n{indented}  slos:\n    - \
         {{name: one, chain: test, throughput: 1000pps, latency: 800us}}\n"
    );
    let slos = folder.write("slos.yaml", slos);
    let cluster = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c}}\nspec:\n  servers:\n    - {{name: s, \
         machine: {machine}, cores: 2, ways: 8, wayKibibytes: 2048}}\n"
    );
    let cluster = folder.write("cluster.yaml", cluster);
    let output = run(&[&"place", &slos, &"--cluster", &cluster]);
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn differences_have_an_exit_code_and_words() {
    let folder = Folder::new();
    let was = made_up(&folder, "a.yaml", true, 1500);
    let is = made_up(&folder, "b.yaml", true, 1800);
    let output = profile(&["diff", name(&was), name(&is)]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "test (made up): throughput with 8 units of cache: 1.50kpps ± 5, then 1.80kpps ± 5 (+20 %)\n";
    assert_eq!(text(&output.stdout), expected);
    // Costs of functions are compared separately.
    let with_costs = |file: &str, nat: u32| {
        let text = std::fs::read_to_string(&was).unwrap();
        let costs = format!(
            "      costs:\n        whole: [50, 0.5, 3]\n        functions: [{{function: nat, nanoseconds: [{nat}, 0.5, 3], share: 1}}]\n"
        );
        folder.write(file, text + &costs)
    };
    let (fast, slow) = (with_costs("d.yaml", 20), with_costs("e.yaml", 25));
    let output = profile(&["diff", name(&fast), name(&slow)]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "test (made up): function nat: 20.0 ns ± 0.5 a packet, then 25.0 ns ± 0.5 (+25 %)\n";
    assert_eq!(text(&output.stdout), expected);
    // Shares by ways cannot be compared with shares by lines.
    let by_ways = std::fs::read_to_string(&is).unwrap();
    let by_ways = by_ways.replace("method: pirate", "method: resctrl");
    let by_ways = folder.write("c.yaml", by_ways);
    let output = profile(&["diff", name(&is), name(&by_ways)]);
    assert_eq!(output.status.code(), Some(1));
    let expected =
        "test (made up): measured with another method (cache by pirate, then by resctrl): curves cannot be compared\n";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn wrong_input_is_refused() {
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let chain = name(&chain);
    let here = made_up(&folder, "here.yaml", true, 1500);
    let elsewhere = made_up(&folder, "elsewhere.yaml", false, 1500);
    let broken = folder.write("broken.yaml", "kind: ChainProfiles\nspec: 3\n");
    let core = default_core().to_string();
    let check = |args: &[&str], expected: &str| assert_refused(&profile(args), expected);
    for part in ["latency", "cache", "all"] {
        check(&[part, "missing.yaml"], "missing.yaml: cannot be read");
        check(
            &[part, chain, "--run-time", "1ms"],
            "expected a duration from 20ms to 10s",
        );
        check(&[part, chain, "--traffic", "backbon"], "did you mean \"backbone\"?");
        check(&[part, chain, "--flows", "0"], "--flows");
        check(&[part, chain, "--frame", "100"], "--flows");
        check(&[part, chain, "--core", "99999"], "is not available");
        check(&[part, chain, "-o", chain], "expected");
        check(&[part, chain, "-o", name(&broken)], "broken.yaml");
        check(&[part, chain, "-o", "/nonexistent/x.yaml"], "cannot write");
        let both = [part, chain, "--flows", "3", "--traffic", name(&traffic)];
        check(&both, "cannot be used with");
    }
    let pirate = ["cache", chain, "--core", &core, "--pirate-core", &core];
    check(&pirate, "--pirate-core: expected another core that shares");
    let both = ["cache", chain, "--cache-by", "resctrl", "--pirate-core", "0"];
    check(&both, "--pirate-core: expected --cache-by pirate");
    check(&["cache", chain, "--cache-by", "cat"], "--cache-by");
    check(&["diff", name(&here), name(&broken)], "broken.yaml");
    check(
        &["diff", name(&here), name(&elsewhere)],
        "measured on different machines",
    );
    check(&["curves", name(&elsewhere)], "was measured on another machine");
    check(
        &["curves", name(&here), "--machine", "A B"],
        "expected lower-case letters",
    );
    check(
        &["curves", name(&here), "--traffic", "none"],
        "no profile has this traffic",
    );
    let output = profile(&["curves", name(&elsewhere), "--machine", "that-one"]);
    assert!(text(&output.stdout).contains("machine: \"that-one\""));
    assert!(!folder.path("chain.curves.yaml").exists());
}

#[test]
fn what_is_not_repeatable_is_told() {
    let folder = Folder::new();
    let file = made_up(&folder, "here.yaml", true, 1500);
    let unsteady = std::fs::read_to_string(&file)
        .unwrap()
        .replace("[10, 5.5, 1, 3]", "[10, 5.5, 402.5, 3]");
    let unsteady = folder.write("unsteady.yaml", unsteady);
    let told = "not repeatable: latency at load 0.10 (± 7318 %, 3 runs)";
    assert_refused(&profile(&["curves", name(&unsteady)]), told);
    let output = profile(&["diff", name(&file), name(&unsteady)]);
    let told = format!(
        "{}: test: not repeatable, so not compared: latency at load 0.10",
        name(&unsteady)
    );
    assert!(text(&output.stderr).contains(&told), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr).lines().count(), 1);
}

#[test]
fn measuring_that_is_interrupted_writes_nothing() {
    let folder = Folder::new();
    let [chain, _] = chain(&folder);
    let child = tailwater()
        .args(["profile", "all", name(&chain), "--flows", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    // Timeout against hangs, not a measurement.
    let start = Instant::now();
    let output = interrupt(child);
    assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(!folder.path("chain.curves.yaml").exists());
}
