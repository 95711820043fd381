//! Runs in the JSON of `tailwater run` and `tailwater serve`.

use crate::report::LatencyReport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum size of a document, bytes. A run's windows are at most 10,000, about 5 MB.
pub const MAX_BYTES: usize = 256 << 20;

/// Maximum number of steps of a run over time. Reports have at most 400.
const MAX_STEPS: usize = 4096;

/// Maximum number of chains in a document.
const MAX_CHAINS: usize = 4096;

/// Figures of a run that are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFigures {
    /// Name of the chain.
    pub chain: String,
    /// Name of the traffic.
    pub traffic: String,
    /// The objective's latency in microseconds, and its percentile.
    pub slo: (f64, f64),
    /// Time from the first arrival to the last departure, in seconds.
    pub duration_s: f64,
    /// Latencies of all delivered packets, in microseconds.
    pub latency: LatencyReport,
    /// Packet counts of the whole run.
    pub counts: Counts,
    /// Delivered packets per second.
    pub throughput_pps: f64,
    /// Time average of the cores in use.
    pub cores: f64,
    /// 99th percentile of the time that packets were outside, by external function, in microseconds.
    pub externals: BTreeMap<String, f64>,
    /// The run was ended early.
    pub interrupted: bool,
    /// Length of a step, in milliseconds.
    pub step_ms: f64,
    /// The run over time: windows, or in a long run groups of them.
    pub steps: Vec<Step>,
}

/// A step of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Windows with packets.
    pub windows: u64,
    /// Windows with CPU interference.
    pub flagged: u64,
    /// Packet counts.
    pub counts: Counts,
    /// Latencies of the packets sent, in microseconds.
    pub latency: LatencyReport,
}

/// Packet counts of a run or of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped by decision.
    pub dropped: u64,
    /// Packets lost.
    pub lost: u64,
    /// Late and lost packets by cause.
    pub causes: BTreeMap<String, u64>,
    /// Dropped and lost packets by `function/reason`.
    pub reasons: BTreeMap<String, u64>,
}

/// Reason for which a document cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError {
    /// Line from 1, or 0 if the document as a whole is meant.
    pub line: usize,
    /// Column from 1.
    pub column: usize,
    /// Expected and found content, in one line.
    pub message: String,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        let clean = |c: char| if c.is_control() { '?' } else { c };
        f.write_str(&self.message.chars().map(clean).collect::<String>())
    }
}

impl From<serde_json::Error> for DocumentError {
    fn from(error: serde_json::Error) -> DocumentError {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let place = format!(" at line {line} column {column}");
        DocumentError {
            line,
            column,
            message: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
        }
    }
}

fn whole(message: impl Into<String>) -> DocumentError {
    DocumentError {
        line: 0,
        column: 0,
        message: message.into(),
    }
}

/// Documents that can be compared.
const EXPECTED: &str = "expected the JSON of `tailwater run` or `tailwater serve` (--output json)";

