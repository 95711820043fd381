//! Training: the sequence of runs, and the profile made of their results.

use crate::costs::{Sample, fit};
use crate::detail::Detailed;
use crate::error::TrainError;
use crate::measurement_core::{BUFFERS, EpochLoad, MeasurementCore, Setting};
use crate::pauses::pauses;
use crate::traffic::{Minnows, at_rate, evenly, frames, steady};
use crate::{fingerprint, machine};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::epoch;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts, SplitPoint, SplitProfile,
};
use tailwater_policy::core::Load;
use tailwater_traffic::Trace;
use tailwater_traffic::generate::FrameSize;

/// Depth of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All measurements, in well under two minutes.
    Full,
    /// The epoch frontier at a few flow counts, splits and costs, in about two seconds. For a run without a profile;
    /// has no rates.
    Quick,
    /// Like `Quick` with one rate, in about four seconds. For a run with several dedicated cores. If no rate meets the
    /// objective, uses the lowest that was tried.
    QuickWithRate,
}

/// Options of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// Core to run on.
    pub core: usize,
    /// Depth of training.
    pub depth: Depth,
    /// Seed of the flow table's hash.
    pub seed: u64,
}

/// Progress of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Current measurement.
    pub name: &'static str,
    /// Completed steps.
    pub done: usize,
    /// Total steps.
    pub of: usize,
}

/// Flow counts at which the frontier is always measured, NetBlaze's largest among them.
const FLOWS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 310];
const QUICK_FLOWS: [u32; 3] = [1, 8, 64];
/// Flow counts at which rates are measured.
const RATE_FLOWS: [u32; 3] = [64, 1024, 8192];
const QUICK_RATE_FLOWS: [u32; 1] = [1024];
/// Number of bisection steps of a rate.
const HALVINGS: usize = 6;
const QUICK_HALVINGS: usize = 3;
/// Maximum packets of a synthetic trace.
const PACKETS: u64 = 1 << 16;
/// Maximum packets used of the given traffic.
const TRACE_PACKETS: usize = 400_000;
const QUICK_TRACE_PACKETS: usize = 1 << 16;
/// Mean load of the given traffic, so that only its bursts exceed the core.
const TRACE_LOAD: f64 = 0.8;
/// Load of synthetic traffic, so that every epoch ends with a backlog.
const OVERLOAD: f64 = 1.3;
/// Epochs per flow count.
const EPOCHS: u64 = 150;
/// Maximum duration of the epochs of a run, seconds, for slow chains.
const LONGEST_EPOCHS: f64 = 10.0;
const QUICK_LONGEST_EPOCHS: f64 = 0.5;
/// Load of the lowest rate that is tried.
const LOWEST_LOAD: f64 = 0.2;
/// Longest and shortest frames in cost measurements, bytes without check sequence.
const LONG: f64 = 1514.0;
const SHORT: f64 = 60.0;
/// Packets of a small batch.
const SMALL_BATCH: u16 = 4;
/// Cost of queueing a packet of a split flow and passing it on, and cost of receiving it on an auxiliary core,
/// nanoseconds. Measured with short packets by `cargo bench -p tailwater-dataplane --bench splits`, less the functions'
/// own cost.
const PASSED_ON: f64 = 110.0;
const TAKEN_OVER: f64 = 35.0;
/// Flows of steady traffic for costs; few enough to fit in the caches.
const FEW_FLOWS: u32 = 64;

/// Measures the chain's saturated throughput on one core, packets per second: `traffic` without pace, repeated for
/// `duration`. Median of 2 ms windows in which the core was not preempted.
///
/// # Errors
/// See [`TrainError`].
pub fn saturated_rate(
    spec: &ChainSpec,
    traffic: &Trace,
    core: usize,
    duration: Nanos,
    stop: &AtomicBool,
) -> Result<f64, TrainError> {
    MeasurementCore { core, seed: 1, stop }.saturated(spec, traffic.clone(), Some(duration))
}

