//! Packet costs, from the batches of traffic that is replayed at its own pace.
//!
//! Cache hits, branch prediction and the share of new flows in a burst depend on the packets before. No run of equal
//! packets shows these effects. So the traffic itself is replayed at a realistic load, and the time of each batch is
//! related to its contents.

use crate::costs::{BatchCosts, BatchSample, fit_batches, is_interrupted};
use crate::error::TrainError;
use std::collections::HashMap;
use tailwater_dataplane::batches::{BatchTimes, TimedPart};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, RECEIVE_BATCH, ServiceCosts};
use tailwater_traffic::Trace;
use tailwater_traffic::bursts::{Arrivals, PacketArrivals};

/// Time from the first arrival that does not count: memory is touched for the first time.
const SETTLED: Nanos = Nanos::from_millis(50);
/// Queueing delay above which a packet waited for a busy core, rather than for the poll loop.
const FOUND: Nanos = Nanos::from_micros(1);

/// Contents of a trace, accumulated up to each packet.
pub(crate) struct Contents {
    /// Time from the start of one pass to that of the next, nanoseconds.
    lap: u64,
    /// Arrival time of each packet, nanoseconds.
    times: Vec<u64>,
    /// Bytes, flow-opening packets and cold packets before each packet, and after the last.
    before: Vec<[u64; 3]>,
}

impl Contents {
    /// Reads a trace whose flows are renumbered in each pass. A packet is cold if its flow had no packet among the last
    /// `cold_after`.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn of(trace: &Trace, cold_after: u32) -> Result<Contents, TrainError> {
        let mut arrivals = PacketArrivals::new(trace.source());
        let mut last: HashMap<Option<u64>, usize> = HashMap::new();
        let (mut times, mut before, mut sum) = (Vec::new(), vec![[0; 3]], [0; 3]);
        while let Some(arrival) = arrivals.next_arrival()? {
            let number = times.len();
            let seen = last.insert(arrival.flow, number);
            let cold = seen.is_none_or(|seen| number - seen > cold_after as usize);
            let packet = [arrival.bytes.into(), seen.is_none().into(), u64::from(cold)];
            sum.iter_mut().zip(packet).for_each(|(sum, own)| *sum += own);
            times.push(arrival.time.0);
            before.push(sum);
        }
        Ok(Contents {
            lap: (trace.duration() + trace.mean_gap()).0.max(1),
            times,
            before,
        })
    }

    /// Returns a batch's contents and duration; `None` if it does not belong to the trace.
    fn sample(&self, batch: &BatchTimes) -> Option<BatchSample> {
        let arrival = batch.arrival.0 % self.lap;
        let first = self.times.partition_point(|time| *time < arrival);
        let end = first + batch.packets as usize;
        if self.times.get(first) != Some(&arrival) {
            return None;
        }
        let (start, end) = (self.before[first], self.before.get(end)?);
        let [bytes, new, cold] = std::array::from_fn(|i| (end[i] - start[i]) as f64);
        Some(BatchSample {
            packets: batch.packets.into(),
            bytes,
            new,
            cold,
            backlog: batch.backlog,
            nanos: batch.sent.saturating_sub(batch.received).0 as f64,
        })
    }
}

/// Fits batch costs to runs, and returns them with the poll delay of a packet, nanoseconds. Each run comes with the
/// machine's slowdown relative to its usual speed.
pub(crate) fn explain(contents: &Contents, runs: &[(Vec<BatchTimes>, f64)]) -> (BatchCosts, f64) {
    let mut samples = Vec::new();
    let (mut found, mut waits) = (0, 0_u64);
    for (batches, slow) in runs {
        for batch in batches {
            if batch.part != TimedPart::Whole {
                continue;
            }
            let wait = batch.received.saturating_sub(batch.arrival);
            if batch.idle && wait <= FOUND {
                (found, waits) = (found + 1, waits + wait.0);
            }
            let sample = contents.sample(batch).filter(|_| batch.arrival >= SETTLED);
            samples.extend(sample.map(|sample| BatchSample {
                nanos: sample.nanos / slow,
                ..sample
            }));
        }
    }
    let poll = waits as f64 / f64::from(found.max(1));
    (fit_batches(&samples), poll)
}

/// Costs of queueing and offloading a packet, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QueueCosts {
    /// Share of a packet's cost for receiving it and looking up its flow.
    pub receive: f64,
    /// Additional cost of waiting in the core's own queue.
    pub queue: f64,
    /// Additional cost of offloading a waiting packet.
    pub offload: f64,
    /// Additional cost on an auxiliary core, relative to the functions' cost on the dedicated core.
    pub receive_offloaded: f64,
}

