//! Reports of a server's chains at their end.

use crate::error::CliError;
use crate::output::{ReportOutput, json, print};
use crate::text::thousands;
use serde::Serialize;
use tailwater_dataplane::report::RunReport;

/// Chain that has ended.
#[derive(Debug, Serialize)]
pub struct Ended {
    name: String,
    report: RunReport,
}

/// All chains of a server, in the order of their ends.
#[derive(Serialize)]
struct Document<'d> {
    server: &'d str,
    chains: &'d [Ended],
}

/// Columns of the table.
const HEADER: [&str; 9] = [
    "chain",
    "offered",
    "delivered",
    "dropped",
    "lost",
    "p50 us",
    "p99 us",
    "objective",
    "met",
];

impl Ended {
    /// Chain with its report.
    pub fn new(name: &str, report: &RunReport) -> Ended {
        Ended {
            name: name.to_owned(),
            report: report.clone(),
        }
    }

    fn row(&self) -> [String; 9] {
        let RunReport {
            packets,
            latency_us,
            slo,
            slo_met,
            ..
        } = &self.report;
        let time = |time: f64| match packets.delivered {
            0 => "-".to_owned(),
            _ => format!("{time:.1}"),
        };
        [
            self.name.clone(),
            thousands(packets.offered),
            thousands(packets.delivered),
            thousands(packets.dropped_by_nf),
            thousands(packets.lost),
            time(latency_us.p50),
            time(latency_us.p99),
            format!("{:.0} us {} %", slo.latency_us, slo.percentile),
            match slo_met {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => "no verdict".to_owned(),
            },
        ]
    }
}

/// Prints all chains of a server.
///
/// # Errors
/// The output cannot be written.
pub fn print_all(server: &str, ended: Vec<Ended>, output: ReportOutput) -> Result<(), CliError> {
    let document = Document { server, chains: &ended };
    print(&match output {
        ReportOutput::Json => json(&document)?,
        ReportOutput::Table => table(&document),
    })
}

fn table(document: &Document<'_>) -> String {
    let rows: Vec<[String; 9]> = document.chains.iter().map(Ended::row).collect();
    let header = HEADER.map(str::to_owned);
    let all = || std::iter::once(&header).chain(&rows);
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| all().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let chains = match rows.len() {
        1 => "1 chain".to_owned(),
        chains => format!("{chains} chains"),
    };
    let heading = format!("server {}, {chains}\n\n", document.server);
    heading + &all().map(line).collect::<String>()
}
