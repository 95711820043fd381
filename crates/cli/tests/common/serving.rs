//! A run whose metrics are read while it continues.

use super::{Folder, tailwater};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the metrics that the documentation names.
pub fn documented() -> BTreeSet<&'static str> {
    let documentation = include_str!("../../../../docs/reference/metrics.md");
    let rows = documentation.lines();
    rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect()
}

/// Returns the metrics of a page.
pub fn served(page: &str) -> BTreeSet<String> {
    let suffix = |line: &str| match line {
        line if line.ends_with(" counter") => "_total",
        line if line.ends_with(" info") => "_info",
        _ => "",
    };
    page.lines()
        .filter_map(|line| Some((line.strip_prefix("# TYPE ")?, suffix(line))))
        .filter_map(|(line, suffix)| Some(format!("{}{suffix}", line.split(' ').next()?)))
        .collect()
}

/// Run of an access list and NAT that serves metrics until it is stopped, at most for five minutes.
pub struct Serving {
    child: Child,
    pub address: SocketAddr,
}

impl Serving {
    pub fn start(folder: &Folder, traffic: &Path, more: &[&str]) -> Serving {
        Serving::run(
            tailwater()
                .args(["run", "--duration", "5m", "--window", "50ms", "--traffic"])
                .args([traffic, &folder.acl_nat()])
                .args(more),
        )
    }

    /// Starts any run, and waits until it serves metrics.
    pub fn run(command: &mut Command) -> Serving {
        let mut child = command
            .args(["--metrics", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("metrics at") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended early");
        }
        let address = line.trim().trim_start_matches("notice: metrics at http://");
        let address = address.trim_end_matches("/metrics").parse().unwrap();
        Serving { child, address }
    }

    /// Returns the page once it contains a text: the first figures come with the first window.
    pub fn page_with(&self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let page = get(self.address, "GET /metrics");
            if page.contains(text) {
                return page;
            }
            assert!(Instant::now() < deadline, "{page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the run with a signal such as `-TERM`, and returns its output.
    pub fn stop(&mut self, signal: &str) -> String {
        self.signal(signal);
        self.finish()
    }

    /// Sends a signal such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let kill = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Waits for the run's end, and returns its output.
    pub fn finish(&mut self) -> String {
        let mut printed = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut printed).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        printed
    }
}

/// Kills the run, so that a failed test leaves no worker spinning.
impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