/// Top-level fields by which kinds of documents are told apart.
#[derive(Default, Deserialize)]
struct Kind {
    chain: Option<IgnoredAny>,
    chains: Option<IgnoredAny>,
    rack: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ServerDocument {
    chains: Vec<ChainDocument>,
}

#[derive(Deserialize)]
struct ChainDocument {
    report: RunDocument,
}

#[derive(Deserialize)]
struct RunDocument {
    chain: String,
    traffic: String,
    slo: SloDocument,
    duration_s: f64,
    latency_us: LatencyReport,
    packets: PacketDocument,
    throughput_mpps: f64,
    cores: CoreDocument,
    late_by_cause: BTreeMap<String, u64>,
    timeline: TimelineDocument,
    #[serde(default)]
    externals: Vec<ExternalDocument>,
    interrupted: bool,
}

#[derive(Deserialize)]
struct SloDocument {
    latency_us: f64,
    percentile: f64,
}

#[derive(Deserialize)]
struct PacketDocument {
    offered: u64,
    delivered: u64,
    dropped_by_nf: u64,
    lost: u64,
    drops: Vec<DropDocument>,
}

#[derive(Deserialize)]
struct DropDocument {
    function: Option<String>,
    reason: String,
    packets: u64,
}

#[derive(Deserialize)]
struct CoreDocument {
    avg: f64,
}

#[derive(Deserialize)]
struct TimelineDocument {
    step_ms: f64,
    list: Vec<StepDocument>,
}

#[derive(Deserialize)]
struct StepDocument {
    windows: u64,
    flagged: u64,
    offered: u64,
    delivered: u64,
    dropped_by_nf: u64,
    lost: u64,
    late_by_cause: BTreeMap<String, u64>,
    dropped_by_reason: BTreeMap<String, u64>,
    lost_by_reason: BTreeMap<String, u64>,
    latency_us: LatencyReport,
}

#[derive(Deserialize)]
struct ExternalDocument {
    function: String,
    delay_us: LatencyReport,
}

/// Returns the runs of a document: one of `tailwater run`, or one a chain of `tailwater serve`. A chain that ran
/// several times counts with its last run.
///
/// # Errors
/// The text is not such a document, or one of a version without the fields that are compared.
pub fn parse(text: &[u8]) -> Result<Vec<RunFigures>, DocumentError> {
    if text.len() > MAX_BYTES {
        return Err(whole(format!("expected at most {MAX_BYTES} bytes")));
    }
    if text.trim_ascii().is_empty() {
        return Err(whole(format!("{EXPECTED}, found an empty file")));
    }
    let is_object = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let kind = match serde_json::from_slice::<Kind>(text) {
        Err(error) if !error.is_data() => return Err(unlike(error)),
        // Lists would be read as the fields in order.
        Ok(kind) if is_object => kind,
        _ => Kind::default(),
    };
    let runs = match kind {
        Kind { chain: Some(_), .. } => vec![serde_json::from_slice::<RunDocument>(text).map_err(version)?],
        Kind { rack: Some(_), .. } => {
            return Err(whole(
                "expected a measured run, found a simulation, which repeats exactly for a seed",
            ));
        }
        Kind { chains: Some(_), .. } => {
            let document: ServerDocument = serde_json::from_slice(text).map_err(version)?;
            document.chains.into_iter().map(|chain| chain.report).collect()
        }
        _ => {
            return Err(whole(format!("{EXPECTED}, found another document")));
        }
    };
    if runs.is_empty() {
        return Err(whole("expected a chain, found none"));
    }
    if runs.len() > MAX_CHAINS {
        return Err(whole(format!("expected at most {MAX_CHAINS} chains")));
    }
    let mut by_chain = BTreeMap::new();
    for run in runs {
        let run = RunFigures::checked(run)?;
        by_chain.insert(run.chain.clone(), run);
    }
    Ok(by_chain.into_values().collect())
}

/// Adds the likely reason to an error about a field: documents are written by this program.
fn version(error: serde_json::Error) -> DocumentError {
    let is_field = error.is_data();
    let mut error = unlike(error);
    if is_field {
        error.message += "; a report of another version of Tailwater?";
    }
    error
}

/// Error of a text that is no such document.
fn unlike(error: serde_json::Error) -> DocumentError {
    let mut error = DocumentError::from(error);
    error.message = format!("{EXPECTED}: {}", error.message);
    error
}

impl RunFigures {
    /// Checks values that this program never writes, which would make figures meaningless.
    fn checked(run: RunDocument) -> Result<RunFigures, DocumentError> {
        let chain = run.chain;
        let wrong = |what: &str| whole(format!("chain {chain}: {what}"));
        let numbers = [
            run.slo.latency_us,
            run.slo.percentile,
            run.duration_s,
            run.throughput_mpps,
            run.cores.avg,
            run.timeline.step_ms,
        ];
        let delays = run.externals.iter().map(|external| &external.delay_us);
        let latencies = run.timeline.list.iter().map(|step| &step.latency_us);
        let latencies = latencies.chain([&run.latency_us]).chain(delays);
        let numbers = numbers.into_iter().chain(latencies.flat_map(figures));
        if !numbers.into_iter().all(|number| number.is_finite() && number >= 0.0) {
            return Err(wrong("expected figures of at least zero"));
        }
        if run.timeline.list.len() > MAX_STEPS {
            return Err(wrong(&format!("timeline.list: expected at most {MAX_STEPS} steps")));
        }
        let mut reasons = BTreeMap::new();
        for drop in run.packets.drops {
            let name = match drop.function {
                Some(function) => format!("{function}/{}", drop.reason),
                None => drop.reason,
            };
            let count: &mut u64 = reasons.entry(name).or_default();
            *count = count.saturating_add(drop.packets);
        }
        Ok(RunFigures {
            traffic: run.traffic,
            slo: (run.slo.latency_us, run.slo.percentile),
            duration_s: run.duration_s,
            latency: run.latency_us,
            counts: Counts {
                offered: run.packets.offered,
                delivered: run.packets.delivered,
                dropped: run.packets.dropped_by_nf,
                lost: run.packets.lost,
                causes: run.late_by_cause,
                reasons,
            },
            throughput_pps: run.throughput_mpps * 1e6,
            cores: run.cores.avg,
            externals: run
                .externals
                .into_iter()
                .map(|external| (external.function, external.delay_us.p99))
                .collect(),
            interrupted: run.interrupted,
            step_ms: run.timeline.step_ms,
            steps: run.timeline.list.into_iter().map(Step::from).collect(),
            chain,
        })
    }

    /// Share of windows with CPU interference.
    pub fn flagged_share(&self) -> f64 {
        let sum = |part: fn(&Step) -> u64| self.steps.iter().map(|step| part(step) as f64).sum::<f64>();
        sum(|step| step.flagged) / sum(|step| step.windows).max(1.0)
    }
}

impl From<StepDocument> for Step {
    fn from(step: StepDocument) -> Step {
        let mut reasons = step.dropped_by_reason;
        for (reason, packets) in step.lost_by_reason {
            let count = reasons.entry(reason).or_default();
            *count = count.saturating_add(packets);
        }
        Step {
            windows: step.windows,
            flagged: step.flagged,
            counts: Counts {
                offered: step.offered,
                delivered: step.delivered,
                dropped: step.dropped_by_nf,
                lost: step.lost,
                causes: step.late_by_cause,
                reasons,
            },
            latency: step.latency_us,
        }
    }
}

fn figures(latency: &LatencyReport) -> [f64; 6] {
    let LatencyReport {
        p50,
        p90,
        p99,
        p999,
        max,
        mean,
    } = *latency;
    [p50, p90, p99, p999, max, mean]
}
