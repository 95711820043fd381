//! Chains and events for people and programs.

use super::args::{EventFormat, Format};
use super::view::{self, ChainView, EventView, ListView, PortView};
use super::yaml::to_yaml;
use crate::dates::timestamp;
use crate::error::CliError;
use crate::output::{json, not_json};
use crate::text::{one_line, short};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_net::Nanos;
use tailwater_server::control::generated as message;

/// Heads of the columns, and their least widths; those after the first `NARROW` are shown by `-o wide` only.
const COLUMNS: [(&str, usize); 20] = [
    ("NAME", 20),
    ("PHASE", 9),
    ("P99", 9),
    ("OBJECTIVE", 10),
    ("MET", 5),
    ("RATE", 9),
    ("OFFERED", 8),
    ("LOST", 7),
    ("CORES", 9),
    ("AGE", 5),
    ("PORT", 10),
    ("P50", 9),
    ("DELIVERED", 10),
    ("DROPPED", 8),
    ("PROMISE", 9),
    ("SHARE", 5),
    ("PREDICTED", 9),
    ("COST", 8),
    ("FUNCTIONS", 24),
    ("REASON", 0),
];
/// Number of columns of a table that is not wide.
const NARROW: usize = 10;

/// Printer of chains, in one format.
#[derive(Debug)]
pub struct ChainPrinter {
    format: Format,
    has_heads: bool,
    /// Widths of the columns: those of the widest cells so far.
    widths: [usize; COLUMNS.len()],
}

impl ChainPrinter {
    /// Printer that has printed nothing.
    pub fn new(format: Format) -> ChainPrinter {
        ChainPrinter {
            format,
            has_heads: false,
            widths: COLUMNS.map(|(_, width)| width),
        }
    }

    /// Formats all chains; in a document, also the ports.
    ///
    /// # Errors
    /// They cannot be serialised.
    pub fn all(
        &mut self,
        message::ListResponse { chains, ports, .. }: &message::ListResponse,
    ) -> Result<String, CliError> {
        match self.format {
            Format::Table | Format::Wide => {
                // The heads fit the widest of all chains.
                chains.iter().for_each(|chain| self.fit(&cells(chain, false)));
                Ok(chains.iter().map(|chain| self.line(chain, false)).collect())
            }
            _ => self.document(&ListView {
                chains: chains.iter().map(ChainView::from).collect(),
                ports: ports.iter().map(PortView::from).collect(),
            }),
        }
    }

