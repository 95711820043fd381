//! Chains that take the place of others: what of flows passes to another number of cores, and counts that continue.

use super::running::RunningChain;
use crate::machine::{PacketCounts, Refusal};
use std::collections::BTreeMap;
use std::time::Duration;
use tailwater_chain::chain::{Chain, TransferState};
use tailwater_dataplane::RunPlan;

/// Time in which a chain answers, although it is loaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that all flow state of a chain passes to the cores of its successor, if their number differs. The state of
/// chains that keep it in Redis is there.
pub(super) fn check(old: &RunningChain, plan: &RunPlan) -> Result<(), Refusal> {
    let (before, after) = (old.cores().len(), plan.config().cores.len());
    if before == after || old.spec().state.is_some() {
        return Ok(());
    }
    let refused = |text: String| {
        let number = format!("spec.cores: expected {before}, as now, found {after}");
        Refusal::new(format!("{number}: {text}; drain the chain first"))
    };
    if let Some((function, _)) = old.spec().externals().next() {
        return Err(refused(format!(
            "flows of the external function {function} do not pass to other cores"
        )));
    }
    if let Some((function, reason)) = old.spec().bound_to_core() {
        return Err(refused(format!("function {function}: {reason}")));
    }
    if old.spec().branches.is_empty() {
        return Ok(());
    }
    // All workers have the same functions.
    let functions = old.on_worker(0, false, ANSWER_TIMEOUT, Chain::transfer_functions);
    let functions = functions.ok_or_else(|| refused("the chain does not answer".to_owned()))?;
    match functions.iter().find(|function| function.state == TransferState::Local) {
        None => Ok(()),
        Some(function) => Err(refused(format!(
            "in a chain with branches, the flow state of function {} does not pass to other cores",
            function.name
        ))),
    }
}

/// Packets of the chains that the named one has succeeded, and that still process their last ones.
pub(super) fn counts_of_leaving(leaving: &mut [RunningChain], name: &str) -> PacketCounts {
    let mut sum = PacketCounts::default();
    let before = leaving.iter_mut();
    for before in before.filter(|before| before.successor.as_deref() == Some(name)) {
        sum += before.observe().packets;
    }
    sum
}

/// Takes those that have ended out of the leaving chains. Their packets count on for their successors.
pub(super) fn take_ended(
    leaving: &mut Vec<RunningChain>,
    chains: &mut BTreeMap<String, RunningChain>,
) -> Vec<RunningChain> {
    let mut ended: Vec<_> = leaving.extract_if(.., |chain| chain.is_finished()).collect();
    for gone in &mut ended {
        let successor = gone.successor.take();
        if let Some(successor) = successor.and_then(|name| chains.get_mut(&name)) {
            successor.earlier += gone.observe().packets;
        }
    }
    ended
}
