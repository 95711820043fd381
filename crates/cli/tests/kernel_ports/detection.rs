//! Detection with drops between real programs: pages by HTTP and TLS, names by DNS.

use super::PACKET;
use super::programs::{ask, assert_answers, name_server, streams};
use super::services::{pages, tls_server};
use crate::common::namespaces::{HOSTS, HOSTS_V6, Hosts, skipped};
use crate::common::*;
use std::io::ErrorKind;

const RULES: &str = "\
drop http any any -> any any (msg:\"host\"; flow:established,to_server; http.host; content:\"blocked.test\"; sid:1;)
drop dns any any -> any any (msg:\"name\"; dns.query; dotprefix; content:\".blocked.test\"; nocase; endswith; sid:2;)
drop tls any any -> any any (msg:\"certificate\"; flow:established,to_client; tls.cert_subject; content:\"CN=test\"; \
tls.cert_issuer; content:\"CN=test\"; tls.cert_serial; pcre:\"/^[0-9A-F]{2}(:[0-9A-F]{2})*$/\"; sid:3;)
alert icmp any any -> any any (msg:\"echo\"; itype:8; threshold:type limit,track by_src,count 1,seconds 600; sid:4;)
";

fn chain(folder: &Folder) -> std::path::PathBuf {
    folder.write("ids.rules", RULES);
    let eve = folder.path("eve.json");
    let functions = format!(
        "[{{ids: {{rulesFiles: [ids.rules], mode: drop, eve: '{}'}}}}]",
        eve.display()
    );
    folder.spec("ids.yaml", &functions, "")
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    let reasons = &report["packets"]["reasons"];
    reasons[format!("ids/{name}")].as_u64().unwrap_or(0)
}

/// Returns the alerts with a rule number: each with its action and subject.
fn alerts(folder: &Folder, sid: u64, about: &str) -> Vec<[String; 2]> {
    let lines = std::fs::read_to_string(folder.path("eve.json")).unwrap();
    let alerts = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let alerts = alerts.filter(|alert| alert["alert"]["signature_id"] == sid);
    alerts
        .map(|alert| {
            let text = |at: &str| alert.pointer(at).and_then(|v| v.as_str()).unwrap_or("-");
            [text("/alert/action"), text(about)].map(str::to_owned)
        })
        .collect()
}

/// Traffic without a matching rule passes; traffic with one does not arrive.
fn pages_and_names() {
    let (hosts, folder) = (Hosts::new(true), Folder::new());
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    hosts.assert_pings(0, HOSTS[1], 5);
    for address in [HOSTS[1], HOSTS_V6[1]] {
        hosts.serve(1, address, 80, b"a page".to_vec());
    }
    name_server(&hosts, HOSTS[1]);
    assert_answers(&hosts, HOSTS, "www.allowed.test");
    assert_eq!(ask(&hosts, HOSTS, "www.BLOCKED.test", 1), Err(ErrorKind::WouldBlock));
    pages(&hosts, "http", 80, &[("", "a page")]);
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(count(&report, "lost"), 0, "{report}");
    // Two pages, by both versions of IP, and a name.
    assert_eq!(reason(&report, "dropped"), 3, "{report}");
    // Clients retransmit.
    assert!(reason(&report, "flow-blocked") >= 2, "{report}");
    for unclear in ["no-room", "checksum-wrong", "gap", "overlap-conflict"] {
        assert_eq!(reason(&report, unclear), 0, "{unclear}: {report}");
    }
    let blocked = |about: &str| ["blocked", about].map(str::to_owned);
    assert_eq!(
        alerts(&folder, 1, "/http/hostname"),
        [blocked("blocked.test"), blocked("blocked.test")]
    );
    assert_eq!(alerts(&folder, 2, "/proto"), [blocked("UDP")]);
    let told = ["allowed", "ICMP"].map(str::to_owned);
    assert_eq!(alerts(&folder, 4, "/proto"), [told]);
}

#[test]
fn detection_drops_pages_and_names() {
    if !skipped(&["curl"]) {
        pages_and_names();
    }
}

/// A certificate is visible only where it is sent in the clear: with TLS 1.2, but not with 1.3.
#[test]
fn detection_drops_by_certificate() {
    if skipped(&["curl", "openssl"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let _server = tls_server(&hosts, &folder);
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    let get = |version: &str, seconds: u32| {
        let trusted = format!("--cacert {}", folder.path("certificate.pem").display());
        let version = format!("--tlsv{version} --tls-max {version} -m {seconds}");
        let connect = format!("--connect-to allowed.test:443:{}:443", HOSTS[1]);
        let url = "https://allowed.test/";
        hosts.on(0, &format!("curl -sS {trusted} {version} {connect} {url}"))
    };
    let page = get("1.3", 60);
    assert!(text(&page.stdout).contains("TLSv1.3"), "{}", text(&page.stderr));
    let blocked = get("1.2", 5);
    assert_eq!(blocked.status.code(), Some(28), "{}", text(&blocked.stderr));
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(reason(&report, "dropped"), 1, "{report}");
    let told = ["blocked", "tls"].map(str::to_owned);
    assert_eq!(alerts(&folder, 3, "/app_proto"), [told]);
}

/// Every segment of the streams is inspected; none causes an alert, and no stream is ambiguous.
#[test]
fn streams_of_real_stacks_are_looked_through() {
    if skipped(&["iperf3"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    streams(&hosts, HOSTS[0], HOSTS[1]);
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(reason(&report, "dropped"), 0, "{report}");
    assert_eq!(reason(&report, "checksum-wrong"), 0, "{report}");
    let lines = std::fs::read_to_string(folder.path("eve.json")).unwrap();
    assert_eq!(lines.matches("signature_id").count(), 0, "{lines}");
}
