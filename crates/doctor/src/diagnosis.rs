//! Diagnosis: all findings and the verdict.

use crate::finding::Severity;
use crate::{CpuList, Environment, Finding, Measured, Probe, Purpose, System};
use serde::Serialize;

/// Latency above which memory counts as slow, because it is remote or the machine is busy.
const SLOW_MEMORY_NS: f64 = 150.0;

/// Names of the checks that [`measure`](crate::measure) serves: gaps, and the latency of memory.
pub const MEASURED_CHECKS: [&str; 2] = ["scheduling-gaps", "memory-latency"];

/// Verdict on the objective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The objective in microseconds.
    pub slo_us: f64,
    /// `true` if no finding rules the objective out. The chain's own processing time is not considered.
    pub realistic: bool,
    /// Reason, in one sentence.
    pub because: String,
}

/// Result of an examination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Processor model and kernel release.
    pub machine: String,
    /// Hypervisor, cloud and container.
    pub environment: Environment,
    /// Examined cores.
    pub cores: String,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// Measurements, if any.
    pub measured: Option<Measured>,
    /// Verdict on the objective.
    pub verdict: Verdict,
}

impl Diagnosis {
    /// Combines findings and measurements.
    pub fn new(
        system: &dyn System,
        purpose: &Purpose,
        mut findings: Vec<Finding>,
        measured: Option<Measured>,
    ) -> Diagnosis {
        if let Some(measured) = &measured {
            findings.extend(judge(measured, purpose));
            findings.iter_mut().for_each(|finding| price(finding, measured));
        }
        findings.sort_by_key(|finding| finding.severity);
        let slo_us = purpose.slo.as_micros_f64();
        let against = findings.iter().find(|finding| finding.severity == Severity::Prevents);
        let because = match (against, &measured) {
            (Some(against), _) => format!("{}: {}", against.check, against.found),
            (None, Some(_)) => "no interruption of a core was long enough to matter".to_owned(),
            (None, None) => "no setting prevents it; nothing was measured".to_owned(),
        };
        let model = match system.read("/proc/cpuinfo") {
            Probe::Value(text) => text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == "model name").then(|| value.trim().to_owned())
            }),
            Probe::Absent | Probe::Forbidden => None,
        };
        let kernel = system.read("/proc/sys/kernel/osrelease").value();
        Diagnosis {
            machine: format!(
                "{}, Linux {}",
                model.as_deref().unwrap_or("unknown processor"),
                kernel.as_deref().unwrap_or("of unknown release")
            ),
            environment: Environment::of(system),
            cores: CpuList::from(purpose.cores.clone()).to_string(),
            verdict: Verdict {
                slo_us,
                realistic: against.is_none(),
                because,
            },
            findings,
            measured,
        }
    }
}

/// Sets the latency that a problem costs, as far as the measurements show it.
fn price(finding: &mut Finding, measured: &Measured) {
    if finding.severity >= Severity::Unknown || finding.cost.is_some() {
        return;
    }
    let count: u64 = measured.gaps.iter().map(|gaps| gaps.count).sum();
    let all: f64 = measured.gaps.iter().map(|gaps| gaps.all.as_micros_f64()).sum();
    let watched: f64 = measured.gaps.iter().map(|gaps| gaps.watched.as_secs_f64()).sum();
    let memory = &measured.memory;
    let cost = match finding.check {
        "isolated-cores" | "programs-on-cores" | "interrupts" if count > 0 => {
            let rate = count as f64 / watched.max(1e-9);
            let source = format!("measured here: the mean of {rate:.0} gaps a second and core, of all causes");
            Some((all / count as f64, "a gap", source))
        }
        "huge-pages" | "transparent-huge-pages" if memory.ordinary_ns > memory.huge_ns => {
            let saved = (memory.ordinary_ns - memory.huge_ns) / 1e3;
            let source = "measured here: loads in ordinary pages minus those in huge pages".to_owned();
            Some((saved, "a load from memory", source))
        }
        _ => None,
    };
    if let Some((us, each, source)) = cost {
        *finding = finding.clone().costing(us, each, source);
    }
}

/// Converts measurements to findings.
fn judge(measured: &Measured, purpose: &Purpose) -> Vec<Finding> {
    let [gaps_check, memory_check] = MEASURED_CHECKS;
    let mut findings = Vec::new();
    for gaps in &measured.gaps {
        let found = format!(
            "core {}: {} in {:.1} s, the longest {:.0} us; {} of {} windows with more than 1 % late",
            gaps.core,
            gaps.count,
            gaps.watched.as_secs_f64(),
            gaps.longest.as_micros_f64(),
            gaps.windows_missed,
            gaps.windows
        );
        let why = "a polling thread was preempted by another program, an interrupt or the hypervisor";
        let severity = if gaps.windows_missed > 0 {
            Severity::Prevents
        } else if gaps.longest > purpose.slo {
            Severity::Costs
        } else {
            Severity::Good
        };
        findings.push(match severity {
            Severity::Good => Finding::good(gaps_check, found),
            _ => Finding::bad(gaps_check, severity, found, why).costing(
                gaps.longest.as_micros_f64(),
                "the longest gap",
                format!("measured here, on core {}", gaps.core),
            ),
        });
    }
    let memory = &measured.memory;
    let found = format!(
        "{:.0} ns per load from 64 MiB, {:.0} ns in huge pages",
        memory.ordinary_ns, memory.huge_ns
    );
    findings.push(match memory.huge_ns > SLOW_MEMORY_NS {
        true => {
            let why = "a lookup among a million flows takes this time for each cache line it reads";
            Finding::bad(memory_check, Severity::Costs, found, why).costing(
                memory.huge_ns / 1e3,
                "a load from memory",
                "measured here",
            )
        }
        false => Finding::good(memory_check, found),
    });
    findings
}
