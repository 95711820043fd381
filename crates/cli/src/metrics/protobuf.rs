//! Page in Prometheus' protocol buffers, for scrapes that accept them: beside what the text has, latencies as native
//! histograms, whose buckets are 4.4 % wide.
//!
//! The page is made from the text, so that both have the same metrics. The messages are those of
//! `io.prometheus.client`, as far as they are used.

use prost::Message;
use std::collections::HashMap;
use tailwater_dataplane::histogram::LatencyHistogram;

/// Value of `Content-Type`.
pub const CONTENT: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
/// Metric of latencies, which are native histograms, too.
const LATENCY: &str = "tailwater_latency_seconds";
/// Buckets of a power of two: 2 to the power of this.
const SCHEMA: i32 = 4;
/// Latencies up to this, in seconds, are in the bucket of zero.
const ZERO: f64 = 1e-9;

/// Latencies of a chain, with the value of the label `chain` if the page has it.
pub type ChainLatency = (Option<String>, LatencyHistogram);

/// Returns `true` if a scrape prefers protocol buffers to text, or accepts them as gladly.
pub fn is_preferred(accept: &str) -> bool {
    let (mut protobuf, mut text) = (0.0, 0.0_f64);
    for part in accept.split(',') {
        let mut parameters = part.split(';').map(str::trim);
        let kind = parameters.next().unwrap_or_default();
        let parameters: HashMap<&str, &str> = parameters.filter_map(|parameter| parameter.split_once('=')).collect();
        let weight = parameters.get("q").map_or(Ok(1.0), |q| q.parse()).unwrap_or(0.0);
        let of = |name: &str| parameters.get(name).map(|value| value.trim_matches('"'));
        match kind {
            "application/vnd.google.protobuf" => {
                let is_known =
                    of("proto") == Some("io.prometheus.client.MetricFamily") && of("encoding") == Some("delimited");
                protobuf = if is_known { weight } else { protobuf };
            }
            "application/openmetrics-text" | "text/plain" => text = text.max(weight),
            _ => {}
        }
    }
    protobuf > 0.0 && protobuf >= text
}

/// Encodes a page of text, with these latencies. Lines that are no metrics are left out.
pub fn encode(page: &str, latencies: &[ChainLatency]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for mut family in families(page) {
        if family.name == LATENCY {
            for metric in &mut family.metric {
                let chain = metric.label.iter().find(|label| label.name == "chain");
                let chain = chain.map(|label| label.value.as_str());
                let found = latencies.iter().find(|(name, _)| name.as_deref() == chain);
                if let (Some((_, latency)), Some(histogram)) = (found, &mut metric.histogram) {
                    histogram.add_native(latency);
                }
            }
        }
        // A vector has room for everything.
        let _ = family.encode_length_delimited(&mut encoded);
    }
    encoded
}

/// Families of a page in OpenMetrics' text.
fn families(page: &str) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut help = String::new();
    for line in page.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ').map_or(String::new(), |(_, help)| unescaped(help));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", Kind::Counter),
                "info" => ("_info", Kind::Gauge),
                "histogram" => ("", Kind::Histogram),
                _ => ("", Kind::Gauge),
            };
            families.push(MetricFamily {
                name: format!("{name}{suffix}"),
                help: std::mem::take(&mut help),
                kind: kind.into(),
                metric: Vec::new(),
            });
        } else if let (Some(family), Some(sample)) = (families.last_mut(), Sample::parse(line)) {
            family.add(sample);
        }
    }
    families
}

/// Sample of a page.
pub(super) struct Sample {
    pub(super) name: String,
    labels: Vec<LabelPair>,
    value: f64,
    exemplar: Option<Exemplar>,
}

impl Sample {
    /// Sample of a line, if it has one.
    pub(super) fn parse(line: &str) -> Option<Sample> {
        if line.starts_with('#') {
            return None;
        }
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = labels(rest)?;
        let (value, rest) = match rest.trim_start().split_once(' ') {
            Some((value, rest)) => (value, rest),
            None => (rest.trim(), ""),
        };
        Some(Sample {
            name: name.to_owned(),
            labels,
            value: value.parse().ok()?,
            exemplar: rest.strip_prefix("# ").and_then(exemplar),
        })
    }

    /// Value of a label, if it has it.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels
            .find(|label| label.name == name)
            .map(|label| label.value.as_str())
    }
}

