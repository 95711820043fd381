//! Prometheus endpoint of a run.

mod common;

use common::serving::{Serving, documented, get, served};
use common::*;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn metrics_are_there_while_the_chain_runs() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let mut serving = Serving::start(&folder, &traffic, &[]);
    let address = serving.address;
    assert!(address.ip().is_loopback());
    // Clients that never finish their headers keep out nobody.
    let slow: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut stream in &slow {
        // Those that have been closed already refuse it.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert!(get(address, "GET /healthz").starts_with("HTTP/1.1 200"));
    drop(slow);
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

    let second = run(&[&"run", &folder.forward(), &"--metrics", &address.to_string()]);
    assert_refused(
        &second,
        "in use (os error 98); another Tailwater serves its metrics there: set --metrics to another port",
    );
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
    assert!(
        stderr.ends_with("; another program listens there: set --metrics to another port\n"),
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
        "tailwater_objective_",
        "tailwater_port_",
        "tailwater_core_",
        "tailwater_otlp_",
    ];
    documented.retain(|name| !others.iter().any(|other| name.starts_with(other)));
    assert_eq!(served, documented);
    serving.stop("-TERM");
}

/// Returns the files with that ending below `deploy`, with their text.
fn deployed(ending: &str) -> Vec<(PathBuf, String)> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let folders = ["grafana", "prometheus"].map(|folder| fs::read_dir(deploy.join(folder)).unwrap());
    let paths = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn alerts_and_dashboards_name_documented_metrics() {
    let documented = documented();
    let (mut files, mut names) = (0, BTreeSet::new());
    for (path, text) in deployed(".json").into_iter().chain(deployed(".yaml")) {
        files += 1;
        let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        for name in words.filter(|word| word.starts_with("tailwater_")) {
            // Series of a histogram.
            let metric = ["_bucket", "_count"]
                .iter()
                .find_map(|series| name.strip_suffix(series))
                .filter(|metric| documented.contains(metric))
                .unwrap_or(name);
            assert!(documented.contains(metric), "{}: {name}", path.display());
            names.insert(metric.to_owned());
        }
    }
    assert!(files >= 6 && names.len() > 30, "{files} files, {names:?}");
}

/// Alert rules do what their tests say, and every query of a dashboard is valid.
#[test]
fn prometheus_accepts_alerts_and_dashboards() {
    let Some(promtool) = promtool() else {
        println!("skipped: no promtool (tools/deps.sh test)");
        return;
    };
    let promtool = |arguments: [&str; 2], file: &Path| {
        let output = Command::new(&promtool).args(arguments).arg(file).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{}: {said}", file.display());
    };
    for (path, _) in deployed(".test.yaml") {
        promtool(["test", "rules"], &path);
    }
    // A query is checked as the expression of a rule.
    let mut rules = Vec::new();
    for (_, dashboard) in deployed(".json") {
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        for target in panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten()) {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            rules.push(serde_json::json!({"record": format!("query_{}", rules.len()), "expr": query}));
        }
    }
    assert!(rules.len() > 30, "{rules:?}");
    let folder = Folder::new();
    // JSON is YAML, too.
    let all = serde_json::json!({"groups": [{"name": "queries", "rules": rules}]});
    promtool(["check", "rules"], &folder.write("queries.yaml", all.to_string()));
}

/// Finds Prometheus' tool for its files: installed, or kept by `tools/deps.sh` beside build products.
fn promtool() -> Option<PathBuf> {
    let kept = Path::new(env!("CARGO_BIN_EXE_tailwater"))
        .ancestors()
        .nth(2)?
        .join("tools/promtool");
    [PathBuf::from("promtool"), kept]
        .into_iter()
        .find(|path| Command::new(path).arg("--version").output().is_ok())
}
