//! Metrics and health of a server with many chains.

mod common;

use common::chain_server::{Folder, Serving, number, wait};
use common::serving::{documented, get, served};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

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

    // Every documented metric is on the page, but those of flow state in Redis, a rack's ingress and OpenTelemetry.
    wait("a window", || page().contains("tailwater_window_latency_p99_seconds{"));
    let names = served(&page());
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut expected = documented();
    let absent = ["tailwater_state_", "tailwater_ingress_", "tailwater_otlp_"];
    expected.retain(|name| !absent.iter().any(|absent| name.starts_with(absent)));
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

/// Capture of 4,000 packets that come at once, from two networks in turn, and of one 200 ms later. A port's ring has
/// room for 1,024: the others are lost before any chain sees them, whatever the machine does.
fn bursts() -> Vec<u8> {
    let mut capture = Vec::new();
    let mut words = |words: &[u32]| capture.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for number in 0..=4000_u16 {
        let source = Ipv4Addr::new(10, 0, if number % 2 == 0 { 0 } else { 128 }, 1);
        let key = FlowKey::v4(source, Ipv4Addr::new(192, 0, 2, 1), protocol::UDP, number, 53);
        let frame = FrameBuilder::new(&key).payload(&[0; 22]).to_vec().unwrap();
        let (length, micros) = (frame.len() as u32, if number < 4000 { 0 } else { 200_000 });
        words(&[0, micros, length, length]);
        // 64 bytes.
        let of_frame = frame
            .chunks_exact(4)
            .map(|word| word.try_into().map(u32::from_le_bytes).unwrap());
        words(&of_frame.collect::<Vec<u32>>());
    }
    capture
}

/// Packets that a port lost were in no chain's verdict: all chains said that they met their objectives.
#[test]
fn a_port_that_loses_packets_leaves_its_chains_without_a_verdict() {
    let (folder, address) = (Folder::new(), free_address());
    folder.server(&format!("  metrics: {}\n", address.port()));
    let server = std::fs::read_to_string(folder.0.join("server.yaml")).unwrap();
    let port = |name: &str| format!("{{name: {name}, traffic: bursts.pcap, repeat: true}}");
    let of_presets = "{name: north, traffic: small.pcap, rate: 5kpps, repeat: true}";
    folder.write(
        "server.yaml",
        &server.replace(of_presets, &format!("{}, {}", port("north"), port("south"))),
    );
    std::fs::write(folder.0.join("bursts.pcap"), bursts()).unwrap();
    // Its objective is met by all packets that reach a chain.
    let chain = |name: &str, fields: &str| {
        folder.write(
            &format!("chains/{name}.yaml"),
            &format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  \
                 slo: {{latency: 10s}}\n  functions: [{{forward: }}]\n  {fields}\n"
            ),
        );
    };
    chain("first", "port: north\n  match: {sources: [10.0.0.0/17]}");
    chain("second", "port: north\n  match: {sources: [10.0.128.0/17]}");
    // All packets of its port are its own, also those that the port loses.
    chain("alone", "port: south");
    let serving = Serving::start_again(&folder);
    let is = |chain: &Value, reason: &str| chain["conditions"][1]["reason"] == reason;
    let mut shown = Value::Null;
    // In the order of their names. A window without packets, of a core that was taken away, has no verdict.
    wait("the verdicts", || {
        shown = folder.chains();
        let chains = &shown["chains"];
        is(&chains[0], "Missed") && is(&chains[1], "PortLoss") && is(&chains[2], "PortLoss")
    });
    let port_lost = |number: usize| shown["chains"][number]["latency"]["port_lost"].as_u64();
    assert_eq!(port_lost(0), Some(0), "{shown}");
    for number in [1, 2] {
        let chain = &shown["chains"][number];
        assert!(port_lost(number) > Some(0), "{chain}");
        assert_eq!(
            (&chain["latency"]["met"], &chain["packets"]["lost"]),
            (&Value::Null, &0.into())
        );
    }
    assert!(number(&shown["chains"][0]["packets"]["lost"]) > 0, "{shown}");
    wait("the table", || {
        let table = folder.ok(&["get", "chains"]);
        let met = table.lines().skip(1).map(|line| line.split_whitespace().nth(4));
        met.eq(["no", "port", "port"].map(Some))
    });
    let core = folder.core();
    wait("the losses of a second", || {
        shown = serde_json::from_str(&folder.ok(&["get", "ports", "north", "-o", "json"])).unwrap();
        let interval = &shown["ports"][0]["interval"];
        number(&interval["lost"]) > 0 && interval["losing_cores"] == serde_json::json!([core])
    });
    assert!(number(&shown["ports"][0]["packets"]["lost"]) >= 2976, "{shown}");
    let events = folder.ok(&["events"]);
    for port in ["north", "south"] {
        let about = format!("port {port}: ");
        let first = events.lines().find(|line| line.contains(&about)).unwrap_or_default();
        let (losses, core) = (" packets lost", format!(", on core {core}"));
        assert!(
            first.contains(" PortLoss ") && first.contains(losses) && first.contains(&core),
            "{events}"
        );
    }
    let unknown = folder.run(&["get", "ports", "west", "--socket", "edge.sock"]);
    assert_eq!(unknown.status.code(), Some(1));
    let screen = folder.ok(&["top", "--once", "--interval", "1ms"]);
    assert!(
        screen.contains(", port north loses ") && screen.contains(", port south loses "),
        "{screen}"
    );
    let page = get(address, "GET /metrics");
    assert_eq!(value(&page, "tailwater_objective_met{chain=\"first\"}"), None, "{page}");
    assert_eq!(
        value(&page, "tailwater_objective_met{chain=\"alone\"}"),
        Some(0.0),
        "{page}"
    );
    let report = serving.stop();
    for chain in report["chains"].as_array().unwrap() {
        let verdict = if chain["name"] == "alone" {
            &Value::Bool(false)
        } else {
            &Value::Null
        };
        assert_eq!(&chain["report"]["slo_met"], verdict, "{chain}");
    }
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

