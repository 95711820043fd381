//! `tailwater simulate --resume`: completed runs are not repeated, however the program ended.

mod common;

use common::*;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Six runs.
const SWEEP: [&str; 6] = ["--policy", "tailwater,static", "--seed", "1,2,3", "--output", "json"];

fn simulate(rack: &Path, file: &Path) -> Command {
    let mut command = tailwater();
    command.arg("simulate").arg(rack).args(SWEEP);
    command.arg("--resume").arg(file);
    command
}

/// Returns standard output and standard error.
fn done(mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (text(&output.stdout), stderr)
}

fn lines(file: &Path) -> usize {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn without_resuming(rack: &Path) -> String {
    let mut command = tailwater();
    command.arg("simulate").arg(rack).args(SWEEP);
    let (printed, said) = done(command);
    assert_eq!(said, "");
    printed
}

#[test]
fn a_killed_sweep_goes_on_and_comes_to_the_same() {
    let folder = Folder::new();
    let (rack, file) = (folder.rack(), folder.path("runs.jsonl"));
    let whole = without_resuming(&rack);
    let mut child = simulate(&rack, &file).stdout(Stdio::null()).spawn().unwrap();
    while lines(&file) < 3 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    // With SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = lines(&file) - 1;
    assert!(kept >= 2);
    let (printed, said) = done(simulate(&rack, &file));
    assert!(printed == whole);
    let notice = format!("notice: {} has {kept} of 6 runs\n", file.display());
    assert_eq!(said, notice);
    assert_eq!(lines(&file), 7);
    // Nothing is left to do.
    let before = std::fs::read(&file).unwrap();
    let (printed, said) = done(simulate(&rack, &file));
    assert!(printed == whole && said.contains("has 6 of 6 runs"));
    assert!(std::fs::read(&file).unwrap() == before);
    // Truncated lines are repeated.
    for left in [before.len() - 1, before.len() - 700] {
        std::fs::write(&file, &before[..left]).unwrap();
        let (printed, said) = done(simulate(&rack, &file));
        assert!(printed == whole && said.contains("has 5 of 6 runs"), "{said}");
        assert!(std::fs::read(&file).unwrap() == before);
    }
}

#[test]
fn runs_of_other_racks_packets_and_objectives_are_others() {
    let folder = Folder::new();
    let (rack, file) = (folder.rack(), folder.path("runs.jsonl"));
    // A kill at the worst time leaves a part of the first line.
    std::fs::write(&file, "{\"tail").unwrap();
    let (whole, said) = done(simulate(&rack, &file));
    assert_eq!(said, "");
    // Comments and the order of policies do not count.
    let spec = std::fs::read_to_string(&rack).unwrap();
    std::fs::write(&rack, format!("# a comment\n{spec}")).unwrap();
    let (printed, said) = done(simulate(&rack, &file));
    assert!(printed == whole && said.contains("has 6 of 6 runs"));
    let with = |more: &[&str]| {
        let mut command = simulate(&rack, &file);
        command.args(more);
        done(command)
    };
    assert!(with(&["--slo", "300us"]).1.contains("has 0 of 6 runs"));
    assert!(with(&["--slo", "300us,100us"]).1.contains("has 6 of 12"));
    assert!(with(&["--duration", "19ms"]).1.contains("has 0 of 6 runs"));
    folder.capture("in.pcap", &mixture(299));
    assert!(with(&[]).1.contains("has 0 of 6 runs"));
    std::fs::write(&rack, spec.replace("cores: 8", "cores: 9")).unwrap();
    assert!(with(&[]).1.contains("has 0 of 6 runs"));
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let folder = Folder::new();
    let (rack, file) = (folder.rack(), folder.path("runs.jsonl"));
    let refused = |file: &Path, expected: &str| {
        let output = simulate(&rack, file).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    };
    let before = std::fs::read(&rack).unwrap();
    refused(&rack, "expected a file of finished runs of this format");
    assert!(std::fs::read(&rack).unwrap() == before);
    refused(&folder.0, "found no file");
    refused(&folder.path("missing/runs.jsonl"), "--resume: ");
    done(simulate(&rack, &file));
    let runs = std::fs::read_to_string(&file).unwrap();
    let second = runs.lines().nth(1).unwrap();
    std::fs::write(&file, runs.replace(second, &second[..90])).unwrap();
    refused(&file, "runs.jsonl:2: expected a finished run: ");
    std::fs::write(&file, runs.replace("\"format\":1", "\"format\":0")).unwrap();
    refused(&file, "expected a file of finished runs of this format");
}
