//! `tailwater place`: its output, the state file, and errors in files.

#[path = "../common/mod.rs"]
mod common;

mod predicted;
mod profiles;
mod progress;
mod wrong;

use common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/place")
        .join(name)
}

/// Runs the command. Returns exit code, standard output and standard error.
fn place(slos: &Path, cluster: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .arg("place")
        .args([slos, Path::new("--cluster"), cluster])
        .args(more)
        .output()
        .expect("the program runs");
    let status = output.status.code();
    (status, text(&output.stdout), text(&output.stderr))
}

/// Like [`place`] with a state. Returns exit code, and the JSON output.
fn document(slos: &Path, cluster: &Path, state: &Path) -> (Option<i32>, serde_json::Value) {
    let state = state.to_str().expect("a name in UTF-8");
    let more = ["--state", state, "--output", "json"];
    let (status, stdout, stderr) = place(slos, cluster, &more);
    assert_eq!(stderr, "");
    (status, serde_json::from_str(&stdout).expect("JSON"))
}

fn changed(folder: &Folder, name: &str, from: &str, to: &str) -> PathBuf {
    let spec = std::fs::read_to_string(example(name)).expect("an example");
    assert!(spec.contains(from), "{from}");
    folder.write(name, spec.replace(from, to))
}

#[test]
fn the_examples_are_admitted_and_stay_where_they_are() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.0.join("state.json");
    let (status, first) = document(&slos, &cluster, &state);
    assert_eq!(status, Some(0), "{first}");
    assert_eq!((&first["admitted"], &first["denied"]), (&5.into(), &0.into()));
    assert_eq!(first["slos"][0]["course"], "new");
    let kept = std::fs::read(&state).expect("the state");
    let (status, second) = document(&slos, &cluster, &state);
    assert_eq!(status, Some(0));
    assert_eq!(std::fs::read(&state).expect("the state"), kept);
    for (before, now) in first["slos"]
        .as_array()
        .expect("rows")
        .iter()
        .zip(second["slos"].as_array().expect("rows"))
    {
        assert_eq!(now["course"], "kept");
        assert_eq!(before["instances"], now["instances"]);
    }
}

#[test]
fn what_is_denied_has_its_reason_and_what_would_fit() {
    let folder = Folder::new();
    let slos = changed(&folder, "slos.yaml", "12Mpps", "90Mpps");
    let (status, stdout, stderr) = place(&slos, &example("cluster.yaml"), &[]);
    assert_eq!((status, &*stderr), (Some(3), ""));
    let row = stdout.lines().find(|line| line.starts_with("border")).expect("a row");
    assert!(row.contains("denied    insufficient separate servers"), "{row}");
    assert!(row.contains("would fit with "), "{row}");
}

#[test]
fn what_would_fit_fits_as_it_is_printed() {
    let folder = Folder::new();
    // Each request exceeds the cluster, and most fitting values have more digits than are printed.
    for (number, from, to) in [
        (1, "throughput: 12Mpps", "throughput: 90Mpps"),
        (1, "throughput: 12Mpps", "throughput: 31234567pps"),
        (0, "3.3Mpps, latency: 30us", "330Mpps, latency: 29999ns"),
        (0, "3.3Mpps, latency: 30us", "123456789pps, latency: 7us"),
        (2, "throughput: 600kpps", "throughput: 77777777pps"),
        (3, "latency: 100us", "latency: 3us"),
    ] {
        let slos = changed(&folder, "slos.yaml", from, to);
        let (status, stdout, _) = place(&slos, &example("cluster.yaml"), &[]);
        assert_eq!(status, Some(3));
        let row = stdout.lines().nth(number + 1).expect("a row");
        let (_, fits) = row.split_once("would fit with ").expect("what would fit");
        let spec = std::fs::read_to_string(&slos).expect("SLOs");
        let name = row.split(' ').next().expect("a name");
        let slo = spec.lines().find(|line| line.contains(&format!("name: {name}, chain")));
        let slo = slo.expect("the SLO");
        for fit in fits.split(", or ") {
            let (field, value) = match fit.split_once(' ') {
                Some(("latency", value)) => ("latency: ", value),
                _ => ("throughput: ", fit),
            };
            let (before, rest) = slo.split_once(field).expect("the field");
            let (_, rest) = rest.split_once(',').expect("another field");
            let fitting = spec.replace(slo, &format!("{before}{field}{value},{rest}"));
            // Together with the others, which come first.
            let fitting = folder.write("fitting.yaml", fitting);
            let (_, stdout, stderr) = place(&fitting, &example("cluster.yaml"), &[]);
            let row = stdout.lines().nth(number + 1).expect("a row");
            assert!(row.contains(" admitted "), "{fit}: {row}{stderr}");
        }
    }
}

