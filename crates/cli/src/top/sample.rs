//! Samples: what a server's chains and cores do at one time.

use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Server at one time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Name of the server, or of the run.
    pub title: String,
    /// Whether all chains run, and the generation of the configuration; empty for a recording.
    pub state: String,
    /// Time of the sample, since the Unix epoch, or since the run's start.
    pub at: Nanos,
    /// Chains, sorted by name.
    pub chains: Vec<ChainSample>,
    /// Cores.
    pub cores: Vec<CoreSample>,
    /// Ports, sorted by name.
    pub ports: Vec<PortSample>,
    /// Events that are kept, oldest first.
    pub events: Vec<EventSample>,
}

/// Chain at one time. Counters are those since its start.
#[derive(Clone, Debug, Default)]
pub struct ChainSample {
    /// Name.
    pub name: String,
    /// Phase, and why it is in it.
    pub phase: String,
    /// Reason of the phase, and messages of conditions that do not hold.
    pub notes: Vec<String>,
    /// Promise of the server.
    pub promise: String,
    /// Rates in the last window, if one has ended: offered, delivered, dropped, lost packets per second.
    pub rates: Option<[f64; 4]>,
    /// Median and 99th percentile of latency in the last window.
    pub latency: [Option<Nanos>; 2],
    /// Objective.
    pub objective: Nanos,
    /// Whether it is met.
    pub is_met: Option<bool>,
    /// Packets that its port lost meanwhile, and that may be its own.
    pub port_lost: u64,
    /// Dedicated cores.
    pub cores: Vec<u32>,
    /// Auxiliary cores in use, on average.
    pub auxiliary: f64,
    /// Counters, if a window has ended.
    pub counters: Option<Counters>,
}

/// Counters of a chain.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Time at which they were read, on any clock of the chain's own.
    pub at: Nanos,
    /// Late and lost packets by cause.
    pub late: BTreeMap<String, u64>,
    /// Packets by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Functions, in order.
    pub functions: Vec<FunctionSample>,
    /// Packets processed on auxiliary cores.
    pub to_auxiliary: u64,
    /// Flows.
    pub flows: Option<u64>,
    /// Preemptions.
    pub preemptions: u64,
}

/// Function of a chain.
#[derive(Clone, Debug, Default)]
pub struct FunctionSample {
    /// Name.
    pub name: String,
    /// Packets that reached it.
    pub packets: u64,
    /// Packets that it dropped or lost.
    pub dropped: u64,
    /// Packets that were timed, and the nanoseconds spent on them.
    pub timed: [u64; 2],
}

/// Core at one time.
#[derive(Clone, Debug, Default)]
pub struct CoreSample {
    /// Number.
    pub core: u32,
    /// Auxiliary, not dedicated.
    pub is_auxiliary: bool,
    /// Time for which it has worked.
    pub busy: Nanos,
    /// Chains that are placed on it.
    pub chains: Vec<String>,
}

/// Port at one time.
#[derive(Clone, Debug, Default)]
pub struct PortSample {
    /// Name.
    pub name: String,
    /// Packets per second that it lost in the last second.
    pub rate: f64,
    /// Packets that it has lost.
    pub lost: u64,
}

/// Event.
#[derive(Clone, Debug, Default)]
pub struct EventSample {
    /// Time of day.
    pub time: String,
    /// It is a warning.
    pub is_warning: bool,
    /// Chain; empty for events of the server.
    pub chain: String,
    /// Reason and message.
    pub text: String,
}

/// Rates of a chain or a core between two samples.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Late and lost packets per second by cause, most first.
    pub late: Vec<(String, f64)>,
    /// Packets per second by reason, most first.
    pub reasons: Vec<(String, f64)>,
    /// Packets per second, dropped ones, time per packet in nanoseconds, and cores, of each function.
    pub functions: Vec<FunctionRates>,
    /// Packets per second on auxiliary cores.
    pub to_auxiliary: f64,
    /// Preemptions per second.
    pub preemptions: f64,
}

/// Rates of a function.
#[derive(Clone, Debug, Default)]
pub struct FunctionRates {
    /// Name.
    pub name: String,
    /// Packets per second that reached it.
    pub packets: f64,
    /// Packets per second that it dropped or lost.
    pub dropped: f64,
    /// Time per packet in nanoseconds, if one was timed.
    pub nanos: Option<f64>,
    /// Seconds of core time per second.
    pub cores: f64,
}

impl Counters {
    /// Rates since an earlier reading; `None` if it is not earlier, or of another run of the chain.
    pub fn since(&self, before: &Counters) -> Option<Rates> {
        let seconds = self.at.0.checked_sub(before.at.0).filter(|nanos| *nanos > 0)? as f64 / 1e9;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let rates = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let of = |(name, count): (&String, &u64)| {
                let rate = rate(*count, before.get(name).copied().unwrap_or(0));
                (rate > 0.0).then(|| (name.clone(), rate))
            };
            let mut rates: Vec<_> = now.iter().filter_map(of).collect();
            rates.sort_by(|one, two| two.1.total_cmp(&one.1));
            rates
        };
        let functions = self.functions.iter().map(|now| {
            let nothing = FunctionSample::default();
            let same = before.functions.iter().find(|function| function.name == now.name);
            let before = same.unwrap_or(&nothing);
            let packets = rate(now.packets, before.packets);
            let [timed, spent] = std::array::from_fn(|at| now.timed[at].saturating_sub(before.timed[at]) as f64);
            let nanos = (timed > 0.0).then(|| spent / timed);
            FunctionRates {
                name: now.name.clone(),
                packets,
                dropped: rate(now.dropped, before.dropped),
                nanos,
                cores: nanos.map_or(0.0, |nanos| nanos * packets / 1e9),
            }
        });
        Some(Rates {
            late: rates(&self.late, &before.late),
            reasons: rates(&self.reasons, &before.reasons),
            functions: functions.collect(),
            to_auxiliary: rate(self.to_auxiliary, before.to_auxiliary),
            preemptions: rate(self.preemptions, before.preemptions),
        })
    }
}
