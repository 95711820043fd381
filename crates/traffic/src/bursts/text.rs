//! Human-readable text of a study.

use std::fmt;

use tailwater_net::Nanos;

use super::study::{BurstStudy, LatencyRow};

/// Formats several lines with one value each, and the two tables; without a heading and without notices.
impl fmt::Display for BurstStudy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: String| writeln!(f, "{name:<24}{value}");
        row(f, "packets", self.packets.to_string())?;
        row(f, "duration", format!("{:.3} s", self.duration.as_secs_f64()))?;
        row(f, "flows", self.flows.to_string())?;
        let mean = self.new_flows_per_second.mean;
        let mean = mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.0}"));
        let max = self.new_flows_per_second.max;
        row(f, "new flows per second", format!("mean {mean}, max {max}"))?;
        let sizes = &self.packet_bytes;
        row(
            f,
            "packet size",
            format!("mean {:.1}, {} to {} bytes", sizes.mean, sizes.min, sizes.max),
        )?;
        let (least, most) = (self.flow_bytes.min, self.flow_bytes.max);
        row(f, "flow size", format!("{least} to {most} bytes"))?;
        let longest = self.longest_flow.as_secs_f64();
        row(f, "longest flow", format!("{longest:.1} s"))?;
        let worst = &self.worst_millisecond;
        row(
            f,
            "worst millisecond",
            format!(
                "{} packets, {} of one flow, {} new flows",
                worst.packets, worst.flow_packets, worst.new_flows
            ),
        )?;
        if self.packets_out_of_order > 0 {
            row(f, "out of order", format!("{} packets", self.packets_out_of_order))?;
        }
        if self.whales.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nWhales (bursts of one flow): one core per flow")?;
        head(f, &["p50", "p99", "max"])?;
        for whale in &self.whales {
            write!(f, "{:<12}", whale.service.to_string())?;
            latency(f, Some(&whale.latency))?;
        }
        writeln!(
            f,
            "\nMinnows (bursts of many flows): shaped flows, hashed to the fewest cores with p50 < 10 service times"
        )?;
        head(f, &["p50", "p99", "max", "cores", "load"])?;
        for minnow in &self.minnows {
            write!(f, "{:<12}", minnow.service.to_string())?;
            let cores = minnow.cores.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let load = minnow
                .load
                .map_or_else(|| "-".to_owned(), |x| format!("{:.1} %", x * 100.0));
            let row = minnow.latency.as_ref();
            write!(f, "{}", cells(row))?;
            writeln!(f, "{cores:>14}{load:>14}")?;
        }
        Ok(())
    }
}

fn head(f: &mut fmt::Formatter<'_>, names: &[&str]) -> fmt::Result {
    write!(f, "{:<12}", "service")?;
    for name in names {
        write!(f, "{name:>14}")?;
    }
    writeln!(f)
}

fn latency(f: &mut fmt::Formatter<'_>, row: Option<&LatencyRow>) -> fmt::Result {
    writeln!(f, "{}", cells(row))
}

fn cells(row: Option<&LatencyRow>) -> String {
    match row {
        Some(row) => [row.p50, row.p99, row.max]
            .map(|time| format!("{:>14}", micros(time)))
            .concat(),
        None => format!("{:>14}{:>14}{:>14}", "-", "-", "-"),
    }
}

/// Formats microseconds with one decimal.
pub(super) fn micros(time: Nanos) -> String {
    format!("{:.1} us", time.as_micros_f64())
}
