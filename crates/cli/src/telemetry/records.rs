//! Records of OpenTelemetry's protocol in its JSON encoding: identifiers in hexadecimal, numbers of 64 bits as texts,
//! names of fields in camel case.

use super::endpoint::ExportConfig;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::packet_traces::{TraceRole, TraceStep, TracedFunction};
use tailwater_dataplane::kept_packets::KeptRecord;
use tailwater_net::FlowKey;
use tailwater_net::parse::parse;
use tailwater_server::{Event, Severity};

/// Kind of a span within a program.
const INTERNAL: u8 = 1;
/// Code of a span's status.
const ERROR: u8 = 2;

/// Server that records are about.
pub(super) struct Resource(Vec<Value>);

impl Resource {
    pub(super) fn new(config: &ExportConfig, server: &str) -> Resource {
        let mut attributes = config.attributes.clone();
        let mut add = |name: &str, value: String| {
            if !attributes.iter().any(|(key, _)| key == name) {
                attributes.push((name.to_owned(), value));
            }
        };
        add("service.name", "tailwater".to_owned());
        add("service.instance.id", server.to_owned());
        add("service.version", env!("CARGO_PKG_VERSION").to_owned());
        add(
            "host.name",
            rustix::system::uname().nodename().to_string_lossy().into_owned(),
        );
        let attributes = attributes.iter().map(|(name, value)| text(name, value));
        Resource(
            attributes
                .chain([number("process.pid", std::process::id().into())])
                .collect(),
        )
    }

    pub(super) fn json(&self) -> String {
        json!({"attributes": self.0}).to_string()
    }
}

/// Request with log records.
pub(super) fn logs(resource: &str, records: &[String]) -> String {
    envelope("resourceLogs", "scopeLogs", "logRecords", resource, records)
}

/// Request with spans.
pub(super) fn spans(resource: &str, records: &[String]) -> String {
    envelope("resourceSpans", "scopeSpans", "spans", resource, records)
}