/// Measures the chain's capacity on one core of this machine, within its [budget](tailwater_api::Slo::budget).
///
/// `traffic` is expected to resemble the chain's real traffic. Its mean rate does not matter, since it is replayed so
/// fast that its bursts exceed the core. Synthetic packets have its mean size. Flow records are not exported.
/// `progress` is called before each step, from the calling thread. Once `stop` is set, training ends within a second.
///
/// # Errors
/// See [`TrainError`].
pub fn train_capacity(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &TrainOptions,
    stop: &AtomicBool,
    progress: impl FnMut(Step),
) -> Result<CapacityProfile, TrainError> {
    let epoch = epoch(spec.slo.budget())?;
    let measured = without_files(spec);
    let splits = measured.functions.len() - 1;
    let quick = options.depth != Depth::Full;
    let rate_flows: &[u32] = match options.depth {
        Depth::Full => &RATE_FLOWS,
        Depth::Quick => &[],
        Depth::QuickWithRate => &QUICK_RATE_FLOWS,
    };
    let mut training = Training {
        lab: MeasurementCore {
            core: options.core,
            seed: options.seed,
            stop,
        },
        spec: measured,
        epoch,
        quick,
        mean_bytes: traffic.bytes() as f64 / traffic.len() as f64,
        progress,
        done: 0,
        // Saturation, minnows, bursts, rates, splits, costs, details.
        of: 4 + rate_flows.len() + splits + usize::from(!quick),
    };
    let mut samples = Vec::new();
    let (rate, sustained) = training.saturation(traffic, &mut samples)?;
    let mut frontier = EpochFrontier::new();
    training.minnows(rate, &mut frontier)?;
    training.bursts(traffic, sustained, &mut frontier)?;
    if frontier.is_empty() {
        // The epochs are long or the machine is busy; shorter windows show the throughput.
        let packets = (rate.min(sustained) * epoch.as_secs_f64()) as u32;
        let flows = FEW_FLOWS.min(packets);
        frontier.insert(Load { flows, packets });
    }
    if frontier.is_empty() {
        let cost = Nanos((1e9 / rate.min(sustained)).ceil() as u64);
        let costliest = training.costliest(traffic)?;
        return Err(TrainError::NoCapacity { epoch, cost, costliest });
    }
    let mut rates = RateFrontier::new();
    training.rates(rate_flows, &mut rates)?;
    let splits = training.splits()?;
    let mut costs = training.costs(samples)?;
    let mut details = None;
    if !quick {
        training.step("costs in detail");
        let (service, detailed) = train_costs(spec, traffic, options, stop)?;
        (costs, details) = (service, Some(detailed));
    }
    Ok(CapacityProfile {
        chain: spec.name.clone(),
        configuration: fingerprint(spec),
        machine: machine(),
        slo: spec.slo.budget(),
        epoch,
        frontier,
        rates,
        splits,
        costs: Some(costs),
        details,
    })
}

/// Returns the chain without its output files and without external flow state, which belong to the real run.
pub fn without_files(spec: &ChainSpec) -> ChainSpec {
    let mut spec = spec.clone();
    spec.state = None;
    for function in &mut spec.functions {
        function.config.make_mut().remove_exports();
    }
    spec
}

/// Measures packet costs on [core](TrainOptions::core), and the cost of offloading flows to the first other core. For
/// simulations; takes about ten seconds. [`Depth::Full`] includes it.
///
/// # Errors
/// See [`TrainError`].
pub fn train_costs(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &TrainOptions,
    stop: &AtomicBool,
) -> Result<(ServiceCosts, DetailedCosts), TrainError> {
    let lab = MeasurementCore {
        core: options.core,
        seed: options.seed,
        stop,
    };
    let spec = without_files(spec);
    let detailed = Detailed {
        lab: &lab,
        spec: &spec,
        bytes: traffic.bytes() as f64 / traffic.len() as f64,
    };
    let service = detailed.service(traffic)?;
    let costs = service.costs.service;
    let mut details = DetailedCosts {
        traffic_packet: service.traffic_packet.round(),
        cold_after: service.cold_after,
        cold_batch: service.costs.cold_batch,
        cold_packet: service.costs.cold_packet,
        new_batch: service.costs.new_batch,
        ring_packet: service.costs.ring_packet,
        receive_packet: service.queue.receive,
        queue_packet: service.queue.queue,
        hand_over_packet: service.queue.offload,
        take_over_packet: service.queue.receive_offloaded,
        poll: service.poll,
        wakes: detailed.wakes()?,
        pauses: pauses(options.core, stop)?,
    };
    let all = [
        &mut details.poll,
        &mut details.receive_packet,
        &mut details.queue_packet,
        &mut details.hand_over_packet,
        &mut details.take_over_packet,
    ];
    all.into_iter().for_each(|cost| *cost = (*cost * 1e3).round() / 1e3);
    Ok((costs, details))
}

struct Training<'a, P> {
    lab: MeasurementCore<'a>,
    spec: ChainSpec,
    epoch: Nanos,
    quick: bool,
    /// Mean packet size of the given traffic, bytes.
    mean_bytes: f64,
    progress: P,
    done: usize,
    of: usize,
}

