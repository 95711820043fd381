//! Approximate lower bound on late packets for any policy on two cores.
//!
//! Two bounds, each a relaxation of two cores in virtual time, with packet costs of one core, and no cost of look-up,
//! offloading or wake-ups:
//!
//! - *affinity*: each flow has its own cores, whole or cut into two equal halves, but its packets are processed in
//!   order;
//! - *work*: no flow is tied to a core, and order is ignored; one core that is twice as fast.
//!
//! A packet that would be late anyway is not processed, and so delays no other. Where packets differ in cost, another
//! choice of those to skip may be slightly better, so this is no proof.

use std::collections::HashMap;
use tailwater_net::Nanos;
use tailwater_net::flow::FlowKey;
use tailwater_net::parse::parse;
use tailwater_policy::capacity::ServiceCosts;
use tailwater_traffic::Trace;

/// Share of a window's packets that may be late or lost when the 99th percentile meets the objective.
const MOST_LATE: f64 = 0.01;

/// Best case over all windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Best {
    /// Share of late packets in the median window.
    pub late: f64,
    /// Share of windows that can meet the objective.
    pub kept: f64,
}

/// The best cases.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Flows are processed whole.
    pub whole: Best,
    /// Flows may be cut between two cores, each with half the cost.
    pub split: Best,
    /// Both cores serve all flows.
    pub work: Best,
}

impl Bound {
    /// Returns the reason for which the 99th percentile cannot be met in nine windows of ten, if there is one.
    pub fn reason(&self) -> Option<&'static str> {
        const ENOUGH: f64 = 0.9;
        match self {
            bound if bound.work.kept < ENOUGH => Some("more work than two cores do in time"),
            bound if bound.split.kept < ENOUGH => Some("single flows beyond a core, even if split"),
            bound if bound.whole.kept < ENOUGH => Some("single flows beyond a core, unless split"),
            _ => None,
        }
    }
}

/// A queue in virtual time, in nanoseconds. Rejects packets that would be late.
#[derive(Clone, Copy, Default)]
struct Queue {
    free: f64,
}

impl Queue {
    /// Returns `true` if a packet with service time `cost` and remaining time `rest` is finished within `slo`.
    fn serves(&mut self, arrival: f64, cost: f64, rest: f64, slo: f64) -> bool {
        let end = self.free.max(arrival) + cost;
        let fits = end + rest - arrival <= slo;
        if fits {
            self.free = end;
        }
        fits
    }
}

/// Returns the bounds for one pass over a trace, in windows of `window`, for a chain with costs `costs`. One core
/// processes `capacity` packets of this traffic per second: costs are scaled so that their mean matches.
pub fn bound(trace: &Trace, window: Nanos, slo: Nanos, costs: ServiceCosts, capacity: f64) -> Bound {
    let mut numbers: HashMap<FlowKey, usize> = HashMap::new();
    let packets: Vec<(Option<usize>, f64)> = (0..trace.len())
        .map(|i| {
            let known = numbers.len();
            let headers = parse(trace.packet(i)).ok();
            let flow = headers.map(|headers| *numbers.entry(headers.key).or_insert(known));
            let new = f64::from(u8::from(flow == Some(known)));
            let bytes = trace.length(i) as f64;
            let cost = costs.packet + costs.batch / 32.0 + costs.byte * bytes;
            (flow, cost + new * costs.new_flow)
        })
        .collect();
    let own = packets.iter().map(|(_, cost)| cost).sum::<f64>();
    let factor = 1e9 / capacity / (own / packets.len().max(1) as f64);
    let slo = slo.0 as f64;
    let mut flows = vec![[Queue::default(); 2]; numbers.len()];
    let mut both = Queue::default();
    // Packets, and late ones: whole, split, by work.
    let mut windows: Vec<[u64; 4]> = Vec::new();
    for (i, (flow, cost)) in packets.into_iter().enumerate() {
        let (arrival, cost) = (trace.arrival(i), cost * factor);
        let at = (arrival.0 / window.0) as usize;
        windows.resize(windows.len().max(at + 1), [0; 4]);
        let [packets, whole, split, work] = &mut windows[at];
        let (arrival, half) = (arrival.0 as f64, cost / 2.0);
        *packets += 1;
        if let Some(flow) = flow {
            let [one, two] = &mut flows[flow];
            *whole += u64::from(!one.serves(arrival, cost, 0.0, slo));
            *split += u64::from(!two.serves(arrival, half, half, slo));
        }
        *work += u64::from(!both.serves(arrival, half, 0.0, slo));
    }
    let best = |part: usize| {
        let shares = windows.iter().filter(|window| window[0] > 0);
        let mut shares: Vec<f64> = shares.map(|w| w[part] as f64 / w[0] as f64).collect();
        shares.sort_by(f64::total_cmp);
        let kept = shares.iter().filter(|share| **share <= MOST_LATE).count();
        Best {
            late: shares.get(shares.len() / 2).copied().unwrap_or(0.0),
            kept: kept as f64 / shares.len().max(1) as f64,
        }
    };
    Bound {
        whole: best(1),
        split: best(2),
        work: best(3),
    }
}
