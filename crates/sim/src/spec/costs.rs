//! Costs of packets in a rack spec.

use super::fields::{COSTS, DISPATCH, LENGTH, MOST_COST, PAUSE, SPLIT, WAKE};
use crate::chain::{ChainModel, Jitter, MOST_BATCH, SplitCost};
use crate::pauses::Pauses;
use tailwater_api::SpecError;
use tailwater_api::document::{Fields, Located};
use tailwater_policy::capacity::{MAX_PAUSES, MAX_PAUSES_PER_SECOND, MAX_SPLITS, MAX_WAKES, Pause, ServiceCosts, Wake};

/// Parses the service costs of a chain that was not measured.
pub(super) fn service(node: &Located<'_>) -> Result<ServiceCosts, SpecError> {
    let fields = node.fields_of(&COSTS)?;
    fields.required("packetNanoseconds", "nanoseconds")?;
    let cost = |name: &str| nanoseconds(&fields, name, 0.0, MOST_COST);
    Ok(ServiceCosts {
        batch: cost("batchNanoseconds")?,
        packet: cost("packetNanoseconds")?,
        byte: cost("byteNanoseconds")?,
        new_flow: cost("newFlowNanoseconds")?,
    })
}

/// Parses a chain's fields other than its service costs. They replace values of `model`.
pub(super) fn beside(fields: &Fields<'_>, mut model: ChainModel) -> Result<ChainModel, SpecError> {
    if let Some(node) = fields.optional("dispatch") {
        model = dispatch(&node, model)?;
    }
    if let Some(node) = fields.optional("splits") {
        model.splits = splits(&node)?;
    }
    if let Some(node) = fields.optional("wakes") {
        model.wakes = wakes(&node)?;
    }
    if let Some(node) = fields.optional("pauses") {
        model.pauses = pauses(&node)?;
    }
    if let Some(node) = fields.optional("batch") {
        model.batch = node.whole(1..=MOST_BATCH.into())? as u16;
    }
    if let Some(node) = fields.optional("opensAtHome") {
        model.opens_at_home = node.word(&[("true", true), ("false", false)])?;
    }
    if let Some(node) = fields.optional("jitter") {
        let what = "a number from 0 to 2";
        let sigma = node.number(what)?;
        let jitter = Jitter::log_normal(sigma).ok_or_else(|| node.expected(what))?;
        model.jitter = (sigma > 0.0).then_some(jitter);
    }
    Ok(model)
}

/// Parses the cost of receiving, as part of the service costs, and the costs between cores, in addition to them.
fn dispatch(node: &Located<'_>, model: ChainModel) -> Result<ChainModel, SpecError> {
    let fields = node.fields_of(&DISPATCH)?;
    let part = |name, default, whole| nanoseconds(&fields, name, default, whole);
    let cost = |name, default| nanoseconds(&fields, name, default, MOST_COST);
    Ok(ChainModel {
        receive_batch: part("receiveBatchNanoseconds", model.receive_batch, model.costs.batch)?,
        receive_packet: part("receivePacketNanoseconds", model.receive_packet, model.costs.packet)?,
        dispatch_packet: cost("queuePacketNanoseconds", model.dispatch_packet)?,
        lease_packet: cost("leasePacketNanoseconds", model.lease_packet)?,
        hand_over_batch: cost("handOverBatchNanoseconds", model.hand_over_batch)?,
        hand_over_packet: cost("handOverPacketNanoseconds", model.hand_over_packet)?,
        receipt_packet: cost("receiptPacketNanoseconds", model.receipt_packet)?,
        decide: cost("decisionNanoseconds", model.decide)?,
        decide_flow: cost("decisionFlowNanoseconds", model.decide_flow)?,
        move_packet: cost("movePacketNanoseconds", model.move_packet)?,
        auxiliary_batch: cost("helperBatchNanoseconds", model.auxiliary_batch)?,
        auxiliary_packet: cost("helperPacketNanoseconds", model.auxiliary_packet)?,
        numa_packet: cost("numaPacketNanoseconds", model.numa_packet)?,
        migrated_flow: cost("migratedFlowNanoseconds", model.migrated_flow)?,
        ring_packet: cost("ringPacketNanoseconds", model.ring_packet)?,
        cold_after: match fields.optional("coldAfterPackets") {
            Some(node) => node.whole(0..=u32::MAX.into())? as u32,
            None => model.cold_after,
        },
        cold_batch: cost("coldBatchNanoseconds", model.cold_batch)?,
        cold_packet: cost("coldPacketNanoseconds", model.cold_packet)?,
        new_batch: cost("newBatchNanoseconds", model.new_batch)?,
        ..model
    })
}