    /// Formats a chain.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn one(&mut self, chain: &message::Chain) -> Result<String, CliError> {
        match self.format {
            Format::Table | Format::Wide => Ok(self.line(chain, false)),
            _ => self.document(&ChainView::from(chain)),
        }
    }

    /// Formats a change of a chain: as a line, a line of JSON, or one of several YAML documents.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn change(&mut self, chain: &message::Chain, is_gone: bool) -> Result<String, CliError> {
        let view = if is_gone {
            ChainView::gone(chain)
        } else {
            ChainView::from(chain)
        };
        match self.format {
            Format::Table | Format::Wide => Ok(self.line(chain, is_gone)),
            Format::Json => json_line(&view),
            Format::Yaml => Ok(format!("---\n{}", self.document(&view)?)),
        }
    }

    fn document(&self, document: &impl Serialize) -> Result<String, CliError> {
        match self.format {
            Format::Yaml => serde_json::to_value(document)
                .map(|value| to_yaml(&value))
                .map_err(not_json),
            _ => json(document),
        }
    }

    /// Formats a line of the table, the first one with the heads.
    fn line(&mut self, chain: &message::Chain, is_gone: bool) -> String {
        let shown = if self.format == Format::Wide {
            COLUMNS.len()
        } else {
            NARROW
        };
        let cells = cells(chain, is_gone);
        self.fit(&cells);
        let mut text = String::new();
        if !self.has_heads {
            self.has_heads = true;
            text += &self.row(COLUMNS.map(|(head, _)| head.to_owned()), shown);
        }
        text + &self.row(cells, shown)
    }

    /// Widens the columns for these cells.
    fn fit(&mut self, cells: &[String; COLUMNS.len()]) {
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }

    /// Cells in columns, two blanks apart.
    fn row(&self, cells: [String; COLUMNS.len()], shown: usize) -> String {
        let cells = cells.into_iter().zip(self.widths).take(shown);
        let mut text = String::new();
        for (cell, width) in cells {
            let _ = write!(text, "{cell:<width$}  ");
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

fn cells(chain: &message::Chain, is_gone: bool) -> [String; COLUMNS.len()] {
    let latency = chain.latency.unwrap_or_default();
    let packets = chain.packets.unwrap_or_default();
    let cores = chain.cores.clone().unwrap_or_default();
    let placement = chain.placement.clone().unwrap_or_default();
    let time = |nanos: Option<u64>| nanos.map_or_else(none, |nanos| Nanos(nanos).to_string());
    [
        chain.name.clone(),
        if is_gone {
            view::GONE
        } else {
            view::phase(chain.phase())
        }
        .to_owned(),
        time(latency.p99_nanos),
        time(Some(latency.objective_nanos)),
        view::met(&latency).to_owned(),
        chain
            .rates
            .map_or_else(none, |rates| format!("{}pps", short(rates.offered))),
        short(packets.offered as f64),
        short(packets.lost as f64),
        core_list(&cores),
        age(chain.since_unix_nanos),
        chain.port.clone(),
        time(latency.p50_nanos),
        short(packets.delivered as f64),
        short(packets.dropped as f64),
        view::promise(placement.promise()).to_owned(),
        placement.share.map_or_else(none, |share| format!("{share:.2}")),
        time(placement.latency_nanos),
        time(placement.cost_nanos.map(|cost| cost.round() as u64)),
        chain.functions.join(","),
        one_line(&chain.reason),
    ]
}

fn none() -> String {
    "-".to_owned()
}

/// Numbers of cores: `1,2`.
fn numbers(cores: &[u32]) -> String {
    let numbers: Vec<String> = cores.iter().map(u32::to_string).collect();
    numbers.join(",")
}

/// Dedicated cores, and auxiliary ones in use: `1,2+0.5`.
fn core_list(cores: &message::Cores) -> String {
    let numbers = numbers(&cores.dedicated);
    match cores.auxiliary {
        auxiliary if auxiliary >= 0.05 => format!("{numbers}+{auxiliary:.1}"),
        _ if numbers.is_empty() => none(),
        _ => numbers,
    }
}

/// Time since then in its largest unit: `5s`, `3m`, `2h`, `9d`.
fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    in_largest_unit(now.saturating_sub(since / 1_000_000_000))
}

fn in_largest_unit(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn json_line(document: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_string(document)
        .map(|text| text + "\n")
        .map_err(not_json)
}

/// Cores and promise on a line, such as `core 1, none: no spec.slo.throughput`.
pub fn placement(placement: &message::Placement) -> String {
    let promise = promise(placement);
    match &*placement.cores {
        [] => promise,
        [core] => format!("core {core}, {promise}"),
        cores => format!("cores {}, {promise}", numbers(cores)),
    }
}

/// Promise in words: `promised: 0.31 of core 1 for 1.2M packets per second, predicted latency 46us, 258ns a packet`, or
/// `none: no spec.slo.throughput`.
fn promise(placement: &message::Placement) -> String {
    let mut text = view::promise(placement.promise()).to_owned();
    if let (Some(share), Some(rate)) = (placement.share, placement.packets_per_second) {
        let of = match &*placement.cores {
            [core] => format!("core {core}"),
            cores => format!("each of cores {}", numbers(cores)),
        };
        let latency = Nanos(placement.latency_nanos.unwrap_or_default());
        let cost = Nanos(placement.cost_nanos.unwrap_or_default().round() as u64);
        let rate = short(rate);
        let _ = write!(
            text,
            ": {share:.2} of {of} for {rate} packets per second, predicted latency {latency}, {cost} a packet"
        );
    }
    if let Some(cap) = placement.cap_packets_per_second {
        let _ = write!(text, ", capped at {}", short(cap as f64));
    }
    if !placement.reason.is_empty() {
        let _ = write!(text, ": {}", one_line(&placement.reason));
    }
    text
}

/// Part of the cache in words: `3 ways, reserved`, `4 ways, shared by 3 cores`, or `none: late, and ...`.
fn cache(cache: &message::Cache) -> String {
    let class = view::cache_class(cache.class());
    let mut text = match (cache.class(), cache.cores) {
        (message::CacheClass::None | message::CacheClass::Unspecified, _) => class.to_owned(),
        (message::CacheClass::Shared, 2..) => format!("{} ways, shared by {} cores", cache.ways, cache.cores),
        _ => format!("{} ways, {class}", cache.ways),
    };
    if !cache.reason.is_empty() {
        let _ = write!(text, ": {}", one_line(&cache.reason));
    }
    text
}

/// Formats the description of a chain.
pub fn description(response: &message::DescribeResponse) -> String {
    let chain = response.chain.clone().unwrap_or_default();
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<14}{}", one_line(value));
        }
    };
    let cells = cells(&chain, false);
    line("Name:", &chain.name);
    line("Phase:", &cells[1]);
    line("Reason:", &chain.reason);
    line("Since:", &timestamp(chain.since_unix_nanos));
    line("Port:", &chain.port);
    line("Source:", &chain.source);
    line("Generation:", &chain.generation.to_string());
    line("Promise:", &promise(&chain.placement.clone().unwrap_or_default()));
    line("Functions:", &chain.functions.join(", "));
    line("Cores:", &cells[8]);
    line("Cache:", &chain.cache.as_ref().map_or_else(String::new, cache));
    let latency = chain.latency.unwrap_or_default();
    let objective = format!("p{} below {}", latency.percentile, cells[3]);
    line("Objective:", &objective);
    let time = |nanos: Option<u64>| nanos.map_or_else(none, |nanos| Nanos(nanos).to_string());
    let p50_p99 =
        |latency: &message::Latency| format!("p50 {}, p99 {}", time(latency.p50_nanos), time(latency.p99_nanos));
    line("Last window:", &p50_p99(&latency));
    if let Some(rates) = &chain.rates {
        let [offered, delivered, dropped, lost] =
            [rates.offered, rates.delivered, rates.dropped, rates.lost].map(|rate| format!("{}pps", short(rate)));
        let rates = format!("{offered} offered, {delivered} delivered, {dropped} dropped, {lost} lost");
        line("", &rates);
    }
    line("Since start:", &p50_p99(&chain.total_latency.unwrap_or_default()));
    let packets = chain.packets.unwrap_or_default();
    let counts = format!(
        "{} offered, {} delivered, {} dropped, {} lost",
        packets.offered, packets.delivered, packets.dropped, packets.lost
    );
    line("Packets:", &counts);
    text += "Conditions:\n";
    for condition in &chain.conditions {
        let status = view::condition_status(condition.status());
        let time = timestamp(condition.since_unix_nanos);
        let (name, reason) = (&condition.r#type, &condition.reason);
        let _ = writeln!(
            text,
            "  {name:<14}{status:<9}{reason:<11}{time}  {}",
            one_line(&condition.message)
        );
    }
    text += "Events:\n";
    for event in &response.events {
        text += &("  ".to_owned() + &event_line(event));
    }
    text += "Specification:\n";
    for line in response.manifest.lines() {
        let _ = writeln!(text, "  {}", one_line(line));
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

/// Printer of events, in one format.
#[derive(Debug)]
pub struct EventPrinter(EventFormat);

impl EventPrinter {
    /// Printer in a format.
    pub fn new(format: EventFormat) -> EventPrinter {
        EventPrinter(format)
    }

    /// Formats an event on one line.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn event(&mut self, event: &message::Event) -> Result<String, CliError> {
        match self.0 {
            EventFormat::Table => Ok(event_line(event)),
            EventFormat::Json => json_line(&EventView::from(event)),
        }
    }
}

fn event_line(event: &message::Event) -> String {
    let chain = if event.chain.is_empty() { "server" } else { &event.chain };
    let line = format!(
        "{}  {:<8}{:<16}{chain:<19} {}",
        timestamp(event.unix_nanos),
        view::severity(event.severity()),
        event.reason,
        one_line(&event.message)
    );
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_cores_are_short() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(in_largest_unit(seconds), text);
        }
        let cores = |dedicated: &[u32], auxiliary| message::Cores {
            dedicated: dedicated.to_vec(),
            auxiliary,
        };
        assert_eq!(core_list(&cores(&[1, 2], 0.52)), "1,2+0.5");
        assert_eq!(core_list(&cores(&[3], 0.04)), "3");
        assert_eq!(core_list(&cores(&[], 0.0)), "-");
    }

    /// Long names moved the columns behind them, in their own line only.
    #[test]
    fn columns_fit_the_widest_cell() {
        let chain = |name: &str| message::Chain {
            name: name.to_owned(),
            ..message::Chain::default()
        };
        let chains = [chain("a"), chain("a-chain-with-a-name-of-thirty-1")];
        let table = ChainPrinter::new(Format::Table)
            .all(&message::ListResponse {
                chains: chains.into(),
                ..message::ListResponse::default()
            })
            .unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        let phase = lines[0].find("PHASE").unwrap();
        assert_eq!(phase, 33);
        for line in &lines[1..] {
            assert!(
                line[..phase].ends_with("  ") && !line[phase..].starts_with(' '),
                "{line}"
            );
        }
    }
}
