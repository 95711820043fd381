//! Ports of a server for people and programs.

use super::args::Format;
use super::view::PortView;
use super::yaml::to_yaml;
use crate::error::CliError;
use crate::output::{json, not_json};
use crate::text::short;
use serde::Serialize;
use std::fmt::Write as _;
use tailwater_server::control::generated as message;

/// Heads of the columns, and their least widths; those after the first `NARROW` are shown by `-o wide` only.
const COLUMNS: [(&str, usize); 8] = [
    ("NAME", 20),
    ("RATE", 9),
    ("LOSES", 9),
    ("RECEIVED", 9),
    ("LOST", 8),
    ("CORES", 7),
    ("UNMATCHED", 9),
    ("DAMAGED", 7),
];
/// Number of columns of a table that is not wide.
const NARROW: usize = 6;

/// Ports of a server.
#[derive(Debug, Serialize)]
struct PortList {
    ports: Vec<PortView>,
}

/// Formats ports: in a table with its heads if `has_heads` is set, or as a document. `is_followed`: others follow.
///
/// # Errors
/// They cannot be serialised.
pub fn print_ports(
    ports: &[message::Port],
    format: Format,
    (has_heads, is_followed): (bool, bool),
) -> Result<String, CliError> {
    let document = || PortList {
        ports: ports.iter().map(PortView::from).collect(),
    };
    match format {
        Format::Table => Ok(table(ports, NARROW, has_heads)),
        Format::Wide => Ok(table(ports, COLUMNS.len(), has_heads)),
        Format::Json if is_followed => serde_json::to_string(&document())
            .map(|text| text + "\n")
            .map_err(not_json),
        Format::Json => json(&document()),
        Format::Yaml => {
            let text = serde_json::to_value(document()).map_err(not_json)?;
            let separator = if is_followed { "---\n" } else { "" };
            Ok(format!("{separator}{}", to_yaml(&text)))
        }
    }
}

/// Line about a port that loses packets, if it does.
pub fn loss(port: &message::Port) -> Option<String> {
    (port.interval_lost > 0).then(|| {
        format!(
            "port {} loses {} packets/s, {} so far",
            port.name,
            short(per_second(port, port.interval_lost)),
            short(port.lost as f64)
        )
    })
}

/// Packets per second in a port's last interval.
pub fn per_second(port: &message::Port, packets: u64) -> f64 {
    packets as f64 * 1e9 / port.interval_nanos.max(1_000_000) as f64
}

fn table(ports: &[message::Port], shown: usize, has_heads: bool) -> String {
    let heads = has_heads.then(|| COLUMNS.map(|(head, _)| head.to_owned()));
    let rows: Vec<[String; COLUMNS.len()]> = heads.into_iter().chain(ports.iter().map(cells)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().take(shown).enumerate() {
            let widest = rows.iter().map(|row| row[column].chars().count()).max();
            let width = widest.unwrap_or(0).max(COLUMNS[column].1);
            let _ = write!(line, "{cell:<width$}  ");
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}

fn cells(port: &message::Port) -> [String; COLUMNS.len()] {
    let rate = |packets: u64| format!("{}pps", short(per_second(port, packets)));
    let cores: Vec<String> = port.losing_cores.iter().map(u32::to_string).collect();
    let count = |packets: u64| short(packets as f64);
    [
        port.name.clone(),
        rate(port.interval_received),
        rate(port.interval_lost),
        count(port.received),
        count(port.lost),
        if cores.is_empty() {
            "-".to_owned()
        } else {
            cores.join(",")
        },
        count(port.unmatched),
        count(port.damaged),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> [message::Port; 2] {
        let calm = message::Port {
            name: "calm".to_owned(),
            received: 1_500,
            interval_nanos: 1_000_000_000,
            interval_received: 100,
            ..message::Port::default()
        };
        let lossy = message::Port {
            name: "in".to_owned(),
            lost: 12_345,
            interval_lost: 50,
            interval_nanos: 500_000_000,
            losing_cores: vec![1, 3],
            ..calm.clone()
        };
        [calm, lossy]
    }

    #[test]
    fn a_port_that_loses_packets_shows_how_many_and_where() {
        let table = print_ports(&ports(), Format::Table, (true, false)).unwrap();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "RATE", "LOSES", "RECEIVED", "LOST", "CORES"]);
        assert_eq!(lines[1], ["calm", "100pps", "0pps", "1.50k", "0", "-"]);
        assert_eq!(lines[2], ["in", "200pps", "100pps", "1.50k", "12.3k", "1,3"]);
        let losses: Vec<String> = ports().iter().filter_map(loss).collect();
        assert_eq!(losses, ["port in loses 100 packets/s, 12.3k so far"]);
    }

    #[test]
    fn documents_of_ports_are_complete() {
        let text = print_ports(&ports(), Format::Json, (true, true)).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let lossy = &document["ports"][1];
        assert_eq!(
            (&lossy["packets"]["lost"], &lossy["interval"]["lost"]),
            (&12_345.into(), &50.into())
        );
        assert_eq!(lossy["interval"]["losing_cores"], serde_json::json!([1, 3]));
    }
}