/// Parses the wake-up times of auxiliary cores, sorted by the time asleep.
fn wakes(node: &Located<'_>) -> Result<Vec<Wake>, SpecError> {
    let mut wakes: Vec<Wake> = Vec::new();
    for node in node.list("wakes", MAX_WAKES)? {
        let names = [
            "asleepNanoseconds",
            "p50Nanoseconds",
            "p90Nanoseconds",
            "p99Nanoseconds",
        ];
        let fields = node.fields_of(&WAKE)?;
        let mut numbers = [0; 4];
        for (number, name) in numbers.iter_mut().zip(names) {
            *number = fields.required(name, "nanoseconds")?.whole(LENGTH)?;
        }
        let [asleep, p50, p90, p99] = numbers;
        let later = wakes.last().is_none_or(|last| last.asleep < asleep);
        if !later || p50 > p90 || p90 > p99 {
            let message = "expected sleeps in order of length, and percentiles that do not decrease";
            return Err(node.error(message));
        }
        wakes.push(Wake { asleep, p50, p90, p99 });
    }
    Ok(wakes)
}

/// Parses the interruptions of cores.
fn pauses(node: &Located<'_>) -> Result<Vec<Pause>, SpecError> {
    let mut pauses = Vec::new();
    for node in node.list("pauses", MAX_PAUSES)? {
        let fields = node.fields_of(&PAUSE)?;
        let what = format!("a number above 0, at most {MAX_PAUSES_PER_SECOND}");
        let number = fields.required("perSecond", &what)?;
        let per_second = number.number(&what)?;
        if per_second <= 0.0 || per_second > MAX_PAUSES_PER_SECOND {
            return Err(number.expected(&what));
        }
        pauses.push(Pause {
            per_second,
            nanos: fields.required("nanoseconds", "nanoseconds")?.whole(LENGTH)?,
        });
    }
    if !pauses.is_empty() && Pauses::new(&pauses).is_none() {
        return Err(node.error("expected pauses that take less than half of the time in total"));
    }
    Ok(pauses)
}

/// Parses the split points of the chain, each of which occurs once.
fn splits(node: &Located<'_>) -> Result<Vec<SplitCost>, SpecError> {
    let mut splits: Vec<SplitCost> = Vec::new();
    for node in node.list("splits", MAX_SPLITS - 1)? {
        let fields = node.fields_of(&SPLIT)?;
        let part = |name| {
            let what = "a share of the packets' costs from 0 to 1";
            let node = fields.required(name, what)?;
            let part = node.number(what)?;
            let within = (part <= 1.0).then_some(part);
            within.ok_or_else(|| node.expected(what))
        };
        let number = fields.required("lastFunctions", "a number of functions")?;
        let split = SplitCost {
            last_functions: number.whole(1..=MAX_SPLITS as u64 - 1)? as usize,
            first: part("first")?,
            last: part("last")?,
        };
        let same = |other: &SplitCost| other.last_functions == split.last_functions;
        if let Some(other) = splits.iter().position(same) {
            let message = format!("expected each cut once, found it as in splits[{other}]");
            return Err(number.error(message));
        }
        splits.push(split);
    }
    Ok(splits)
}

/// Parses a cost of at most `most`, with a default.
fn nanoseconds(fields: &Fields<'_>, name: &str, default: f64, most: f64) -> Result<f64, SpecError> {
    let Some(node) = fields.optional(name) else {
        return Ok(default);
    };
    let what = format!("nanoseconds from 0 to {most}");
    let cost = node.number(&what)?;
    let within = (cost <= most).then_some(cost);
    within.ok_or_else(|| node.expected(&what))
}
