//! Late packets if every flow has a core of its own. Packets still leave with the last of their batch, and one flow may
//! send faster than a core processes.

use std::collections::HashMap;
use tailwater_net::Nanos;
use tailwater_policy::capacity::ServiceCosts;
use tailwater_sim::Recording;

/// Maximum packets per batch.
const BATCH: usize = 32;

/// Returns the share of late packets, if an idle core takes `wake` to start on a packet.
pub fn late(packets: &Recording, costs: &ServiceCosts, slo: Nanos, wake: Nanos) -> f64 {
    let mut flows: HashMap<u32, Vec<(u64, u16)>> = HashMap::new();
    for (time, flow, bytes) in packets.iter() {
        flows.entry(flow).or_default().push((time.0, bytes));
    }
    let late: u64 = flows.values().map(|flow| of_flow(flow, costs, slo, wake)).sum();
    late as f64 / packets.packets().max(1) as f64
}

fn of_flow(packets: &[(u64, u16)], costs: &ServiceCosts, slo: Nanos, wake: Nanos) -> u64 {
    let (mut ready, mut late, mut rest) = (0, 0, packets);
    while let Some(&(first, _)) = rest.first() {
        let start = if first >= ready { first + wake.0 } else { ready };
        let waiting = rest.iter().take(BATCH).take_while(|packet| packet.0 <= start);
        let (batch, after) = rest.split_at(waiting.count());
        let each = |packet: &(u64, u16)| costs.packet + costs.byte * f64::from(packet.1);
        ready = start + (costs.batch + batch.iter().map(each).sum::<f64>()) as u64;
        late += batch.iter().filter(|packet| ready - packet.0 > slo.0).count() as u64;
        rest = after;
    }
    late
}
