//! Rights of the run's own process while functions are isolated: it keeps few, and functions are replaced as before.

use crate::common::*;
use crate::processes::{processes_at, signal_if_there};
use crate::{TRUSTED, alone, restarts, ways};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Name and status of a thread.
struct Task {
    name: String,
    status: String,
}

impl Task {
    fn all(process: u32) -> Vec<Task> {
        let tasks = fs::read_dir(format!("/proc/{process}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let task = |task: fs::DirEntry| {
            Some(Task {
                name: fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned(),
                status: fs::read_to_string(task.path().join("status")).ok()?,
            })
        };
        tasks.filter_map(task).collect()
    }

    fn field(&self, name: &str) -> &str {
        let mut lines = self.status.lines();
        lines
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .unwrap_or("")
            .trim()
    }

    fn capabilities(&self) -> u64 {
        u64::from_str_radix(self.field("CapPrm"), 16).unwrap()
    }
}

pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it takes too long");
        sleep(Duration::from_millis(5));
    }
}

/// The server kept all capabilities of root, and had no filter of its own.
#[test]
fn the_run_itself_keeps_few_rights_and_replaces_functions() {
    let _alone = alone();
    // CAP_SYS_NICE orders functions in their core's run queue; CAP_IPC_LOCK is for memory of ports.
    const OF_WORKERS: u64 = 1 << 23 | 1 << 14;
    // CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_SYS_TIME, CAP_SYSLOG.
    const OF_NONE: u64 = 1 << 16 | 1 << 17 | 1 << 22 | 1 << 25 | 1 << 34;
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let folder = Folder::new();
        let chain = folder.acl_nat();
        // Longer than the test, which ends the run.
        let packets: Vec<_> = (0..600)
            .map(|i| (i * 100_000_000, udp(client(1), 5000, SERVER, 53)))
            .collect();
        let traffic = folder.capture("slow.pcap", &packets);
        let run = tailwater()
            .args(["run", "--output", "json", "--isolation", way])
            .arg(&chain)
            .arg("--traffic")
            .arg(&traffic)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = run.id();
        let worker = until(|| {
            let mut tasks = Task::all(process).into_iter();
            tasks.find(|task| task.name.starts_with("worker-") && task.capabilities() & !OF_WORKERS == 0)
        });
        assert_eq!(worker.field("Seccomp"), "2", "{way}");
        for task in Task::all(process) {
            assert_eq!(task.field("Seccomp"), "2", "{} in {way}", task.name);
            // Threads of the set-up that sleep until the end.
            if ["main", "tailwater", "watch", "starter", "keeper", "isolation"].contains(&&*task.name) {
                assert_eq!(task.capabilities() & OF_NONE, 0, "{} in {way}", task.name);
            }
        }
        // Functions are replaced in new namespaces and control groups nevertheless.
        let first = processes_at(process, 0);
        first.iter().for_each(|function| signal_if_there(*function, "-KILL"));
        until(|| {
            let now = processes_at(process, 0);
            (now.len() >= 2 && now.iter().all(|function| !first.contains(function))).then_some(())
        });
        signal_if_there(process, "-INT");
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(restarts(&report["isolation"]["functions"][0]) > 0, "{report}");
        assert_eq!(report["isolation"]["without"], serde_json::json!([]), "{report}");
    }
}