/// Collector of OpenTelemetry that is busy for so many requests. Returns its URL, and the paths and bodies of accepted
/// requests.
fn collector(refused: usize) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if reader.read_until(b'\n', &mut head).unwrap() == 0 {
                    return;
                }
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.contains("content-type: application/json\r\n"), "{head}");
            let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer = match number {
                _ if number < refused => "503 Service Unavailable\r\nRetry-After: 0",
                _ => "200 OK\r\nContent-Type: application/json",
            };
            write!(reader.get_mut(), "HTTP/1.1 {answer}\r\nContent-Length: 2\r\n\r\n{{}}").unwrap();
            if number >= refused {
                let path = head.split(' ').nth(1).unwrap().to_owned();
                if sender.send((path, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
            }
        }
    });
    (url, receiver)
}

fn attribute<'v>(record: &'v Value, key: &str) -> Option<&'v str> {
    let mut attributes = record["attributes"].as_array().unwrap().iter();
    attributes.find(|attribute| attribute["key"] == key)?["value"]["stringValue"].as_str()
}

/// Adds the log records and the spans of requests, which are of this service instance.
fn read_records(requests: &Receiver<(String, Value)>, instance: &str, [logs, spans]: [&mut Vec<Value>; 2]) {
    for (path, body) in requests.try_iter() {
        let (all, scopes, records, found) = match path.as_str() {
            "/v1/logs" => ("resourceLogs", "scopeLogs", "logRecords", &mut *logs),
            "/v1/traces" => ("resourceSpans", "scopeSpans", "spans", &mut *spans),
            other => panic!("{other}"),
        };
        let resource = &body[all][0]["resource"];
        assert_eq!(attribute(resource, "service.name"), Some("tailwater"));
        assert_eq!(attribute(resource, "service.instance.id"), Some(instance));
        found.extend_from_slice(body[all][0][scopes][0][records].as_array().unwrap());
    }
}

#[test]
fn events_and_packets_of_a_run_reach_a_collector() {
    let folder = Folder::new();
    let (url, requests) = collector(0);
    let functions = "{acl: {rules: [{action: allow, protocol: tcp}], default: deny}}";
    folder.write(
        "chain.yaml",
        &common::chain_server::chain("edge", "0.0.0.0/0", functions),
    );
    let options = ["--duration", "500ms", "--rate", "20kpps", "--keep-packets", "kept"];
    let run = [&["run", "chain.yaml", "--otlp", &url][..], &options].concat();
    let output = folder.run(&run);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let (mut logs, mut spans) = (Vec::new(), Vec::<Value>::new());
    // Packets that were dropped are kept, and one is traced.
    wait("records of all kinds", || {
        read_records(&requests, "edge", [&mut logs, &mut spans]);
        let is_kept =
            |span: &Value| span["name"] == "chain" && attribute(span, "tailwater.reason") == Some("acl/denied");
        logs.last().is_some_and(|log| log["eventName"] == "tailwater.Gone")
            && spans.iter().any(is_kept)
            && spans.iter().any(|span| span["name"] == "acl")
    });
    assert_eq!(logs[0]["eventName"], "tailwater.Running");
    assert!(logs.iter().all(|log| attribute(log, "tailwater.chain") == Some("edge")));
    // Those of the clock of the run.
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for span in &spans {
        let end: u64 = span["endTimeUnixNano"].as_str().unwrap().parse().unwrap();
        assert!(now.abs_diff(end) < 600_000_000_000, "{span}");
    }
    let wrong = folder.run(&["run", "chain.yaml", "--otlp", "collector"]);
    let printed = String::from_utf8_lossy(&wrong.stderr);
    let expected = "error: --otlp: expected a URL such as http://127.0.0.1:4318, found \"collector\"\n";
    assert_eq!((wrong.status.code(), &*printed), (Some(2), expected));
}

