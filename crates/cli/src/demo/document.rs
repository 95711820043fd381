//! Results of the demonstration: the same figures for live and simulated runs, and the verdict on them.

use super::experiment::{Experiment, MOST_PREEMPTED, Rates};
use super::machine::Machine;
use crate::table::too_few;
use crate::text::{percent, thousands};
use serde::Serialize;
use tailwater_dataplane::report::{LatencyReport, NoVerdict, RunReport, SloReport, is_within, verdict};
use tailwater_net::Nanos;
use tailwater_sim::ChainReport;

/// Share of a run's windows without CPU interference that a policy is judged by at least.
const ENOUGH_WINDOWS: f64 = 1.0 / 3.0;

/// Output of `tailwater demo --output json`. Field names are stable:
///
/// ```text
/// chain, traffic
/// simulated, because          reason for simulated runs, or null
/// machine                     usable_cores, dedicated_core, auxiliary_core, windows, windows_with_interference, gaps;
///                             null if it was not watched
/// slo                         latency_us, network_us, percentile
/// one_core_pps, offered_pps   saturated rate of one core; mean rate of the traffic
/// busiest                     ms, pps: length and rate of the traffic's busiest interval
/// seconds, window_ms
/// policies[]                  policy, title, latency_us, offered, delivered, dropped, lost, late, windows,
///                             windows_with_interference, windows_judged, windows_kept, in_time, kept,
///                             dedicated_core_s, auxiliary_core_s, over_time[]
/// policies[].over_time[]      start_s, p50_us, p99_us, max_us, lost, interference, kept
/// verdict
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Name of the chain.
    pub chain: String,
    /// Name of the traffic: a preset or a file.
    pub traffic: String,
    /// The runs were simulated.
    pub simulated: bool,
    /// Reason for simulated runs; `None` for live ones.
    pub because: Option<String>,
    /// Cores and their CPU interference, unless `--simulate` was given.
    pub machine: Option<Machine>,
    /// Latency objective.
    pub slo: SloReport,
    /// Saturated rate of one core, in packets a second.
    pub one_core_pps: f64,
    /// Mean rate of the traffic, in packets a second.
    pub offered_pps: f64,
    /// Busiest interval of the traffic.
    pub busiest: Busiest,
    /// Duration of each run, in seconds.
    pub seconds: f64,
    /// Length of a window, in milliseconds.
    pub window_ms: f64,
    /// Results of the policies, in the order in which they ran.
    pub policies: Vec<PolicyResult>,
    /// Verdict on the results, in one line.
    pub verdict: String,
}

/// Interval with the most packets.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Busiest {
    /// Length, in milliseconds.
    pub ms: f64,
    /// Rate, in packets a second.
    pub pps: f64,
}

/// Results of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyResult {
    /// Name of the policy.
    pub policy: &'static str,
    /// Title of its column in the table.
    pub title: &'static str,
    /// Latencies of all delivered packets, in microseconds.
    pub latency_us: LatencyReport,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets that a rule of the chain dropped: neither late nor lost.
    pub dropped: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets delivered too late.
    pub late: u64,
    /// Windows with packets.
    pub windows: u64,
    /// Of those, windows with CPU interference in them or in the window before.
    pub windows_with_interference: u64,
    /// Windows without CPU interference, by which the policy is judged.
    pub windows_judged: u64,
    /// Of those, windows in which the objective was kept.
    pub windows_kept: u64,
    /// Share of the judged windows' packets that were delivered in time, or of all packets if there are too few such
    /// windows. Lost packets count as late.
    pub in_time: f64,
    /// The share is at least the objective's; `None` if fewer than a third of the windows are judged, or they have too
    /// few packets.
    pub kept: Option<bool>,
    /// Time for which dedicated cores were in use, in seconds of one core.
    pub dedicated_core_s: f64,
    /// Time for which auxiliary cores were in use. Other programs have the rest.
    pub auxiliary_core_s: f64,
    /// Results of each window.
    pub over_time: Vec<Step>,
}

/// Results of one window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Start of the window, in seconds from the start of the run.
    pub start_s: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency, in microseconds.
    pub p99_us: f64,
    /// Longest latency, in microseconds.
    pub max_us: f64,
    /// Packets lost.
    pub lost: u64,
    /// CPU interference in this window or in the one before, whose queue it inherits.
    pub interference: bool,
    /// The window's packets kept the objective.
    pub kept: bool,
}

