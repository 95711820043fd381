//! `tailwater place`: answers, the state that is kept, and what is wrong with files.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/place")
        .join(name)
}

/// Runs it: exit code, standard output, standard error.
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
    assert_eq!(
        (&first["admitted"], &first["denied"]),
        (&5.into(), &0.into())
    );
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
    let row = stdout
        .lines()
        .find(|line| line.starts_with("border"))
        .expect("a row");
    assert!(
        row.contains("denied    no room: too few servers apart"),
        "{row}"
    );
    assert!(row.contains("would fit with "), "{row}");
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
        "    - {name: lab, chain: snort, onDemand: {mostInstances: 4}, latency: 120us}\n",
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
            "expected no point below the one before, found point 1",
        ),
        (
            "slos.yaml",
            "[1.0, 27.1]",
            "[0.95, 27.1]",
            "expected loads up to 1, the last of them 1",
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
    assert!(
        stderr.contains("expected a file, found /dev/full"),
        "{stderr}"
    );
    let device = std::fs::metadata("/dev/full").expect("a device");
    assert!(device.file_type().is_char_device());
    // Where it is written first there may be an input.
    let text = std::fs::read_to_string(&slos).expect("an example");
    let input = folder.write("state.json.new", &text);
    let state = folder.0.join("state.json");
    let name = state.to_str().expect("a name in UTF-8");
    let (status, _, stderr) = place(&input, &cluster, &["--state", name]);
    assert_eq!(status, Some(2), "{stderr}");
    assert_eq!(std::fs::read_to_string(&input).expect("the input"), text);
    // A link stays one.
    std::fs::write(&state, "").expect("a state");
    let link = folder.0.join("link.json");
    symlink(&state, &link).expect("a link");
    let (status, _) = document(&slos, &cluster, &link);
    assert_eq!(status, Some(0));
    assert!(link.is_symlink());
    assert!(!std::fs::read(&state).expect("the state").is_empty());
}
