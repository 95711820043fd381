//! The clients of a server, on a server whose machine is a model.
#![cfg(feature = "control")]

#[path = "../../server/tests/common/mod.rs"]
mod common;
#[path = "../../server/tests/common/serving.rs"]
mod serving;

use common::yaml;
use serde_json::Value;
use serving::{Folder, Serving, wait};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tailwater_server::control::Limits;

struct Rig {
    serving: Serving,
    folder: Folder,
}

impl Rig {
    fn new(fields: &str) -> Rig {
        let folder = Folder::new();
        let serving = Serving::start(folder.config(fields, Limits::default()));
        Rig { serving, folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command
            .args(arguments)
            .arg("--socket")
            .arg(&self.serving.socket)
            .current_dir(&self.folder.0);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that fails with this code.
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
        error
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn wait_for_phase(&self, name: &str, phase: &str) {
        wait(|| {
            self.ok(&["get", "chains", name])
                .contains(&format!(" {phase} "))
                .then_some(())
        });
    }
}

fn edge(latency: &str) -> String {
    yaml("edge", "10.0.0.0/8", "[acl: {}, forward: {}]", latency)
}

#[test]
fn chains_are_applied_listed_described_drained_and_deleted() {
    let rig = Rig::new("");
    let empty = rig.run(&["get", "chains"]);
    assert_eq!(String::from_utf8_lossy(&empty.stderr), "notice: no chains\n");
    rig.write("chains/edge.yaml", &edge("100us"));
    rig.write(
        "chains/core.yaml",
        &yaml("core", "192.168.0.0/16", "[forward: {}]", "50us"),
    );
    let dry = rig.ok(&["apply", "-f", "chains", "--dry-run=server"]);
    assert_eq!(
        dry,
        "chain/core created (server dry run), unchecked\nchain/edge created (server dry run), unchecked\n"
    );
    assert_eq!(
        rig.ok(&["apply", "-f", "chains"]),
        "chain/core created\nchain/edge created\n"
    );
    assert_eq!(rig.ok(&["apply", "-f", "chains/edge.yaml"]), "chain/edge unchanged\n");
    rig.wait_for_phase("edge", "Running");
    rig.wait_for_phase("core", "Running");
    let table = wait(|| Some(rig.ok(&["get", "chains"])).filter(|table| table.contains("90us")));
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        [
            "NAME",
            "PHASE",
            "P99",
            "OBJECTIVE",
            "MET",
            "RATE",
            "OFFERED",
            "LOST",
            "CORES",
            "AGE"
        ]
    );
    assert_eq!(lines[1][..6], ["core", "Running", "90us", "50us", "no", "2.00kpps"]);
    assert_eq!(lines[2][..5], ["edge", "Running", "90us", "100us", "yes"]);
    assert_eq!(lines[2][8], "1+0.2");
    let wide = rig.ok(&["get", "chain", "edge", "-o", "wide"]);
    assert!(
        wide.contains("FUNCTIONS") && wide.contains("acl,forward") && !wide.contains("core"),
        "{wide}"
    );
    let json: Value = serde_json::from_str(&rig.ok(&["get", "chains", "-o", "json"])).unwrap();
    assert_eq!(json["chains"][1]["name"], "edge");
    assert_eq!(json["chains"][1]["latency"]["p99_nanoseconds"], 90_000);
    assert_eq!(json["chains"][1]["source"], "chains/edge.yaml");
    let one = rig.ok(&["get", "chains", "core", "-o", "yaml"]);
    assert!(
        one.contains("name: core\n") && one.contains("  p99_nanoseconds: 90000\n"),
        "{one}"
    );
    let described = rig.ok(&["describe", "chain", "edge"]);
    for expected in [
        "Phase:        Running\n",
        "Objective:    p99 below 100us\n",
        "Last window:  p50 20us, p99 90us\n",
        "              2.00kpps offered, 1.90kpps delivered, 0pps dropped, 100pps lost\n",
        "Since start:  p50 10us, p99 70us\n",
        "  Ready         True     Running",
        "acl: {}",
    ] {
        assert!(described.contains(expected), "{described}\n{expected}");
    }
    assert_eq!(rig.ok(&["drain", "chain", "edge"]), "chain/edge drained\n");
    rig.wait_for_phase("edge", "Drained");
    let events = rig.ok(&["events", "--chain", "edge"]);
    assert!(
        events.contains("Normal  Started         edge                generation 1\n"),
        "{events}"
    );
    let last: Value = serde_json::from_str(rig.ok(&["events", "-o", "json"]).lines().last().unwrap()).unwrap();
    assert_eq!(
        (last["chain"].as_str(), last["reason"].as_str()),
        (Some("edge"), Some("Drained"))
    );
    assert_eq!(
        rig.ok(&["delete", "-f", "chains/core.yaml", "--dry-run=server"]),
        "chain/core deleted (server dry run)\n"
    );
    assert_eq!(
        rig.ok(&["delete", "chain", "edge", "core"]),
        "chain/edge deleted\nchain/core deleted\n"
    );
    wait(|| rig.run(&["get", "chains"]).stdout.is_empty().then_some(()));
    assert!(rig.ok(&["events", "--chain", "edge"]).contains("Gone"), "events remain");
}

#[test]
fn exit_codes_tell_wrong_input_from_refusals() {
    let rig = Rig::new("");
    rig.write("wrong.yaml", &edge("fast"));
    rig.write("edge.yaml", &edge("1ms"));
    rig.write("other.yaml", &edge("1ms").replace("name: edge", "name: other"));
    let error = rig.fails(&["apply", "-f", "wrong.yaml"], 2);
    assert!(
        error.starts_with("error: wrong.yaml:7:18: spec.slo.latency: expected a duration"),
        "{error}"
    );
    let error = rig.fails(&["apply", "-f", "wrong.yaml", "-f", "edge.yaml", "-f", "wrong.yaml"], 2);
    assert_eq!(
        error
            .lines()
            .filter(|line| line.starts_with("error: wrong.yaml:7:18: "))
            .count(),
        2,
        "{error}"
    );
    let error = rig.fails(&["apply", "-f", "edge.yaml", "other.yaml"], 2);
    assert!(
        error.contains("chains \"edge\" and \"other\" on port \"north\""),
        "{error}"
    );
    rig.serving.machine.state().too_large.insert("edge".into());
    let error = rig.fails(&["apply", "-f", "edge.yaml"], 1);
    assert_eq!(
        error,
        "error: chain \"edge\": needs 2 cores, 1 is left; would fit with 1 core less\n"
    );
    assert_eq!(rig.ok(&["apply", "-f", "edge.yaml", "--force"]), "chain/edge created\n");
    assert!(rig.ok(&["describe", "chain", "edge"]).contains("Promise:      none"));
    assert_eq!(
        rig.fails(&["get", "chains", "none"], 1),
        "error: chain \"none\" not found\n"
    );
    assert_eq!(
        rig.fails(&["describe", "chain", "none"], 1),
        "error: chain \"none\" not found\n"
    );
    // A chain that is being measured has no event yet.
    let silent = rig.run(&["events", "--chain", "none"]);
    let notice = String::from_utf8_lossy(&silent.stderr).into_owned();
    assert_eq!(silent.status.code(), Some(0));
    assert_eq!(notice, "notice: no event of a chain \"none\" is remembered\n");
    assert_eq!(
        rig.fails(&["drain", "chain", "none"], 1),
        "error: chain \"none\" not found\n"
    );
    assert_eq!(
        rig.fails(&["delete", "chain", "edge", "none"], 1),
        "error: chain \"none\" not found\n"
    );
    let error = rig.fails(&["apply", "-f", "missing.yaml"], 2);
    assert!(error.starts_with("error: missing.yaml: cannot be read"), "{error}");
    fs::create_dir(rig.folder.0.join("empty")).unwrap();
    assert!(
        rig.fails(&["apply", "-f", "empty"], 2)
            .contains("expected files *.yaml or *.yml, found none")
    );
    for arguments in [
        &["apply"][..],
        &["delete"],
        &["delete", "chain"],
        &["get", "pods"],
        &["drain", "chain"],
    ] {
        rig.fails(arguments, 2);
    }
    let socket = rig.folder.0.join("none.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = command
        .args(["get", "chains", "--socket"])
        .arg(&socket)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("error: no server is running at ") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn a_chain_on_standard_input_finds_its_files_in_the_current_folder() {
    let rig = Rig::new("");
    let mut child = rig
        .command(&["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(edge("1ms").as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"chain/edge created\n");
    let state = rig.serving.machine.state();
    let folder = fs::canonicalize(&rig.folder.0).unwrap();
    assert_eq!(
        fs::canonicalize(state.chains["edge"].chain.manifest.base_dir()).unwrap(),
        folder
    );
}

/// Command that follows the server, and its lines.
struct Following {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Following {
    fn start(mut command: Command) -> Following {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Following { child, lines }
    }

    /// Reads until a line has all of these.
    fn until(&mut self, parts: &[&str]) {
        let line = self
            .lines
            .find(|line| parts.iter().all(|part| line.as_ref().unwrap().contains(part)));
        assert!(line.is_some(), "no line with {parts:?}");
    }

    /// Ends it as Ctrl-C does.
    fn interrupt(mut self) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn changes_and_events_are_followed_until_ctrl_c() {
    let rig = Rig::new("");
    rig.write("edge.yaml", &edge("1ms"));
    let mut chains = Following::start(rig.command(&["get", "chains", "--watch"]));
    let mut documents = Following::start(rig.command(&["get", "chains", "--watch", "-o", "json"]));
    let mut events = Following::start(rig.command(&["events", "--watch"]));
    events.until(&["server", "Serving"]);
    rig.ok(&["apply", "-f", "edge.yaml"]);
    chains.until(&["NAME", "PHASE"]);
    chains.until(&["edge", "Running"]);
    let mut windows = Following::start(rig.command(&["get", "chain", "edge", "--watch", "--interval", "50ms"]));
    for _ in 0..3 {
        windows.until(&["edge", "Running", "90us", "2.00kpps"]);
    }
    windows.interrupt();
    documents.until(&["\"name\":\"edge\"", "\"phase\":\"Running\""]);
    events.until(&["edge", "Started"]);
    rig.ok(&["delete", "chain", "edge"]);
    chains.until(&["edge", "Gone"]);
    documents.until(&["\"phase\":\"Gone\""]);
    events.until(&["edge", "Gone"]);
    [chains, documents, events].into_iter().for_each(Following::interrupt);
    // A server that ends is an error of those that follow it.
    let mut events = Following::start(rig.command(&["events", "--watch"]));
    events.until(&["edge", "Gone"]);
    drop(rig.serving);
    assert_eq!(events.child.wait().unwrap().code(), Some(1));
}

#[test]
fn followers_end_with_their_reader() {
    let rig = Rig::new("");
    rig.write("edge.yaml", &edge("1ms"));
    rig.ok(&["apply", "-f", "edge.yaml"]);
    rig.wait_for_phase("edge", "Running");
    // The second and the third may have nothing more to print.
    for follower in [
        &["get", "chains", "--watch", "--interval", "50ms"][..],
        &["get", "chains", "--watch"],
        &["events", "--watch"],
    ] {
        let mut command = rig.command(follower);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{follower:?}");
        drop(reader);
        let status = wait(|| child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{follower:?}");
    }
}