fn envelope(all: &str, scopes: &str, name: &str, resource: &str, records: &[String]) -> String {
    let scope = json!({"name": "tailwater", "version": env!("CARGO_PKG_VERSION")});
    let records = records.join(",");
    format!(r#"{{"{all}":[{{"resource":{resource},"{scopes}":[{{"scope":{scope},"{name}":[{records}]}}]}}]}}"#)
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn truth(key: &str, value: bool) -> Value {
    json!({"key": key, "value": {"boolValue": value}})
}

/// Log record of an event.
pub(super) fn log_record(event: &Event) -> String {
    let (severity, name) = match event.severity {
        Severity::Normal => (9, "INFO"),
        Severity::Warning => (13, "WARN"),
    };
    let mut attributes = vec![
        text("tailwater.event.reason", event.reason),
        number("tailwater.event.sequence", event.sequence),
    ];
    attributes.extend(event.chain.as_deref().map(|chain| text("tailwater.chain", chain)));
    let record = json!({
        "timeUnixNano": event.time.0.to_string(),
        "observedTimeUnixNano": event.time.0.to_string(),
        "severityNumber": severity,
        "severityText": name,
        "eventName": format!("tailwater.{}", event.reason),
        "body": {"stringValue": event.message},
        "attributes": attributes,
    });
    record.to_string()
}

/// Source of identifiers that differ between servers and from each other.
#[derive(Debug, Default)]
pub(super) struct Identifiers {
    random: RandomState,
    next: AtomicU64,
}

impl Identifiers {
    /// Sixteen hexadecimal digits, not all 0.
    fn span(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", self.random.hash_one(number).max(1))
    }

    /// Thirty-two hexadecimal digits, not all 0.
    fn trace(&self) -> String {
        self.span() + &self.span()
    }
}

/// Spans of a traced packet: its own, and one for each function that it has passed. `origin` is the time since the Unix
/// epoch at which the steps' clock was 0, in nanoseconds. Empty without steps.
pub(super) fn packet_spans(
    (chain, functions): (&str, &[TracedFunction]),
    steps: &[TraceStep],
    origin: u64,
    identifiers: &Identifiers,
) -> Vec<String> {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return Vec::new();
    };
    let (trace, root) = (identifiers.trace(), identifiers.span());
    let function_of = |step: &TraceStep| step.function.and_then(|function| functions.get(usize::from(function)));
    let reason_of = |step: &TraceStep| {
        let reason = usize::from(step.dropped?);
        let function = function_of(step)?;
        let name = function.reasons.get(reason).map_or("other", String::as_str);
        Some(format!("{}/{name}", function.name))
    };
    let verdict = |step: &TraceStep| match step.dropped {
        Some(_) => "dropped",
        None => "forwarded",
    };
    let span = |id: &str, parent: &str, name: &str, times: [u64; 2], attributes: Vec<Value>| {
        let times = times.map(|time| origin.saturating_add(time));
        span([&trace, id, parent], name, times, attributes, json!({}))
    };
    let mut attributes = vec![text("tailwater.chain", chain)];
    attributes.extend(of_key(&first.key));
    if let Some(index) = first.flow.index {
        attributes.push(number("tailwater.flow", index.into()));
        attributes.push(truth("tailwater.flow.is_new", first.flow.is_new));
        attributes.push(number("tailwater.bucket", first.flow.bucket.into()));
    }
    attributes.push(number("tailwater.core", first.core.into()));
    attributes.push(number("tailwater.packet.length", first.length.into()));
    attributes.push(text("tailwater.verdict", verdict(last)));
    attributes.extend(reason_of(last).map(|reason| text("tailwater.reason", &reason)));
    let mut spans = vec![span(
        &root,
        "",
        "packet",
        [first.packet.2.0, last.times[1].0],
        attributes,
    )];
    for step in steps {
        let Some(function) = function_of(step) else {
            continue;
        };
        let role = match step.role {
            TraceRole::Dedicated => "dedicated",
            TraceRole::Auxiliary => "auxiliary",
            TraceRole::Leased => "leased",
        };
        let mut attributes = vec![
            text("tailwater.chain", chain),
            text("tailwater.function", &function.name),
            number("tailwater.core", step.core.into()),
            text("tailwater.core.role", role),
            number("tailwater.batch.packets", step.batch.into()),
            text("tailwater.verdict", verdict(step)),
        ];
        attributes.extend(reason_of(step).map(|reason| text("tailwater.reason", &reason)));
        let explanation = Some(step.explanation.as_str()).filter(|explanation| !explanation.is_empty());
        attributes.extend(explanation.map(|explanation| text("tailwater.explanation", explanation)));
        let times = step.times.map(|time| time.0);
        spans.push(span(&identifiers.span(), &root, &function.name, times, attributes));
    }
    spans
}

/// Spans of a packet that was late, lost or dropped, and the identifier of their trace: its own span, and one for its
/// batch in the chain.
pub(super) fn kept_spans(record: &KeptRecord<'_>, identifiers: &Identifiers) -> (String, [String; 2]) {
    let (trace, root) = (identifiers.trace(), identifiers.span());
    let mut attributes = vec![
        text("tailwater.chain", record.chain),
        number("tailwater.core", record.core.into()),
        text("tailwater.verdict", record.verdict),
        text("tailwater.reason", record.reason),
    ];
    let of_chain = attributes.clone();
    // The kept beginning has the headers, unless they are unusually long. The rest does not matter.
    let mut frame = record.frame.to_vec();
    frame.resize(frame.len().max(record.length.into()), 0);
    if let Ok(headers) = parse(&frame) {
        attributes.extend(of_key(&headers.key));
    }
    attributes.push(number("tailwater.packet.length", record.length.into()));
    // A drop is what a function or the spec decided.
    let status = match record.verdict {
        "dropped" => json!({}),
        _ => json!({"code": ERROR, "message": record.reason}),
    };
    let [arrival, began, ended] = record.times.map(|time| time.0);
    let of_packet = span([&trace, &root, ""], "packet", [arrival, ended], attributes, status);
    let batch = [trace.as_str(), &identifiers.span(), &root];
    let of_batch = span(batch, "chain", [began, ended], of_chain, json!({}));
    (trace, [of_packet, of_batch])
}

/// Span with the identifiers of its trace, of itself and of its parent, and its times since the Unix epoch, in
/// nanoseconds.
fn span([trace, id, parent]: [&str; 3], name: &str, times: [u64; 2], attributes: Vec<Value>, status: Value) -> String {
    let [start, end] = times.map(|time| time.to_string());
    let span = json!({
        "traceId": trace,
        "spanId": id,
        "parentSpanId": parent,
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "attributes": attributes,
        "status": status,
    });
    span.to_string()
}

/// Attributes of a packet's flow, most in the names of OpenTelemetry's conventions.
fn of_key(key: &FlowKey) -> Vec<Value> {
    let version = match key.source() {
        IpAddr::V4(_) => "ipv4",
        IpAddr::V6(_) => "ipv6",
    };
    let mut attributes = vec![
        text("network.type", version),
        text("source.address", &key.source().to_string()),
        text("destination.address", &key.destination().to_string()),
        number("tailwater.protocol", key.protocol().into()),
    ];
    let transport = match key.protocol() {
        6 => Some("tcp"),
        17 => Some("udp"),
        _ => None,
    };
    if let Some(transport) = transport {
        attributes.push(text("network.transport", transport));
        attributes.push(number("source.port", key.source_port().into()));
        attributes.push(number("destination.port", key.destination_port().into()));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::packet_traces::{CAPTURED, TracedFlow};
    use tailwater_net::Nanos;

    fn step(function: Option<u16>, times: [u64; 2], dropped: Option<u8>) -> TraceStep {
        TraceStep {
            packet: (0, 0, Nanos(100)),
            function,
            core: 3,
            role: TraceRole::Dedicated,
            times: times.map(Nanos),
            batch: 4,
            dropped,
            key: FlowKey::default(),
            flow: TracedFlow::default(),
            explanation: Default::default(),
            length: 60,
            frame: [0; CAPTURED],
        }
    }

    fn attribute<'v>(record: &'v Value, key: &str) -> &'v Value {
        let attributes = record["attributes"].as_array().unwrap().iter();
        let mut found = attributes.filter(|attribute| attribute["key"] == key);
        found.next().map_or(&Value::Null, |attribute| &attribute["value"])
    }

    #[test]
    fn a_packet_is_a_span_with_one_for_each_function() {
        let functions = ["nat", "acl"].map(|name| TracedFunction {
            name: name.to_owned(),
            reasons: vec!["other".to_owned(), "denied".to_owned()],
        });
        let steps = [
            step(None, [120, 120], None),
            step(Some(0), [130, 140], None),
            step(Some(1), [140, 170], Some(1)),
        ];
        let spans = packet_spans(("edge", &functions), &steps, 1_000, &Identifiers::default());
        let body: Value = serde_json::from_str(&super::spans("{}", &spans)).unwrap();
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["packet", "nat", "acl"]);
        let root = &spans[0];
        assert_eq!(
            (root["startTimeUnixNano"].as_str(), root["endTimeUnixNano"].as_str()),
            (Some("1100"), Some("1170"))
        );
        assert_eq!(attribute(root, "tailwater.verdict")["stringValue"], "dropped");
        assert_eq!(attribute(root, "tailwater.reason")["stringValue"], "acl/denied");
        assert_eq!(attribute(root, "tailwater.core")["intValue"], "3");
        assert_eq!(attribute(&spans[1], "tailwater.verdict")["stringValue"], "forwarded");
        assert_eq!(spans[2]["startTimeUnixNano"], "1140");
        let is_hex = |value: &Value, digits: usize| {
            let text = value.as_str().unwrap();
            text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        for span in spans {
            assert!(is_hex(&span["traceId"], 32) && is_hex(&span["spanId"], 16), "{span}");
            assert_eq!(span["traceId"], root["traceId"]);
        }
        assert_eq!(
            (root["parentSpanId"].as_str(), &spans[1]["parentSpanId"]),
            (Some(""), &root["spanId"])
        );
        assert!(packet_spans(("edge", &functions), &[], 0, &Identifiers::default()).is_empty());
    }

    #[test]
    fn a_late_packet_is_an_error_and_a_dropped_one_is_not() {
        let key = FlowKey::v4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 17, 5000, 53);
        let frame = tailwater_net::builder::FrameBuilder::new(&key)
            .payload(&[1; 200])
            .to_vec()
            .unwrap();
        let mut record = KeptRecord {
            chain: "edge",
            core: 2,
            verdict: "late",
            reason: "service",
            times: [10, 20, 50].map(Nanos),
            length: frame.len() as u16,
            frame: &frame[..96],
        };
        let (trace, spans) = kept_spans(&record, &Identifiers::default());
        let [packet, chain] = spans.map(|span| serde_json::from_str::<Value>(&span).unwrap());
        assert_eq!(
            (packet["status"]["code"].as_u64(), packet["startTimeUnixNano"].as_str()),
            (Some(2), Some("10"))
        );
        assert_eq!(attribute(&packet, "source.port")["intValue"], "5000");
        assert_eq!(attribute(&packet, "network.transport")["stringValue"], "udp");
        assert_eq!(
            (&chain["parentSpanId"], chain["startTimeUnixNano"].as_str()),
            (&packet["spanId"], Some("20"))
        );
        assert_eq!(
            (&chain["endTimeUnixNano"], &chain["traceId"]),
            (&packet["endTimeUnixNano"], &packet["traceId"])
        );
        assert_eq!(packet["traceId"], *trace);
        record.verdict = "dropped";
        let (_, [packet, _]) = kept_spans(&record, &Identifiers::default());
        assert_eq!(serde_json::from_str::<Value>(&packet).unwrap()["status"], json!({}));
    }

    #[test]
    fn an_event_is_a_log_record() {
        let event = Event {
            sequence: 7,
            time: Nanos(1_700_000_000_000_000_000),
            severity: Severity::Warning,
            chain: Some("edge".to_owned()),
            reason: "Failed",
            message: "it \"ended\"".to_owned(),
        };
        let body: Value = serde_json::from_str(&logs("{}", &[log_record(&event)])).unwrap();
        let record = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["timeUnixNano"], "1700000000000000000");
        assert_eq!(
            (record["severityNumber"].as_u64(), record["severityText"].as_str()),
            (Some(13), Some("WARN"))
        );
        assert_eq!(record["body"]["stringValue"], "it \"ended\"");
        assert_eq!(attribute(record, "tailwater.chain")["stringValue"], "edge");
    }
}