/// Fits queueing costs to runs of the same traffic. In `own`, all waiting packets stayed in the core's own queue; in
/// `handed`, if there is another core, they were offloaded. `costs` are those of packets that do not wait.
pub(crate) fn fit_queue_costs(
    contents: &Contents,
    costs: &BatchCosts,
    own: &[(Vec<BatchTimes>, f64)],
    handed: &[(Vec<BatchTimes>, f64)],
) -> QueueCosts {
    let samples = |runs: &[(Vec<BatchTimes>, f64)], part: TimedPart| -> Vec<BatchSample> {
        let batches = runs
            .iter()
            .flat_map(|(batches, slow)| batches.iter().map(move |batch| (batch, slow)));
        let batches = batches.filter(|(batch, _)| batch.part == part && batch.backlog && batch.arrival >= SETTLED);
        let samples = batches.filter_map(|(batch, slow)| {
            let sample = contents.sample(batch)?;
            Some(BatchSample {
                // It left the receive ring long ago.
                backlog: false,
                nanos: sample.nanos / slow,
                ..sample
            })
        });
        samples.collect()
    };
    // Mean excess of a packet over these costs.
    let more = |samples: &[BatchSample], costs: &BatchCosts| {
        let ratio = |s: &BatchSample| s.nanos / costs.nanos(s).max(1.0);
        let mut ratios: Vec<f64> = samples.iter().map(ratio).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let usual = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
        let calm = samples
            .iter()
            .filter(|s| !is_interrupted(s.nanos, usual * costs.nanos(s)));
        let (more, packets) = calm.fold((0.0, 0.0), |(more, packets), s| {
            (more + s.nanos - costs.nanos(s), packets + s.packets)
        });
        if packets > 0.0 { more / packets } else { 0.0 }
    };
    let receiving = BatchCosts {
        service: ServiceCosts {
            batch: RECEIVE_BATCH.min(costs.service.batch),
            ..ServiceCosts::default()
        },
        ..BatchCosts::default()
    };
    let mut functions = *costs;
    functions.service.batch -= receiving.service.batch;
    // The functions' cost excludes that of receiving.
    let least = -costs.service.packet;
    let processed = samples(own, TimedPart::Processed);
    let receive = -more(&processed, &functions).clamp(least, 0.0);
    functions.service.packet -= receive;
    let received = more(&samples(own, TimedPart::Received), &receiving);
    let queue = (received - receive).max(0.0);
    let (received, helped) = (samples(handed, TimedPart::Received), samples(handed, TimedPart::Helped));
    QueueCosts {
        receive,
        queue,
        offload: (more(&received, &receiving) - receive - queue).max(0.0),
        receive_offloaded: more(&helped, &functions).max(0.0),
    }
}

/// Returns the machine's slowdown in each step while it replayed a trace at its own pace, with other flows in each
/// pass: measured over expected batch duration. Interrupted batches do not count. Steps without batches repeat the one
/// before.
///
/// `None` if the profile has no costs, or no batch belongs to the trace.
///
/// # Errors
/// The trace cannot be read.
pub fn pace(
    trace: &Trace,
    profile: &CapacityProfile,
    batches: &[BatchTimes],
    step: Nanos,
) -> Result<Option<Vec<f64>>, TrainError> {
    let (Some(costs), Some(details)) = (BatchCosts::of(profile), &profile.details) else {
        return Ok(None);
    };
    let contents = Contents::of(trace, details.cold_after)?;
    // Measured and expected duration of each batch, by step.
    let mut steps: Vec<Vec<[f64; 2]>> = Vec::new();
    for batch in batches.iter().filter(|batch| batch.part == TimedPart::Whole) {
        let Some(sample) = contents.sample(batch) else {
            continue;
        };
        let number = (batch.received.0 / step.0.max(1)) as usize;
        if steps.len() <= number {
            steps.resize_with(number + 1, Vec::new);
        }
        steps[number].push([sample.nanos, costs.nanos(&sample)]);
    }
    let paces: Vec<Option<f64>> = steps.iter().map(|step| pace_of(step)).collect();
    let Some(first) = paces.iter().flatten().next() else {
        return Ok(None);
    };
    let mut last = *first;
    let paces = paces.into_iter().map(|pace| {
        last = pace.unwrap_or(last);
        last
    });
    Ok(Some(paces.collect()))
}

/// Minimum number of batches for a step's slowdown.
const FEWEST: usize = 20;

