//! Reports of a server's chains at their end.

use crate::error::CliError;
use crate::output::{ReportOutput, json, print};
use crate::text::thousands;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tailwater_dataplane::cores::format_list;
use tailwater_dataplane::report::{NoVerdict, RunReport};
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_server::live::EndedChain;

/// Chain that has ended.
#[derive(Serialize)]
struct ChainReport<'d> {
    name: &'d str,
    cores: &'d [usize],
    /// Reason for which it failed.
    failure: Option<&'d str>,
    report: &'d RunReport,
}

/// All chains of a server, in the order of their ends.
#[derive(Serialize)]
struct Document<'d> {
    server: &'d str,
    ports: Vec<PortCounts<'d>>,
    chains: Vec<ChainReport<'d>>,
}

/// Packets of a port, those of its chains included.
#[derive(Serialize)]
struct PortCounts<'d> {
    name: &'d str,
    /// Packets that arrived.
    received: u64,
    /// Packets that no chain matched.
    unmatched: u64,
    /// Of these, packets that arrived while no chain got any, or while chains changed.
    unmatched_between: u64,
    /// Of the other unmatched ones, packets of IPv6, and those without IP.
    unmatched_ipv6: u64,
    unmatched_non_ip: u64,
    /// Packets lost before their chain was known.
    lost: u64,
    /// Packets dropped since the device found their checksums wrong.
    damaged: u64,
}

/// Columns of the table.
const HEADER: [&str; 10] = [
    "chain",
    "core",
    "offered",
    "delivered",
    "dropped",
    "lost",
    "p50 us",
    "p99 us",
    "objective",
    "met",
];

impl ChainReport<'_> {
    /// Row of the table; `version` is the number of this run among those of the chain, if it was replaced.
    fn row(&self, version: Option<(usize, usize)>) -> [String; 10] {
        let RunReport {
            packets,
            latency_us,
            slo,
            slo_met,
            ..
        } = self.report;
        let time = |time: f64| match packets.delivered {
            0 => "-".to_owned(),
            _ => format!("{time:.1}"),
        };
        [
            match version {
                None => self.name.to_owned(),
                Some((number, versions)) => format!("{} ({number} of {versions})", self.name),
            },
            format_list(self.cores),
            thousands(packets.offered),
            thousands(packets.delivered),
            thousands(packets.dropped_by_nf),
            thousands(packets.lost),
            time(latency_us.p50),
            time(latency_us.p99),
            format!("{:.0} us {} %", slo.latency_us, slo.percentile),
            match slo_met {
                _ if self.failure.is_some() => "FAILED".to_owned(),
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None if self.report.no_verdict == Some(NoVerdict::PortLoss) => "port".to_owned(),
                None => "no verdict".to_owned(),
            },
        ]
    }
}

/// Prints all chains of a server.
///
/// # Errors
/// The output cannot be written.
pub fn print_all(
    server: &str,
    ended: &[EndedChain],
    ports: &[Arc<SharedPort>],
    output: ReportOutput,
) -> Result<(), CliError> {
    let ports = ports.iter().map(|port| {
        let counts = port.counts();
        PortCounts {
            name: port.name(),
            received: counts.received,
            unmatched: counts.unmatched,
            unmatched_between: counts.unmatched_between,
            unmatched_ipv6: counts.unmatched_ipv6,
            unmatched_non_ip: counts.unmatched_non_ip,
            lost: counts.lost,
            damaged: counts.damaged,
        }
    });
    let chains = ended.iter().map(|ended| ChainReport {
        name: &ended.name,
        cores: &ended.cores,
        failure: ended.failure.as_deref(),
        report: &ended.report,
    });
    let document = Document {
        server,
        ports: ports.collect(),
        chains: chains.collect(),
    };
    print(&match output {
        ReportOutput::Json => json(&document)?,
        ReportOutput::Table => table(&document),
    })
}

/// Number of each row among those of its chain, and their number; `None` for the only one.
fn versions(names: &[&str]) -> Vec<Option<(usize, usize)>> {
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    let numbers: Vec<usize> = names
        .iter()
        .map(|&name| {
            let number = all.entry(name).or_default();
            *number += 1;
            *number
        })
        .collect();
    let numbered = names.iter().zip(numbers);
    numbered
        .map(|(name, number)| Some((number, all[name])).filter(|(_, all)| *all > 1))
        .collect()
}

/// Known causes of the packets for no chain, in parentheses.
fn unmatched_causes(port: &PortCounts<'_>) -> String {
    let causes = [
        (port.unmatched_between, "while no chain ran, or chains changed"),
        (port.unmatched_ipv6, "of IPv6"),
        (port.unmatched_non_ip, "without IP"),
    ];
    let causes = causes.into_iter().filter(|(packets, _)| *packets > 0);
    let causes: Vec<String> = causes
        .map(|(packets, cause)| format!("{} {cause}", thousands(packets)))
        .collect();
    match causes.is_empty() {
        true => String::new(),
        false => format!(" ({})", causes.join("; ")),
    }
}

fn table(document: &Document<'_>) -> String {
    let chains = &document.chains;
    let names: Vec<&str> = chains.iter().map(|chain| chain.name).collect();
    let numbered = chains.iter().zip(versions(&names));
    let rows: Vec<[String; 10]> = numbered.map(|(chain, version)| chain.row(version)).collect();
    let header = HEADER.map(str::to_owned);
    let all = || std::iter::once(&header).chain(&rows);
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| all().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 10]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let count = match names.iter().collect::<BTreeSet<_>>().len() {
        1 => "1 chain".to_owned(),
        chains => format!("{chains} chains"),
    };
    let heading = format!("server {}, {count}\n\n", document.server);
    let ports = document.ports.iter().map(|port| {
        let [received, unmatched, lost] = [port.received, port.unmatched, port.lost].map(thousands);
        format!(
            "port {}: {received} packets received, {unmatched} for no chain{}, {lost} lost before their chain is \
             known\n",
            port.name,
            unmatched_causes(port)
        )
    });
    heading + &all().map(line).collect::<String>() + "\n" + &ports.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::versions;

    #[test]
    fn rows_of_a_replaced_chain_are_told_apart() {
        assert_eq!(versions(&["web", "edge", "web"]), [Some((1, 2)), None, Some((2, 2))]);
    }
}
