//! The Prometheus endpoint of a run.

mod common;

use common::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A run that serves metrics until it is stopped.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(folder: &Folder, traffic: &Path) -> Serving {
        let mut child = tailwater()
            .args([
                "run",
                "--duration",
                "5m",
                "--window",
                "50ms",
                "--metrics",
                "0",
            ])
            .arg("--traffic")
            .args([traffic, &folder.acl_nat()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("metrics at") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0);
        }
        let address = line.trim().trim_start_matches("notice: metrics at http://");
        let address = address.trim_end_matches("/metrics").parse().unwrap();
        Serving { child, address }
    }

    /// The page once it holds a text: the first figures come with the first window.
    fn page_with(&self, text: &str) -> String {
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

    fn stop(&mut self) {
        let id = self.child.id().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(kill.unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// A failed test leaves no worker spinning.
impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn metrics_are_there_while_the_chain_runs() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let mut serving = Serving::start(&folder, &traffic);
    let address = serving.address;
    assert!(address.ip().is_loopback());
    let page = serving.page_with("edge/denied");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains("application/openmetrics-text"), "{page}");
    assert!(page.trim_end().ends_with("# EOF"), "{page}");
    for name in [
        "tailwater_chain_info{chain=\"test\"",
        "tailwater_packets_offered_total ",
        "tailwater_packets_total{outcome=\"delivered\"} ",
        "tailwater_latency_seconds_bucket{le=\"0.1\"} ",
        "tailwater_late_packets_total{cause=\"whale\"} ",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
    assert!(get(address, "GET /").starts_with("HTTP/1.1 404"));
    assert!(get(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    // Rubbish is the sender's problem.
    let mut rubbish = TcpStream::connect(address).unwrap();
    rubbish.write_all(&[0xff; 100]).unwrap();
    // A silent connection does not hold up the others, nor the end.
    let _silent = TcpStream::connect(address).unwrap();
    assert!(get(address, "GET /metrics").starts_with("HTTP/1.1 200"));

    serving.stop();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_port_in_use_is_one_clear_line() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&[&"run", &folder.forward(), &"--metrics", &port]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("error: --metrics: cannot listen on 127.0.0.1:"),
        "{stderr}"
    );
}

/// Every metric of the page is documented, and every documented one is there.
#[test]
fn documentation_and_page_name_the_same_metrics() {
    let documentation = include_str!("../../../docs/metrics.md");
    let documented: std::collections::BTreeSet<&str> = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let mut serving = Serving::start(&folder, &traffic);
    let page = serving.page_with("edge/denied");
    let suffix = |line: &str| match line {
        line if line.ends_with(" counter") => "_total",
        line if line.ends_with(" info") => "_info",
        _ => "",
    };
    let served: Vec<String> = page
        .lines()
        .filter_map(|line| Some((line.strip_prefix("# TYPE ")?, suffix(line))))
        .map(|(line, suffix)| format!("{}{suffix}", line.split(' ').next().unwrap()))
        .collect();
    let served: std::collections::BTreeSet<&str> = served.iter().map(String::as_str).collect();
    assert_eq!(served, documented);
    serving.stop();
}
