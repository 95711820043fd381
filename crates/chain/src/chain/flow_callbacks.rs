//! Calls of the functions' timers, and reports of ended flows to them.

use super::stage::Stage;
use crate::flow_table::{EndedFlows, FlowIndex, FlowTable};
use crate::function::UNSEEN;
use tailwater_net::Nanos;

/// Flows whose timers are checked in one call: about as many as a batch can open.
pub(super) const EXPIRE_BUDGET: usize = 64;

/// Calls the timer of each function that has one, on its state of a flow.
pub(super) fn run_timers(stages: &mut [Stage], table: &mut FlowTable, flow: FlowIndex, now: Nanos) {
    let key = table.key(flow);
    for Stage { function, slot, .. } in stages {
        let Some(slot) = slot else { continue };
        let Some(timer) = function.timer() else { continue };
        let directions = if slot.is_directed() { 2 } else { 1 };
        for reversed in [false, true].into_iter().take(directions) {
            if *table.word(flow, slot.version_at(reversed)) != UNSEEN {
                let key = if reversed { key.reversed() } else { key };
                timer.on_timer(&key, table.state(flow, &slot.state_of(reversed)), now);
            }
        }
    }
}

/// Lets the functions complete pending work for flows that have ended: another instance may soon use their indices.
pub(super) fn before_flows_move(stages: &mut [Stage]) {
    for stage in stages {
        if let Some(flow_ends) = stage.function.flow_ends() {
            flow_ends.before_flows_move();
        }
    }
}

/// Reports the flows that have left the table to the functions.
#[inline]
pub(super) fn report_flow_ends(stages: &mut [Stage], ends: &mut EndedFlows) {
    ends.drain(|key, state| {
        for Stage { function, slot, .. } in stages.iter_mut() {
            let Some(slot) = slot else { continue };
            let Some(flow_ends) = function.flow_ends() else {
                continue;
            };
            let directions = if slot.is_directed() { 2 } else { 1 };
            for reversed in [false, true].into_iter().take(directions) {
                if slot.seen_version(state, reversed) != UNSEEN {
                    let key = if reversed { key.reversed() } else { *key };
                    flow_ends.flow_ended(&key, &state[slot.state_of(reversed)]);
                }
            }
        }
    });
}