/// Exemplar behind a sample: its labels, its value, and its time.
fn exemplar(text: &str) -> Option<Exemplar> {
    let (label, rest) = labels(text)?;
    let mut parts = rest.split_whitespace();
    let value = parts.next()?.parse().ok()?;
    let time = parts.next().and_then(|time| time.parse::<f64>().ok());
    Some(Exemplar {
        label,
        value,
        timestamp: time.map(|seconds| Timestamp {
            seconds: seconds as i64,
            nanos: (seconds.fract() * 1e9) as i32,
        }),
    })
}

/// Labels in braces, if the text begins with some, and the text behind them.
fn labels(text: &str) -> Option<(Vec<LabelPair>, &str)> {
    let Some(mut rest) = text.strip_prefix('{') else {
        return Some((Vec::new(), text));
    };
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut is_escaped = false;
        let end = quoted.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        })?;
        labels.push(LabelPair {
            name: name.to_owned(),
            value: unescaped(&quoted[..end]),
        });
        rest = quoted[end + 1..].trim_start_matches(',');
    }
}

/// Text without escapes.
fn unescaped(text: &str) -> String {
    let mut found = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            (_, true) => match characters.next() {
                Some('n') => found.push('\n'),
                other => found.extend(other),
            },
            (other, false) => found.push(other),
        }
    }
    found
}

impl MetricFamily {
    fn add(&mut self, mut sample: Sample) {
        if self.kind != i32::from(Kind::Histogram) {
            let value = Some(Value { value: sample.value });
            let is_counter = self.kind == i32::from(Kind::Counter);
            let (counter, gauge) = if is_counter { (value, None) } else { (None, value) };
            self.metric.push(Metric {
                label: sample.labels,
                gauge,
                counter,
                histogram: None,
            });
            return;
        }
        let bound = sample.labels.iter().position(|label| label.name == "le");
        let bound = bound.map(|at| sample.labels.remove(at).value);
        let known = self.metric.iter().position(|metric| metric.label == sample.labels);
        let at = known.unwrap_or_else(|| {
            self.metric.push(Metric {
                label: std::mem::take(&mut sample.labels),
                histogram: Some(Histogram::default()),
                ..Metric::default()
            });
            self.metric.len() - 1
        });
        let Some(histogram) = &mut self.metric[at].histogram else {
            return;
        };
        match (bound.map(|bound| bound.parse()), sample.name.strip_prefix(&self.name)) {
            (Some(Ok(upper_bound)), _) => histogram.bucket.push(Bucket {
                cumulative_count: sample.value as u64,
                upper_bound,
                exemplar: sample.exemplar,
            }),
            (None, Some("_sum")) => histogram.sample_sum = sample.value,
            (None, Some("_count")) => histogram.sample_count = sample.value as u64,
            _ => {}
        }
    }
}

impl Histogram {
    /// Adds native buckets, and counts everything from the same histogram: the page may be older.
    fn add_native(&mut self, latency: &LatencyHistogram) {
        let mut native: Vec<(i32, u64)> = Vec::new();
        let mut below = 0;
        for (upper, upto) in latency.cumulative() {
            let (value, count) = (upper.as_secs_f64(), upto - below);
            below = upto;
            if value <= ZERO {
                self.zero_count += count;
                continue;
            }
            // Smallest index whose bucket's bound, 2 to the power of index / 16, is not below the value.
            let index = (value.log2() * f64::from(1 << SCHEMA)).ceil() as i32;
            match native.last_mut() {
                Some((last, total)) if *last == index => *total += count,
                _ => native.push((index, count)),
            }
        }
        let (mut next, mut last) = (None, 0);
        for (index, count) in native {
            match (next, self.positive_span.last_mut()) {
                (Some(next), Some(span)) if next == index => span.length += 1,
                (next, _) => self.positive_span.push(BucketSpan {
                    offset: index - next.unwrap_or(0),
                    length: 1,
                }),
            }
            next = Some(index + 1);
            self.positive_delta.push(count as i64 - last);
            last = count as i64;
        }
        (self.schema, self.zero_threshold) = (SCHEMA, ZERO);
        (self.sample_count, self.sample_sum) = (latency.total(), latency.sum().as_secs_f64());
        self.exemplars = self
            .bucket
            .iter()
            .filter_map(|bucket| bucket.exemplar.clone())
            .collect();
        let counts = latency.cumulative().collect::<Vec<_>>();
        for bucket in &mut self.bucket {
            let upto = counts.partition_point(|(upper, _)| upper.as_secs_f64() <= bucket.upper_bound);
            bucket.cumulative_count = upto.checked_sub(1).map_or(0, |last| counts[last].1);
        }
    }
}