/// A window with its delivered or lost packets, and those of them that were late or lost.
struct Owed {
    step: Step,
    packets: u64,
    missed: u64,
}

impl PolicyResult {
    /// Results of a live run.
    pub fn live((policy, title): (&'static str, &'static str), report: &RunReport) -> PolicyResult {
        let mut before = false;
        let most_us = MOST_PREEMPTED * report.windows.length_ms * 1e3;
        let windows = report.windows.list.iter().map(|window| {
            let preempted = window.gap_us > most_us;
            let interference = preempted || before;
            before = preempted;
            let step = Step {
                start_s: window.start_s,
                p50_us: window.latency_us.p50,
                p99_us: window.latency_us.p99,
                max_us: window.latency_us.max,
                lost: window.lost,
                interference,
                kept: window.slo_met == Some(true),
            };
            Owed {
                step,
                packets: window.delivered + window.lost,
                missed: window.late + window.lost,
            }
        });
        // Windows without packets prove nothing.
        let windows = windows.filter(|window| window.packets > 0);
        let late: u64 = report.late_by_cause.values().sum();
        let packets = &report.packets;
        let result = PolicyResult {
            policy,
            title,
            latency_us: report.latency_us,
            offered: packets.offered,
            delivered: packets.delivered,
            dropped: packets.dropped_by_nf,
            lost: packets.lost,
            late: late.saturating_sub(packets.lost),
            windows: 0,
            windows_with_interference: 0,
            windows_judged: 0,
            windows_kept: 0,
            in_time: 0.0,
            kept: None,
            dedicated_core_s: report.cores.dedicated_avg * report.duration_s,
            auxiliary_core_s: report.cores.auxiliary_avg * report.duration_s,
            over_time: Vec::new(),
        };
        result.judged(windows.collect(), report.slo.percentile)
    }

    /// Results of a simulated run of `duration_s` seconds.
    pub fn simulated(
        (policy, title): (&'static str, &'static str),
        report: &ChainReport,
        duration_s: f64,
        percentile: f64,
    ) -> PolicyResult {
        let windows = report
            .windows
            .iter()
            .filter(|window| window.delivered + window.lost > 0);
        let windows = windows.map(|window| Owed {
            step: Step {
                start_s: window.start_s,
                p50_us: window.p50_us,
                p99_us: window.p99_us,
                max_us: window.max_us,
                lost: window.lost,
                interference: false,
                kept: is_within(window.late, window.delivered + window.lost, percentile),
            },
            packets: window.delivered + window.lost,
            missed: window.late,
        });
        let late: u64 = report.late_by_cause.values().sum();
        let packets = &report.packets;
        let result = PolicyResult {
            policy,
            title,
            latency_us: report.latency_us,
            offered: packets.offered,
            delivered: packets.delivered,
            dropped: 0,
            lost: packets.lost,
            late: late.saturating_sub(packets.lost),
            windows: 0,
            windows_with_interference: 0,
            windows_judged: 0,
            windows_kept: 0,
            in_time: 0.0,
            kept: None,
            dedicated_core_s: report.cores.dedicated * duration_s,
            auxiliary_core_s: report.cores.auxiliary * duration_s,
            over_time: Vec::new(),
        };
        result.judged(windows.collect(), percentile)
    }

    /// Judges the policy by the windows without CPU interference.
    fn judged(mut self, windows: Vec<Owed>, percentile: f64) -> PolicyResult {
        let quiet = || windows.iter().filter(|window| !window.step.interference);
        let count = |number: usize| number as u64;
        self.windows = count(windows.len());
        self.windows_judged = count(quiet().count());
        self.windows_with_interference = self.windows - self.windows_judged;
        self.windows_kept = count(quiet().filter(|window| window.step.kept).count());
        let enough = self.windows_judged as f64 >= ENOUGH_WINDOWS * self.windows as f64;
        let counted = || windows.iter().filter(|window| !enough || !window.step.interference);
        let packets: u64 = counted().map(|window| window.packets).sum();
        let missed: u64 = counted().map(|window| window.missed).sum();
        self.in_time = packets.saturating_sub(missed) as f64 / packets.max(1) as f64;
        let verdict = verdict(self.offered, packets, missed, percentile);
        self.kept = verdict.ok().filter(|_| enough);
        self.over_time = windows.into_iter().map(|window| window.step).collect();
        self
    }
}

