//! Exemplars of latencies: late packets whose traces a collector has.

use super::protobuf::Sample;
use std::fmt::Write as _;
use tailwater_net::Nanos;

/// Series that has exemplars.
const SERIES: &str = "tailwater_latency_seconds_bucket";

/// Late packet with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateExemplar {
    /// Chain.
    pub chain: String,
    /// Identifier of its trace.
    pub trace: String,
    /// Latency.
    pub latency: Nanos,
    /// Departure, since the Unix epoch.
    pub time: Nanos,
}

/// Adds exemplars to a page of several chains: to each bucket the latest packet of its chain and range, of those in
/// their order.
pub fn add(page: &str, exemplars: &[LateExemplar]) -> String {
    let mut with = String::with_capacity(page.len() + 128 * exemplars.len());
    // Chain of the bucket before, and its bound.
    let (mut before, mut low) = (None, 0.0);
    for line in page.lines() {
        with.push_str(line);
        if let Some(sample) = Sample::parse(line).filter(|sample| sample.name == SERIES) {
            let label = |name| sample.label(name).map(str::to_owned);
            let chain = label("chain");
            let high = label("le")
                .and_then(|bound| bound.parse().ok())
                .unwrap_or(f64::INFINITY);
            if before != chain {
                low = 0.0;
            }
            let is_in = |latency: f64| low < latency && latency <= high;
            let mut latest = exemplars.iter().rev();
            let latest = latest
                .find(|exemplar| Some(&exemplar.chain) == chain.as_ref() && is_in(exemplar.latency.as_secs_f64()));
            if let Some(LateExemplar {
                trace, latency, time, ..
            }) = latest
            {
                let (latency, time) = (latency.as_secs_f64(), time.0 / 1_000_000);
                let _ = write!(
                    with,
                    " # {{trace_id=\"{trace}\"}} {latency} {}.{:03}",
                    time / 1000,
                    time % 1000
                );
            }
            (before, low) = (chain, high);
        }
        with.push('\n');
    }
    with
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_late_packet_of_a_range_is_an_exemplar() {
        let line = |chain: &str, bound: &str| format!("{SERIES}{{le=\"{bound}\",chain=\"{chain}\"}} 1");
        let page: Vec<String> = ["a", "b"]
            .iter()
            .flat_map(|chain| ["0.001", "0.002", "+Inf"].map(|bound| line(chain, bound)))
            .collect();
        let late = |chain: &str, trace: &str, latency| LateExemplar {
            chain: chain.to_owned(),
            trace: trace.to_owned(),
            latency: Nanos::from_micros(latency),
            time: Nanos(1_700_000_000_250_000_000),
        };
        let exemplars = [late("b", "01", 1500), late("b", "02", 2000), late("a", "03", 9000)];
        let with = add(
            &format!("# TYPE x gauge\nx 1\n{}\n# EOF\n", page.join("\n")),
            &exemplars,
        );
        let lines: Vec<&str> = with.lines().collect();
        let expected: Vec<String> = page
            .iter()
            .enumerate()
            .map(|(at, line)| match at {
                2 => format!("{line} # {{trace_id=\"03\"}} 0.009 1700000000.250"),
                4 => format!("{line} # {{trace_id=\"02\"}} 0.002 1700000000.250"),
                _ => line.clone(),
            })
            .collect();
        assert_eq!(lines[2..8], expected);
        assert!(with.starts_with("# TYPE x gauge\nx 1\n") && with.ends_with("# EOF\n"));
    }
}