#[test]
fn slos_leave_and_servers_vanish() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.0.join("state.json");
    let (_, first) = document(&slos, &cluster, &state);
    let server = first["slos"][0]["instances"][0]["server"]
        .as_str()
        .expect("a name")
        .to_owned();
    assert_eq!(server, "server-0");
    let left = changed(
        &folder,
        "cluster.yaml",
        "    - {name: server, count: 4,",
        "    - {name: other, count: 3,",
    );
    let fewer = changed(
        &folder,
        "slos.yaml",
        "    - {name: lab, chain: snort, onDemand: {mostInstances: 4}, latency: 120us, cap: 2Mpps}\n",
        "",
    );
    let (status, second) = document(&fewer, &left, &state);
    assert_eq!(status, Some(0), "{second}");
    assert_eq!(second["removed"], serde_json::json!(["lab"]));
    assert!(
        second["lost_servers"]
            .as_array()
            .expect("names")
            .contains(&server.into())
    );
    assert_eq!(second["slos"][0]["course"], "repaired");
    assert_eq!(second["slos"][0]["instances"][0]["server"], "other-0");
}

#[test]
fn wrong_files_are_told_in_one_line_and_leave_the_state_alone() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.0.join("state.json");
    document(&slos, &cluster, &state);
    let kept = std::fs::read(&state).expect("the state");
    let more = ["--state", state.to_str().expect("a name in UTF-8")];
    for (name, from, to, expected) in [
        (
            "slos.yaml",
            "latency: 20us",
            "latncy: 20us",
            "slos[1].latncy: expected one of the fields",
        ),
        (
            "slos.yaml",
            "chain: lpm, throughput",
            "chain: lmp, throughput",
            "did you mean \"lpm\"?",
        ),
        (
            "slos.yaml",
            "12Mpps",
            "10Gbps",
            "expected packets per second, such as 2Mpps",
        ),
        (
            "slos.yaml",
            "name: intrusion-b",
            "name: intrusion-a",
            "a different name for each SLO",
        ),
        (
            "slos.yaml",
            "[4500, 4763250]",
            "[4500, 1]",
            "expected values that do not decrease, found a lower one in point 1",
        ),
        (
            "slos.yaml",
            "[1.0, 27.1]",
            "[0.95, 27.1]",
            "expected loads up to 1, the last of them 1",
        ),
        (
            "slos.yaml",
            "chain: lpm, throughput: 12Mpps",
            "chain: lpm, traffic: imix, throughput: 12Mpps",
            "slos[1].traffic: expected the traffic of chain \"lpm\"'s curves, \"backbone\", found \"imix\"",
        ),
        (
            "slos.yaml",
            "chain: lpm, throughput: 12Mpps",
            "chain: lpm, percentile: 99, throughput: 12Mpps",
            "slos[1].percentile: expected the percentile of chain \"lpm\"'s curves, \"95\", found \"99\"",
        ),
        (
            "slos.yaml",
            "throughput: 12Mpps",
            "throughput: 12Mpps, cap: 11Mpps",
            "slos[1].cap: expected a cap of at least the throughput, 12000000pps, found 11000000pps",
        ),
        (
            "cluster.yaml",
            "name: server,",
            "name: a-name-of-sixty-two-characters-which-is-a-label-but-not-with-01,",
            "spec.servers[0].name: expected a name for which",
        ),
        (
            "cluster.yaml",
            "cores: 9",
            "cores: 0",
            "spec.servers[0].cores: expected a whole number",
        ),
        (
            "cluster.yaml",
            "count: 4",
            "count: 0",
            "spec.servers[0].count: expected a whole number",
        ),
        (
            "cluster.yaml",
            "name: rack-1",
            "name: rack-2",
            "is the state of cluster rack-1, not of rack-2",
        ),
    ] {
        let wrong = changed(&folder, name, from, to);
        let (slos, cluster) = match name {
            "slos.yaml" => (&wrong, &cluster),
            _ => (&slos, &wrong),
        };
        let (status, stdout, stderr) = place(slos, cluster, &more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{to}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{to}: {stderr}");
        assert!(stderr.contains(expected), "{to}: {stderr}");
        assert_eq!(std::fs::read(&state).expect("the state"), kept);
    }
}

