//! Output files that block: a full pipe without a reader, in place of a disk or a server that does not respond.

mod common;

use common::*;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Timeout after which a run counts as hanging. Each normally takes a few seconds.
const HANGS: Duration = Duration::from_secs(240);

/// Creates a named pipe, which stays full while the result exists.
fn full_pipe(path: &Path) -> File {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let mut pipe = options.custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    loop {
        match pipe.write(&[0; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return pipe,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asserts that a run with a blocked file ends, names the file, and prints its report.
fn ends(folder: &Folder, name: &str, functions: &str, more: &[&str]) {
    let file = folder.path(&format!("{name}.pipe"));
    let _held = full_pipe(&file);
    let file = file.to_str().unwrap();
    let functions = format!("[{}]", functions.replace("FILE", file));
    let chain = folder.spec(&format!("{name}.yaml"), &functions, "");
    let [out, told] = ["out", "told"].map(|kind| folder.path(&format!("{name}.{kind}")));
    let mut command = tailwater();
    command.args(["run", "--output", "json", "--duration", "300ms"]);
    command.args([Path::new("--traffic"), &folder.path("in.pcap"), &chain]);
    command.args(more.iter().map(|word| word.replace("FILE", file)));
    command.stdout(File::create(&out).unwrap());
    command.stderr(File::create(&told).unwrap());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > HANGS {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{name}: the run hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let told = std::fs::read_to_string(told).unwrap();
    assert_eq!(status.code(), Some(1), "{name}: {told}");
    let expected = "no data accepted for 5 seconds";
    assert!(told.contains(expected) && told.contains(file), "{name}: {told}");
    let report = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_identity(&report);
    assert!(count(&report, "offered") > 0, "{name}");
}

#[test]
fn a_file_that_hangs_does_not_hold_up_the_end() {
    let folder = Folder::new();
    folder.capture("in.pcap", &mixture(2000));
    folder.write(
        "all.rules",
        "alert ip any any -> any any (msg:\"all\"; sid:1; rev:1;)\n",
    );
    let upf = format!(
        "{{upf: {{addresses: [192.0.2.1], usage: {{file: FILE}}, profiles: {{all: {{}}}}, \
         sessions: ['1 ue {SERVER} teid 1 peer 192.0.2.10 peerTeid 2 profile all']}}}}"
    );
    let cases: [(&str, &str, &[&str]); 5] = [
        ("accounting", "{accounting: {export: {file: FILE}}}", &[]),
        ("flow-stats", "{flowStats: {export: [{file: FILE}]}}", &[]),
        ("ids", "{ids: {rulesFiles: [all.rules], eve: FILE}}", &[]),
        ("upf", &upf, &[]),
        ("capture", "{forward: }", &["--capture-out", "FILE"]),
    ];
    std::thread::scope(|scope| {
        for (name, functions, more) in cases {
            let folder = &folder;
            scope.spawn(move || ends(folder, name, functions, more));
        }
    });
}

#[test]
fn a_record_that_hangs_does_not_hold_up_the_end() {
    let cores = tailwater_dataplane::cores::available();
    let [first, second, ..] = cores[..] else {
        eprintln!("skipped: one core only");
        return;
    };
    let folder = Folder::new();
    folder.capture("in.pcap", &mixture(2000));
    let (dedicated, auxiliary) = (second.to_string(), first.to_string());
    let more = ["--cores", &dedicated, "--auxiliary", &auxiliary, "--record", "FILE"];
    ends(&folder, "record", "{forward: }", &more);
}

/// A pipe without a reader is reported before the first packet.
#[test]
fn a_pipe_without_a_reader_is_refused() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(10));
    let pipe = folder.path("flows.pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let functions = format!("[{{accounting: {{export: {{file: {}}}}}}}]", pipe.display());
    let chain = folder.spec("chain.yaml", &functions, "");
    let output = run(&[&"run", &chain, &"--traffic", &traffic]);
    assert_refused(&output, "expected a reader of this pipe within 5s, found none");
}
