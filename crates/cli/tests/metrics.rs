//! Prometheus endpoint of a run.

mod common;

use common::serving::{Serving, documented, get, served};
use common::*;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

#[test]
fn metrics_are_there_while_the_chain_runs() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let mut serving = Serving::start(&folder, &traffic, &[]);
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
        "tailwater_late_packets_total{cause=\"queued-behind-own-flow\"} ",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
    assert!(get(address, "GET /").starts_with("HTTP/1.1 404"));
    assert!(get(address, "GET /healthz").starts_with("HTTP/1.1 200"));
    assert!(get(address, "GET /readyz").starts_with("HTTP/1.1 200"));
    assert!(get(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    // Invalid requests affect only their sender.
    let mut rubbish = TcpStream::connect(address).unwrap();
    rubbish.write_all(&[0xff; 100]).unwrap();
    // An idle connection delays neither the others nor the end.
    let _silent = TcpStream::connect(address).unwrap();
    assert!(get(address, "GET /metrics").starts_with("HTTP/1.1 200"));

    serving.stop("-TERM");
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

/// Every metric of the page is documented, and every documented one is on the page.
#[test]
fn documentation_and_page_name_the_same_metrics() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let mut serving = Serving::start(&folder, &traffic, &[]);
    let served = served(&serving.page_with("edge/denied"));
    let served: BTreeSet<&str> = served.iter().map(String::as_str).collect();
    let mut documented = documented();
    // Present with flow state in Redis or on a server only.
    let others = [
        "tailwater_state_",
        "tailwater_ingress_",
        "tailwater_server_",
        "tailwater_promise_",
        "tailwater_port_",
        "tailwater_core_",
    ];
    documented.retain(|name| !others.iter().any(|other| name.starts_with(other)));
    assert_eq!(served, documented);
    serving.stop("-TERM");
}