impl Document {
    /// Puts the results of all policies together, with the verdict.
    pub(super) fn new(
        experiment: &Experiment,
        (machine, because): (Option<Machine>, Option<String>),
        (rates, busiest): (Rates, Busiest),
        traffic: String,
        policies: Vec<PolicyResult>,
    ) -> Document {
        let slo = &experiment.spec.slo;
        let seconds = experiment.seconds.as_secs_f64();
        let offered: u64 = policies.iter().map(|policy| policy.offered).sum();
        let objective = SloReport {
            latency_us: slo.budget().as_micros_f64(),
            network_us: slo.network.as_micros_f64(),
            percentile: slo.percentile,
        };
        Document {
            chain: experiment.spec.name.clone(),
            traffic,
            simulated: because.is_some(),
            because,
            machine,
            one_core_pps: rates.one_core,
            offered_pps: offered as f64 / policies.len().max(1) as f64 / seconds,
            busiest,
            seconds,
            window_ms: experiment.window.as_secs_f64() * 1e3,
            verdict: sentence(&policies, &objective),
            slo: objective,
            policies,
        }
    }
}

/// Verdict in plain words: which policies kept the objective, the measured share of each, and the auxiliary core's
/// time.
fn sentence(policies: &[PolicyResult], slo: &SloReport) -> String {
    let [alone, netblaze, tailwater] = policies else {
        return String::new();
    };
    if let Some(why) = policies.iter().find_map(|policy| without_packets(policy, slo)) {
        return format!("NO VERDICT: {why}");
    }
    let short = match (alone.kept, netblaze.kept, tailwater.kept) {
        (Some(false), Some(true), Some(true)) => "Kept with an auxiliary core, missed without",
        (Some(false), Some(false), Some(true)) => {
            "Kept with Tailwater's policy, missed with NetBlaze's and without an auxiliary core"
        }
        (Some(false), Some(true), Some(false)) => {
            "Kept with NetBlaze's policy, missed with Tailwater's and without an auxiliary core"
        }
        (Some(false), Some(false), Some(false)) => "Missed by all three",
        (Some(true), Some(_), Some(true)) => "Kept by one core alone, for which this traffic is no burst",
        (Some(true), Some(_), Some(false)) => "Kept by one core alone, missed with Tailwater's policy",
        _ => "No verdict, since too many windows had CPU interference (--simulate shows it without)",
    };
    let limit = Nanos((slo.latency_us * 1e3).round() as u64);
    let [alone, netblaze, with] = [alone, netblaze, tailwater].map(|policy| percent(policy.in_time));
    let needed = percent(slo.percentile / 100.0);
    format!(
        "{short}: of the packets, {alone} were within {limit} on one core, {netblaze} with NetBlaze's policy, {with} with \
         Tailwater's for {:.2} s of an auxiliary core ({needed} is the objective)",
        tailwater.auxiliary_core_s,
    )
}