#[test]
fn events_and_traced_packets_reach_a_collector() {
    let (folder, address) = (Folder::new(), free_address());
    let (url, requests) = collector(1);
    let fields = format!(
        "  metrics: {}\n  telemetry: {{otlp: '{url}', tracedPackets: 20}}\n",
        address.port()
    );
    folder.server(&fields);
    folder.chain(
        "edge",
        "10.0.0.0/17",
        "{acl: {rules: [{action: allow, protocol: tcp}], default: deny}}",
    );
    let serving = Serving::start(&folder);
    let (mut logs, mut spans) = (Vec::new(), Vec::new());
    let read = |logs: &mut Vec<Value>, spans: &mut Vec<Value>| {
        read_records(&requests, "edge", [logs, spans]);
    };
    let is = |span: &Value, verdict| attribute(span, "tailwater.verdict") == Some(verdict);
    wait("records of all kinds", || {
        read(&mut logs, &mut spans);
        logs.iter().any(|log| log["eventName"] == "tailwater.Serving")
            && spans.iter().any(|span| is(span, "dropped"))
            && spans.iter().any(|span| is(span, "forwarded"))
    });
    let dropped = spans
        .iter()
        .find(|span| span["name"] == "packet" && is(span, "dropped"))
        .unwrap();
    assert_eq!(attribute(dropped, "tailwater.reason"), Some("acl/denied"));
    assert_eq!(attribute(dropped, "tailwater.chain"), Some("edge"));
    let function = spans
        .iter()
        .find(|span| span["parentSpanId"] == dropped["spanId"])
        .unwrap();
    assert_eq!(
        (&function["traceId"], &function["name"]),
        (&dropped["traceId"], &Value::from("acl"))
    );
    assert_eq!(dropped["traceId"].as_str().unwrap().len(), 32);
    assert_eq!(dropped["spanId"].as_str().unwrap().len(), 16);
    let nanos = |record: &Value, name: &str| -> u64 { record[name].as_str().unwrap().parse().unwrap() };
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for span in &spans {
        let (start, end) = (nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano"));
        assert!(start <= end && now.abs_diff(end) < 600_000_000_000, "{span}");
    }
    let page = get(address, "GET /metrics");
    let counted = value(&page, "tailwater_otlp_records_sent_total{signal=\"traces\"}").unwrap();
    assert!(counted > 0.0, "{page}");
    let full = "tailwater_otlp_records_dropped_total{signal=\"logs\",reason=\"queue-full\"}";
    assert_eq!(value(&page, full), Some(0.0));
    let names = served(&page);
    let documented = documented()
        .into_iter()
        .filter(|name| name.starts_with("tailwater_otlp_"));
    assert_eq!(documented.filter(|name| names.contains(*name)).count(), 2);
    // Users may trace packets at the same time.
    let traced = folder.ok(&["trace", "packets", "--chain", "edge", "--count", "1"]);
    assert!(traced.contains("acl"), "{traced}");
    folder.write(
        "late.yaml",
        &common::chain_server::chain("late", "10.0.128.0/17", "{forward: }"),
    );
    folder.ok(&["apply", "-f", "late.yaml"]);
    serving.stop();
    // The last events are sent before the end.
    read(&mut logs, &mut spans);
    assert!(
        logs.iter().any(|log| attribute(log, "tailwater.chain") == Some("late")),
        "{logs:?}"
    );
    let wrong = folder.run(&["serve", "server.yaml", "--otlp", "collector"]);
    let printed = String::from_utf8_lossy(&wrong.stderr);
    let expected = "error: --otlp: expected a URL such as http://127.0.0.1:4318, found \"collector\"\n";
    assert_eq!((wrong.status.code(), &*printed), (Some(2), expected));
}