/// Returns measured over expected duration of batches.
fn pace_of(batches: &[[f64; 2]]) -> Option<f64> {
    if batches.len() < FEWEST {
        return None;
    }
    let mut each: Vec<f64> = batches.iter().map(|[took, to_take]| took / to_take).collect();
    each.sort_unstable_by(f64::total_cmp);
    let usual = each[each.len() / 2];
    let counted = batches
        .iter()
        .filter(|[took, to_take]| !is_interrupted(*took, usual * to_take));
    let [took, to_take] = counted.fold([0.0; 2], |sum, batch| [sum[0] + batch[0], sum[1] + batch[1]]);
    (to_take > 0.0).then(|| took / to_take)
}

/// Returns the interruptions of a dedicated core while it replayed a trace as for [`pace`], from its batches in order:
/// start and duration of each. They are found where the core did not receive what waited for it, and in batches that
/// took much longer than others like them. Interruptions of an idle core are not seen, nor are those of a microsecond
/// or two.
///
/// # Errors
/// The trace cannot be read.
pub fn interruptions(
    trace: &Trace,
    profile: &CapacityProfile,
    batches: &[BatchTimes],
) -> Result<Vec<(Nanos, Nanos)>, TrainError> {
    let (Some(costs), Some(details)) = (BatchCosts::of(profile), &profile.details) else {
        return Ok(Vec::new());
    };
    let contents = Contents::of(trace, details.cold_after)?;
    // Expected duration by the contents, if known, or by the packets of other parts of the work.
    let rough = |batch: &BatchTimes| match (batch.part, contents.sample(batch)) {
        (TimedPart::Whole, Some(sample)) => costs.nanos(&sample),
        _ => f64::from(batch.packets) + 1.0,
    };
    let nanos = |batch: &BatchTimes| batch.sent.saturating_sub(batch.received).0 as f64;
    let usual = |part: TimedPart| {
        let own = batches.iter().filter(|batch| batch.part == part);
        let mut ratios: Vec<f64> = own.map(|batch| nanos(batch) / rough(batch).max(1.0)).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
    };
    let parts = [TimedPart::Whole, TimedPart::Received, TimedPart::Processed].map(|part| (part, usual(part)));
    let (mut found, mut last) = (Vec::new(), Nanos::ZERO);
    for batch in batches {
        let Some((_, usual)) = parts.iter().find(|(part, _)| *part == batch.part) else {
            continue;
        };
        let ready = last.max(batch.arrival);
        let waited = batch.received.saturating_sub(ready);
        // The core's own queue is taken from in the same turn.
        if batch.part != TimedPart::Processed && is_interrupted(waited.0 as f64, FOUND.0 as f64) {
            found.push((ready, waited));
        }
        let (took, expected) = (nanos(batch), usual * rough(batch));
        if is_interrupted(took, expected) {
            found.push((
                batch.received + Nanos((expected / 2.0) as u64),
                Nanos((took - expected) as u64),
            ));
        }
        last = last.max(batch.sent);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{frames, steady};
    use tailwater_policy::capacity::DetailedCosts;

    #[test]
    fn batches_are_set_against_what_was_in_them() {
        // Flows 0 to 7 in turn, 1 us apart; each pass renumbers them.
        let trace = steady(8, frames(100.0), 80, 1e6).unwrap();
        let contents = Contents::of(&trace, 0).unwrap();
        let lap = contents.lap;
        let batch = |number: u64, packets| BatchTimes {
            arrival: Nanos(1000 * lap + number * 1000),
            received: Nanos(1000 * lap + number * 1000 + 50),
            sent: Nanos(1000 * lap + number * 1000 + 450),
            part: TimedPart::Whole,
            packets,
            backlog: false,
            idle: true,
        };
        let first = contents.sample(&batch(0, 10)).unwrap();
        assert_eq!((first.packets, first.bytes, first.nanos), (10.0, 1000.0, 400.0));
        assert_eq!((first.new, first.cold), (8.0, 10.0));
        let later = contents.sample(&batch(8, 2)).unwrap();
        assert_eq!((later.new, later.cold), (0.0, 2.0));
        // Fewer packets of other flows were in between.
        let warm = Contents::of(&trace, 80).unwrap();
        assert_eq!(warm.sample(&batch(8, 2)).unwrap().cold, 0.0);
        // The batch extends into the next pass, or belongs to another trace.
        assert!(contents.sample(&batch(79, 2)).is_none());
        let off = BatchTimes {
            arrival: Nanos(1000 * lap + 1),
            ..batch(0, 1)
        };
        assert!(contents.sample(&off).is_none());
        let (_, poll) = explain(&contents, &[(vec![batch(0, 1), batch(9, 1)], 1.0)]);
        assert_eq!(poll, 50.0);
    }

    #[test]
    fn queueing_and_handing_over_are_told_from_the_rest() {
        let trace = steady(8, frames(100.0), 80, 1e6).unwrap();
        let contents = Contents::of(&trace, 0).unwrap();
        let costs = BatchCosts {
            service: ServiceCosts {
                batch: 100.0,
                packet: 200.0,
                ..ServiceCosts::default()
            },
            ..BatchCosts::default()
        };
        // Receiving takes 50 ns of the 200, waiting 30 more, offloading 20 more, and an auxiliary core 15 more.
        let lap = contents.lap;
        let batch = |part, number: u64, packets: u32, each: u64, whole: u64| BatchTimes {
            arrival: Nanos(1000 * lap + number * 1000),
            received: Nanos(1000 * lap),
            sent: Nanos(1000 * lap + whole + u64::from(packets) * each),
            part,
            packets,
            backlog: true,
            idle: false,
        };
        let run = |received: u64, part, each: u64| {
            let batches = (0..40).flat_map(|number| {
                let packets = 1 + number as u32 % 32;
                let processed = batch(part, number, packets, each, 40);
                [batch(TimedPart::Received, number, packets, received, 60), processed]
            });
            vec![(batches.collect::<Vec<_>>(), 1.0)]
        };
        let own = run(80, TimedPart::Processed, 150);
        let handed = run(100, TimedPart::Helped, 165);
        let found = fit_queue_costs(&contents, &costs, &own, &handed);
        let expected = QueueCosts {
            receive: 50.0,
            queue: 30.0,
            offload: 20.0,
            receive_offloaded: 15.0,
        };
        assert_eq!(found, expected);
        let alone = fit_queue_costs(&contents, &costs, &own, &[]);
        assert_eq!((alone.offload, alone.receive_offloaded), (0.0, 0.0));
    }

    #[test]
    fn interruptions_are_where_packets_waited_and_where_batches_took_long() {
        let trace = steady(8, frames(100.0), 80, 1e6).unwrap();
        let mut profile = CapacityProfile::default();
        assert_eq!(interruptions(&trace, &profile, &[]).unwrap(), []);
        profile.costs = Some(ServiceCosts {
            batch: 100.0,
            packet: 200.0,
            ..ServiceCosts::default()
        });
        profile.details = Some(DetailedCosts::default());
        let lap = Contents::of(&trace, 0).unwrap().lap;
        let batch = |number: u64, waited: u64, took: u64| BatchTimes {
            arrival: Nanos(number * 10_000),
            received: Nanos(number * 10_000 + waited),
            sent: Nanos(number * 10_000 + waited + took),
            packets: 1,
            ..BatchTimes::default()
        };
        let mut batches: Vec<BatchTimes> = (0..lap / 10_000).map(|number| batch(number, 50, 300)).collect();
        batches[2] = batch(2, 8_000, 300);
        batches[4] = batch(4, 50, 9_300);
        // A packet that arrives while the core is busy waits for that, not for the machine.
        let mut behind = batch(4, 9_500, 300);
        behind.arrival = Nanos(41_000);
        batches.insert(5, behind);
        let found = interruptions(&trace, &profile, &batches).unwrap();
        assert_eq!(found, [(Nanos(20_000), Nanos(8_000)), (Nanos(40_200), Nanos(9_000))]);
    }

    #[test]
    fn the_pace_is_what_batches_took_as_a_part_of_what_they_were_to_take() {
        let trace = steady(8, frames(100.0), 80, 1e6).unwrap();
        let mut profile = CapacityProfile::default();
        let none = pace(&trace, &profile, &[], Nanos(1000)).unwrap();
        assert_eq!(none, None);
        profile.costs = Some(ServiceCosts {
            batch: 100.0,
            packet: 200.0,
            ..ServiceCosts::default()
        });
        profile.details = Some(DetailedCosts::default());
        // 40 one-packet batches in each step of 40 us: as expected, none, twice as slow, one interrupted.
        let lap = Contents::of(&trace, 0).unwrap().lap;
        let batch = |step: u64, number: u64, took: u64| BatchTimes {
            arrival: Nanos(number * 1000 % lap),
            received: Nanos(step * 40_000 + number * 900),
            sent: Nanos(step * 40_000 + number * 900 + took),
            packets: 1,
            ..BatchTimes::default()
        };
        let step = |step: u64, took: u64| (0..40).map(move |number| batch(step, number, took));
        let mut batches: Vec<BatchTimes> = step(0, 300).chain(step(2, 600)).collect();
        batches[50].sent.0 += 8_000;
        let paces = pace(&trace, &profile, &batches, Nanos(40_000)).unwrap();
        assert_eq!(paces, Some(vec![1.0, 1.0, 2.0]));
    }
}