impl<P: FnMut(Step)> Training<'_, P> {
    fn step(&mut self, name: &'static str) {
        (self.progress)(Step {
            name,
            done: self.done,
            of: self.of,
        });
        self.done += 1;
    }

    /// Returns the length of a saturated run.
    fn length(&self) -> Nanos {
        Nanos::from_millis(if self.quick { 50 } else { 200 })
    }

    fn size(&self) -> FrameSize {
        frames(self.mean_bytes)
    }

    /// Returns the packets of a synthetic trace that is repeated.
    fn packets(&self) -> u64 {
        if self.quick { PACKETS / 4 } else { PACKETS }
    }

    /// Measures the saturated packets per second of few flows, and of the given traffic.
    fn saturation(&mut self, traffic: &Trace, samples: &mut Vec<Sample>) -> Result<(f64, f64), TrainError> {
        self.step("throughput");
        let trace = steady(FEW_FLOWS, self.size(), self.packets(), 1e6)?;
        let rate = self.lab.saturated(&self.spec, trace, Some(self.length()))?;
        samples.push(self.sample(self.spec.packets.batch, self.mean_bytes, 0.0, rate));
        let trace = at_rate(traffic, QUICK_TRACE_PACKETS, 1e6)?;
        let sustained = self.lab.saturated(&self.spec, trace, Some(self.length()))?;
        Ok((rate, sustained))
    }

    /// Returns the function in which packets of the given traffic spend the most time, with its mean over all packets.
    fn costliest(&self, traffic: &Trace) -> Result<Option<(String, Nanos)>, TrainError> {
        let trace = at_rate(traffic, QUICK_TRACE_PACKETS, 1e6)?;
        let setting = Setting {
            duration: Some(self.length()),
            ..Setting::default()
        };
        let (_, times) = self.lab.timed(&self.spec, trace, &setting, Nanos::ZERO)?;
        let packets = times.iter().map(|of| of.packets).max().unwrap_or(0).max(1);
        // Of packets that take another branch, a function has none.
        let costs = times.into_iter().map(|of| {
            let reaching = of.packets as f64 / packets as f64;
            let nanos = of.time.0 as f64 / of.timed.max(1) as f64 * reaching;
            (of.function, Nanos(nanos.round() as u64))
        });
        Ok(costs
            .max_by_key(|(_, cost)| *cost)
            .filter(|(_, cost)| *cost > Nanos::ZERO))
    }

    fn sample(&self, batch: u16, bytes: f64, new: f64, rate: f64) -> Sample {
        Sample {
            batches: 1.0 / f64::from(batch),
            bytes,
            new,
            nanos: 1e9 / rate,
        }
    }

    /// Measures the frontier with new flows only, at fixed flow counts: the worst case.
    fn minnows(&mut self, rate: f64, frontier: &mut EpochFrontier) -> Result<(), TrainError> {
        self.step("epochs of new flows");
        let in_epoch = (rate * self.epoch.as_secs_f64()).clamp(1.0, 1e6) as u32;
        let counts: &[u32] = if self.quick { &QUICK_FLOWS } else { &FLOWS };
        let counts = counts.iter().copied().filter(|flows| *flows < in_epoch);
        // The last count: every packet opens a flow.
        for flows in counts.chain([in_epoch]) {
            let each = (in_epoch / flows).max(1);
            // Flows that are still in the table must not fill it.
            let known = u64::from(self.spec.flows.capacity / 2) * u64::from(each);
            let epochs = if self.quick { EPOCHS / 3 } else { EPOCHS };
            let packets = (epochs * u64::from(in_epoch)).max(2048);
            let longest = match self.quick {
                true => QUICK_LONGEST_EPOCHS,
                false => LONGEST_EPOCHS,
            };
            let in_time = (rate * OVERLOAD * longest) as u64;
            let packets = packets.min(PACKETS).min(known).min(in_time).max(1);
            let mut source = Minnows::new(flows, each, self.size(), packets);
            let trace = evenly(&mut source, rate * OVERLOAD)?;
            let load = EpochLoad {
                // Nothing is lost, so the packets keep their generated order.
                ring: trace.len(),
                // About as many as a policy lets wait; many more would leave the caches.
                buffers: in_epoch.clamp(512, 8192),
                duration: None,
            };
            for mut seen in self.lab.epochs(&self.spec, trace, self.epoch, &load)? {
                // The generator bounds the number of flows more tightly than the core's observation.
                let certain = Minnows::certain_flows(flows, each, seen.load.packets);
                seen.load.flows = seen.load.flows.max(certain);
                frontier.insert(seen.load);
            }
        }
        Ok(())
    }

    /// Measures the frontier with the given traffic.
    fn bursts(&mut self, traffic: &Trace, sustained: f64, frontier: &mut EpochFrontier) -> Result<(), TrainError> {
        self.step("bursts of the traffic");
        let (packets, millis) = match self.quick {
            true => (QUICK_TRACE_PACKETS, 300),
            false => (TRACE_PACKETS, 3_000),
        };
        let trace = at_rate(traffic, packets, sustained * TRACE_LOAD)?;
        let load = EpochLoad {
            ring: 4096,
            buffers: BUFFERS,
            duration: Some(Nanos::from_millis(millis)),
        };
        for seen in self.lab.epochs(&self.spec, trace, self.epoch, &load)? {
            frontier.insert(seen.load);
        }
        Ok(())
    }

    /// Measures the highest rate of smooth traffic that meets the objective, by flow count.
    fn rates(&mut self, counts: &[u32], rates: &mut RateFrontier) -> Result<(), TrainError> {
        const LENGTH: Nanos = Nanos::from_millis(250);
        let halvings = if self.quick { QUICK_HALVINGS } else { HALVINGS };
        for &flows in counts {
            self.step("rates that meet the objective");
            let base = steady(flows, self.size(), self.packets(), 1e6)?;
            let copy = |rate| evenly(&mut base.source(), rate);
            let most = self.lab.saturated(&self.spec, copy(1e6)?, Some(self.length()))?;
            let (mut low, mut high) = (most * LOWEST_LOAD, most);
            let kept = self.lab.meets_objective(&self.spec, || copy(low), LENGTH, self.epoch)?;
            let halvings = match (kept, self.quick) {
                (true, _) => halvings,
                (false, true) => 0,
                (false, false) => continue,
            };
            for _ in 0..halvings {
                let middle = (low + high) / 2.0;
                match self
                    .lab
                    .meets_objective(&self.spec, || copy(middle), LENGTH, self.epoch)?
                {
                    true => low = middle,
                    false => high = middle,
                }
            }
            rates.insert(flows, low.round());
        }
        Ok(())
    }

    /// Measures the capacity of both sides of each cut for a single flow. Keeps the cuts that exceed an auxiliary
    /// core's capacity for the whole flow.
    fn splits(&mut self) -> Result<SplitProfile, TrainError> {
        let mut splits = SplitProfile::new();
        let functions = self.spec.functions.len();
        let mut whole = None;
        for last_functions in 1..functions {
            self.step("splits of the chain");
            let cut = functions - last_functions;
            // Functions of a branch get no packets without the classifier, and so cost nothing.
            if self.spec.functions[cut].branch.is_some() {
                continue;
            }
            let whole = match whole {
                Some(whole) => whole,
                None => *whole.insert(self.of_one_flow(0..functions, TAKEN_OVER)?),
            };
            let point = SplitPoint {
                last_functions,
                first: self.of_one_flow(0..cut, PASSED_ON)?,
                last: self.of_one_flow(cut..functions, TAKEN_OVER)?,
            };
            if point.capacity() > whole {
                splits.insert(point);
            }
        }
        Ok(splits)
    }

    /// Returns the packets of one flow that these functions process in an epoch, if each packet costs `more` additional
    /// nanoseconds.
    fn of_one_flow(&self, functions: Range<usize>, more: f64) -> Result<u32, TrainError> {
        let mut spec = self.spec.clone();
        spec.functions = self.spec.functions[functions].to_vec();
        let trace = steady(1, self.size(), self.packets(), 1e6)?;
        let rate = self.lab.saturated(&spec, trace, Some(self.length()))?;
        let nanos = 1e9 / rate + more;
        Ok((self.epoch.as_secs_f64() * 1e9 / nanos) as u32)
    }

    /// Fits service costs to the saturated runs, and to runs that differ in one parameter each.
    fn costs(&mut self, mut samples: Vec<Sample>) -> Result<ServiceCosts, TrainError> {
        self.step("service costs");
        let batch = self.spec.packets.batch;
        let mut small = self.spec.clone();
        small.packets.batch = batch.min(SMALL_BATCH);
        let length = Some(self.length());
        for (spec, bytes) in [(&self.spec, SHORT), (&self.spec, LONG), (&small, SHORT)] {
            let trace = steady(FEW_FLOWS, frames(bytes), self.packets(), 1e6)?;
            let rate = self.lab.saturated(spec, trace, length)?;
            samples.push(self.sample(spec.packets.batch, bytes, 0.0, rate));
        }
        // Flows of one packet, once: on a second pass the table would have to evict first.
        let flows = PACKETS.min(u64::from(self.spec.flows.capacity / 2)) as u32;
        let trace = steady(flows, frames(SHORT), u64::from(flows), 1e6)?;
        let rate = self.lab.saturated(&self.spec, trace, None)?;
        samples.push(self.sample(batch, SHORT, 1.0, rate));
        Ok(fit(&samples))
    }
}
