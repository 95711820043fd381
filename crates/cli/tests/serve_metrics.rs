//! Metrics and health of a server with many chains.

mod common;

use common::chain_server::{Folder, Serving, wait};
use common::serving::{documented, get, served};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

/// Value of the sample that begins with `name`, if it is on the page.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// Address that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn chains_come_and_go_on_the_page_of_their_server() {
    let folder = Folder::new();
    let address = free_address();
    folder.server(&format!("  metrics: {}\n", address.port()));
    folder.chain(
        "first",
        "10.0.0.0/17",
        "{acl: {rules: [{action: allow, protocol: tcp}], default: deny}}",
    );
    let serving = Serving::start(&folder);
    let page = || get(address, "GET /metrics");
    let offered = |name: &str| value(&page(), &format!("tailwater_packets_offered_total{{chain=\"{name}\"}}"));
    wait("packets of the first chain", || offered("first") > Some(0.0));
    assert!(get(address, "GET /healthz").starts_with("HTTP/1.1 200"));
    wait("readiness", || get(address, "GET /readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(offered("second"), None);

    // Every documented metric but those of flow state in Redis, and of a rack's ingress, is on the page.
    wait("a window", || page().contains("tailwater_window_latency_p99_seconds{"));
    let names = served(&page());
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut expected = documented();
    expected.retain(|name| !name.starts_with("tailwater_state_") && !name.starts_with("tailwater_ingress_"));
    assert_eq!(names, expected);

    folder.write(
        "second.yaml",
        &common::chain_server::chain("second", "10.0.128.0/17", "{forward: }"),
    );
    assert!(folder.ok(&["apply", "-f", "second.yaml"]).contains("created"));
    wait("packets of the second chain", || offered("second") > Some(0.0));
    folder.write(
        "wrong.yaml",
        &common::chain_server::chain("wrong", "10.0.128.0/17", "{forward: }"),
    );
    let refused = folder.run(&["apply", "-f", "wrong.yaml", "--socket", "edge.sock"]);
    assert_ne!(refused.status.code(), Some(0));
    folder.ok(&["delete", "chain", "second"]);
    wait("the end of the second chain", || offered("second").is_none());

    let page = page();
    let at = |name: &str| value(&page, name).unwrap_or_else(|| panic!("{name} is not in\n{page}"));
    // Those of the spec's folder are the first.
    assert_eq!(at("tailwater_server_applies_total{outcome=\"accepted\"}"), 2.0);
    assert_eq!(at("tailwater_server_applies_total{outcome=\"refused\"}"), 1.0);
    assert_eq!(at("tailwater_server_generation"), 3.0);
    assert_eq!(at("tailwater_server_chains{phase=\"running\"}"), 1.0);
    assert!(at("tailwater_port_packets_delivered_total{port=\"north\"}") > 0.0);
    assert!(at("tailwater_port_packets_unmatched_total{port=\"north\"}") > 0.0);
    let core = folder.core();
    assert_eq!(at(&format!("tailwater_core_chains{{core=\"{core}\"}}")), 1.0);
    assert!(at(&format!("tailwater_core_busy_seconds_total{{core=\"{core}\"}}")) > 0.0);
    assert!(at("tailwater_packet_reasons_total{chain=\"first\",reason=\"acl/denied\"}") > 0.0);
    let report = serving.stop();
    assert_eq!(report["chains"].as_array().unwrap().len(), 2);
}

/// A server whose chain cannot be started again is alive and not ready.
#[test]
fn a_server_with_a_failed_chain_is_not_ready() {
    let folder = Folder::new();
    let address = free_address();
    folder.server(&format!("  metrics: {}\n", address.port()));
    let rules = folder.0.join("rules.yaml");
    std::fs::write(&rules, "- {action: allow, protocol: tcp}\n").unwrap();
    let serving = Serving::start(&folder);
    folder.write(
        "edge.yaml",
        &common::chain_server::chain("edge", "10.0.0.0/17", "{acl: {rulesFile: rules.yaml}}"),
    );
    let applied = folder.run(&["apply", "-f", "edge.yaml", "--socket", "edge.sock"]);
    assert_eq!(
        applied.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&applied.stderr)
    );
    serving.stop();
    std::fs::remove_file(rules).unwrap();
    let _serving = Serving::start(&folder);
    wait("the endpoint", || {
        get(address, "GET /healthz").starts_with("HTTP/1.1 200")
    });
    assert!(get(address, "GET /readyz").starts_with("HTTP/1.1 503"));
    let page = get(address, "GET /metrics");
    assert_eq!(value(&page, "tailwater_server_ready"), Some(0.0));
    assert_eq!(value(&page, "tailwater_server_chains{phase=\"failed\"}"), Some(1.0));
}