#[test]
fn a_state_is_a_file_or_a_link_to_one_and_nothing_else_is_replaced() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let (status, _, stderr) = place(&slos, &cluster, &["--state", "/dev/full"]);
    assert_eq!(status, Some(2));
    assert!(stderr.contains("expected a file, found /dev/full"), "{stderr}");
    let device = std::fs::metadata("/dev/full").expect("a device");
    assert!(device.file_type().is_char_device());
    // The temporary file of the state may be an input.
    let text = std::fs::read_to_string(&slos).expect("an example");
    let input = folder.write("state.json.new", &text);
    let state = folder.0.join("state.json");
    let name = state.to_str().expect("a name in UTF-8");
    let (status, _, stderr) = place(&input, &cluster, &["--state", name]);
    assert_eq!(status, Some(2), "{stderr}");
    assert_eq!(std::fs::read_to_string(&input).expect("the input"), text);
    // A link stays a link.
    std::fs::write(&state, "").expect("a state");
    let link = folder.0.join("link.json");
    symlink(&state, &link).expect("a link");
    let (status, _) = document(&slos, &cluster, &link);
    assert_eq!(status, Some(0));
    assert!(link.is_symlink());
    assert!(!std::fs::read(&state).expect("the state").is_empty());
}

#[test]
fn curves_of_one_chain_are_of_one_traffic_and_percentile() {
    let folder = Folder::new();
    let other = "        - machine: other\n          traffic: imix\n          percentile: 99\n          \
                 throughput: [[2250, 1]]\n          latency: [[1.0, 1]]\n    - name: lpm";
    let slos = changed(&folder, "slos.yaml", "    - name: lpm", other);
    let (status, _, stderr) = place(&slos, &example("cluster.yaml"), &[]);
    assert_eq!(status, Some(2));
    assert!(
        stderr.contains("found curves of traffic \"imix\", percentile 99"),
        "{stderr}"
    );
}

#[test]
fn a_cap_is_told_as_the_policers_that_keep_it() {
    let folder = Folder::new();
    let slos = changed(
        &folder,
        "slos.yaml",
        "throughput: 12Mpps",
        "throughput: 12Mpps, cap: 13Mpps",
    );
    let cluster = example("cluster.yaml");
    let (status, stdout, _) = place(&slos, &cluster, &["--output", "json"]);
    assert_eq!(status, Some(0), "{stdout}");
    let found: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    let mut sum = 0;
    for instance in found["slos"][1]["instances"].as_array().expect("instances") {
        // The configuration is valid in a chain's spec.
        let policer = &instance["policer"];
        let spec = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: c}}\nspec:\n  functions:\n    - policer: {policer}\n  slo: {{latency: 20us}}\n"
        );
        tailwater_functions::spec::ChainSpec::parse(&spec, "chain.yaml", Path::new(""))
            .unwrap_or_else(|error| panic!("{error}: {spec}"));
        let rate = policer["limits"][0]["rate"].as_str().expect("a rate");
        sum += rate.trim_end_matches("pps").parse::<u64>().expect("a number");
    }
    assert_eq!(sum, 13_000_000);
    // Other SLOs have none.
    assert!(found["slos"][0]["instances"][0].get("policer").is_none());
    let (_, stdout, _) = place(&slos, &cluster, &[]);
    let mut lines = stdout.lines();
    let row = lines.find(|line| line.starts_with("border"));
    assert!(
        row.is_some_and(|row| row.contains("policer {limits: [{rate: ")),
        "{stdout}"
    );
}

