//! Human-readable table of statistics.

use std::fmt;

use super::Statistics;

/// Formats several lines with one value each, without a heading and without notices.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: String| writeln!(f, "{name:<24}{value}");
        let (packets, sizes) = (self.packets, &self.packet_bytes);
        row(f, "packets", packets.to_string())?;
        row(f, "bytes", self.bytes.to_string())?;
        row(f, "duration", self.duration.to_string())?;
        let order = if self.time_sorted {
            "sorted by time"
        } else {
            "not sorted by time"
        };
        row(f, "order", order.to_owned())?;
        row(
            f,
            "flows",
            format!("{} ({} bidirectional)", self.flows, self.bidirectional_flows),
        )?;
        if let (Some(pps), Some(bps)) = (self.mean_packets_per_second, self.mean_bits_per_second) {
            let rate = format!("{}pps, {}bit/s", scaled(pps), scaled(bps));
            row(f, "mean rate", rate)?;
        }
        row(
            f,
            "packet size",
            format!(
                "mean {:.1}, min {}, p25 {}, p50 {}, p75 {}, p99 {}, max {} bytes",
                sizes.mean, sizes.min, sizes.p25, sizes.p50, sizes.p75, sizes.p99, sizes.max
            ),
        )?;
        let shares = self.protocols.iter();
        let shares: Vec<String> = shares
            .map(|s| format!("{} {:.1} %", s.protocol, percent(s.packets, packets)))
            .collect();
        row(f, "protocols", shares.join(", "))?;
        for (reason, count) in &self.malformed {
            row(f, &format!("  {reason}"), count.to_string())?;
        }
        if let Some(top) = &self.top_flow {
            row(
                f,
                "top flow",
                format!("{:.1} % of packets: {}", top.packet_share * 100.0, top.flow),
            )?;
        }
        writeln!(
            f,
            "\n{:<12}{:>12}{:>12}{:>14}{:>16}{:>12}",
            "window", "packets", "peak pps", "peak bit/s", "of one flow", "new flows"
        )?;
        for burst in &self.bursts {
            writeln!(
                f,
                "{:<12}{:>12}{:>12}{:>14}{:>16}{:>12}",
                burst.window.to_string(),
                burst.max_packets,
                scaled(burst.peak_packets_per_second()),
                scaled(burst.peak_bits_per_second()),
                burst.max_flow_packets,
                burst.max_new_flows
            )?;
        }
        Ok(())
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Formats three digits and an SI prefix: `1.25 M`.
fn scaled(value: f64) -> String {
    let (value, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {prefix}")
}
