//! Programs that communicate across a chain: streams by iperf3, names by DNS.

use crate::common::namespaces::{Hosts, skipped, wait_for};
use crate::common::text;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

/// Streams of TCP and UDP from host 0 to host 1 and back, some megabytes at the machine's speed, of which only the size
/// is asserted. Skipped without iperf3.
pub(super) fn streams(hosts: &Hosts, from: &str, to: &str) {
    if skipped(&["iperf3"]) {
        return;
    }
    let _server = hosts.start(1, &["iperf3", "-s"]);
    hosts.wait_for_listener(1, 5201);
    for flags in [
        "-n 4M -P 4",
        "-n 4M -R",
        "-n 1M -u -b 20M -l 1000",
        "-n 1M -u -b 20M -l 1000 -R",
    ] {
        let client = format!("timeout 60 iperf3 -J {flags} -B {from} -c {to}");
        let mut result = Value::Null;
        // On a busy machine the server may not have finished the previous test. It says so, or resets the connection
        // before a stream begins.
        wait_for(|| {
            let client = hosts.on(0, &client);
            result = serde_json::from_slice(&client.stdout).unwrap();
            let error = result["error"].as_str().unwrap_or_default();
            let has_begun = result["start"]["connected"]
                .as_array()
                .is_some_and(|streams| !streams.is_empty());
            let is_reset = error.contains("unable to receive control message") && !has_begun;
            if error.contains("the server is busy") || is_reset {
                return false;
            }
            assert!(client.status.success(), "{flags}: {}", text(&client.stdout));
            true
        });
        let sum = match &result["end"]["sum_received"]["bytes"] {
            Value::Null => &result["end"]["sum"]["bytes"],
            bytes => bytes,
        };
        let bytes = sum.as_u64();
        assert!(bytes.is_some_and(|bytes| bytes > 100_000), "{flags}: {result}");
    }
}

/// Returns a DNS query for a name.
pub(super) fn question(name: &str) -> Vec<u8> {
    let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend(b"\0\0\x01\0\x01");
    message
}

/// Sends a query from an address of host 0. Returns the response, or an error after a timeout in seconds.
pub(super) fn ask(hosts: &Hosts, [from, to]: [&str; 2], name: &str, seconds: u64) -> Result<Vec<u8>, ErrorKind> {
    let question = question(name);
    let [from, to] = [from, to].map(|address| address.parse::<IpAddr>().unwrap());
    let asks = move || {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.connect((to, 53)).unwrap();
        let wait = Duration::from_secs(seconds);
        socket.set_read_timeout(Some(wait)).unwrap();
        let mut answer = [0; 512];
        socket.send(&question).unwrap();
        let length = socket.recv(&mut answer).map_err(|error| error.kind())?;
        Ok(answer[..length].to_vec())
    };
    hosts.within(0, asks).join().unwrap()
}

/// Runs a name server at an address of host 1 that reports every name as non-existent, until the process ends.
pub(super) fn name_server(hosts: &Hosts, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    hosts.within(1, move || {
        let socket = UdpSocket::bind((address, 53)).unwrap();
        ready.send(()).unwrap();
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // Response flags: no such name.
            buffer[2..4].copy_from_slice(&[0x81, 0x83]);
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
    is_ready.recv().unwrap();
}

/// Asserts that a query is answered.
pub(super) fn assert_answers(hosts: &Hosts, ends: [&str; 2], name: &str) {
    let answer = ask(hosts, ends, name, 60).unwrap();
    assert_eq!(answer[12..], question(name)[12..]);
    assert_eq!(answer[3] & 15, 3);
}