#[test]
fn all_terms_outlive_a_denied_change() {
    let folder = Folder::new();
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    let state = folder.0.join("state.json");
    document(&slos, &cluster, &state);
    let kept = std::fs::read(&state).expect("the state");
    // Changed terms that do not fit.
    let changed = changed(
        &folder,
        "slos.yaml",
        "chain: lpm, throughput: 12Mpps, latency: 20us, spread: true",
        "chain: snort, throughput: 90Mpps, latency: 150us, apart: intrusion",
    );
    let (status, found) = document(&changed, &cluster, &state);
    assert_eq!(status, Some(3), "{found}");
    assert_eq!(std::fs::read(&state).expect("the state"), kept);
    assert_eq!(found["slos"][1]["course"], "changed");
    // With the original terms everything is as before.
    let (status, found) = document(&slos, &cluster, &state);
    assert_eq!(status, Some(0));
    assert_eq!(found["slos"][1]["course"], "kept");
}

#[cfg(not(feature = "milp"))]
#[test]
fn without_a_solver_optimal_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let state = folder.0.join("state.json");
    let name = state.to_str().expect("a name in UTF-8");
    let more = ["--state", name, "--optimal"];
    let (status, stdout, stderr) = place(&example("slos.yaml"), &example("cluster.yaml"), &more);
    assert_eq!((status, &*stdout), (Some(2), ""));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("built without a solver"), "{stderr}");
    assert!(stderr.contains("--features milp"), "{stderr}");
    assert!(!state.exists());
}