/// Returns the reason if too few packets were delivered or lost for a verdict on a policy.
fn without_packets(policy: &PolicyResult, slo: &SloReport) -> Option<String> {
    let owed = policy.delivered + policy.lost;
    let missed = policy.late + policy.lost;
    Some(match verdict(policy.offered, owed, missed, slo.percentile).err()? {
        NoVerdict::NoPackets => "no packets arrived for the chain".to_owned(),
        NoVerdict::AllDropped => format!("the chain dropped all {} packets", thousands(policy.offered)),
        NoVerdict::TooFewPackets => too_few(owed, slo.percentile),
        NoVerdict::PortLoss => "the port lost packets".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::experiment::POLICIES;

    fn result(number: usize, windows: &[(u64, u64, bool)]) -> PolicyResult {
        let (policy, title) = POLICIES[number];
        let packets = windows.iter().map(|window| window.0).sum();
        let windows = windows.iter().map(|&(packets, missed, interference)| Owed {
            step: Step {
                start_s: 0.0,
                p50_us: 1.0,
                p99_us: 2.0,
                max_us: 3.0,
                lost: 0,
                interference,
                kept: is_within(missed, packets, 99.0),
            },
            packets,
            missed,
        });
        let empty = PolicyResult {
            policy,
            title,
            latency_us: LatencyReport::default(),
            offered: packets,
            delivered: packets,
            dropped: 0,
            lost: 0,
            late: 0,
            windows: 0,
            windows_with_interference: 0,
            windows_judged: 0,
            windows_kept: 0,
            in_time: 0.0,
            kept: None,
            dedicated_core_s: 2.0,
            auxiliary_core_s: 0.25,
            over_time: Vec::new(),
        };
        empty.judged(windows.collect(), 99.0)
    }

    fn says(policies: [&[(u64, u64, bool)]; 3]) -> String {
        let policies: Vec<PolicyResult> = (0..3).map(|number| result(number, policies[number])).collect();
        let slo = SloReport {
            latency_us: 200.0,
            network_us: 0.0,
            percentile: 99.0,
        };
        sentence(&policies, &slo)
    }

    #[test]
    fn policies_are_judged_by_windows_without_interference() {
        let result = result(
            0,
            &[(100, 1, false), (100, 2, false), (1000, 900, true), (300, 0, false)],
        );
        assert_eq!(
            (
                result.windows,
                result.windows_with_interference,
                result.windows_judged,
                result.windows_kept
            ),
            (4, 1, 3, 2)
        );
        assert_eq!((result.in_time, result.kept), (497.0 / 500.0, Some(true)));
        assert_eq!(result.over_time.len(), 4);
    }

    #[test]
    fn where_nearly_all_windows_have_interference_there_is_no_verdict() {
        let away = [(100, 100, true), (100, 100, true), (100, 100, true), (100, 0, false)];
        let unjudged = result(2, &away);
        assert_eq!((unjudged.kept, unjudged.in_time), (None, 0.25), "of all packets");
        assert_eq!(result(2, &[]).kept, None);
        let said = says([&[(100, 5, false)], &[(100, 5, false)], &away]);
        assert!(
            said.starts_with("No verdict, since too many windows had CPU interference"),
            "{said}"
        );
    }

    #[test]
    fn without_enough_packets_there_is_no_verdict() {
        let kept = &[(1000, 5, false)][..];
        let said = says([kept, kept, &[]]);
        assert_eq!(said, "NO VERDICT: no packets arrived for the chain");
        let said = says([kept, kept, &[(50, 0, false)]]);
        assert_eq!(
            said,
            "NO VERDICT: 50 packets delivered or lost, at least 100 required for 99 %"
        );
        let few = result(2, &[(50, 0, false)]);
        assert_eq!((few.kept, few.windows_judged), (None, 1));
        let mut dropped: Vec<PolicyResult> = (0..3).map(|number| result(number, kept)).collect();
        (dropped[0].delivered, dropped[0].dropped) = (0, 1000);
        let slo = SloReport {
            latency_us: 200.0,
            network_us: 0.0,
            percentile: 99.0,
        };
        assert_eq!(
            sentence(&dropped, &slo),
            "NO VERDICT: the chain dropped all 1,000 packets"
        );
    }

    #[test]
    fn the_verdict_says_who_kept_the_objective_whoever_that_is() {
        let (kept, missed) = (&[(1000, 5, false)][..], &[(1000, 50, false)][..]);
        for (policies, begins) in [
            ([missed, kept, kept], "Kept with an auxiliary core, missed without: "),
            (
                [missed, missed, kept],
                "Kept with Tailwater's policy, missed with NetBlaze's and without ",
            ),
            (
                [missed, kept, missed],
                "Kept with NetBlaze's policy, missed with Tailwater's and without ",
            ),
            ([missed, missed, missed], "Missed by all three: "),
            (
                [kept, kept, missed],
                "Kept by one core alone, missed with Tailwater's policy: ",
            ),
            ([kept, missed, kept], "Kept by one core alone, for which "),
        ] {
            let said = says(policies);
            assert!(said.starts_with(begins), "{said}");
            let [alone, netblaze, tailwater] = policies.map(|policy| if policy == kept { "99.5 %" } else { "95 %" });
            let figures =
                format!("{alone} were within 200us on one core, {netblaze} with NetBlaze's policy, {tailwater} with");
            assert!(said.contains(&figures), "{said}");
            assert!(
                said.ends_with("for 0.25 s of an auxiliary core (99 % is the objective)"),
                "{said}"
            );
        }
    }
}