/// Types of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "Kind", tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `Gauge` or `Counter`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Value {
    #[prost(double, tag = "1")]
    value: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
    #[prost(message, repeated, tag = "16")]
    exemplars: Vec<Exemplar>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct BucketSpan {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, tag = "2")]
    value: f64,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::Nanos;

    const PAGE: &str = "# HELP tailwater_packets Packets, by \\\\ outcome.\n# TYPE tailwater_packets counter\n\
        tailwater_packets_total{outcome=\"a \\\"b\\\"\",chain=\"edge\"} 17\n\
        # HELP tailwater_flows Flows.\n# TYPE tailwater_flows gauge\ntailwater_flows 2.5\n\
        # HELP tailwater_latency_seconds Latency.\n# TYPE tailwater_latency_seconds histogram\n\
        # UNIT tailwater_latency_seconds seconds\n\
        tailwater_latency_seconds_sum{chain=\"edge\"} 1.0\n\
        tailwater_latency_seconds_count{chain=\"edge\"} 3\n\
        tailwater_latency_seconds_bucket{le=\"0.001\",chain=\"edge\"} 1\n\
        tailwater_latency_seconds_bucket{le=\"+Inf\",chain=\"edge\"} 3 # {trace_id=\"ab\"} 0.5 1700000000.25\n# EOF\n";

    fn decoded(mut bytes: &[u8]) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        families
    }

    #[test]
    fn the_messages_have_what_the_text_has_and_native_latencies() {
        let mut latency = LatencyHistogram::default();
        for us in [0, 100, 101, 200, 500_000] {
            latency.record(Nanos::from_micros(us));
        }
        let families = decoded(&encode(PAGE, &[(Some("edge".to_owned()), latency.clone())]));
        let names: Vec<_> = families.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, ["tailwater_packets_total", "tailwater_flows", LATENCY]);
        assert_eq!(families[0].help, "Packets, by \\ outcome.");
        let packets = &families[0].metric[0];
        assert_eq!(
            (packets.counter, packets.label[0].value.as_str()),
            (Some(Value { value: 17.0 }), "a \"b\"")
        );
        assert_eq!(families[1].metric[0].gauge, Some(Value { value: 2.5 }));
        let histogram = families[2].metric[0].histogram.as_ref().unwrap();
        assert_eq!(
            (histogram.sample_count, histogram.zero_count, histogram.schema),
            (5, 1, 4)
        );
        let counts: Vec<u64> = histogram.bucket.iter().map(|bucket| bucket.cumulative_count).collect();
        assert_eq!(counts, [4, 5]);
        assert_eq!(histogram.exemplars[0].label[0].value, "ab");
        assert_eq!(histogram.exemplars[0].timestamp.unwrap().nanos, 250_000_000);
        // Absolute counts and bounds of the native buckets.
        let (mut index, mut count, mut deltas) = (0, 0, histogram.positive_delta.iter());
        let mut native = Vec::new();
        for span in &histogram.positive_span {
            index += span.offset;
            for _ in 0..span.length {
                count += deltas.next().unwrap();
                native.push((2_f64.powf(f64::from(index) / 16.0), count));
                index += 1;
            }
        }
        assert_eq!(native.iter().map(|(_, count)| count).sum::<i64>(), 4, "{native:?}");
        for (value, expected) in [(100e-6, 2), (200e-6, 1), (0.5, 1)] {
            let near = native.iter().filter(|(bound, _)| (value..value * 1.07).contains(bound));
            assert_eq!(
                near.map(|(_, count)| count).sum::<i64>(),
                expected,
                "{value}: {native:?}"
            );
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]

        #[test]
        fn any_text_is_a_header_and_a_page(text in "(?s).{0,200}", value in "[a-z{}=\\\\\"#, .0-9]{0,60}") {
            let _ = is_preferred(&format!("application/vnd.google.protobuf;{text}"));
            let page = format!("# TYPE x histogram\nx_bucket{{{value}\nx{value}\n{text}\n");
            decoded(&encode(&page, &[]));
        }
    }

    #[test]
    fn protocol_buffers_are_sent_to_those_that_prefer_them() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let text = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.7,*/*;q=0.1";
        assert!(is_preferred(&format!("{protobuf},{text}")));
        assert!(is_preferred(&CONTENT.replace("; ", ";")) && is_preferred(CONTENT));
        assert!(!is_preferred(text) && !is_preferred("*/*") && !is_preferred(""));
        assert!(!is_preferred(&format!("{protobuf};q=0.1,{text}")));
        assert!(!is_preferred(
            "application/vnd.google.protobuf;proto=other;encoding=delimited"
        ));
    }
}
