//! The Prometheus endpoint of a run.

mod common;

use common::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_there_while_the_chain_runs() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
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
        .args([&traffic, &folder.acl_nat()])
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
    let address: SocketAddr = address.trim_end_matches("/metrics").parse().unwrap();
    assert!(address.ip().is_loopback());

    // The first figures come with the first window.
    let deadline = Instant::now() + Duration::from_secs(30);
    let page = loop {
        let page = get(address, "GET /metrics");
        if page.contains("edge/denied") {
            break page;
        }
        assert!(Instant::now() < deadline, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    };
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

    let id = child.id().to_string();
    let kill = std::process::Command::new("kill")
        .args(["-TERM", &id])
        .status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
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