#[test]
fn what_only_a_search_takes_is_refused_without_one() {
    let (slos, cluster) = (example("slos.yaml"), example("cluster.yaml"));
    for (more, expected) in [
        (&["--apply"][..], "--optimal"),
        (&["--saving", "2"], "--optimal"),
        (&["--time", "1s"], "--optimal"),
        (&["--optimal", "--apply"], "--state"),
        (&["--optimal", "--saving", "0"], "expected a number of servers"),
        (&["--optimal", "--saving", "101%"], "expected a number of servers"),
        (&["--optimal", "--saving", "NaN%"], "expected a number of servers"),
        (&["--optimal", "--time", "25h"], "expected a duration"),
    ] {
        let (status, stdout, stderr) = place(&slos, &cluster, more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{more:?}");
        assert!(stderr.contains(expected), "{more:?}: {stderr}");
    }
}

/// Writes SLOs for which ResQ's greedy scheduler uses more servers than necessary.
#[cfg(feature = "milp")]
fn many(folder: &Folder) -> (PathBuf, PathBuf) {
    let spec = std::fs::read_to_string(example("slos.yaml")).expect("an example");
    let (chains, _) = spec.split_once("  slos:\n").expect("SLOs");
    let mut text = format!("{chains}  slos:\n");
    for i in 0..60 {
        let (chain, rate) = [("stats", "3.3Mpps"), ("lpm", "4.9Mpps"), ("snort", "600kpps")][i % 3];
        text += &format!("    - {{name: {chain}-{i}, chain: {chain}, throughput: {rate}, latency: 150us}}\n");
    }
    let cluster = changed(folder, "cluster.yaml", "count: 4", "count: 40");
    (folder.write("slos.yaml", text), cluster)
}

#[cfg(feature = "milp")]
#[test]
fn the_best_plan_is_proposed_with_its_moves_and_applied_only_when_asked() {
    let folder = Folder::new();
    let (slos, cluster) = many(&folder);
    let state = folder.0.join("state.json");
    let name = state.to_str().expect("a name in UTF-8");
    let (status, _, stderr) = place(&slos, &cluster, &["--state", name, "--scheduler", "resq-greedy"]);
    assert_eq!((status, &*stderr), (Some(0), ""));
    let before = std::fs::read(&state).expect("the state");
    let optimal = |more: &[&str]| {
        let all = ["--state", name, "--optimal", "--output", "json"];
        let (status, stdout, stderr) = place(&slos, &cluster, &[&all, more].concat());
        assert_eq!((status, &*stderr), (Some(0), ""));
        serde_json::from_str::<serde_json::Value>(&stdout).expect("JSON")
    };
    // Printed only.
    let told = optimal(&[]);
    let found = &told["optimal"];
    assert_eq!(
        (&found["proposed"], &found["applied"]),
        (&true.into(), &false.into()),
        "{found}"
    );
    assert_eq!(found["servers"], found["least_servers"]);
    assert_eq!(found["gap"], 0.0);
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    assert_eq!(
        number(&found["servers_before"]),
        number(&found["servers"]) + number(&found["saved"])
    );
    assert_eq!(told["servers_used"], found["servers_before"]);
    let steps = found["steps"].as_array().expect("steps");
    assert!(number(&found["moved"]) > 0 && !steps.is_empty());
    assert_eq!(std::fs::read(&state).expect("the state"), before);
    // Below this threshold nothing is applied, even with `--apply`.
    let little = optimal(&["--saving", "90%", "--apply"]);
    assert_eq!(little["optimal"]["proposed"], false);
    assert!(
        little["optimal"]["why_not"]
            .as_str()
            .is_some_and(|why| why.contains("--saving"))
    );
    assert_eq!(std::fs::read(&state).expect("the state"), before);
    // As text.
    let (_, text, _) = place(&slos, &cluster, &["--state", name, "--optimal"]);
    assert!(text.contains("optimal: "), "{text}");
    assert!(text.contains(" above the bound of "), "{text}");
    // Steps that are not in the state have no numbers for `--done`.
    assert!(text.contains("\n    - start "), "{text}");
    assert!(text.contains("not applied: --migrate"), "{text}");
    // Half of its steps, marked as done one by one, and then all: this reaches the plan.
    let copy = folder.path("copy.json");
    std::fs::copy(&state, &copy).expect("a state");
    let copy = copy.to_str().expect("a name in UTF-8");
    let step = |more: &[&str]| {
        let all = ["--state", copy, "--output", "json"];
        let (status, stdout, stderr) = place(&slos, &cluster, &[&all, more].concat());
        assert_eq!((status, &*stderr), (Some(0), ""));
        serde_json::from_str::<serde_json::Value>(&stdout).expect("JSON")
    };
    let begun = step(&["--optimal", "--migrate"]);
    assert_eq!(begun["optimal"]["begun"], true);
    assert_eq!(&begun["migration"]["steps"], &begun["optimal"]["steps"]);
    for (i, step) in steps.iter().enumerate() {
        let mut step = step.clone();
        step["number"] = (i + 1).into();
        assert_eq!(begun["migration"]["steps"][i], step);
    }
    for done in 1..=steps.len() / 2 {
        let left = step(&["--done", &done.to_string()]);
        assert_eq!(left["migration"]["stopped"], serde_json::json!([]));
    }
    let over = step(&["--done", &steps.len().to_string()]);
    assert_eq!(over["servers_used"], found["servers"]);
    let applied = optimal(&["--apply"]);
    assert_eq!(applied["optimal"]["applied"], true);
    assert_eq!(applied["servers_used"], found["servers"]);
    assert_ne!(std::fs::read(&state).expect("the state"), before);
    // Nothing is left to save.
    let again = optimal(&[]);
    assert_eq!(again["servers_used"], found["servers"]);
    assert_eq!(again["optimal"]["proposed"], false);
    let kept = again["slos"].as_array().expect("rows").iter();
    assert!(kept.clone().all(|row| row["course"] == "kept"));
}
