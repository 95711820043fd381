//! Training: which runs are made, and what becomes of their results.

use crate::costs::{Sample, fit};
use crate::detail::Detailed;
use crate::lab::{BUFFERS, EpochLoad, Lab};
use crate::pauses::pauses;
use crate::traffic::{Minnows, at_rate, evenly, frames, steady};
use crate::{fingerprint, machine};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::RunError;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts, SplitPoint, SplitProfile,
};
use tailwater_policy::catalog::epoch;
use tailwater_policy::core::Load;
use tailwater_policy::netblaze::NetBlazeError;
use tailwater_traffic::generate::FrameSize;
use tailwater_traffic::{Trace, TrafficError};

/// How thoroughly to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything, in well under two minutes.
    Full,
    /// The epoch frontier at a few flow counts, splits and costs, in about two seconds: for a
    /// run that has no profile. There are no rates.
    Quick,
    /// The same and a rate, in about four seconds: for a run with several dedicated cores. Where no
    /// rate is seen to meet the objective, the lowest that was tried is taken.
    QuickWithRate,
}

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// The core to run on.
    pub core: usize,
    /// How thoroughly.
    pub depth: Depth,
    /// Keys the flow table's hash.
    pub seed: u64,
}

/// How training stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is measured now.
    pub name: &'static str,
    /// Steps that are done.
    pub done: usize,
    /// All steps.
    pub of: usize,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The objective leaves no time for an epoch.
    #[error(transparent)]
    Epoch(#[from] NetBlazeError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Traffic cannot be made.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// The caller said so.
    #[error("measuring was stopped")]
    Stopped,
    /// The chain processed nothing, since it had no core.
    #[error(
        "core {core} was taken by others for all of {length}: expected one that ordinary programs leave some time, such as \
         another of --cores"
    )]
    Away {
        /// The core.
        core: usize,
        /// How long the last attempt was.
        length: Nanos,
    },
    /// A packet takes longer than an epoch.
    #[error("the chain processes no packet in an epoch of {epoch}: expected a longer latency objective")]
    NoCapacity {
        /// The epoch.
        epoch: Nanos,
    },
}

/// Flow counts at which the frontier is always measured, NetBlaze's largest among them.
const FLOWS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 310];
const QUICK_FLOWS: [u32; 3] = [1, 8, 64];
/// Flow counts at which rates are measured.
const RATE_FLOWS: [u32; 3] = [64, 1024, 8192];
const QUICK_RATE_FLOWS: [u32; 1] = [1024];
/// Rates halve the span between too high and low enough so often.
const HALVINGS: usize = 6;
const QUICK_HALVINGS: usize = 3;
/// Packets of a synthetic trace, at most.
const PACKETS: u64 = 1 << 16;
/// Packets of the given traffic that are used, at most.
const TRACE_PACKETS: usize = 400_000;
const QUICK_TRACE_PACKETS: usize = 1 << 16;
/// The mean load of the given traffic, so that it is its bursts that exceed the core.
const TRACE_LOAD: f64 = 0.8;
/// Synthetic traffic exceeds the core by this, so that something is left over in every epoch.
const OVERLOAD: f64 = 1.3;
/// Epochs for each flow count.
const EPOCHS: u64 = 150;
/// The packets of epochs come in so many seconds at most, however slow the chain is.
const LONGEST_EPOCHS: f64 = 10.0;
const QUICK_LONGEST_EPOCHS: f64 = 0.5;
/// The share of the core that the lowest rate takes which is tried.
const LOWEST_LOAD: f64 = 0.2;
/// The longest and the shortest frames that costs are measured with, without check sequence.
const LONG: f64 = 1514.0;
const SHORT: f64 = 60.0;
/// Packets of a small batch.
const SMALL_BATCH: u16 = 4;
/// What it costs to queue a packet of a split flow and to hand it on, in nanoseconds, and what it costs
/// a helper to take a packet over: of short packets, by `cargo bench -p tailwater-dataplane --bench splits`, less
/// what the functions cost alone.
const PASSED_ON: f64 = 110.0;
const TAKEN_OVER: f64 = 35.0;
/// Flows of steady traffic for costs: few enough to be in the caches.
const FEW_FLOWS: u32 = 64;

/// Measures what the chain can do on one core of this machine within its
/// [budget](tailwater_api::Slo::budget).
///
/// `traffic` is what the chain will see, or something like it: its mean rate does not matter, since it
/// is replayed so fast that its bursts exceed the core. Packets of synthetic traffic have its mean
/// size. Flow records are not exported. `progress` is called before each step, from the calling
/// thread; once `stop` is set, training ends within a second.
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
        lab: Lab {
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
        // The epochs are long, or the machine is busy. Throughput shows in shorter windows.
        let packets = (rate.min(sustained) * epoch.as_secs_f64()) as u32;
        let flows = FEW_FLOWS.min(packets);
        frontier.insert(Load { flows, packets });
    }
    if frontier.is_empty() {
        return Err(TrainError::NoCapacity { epoch });
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

/// The chain without the files that it would write, and without the flow state that it would leave in a store: they
/// are the real run's.
pub fn without_files(spec: &ChainSpec) -> ChainSpec {
    let mut spec = spec.clone();
    spec.state = None;
    for function in &mut spec.functions {
        function.config.forget_exports();
    }
    spec
}

/// Measures what packets cost, on [core](TrainOptions::core) and where flows are handed to another one, the
/// first that there is. For simulations, in some ten seconds; [`Depth::Full`] includes it.
///
/// # Errors
/// See [`TrainError`].
pub fn train_costs(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &TrainOptions,
    stop: &AtomicBool,
) -> Result<(ServiceCosts, DetailedCosts), TrainError> {
    let lab = Lab {
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
        hand_over_packet: service.queue.hand_over,
        take_over_packet: service.queue.take_over,
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
    lab: Lab<'a>,
    spec: ChainSpec,
    epoch: Nanos,
    quick: bool,
    /// Of the given traffic's packets.
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

    /// How long a saturated run lasts.
    fn length(&self) -> Nanos {
        Nanos::from_millis(if self.quick { 50 } else { 200 })
    }

    fn size(&self) -> FrameSize {
        frames(self.mean_bytes)
    }

    /// Packets of a synthetic trace that is repeated.
    fn packets(&self) -> u64 {
        if self.quick { PACKETS / 4 } else { PACKETS }
    }

    /// Packets a second of few flows, and of the given traffic.
    fn saturation(&mut self, traffic: &Trace, samples: &mut Vec<Sample>) -> Result<(f64, f64), TrainError> {
        self.step("throughput");
        let trace = steady(FEW_FLOWS, self.size(), self.packets(), 1e6)?;
        let rate = self.lab.saturated(&self.spec, trace, Some(self.length()))?;
        samples.push(self.sample(self.spec.packets.batch, self.mean_bytes, 0.0, rate));
        let trace = at_rate(traffic, QUICK_TRACE_PACKETS, 1e6)?;
        let sustained = self.lab.saturated(&self.spec, trace, Some(self.length()))?;
        Ok((rate, sustained))
    }

    fn sample(&self, batch: u16, bytes: f64, new: f64, rate: f64) -> Sample {
        Sample {
            batches: 1.0 / f64::from(batch),
            bytes,
            new,
            nanos: 1e9 / rate,
        }
    }

    /// The frontier from flows that are all new, at fixed flow counts: the worst case.
    fn minnows(&mut self, rate: f64, frontier: &mut EpochFrontier) -> Result<(), TrainError> {
        self.step("epochs of new flows");
        let in_epoch = (rate * self.epoch.as_secs_f64()).clamp(1.0, 1e6) as u32;
        let counts: &[u32] = if self.quick { &QUICK_FLOWS } else { &FLOWS };
        let counts = counts.iter().copied().filter(|flows| *flows < in_epoch);
        // The last: every packet a flow of its own.
        for flows in counts.chain([in_epoch]) {
            let each = (in_epoch / flows).max(1);
            // Flows that are still known must not fill the table.
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
                // Nothing is lost, so that the order of packets is as it was made.
                ring: trace.len(),
                // About what a policy lets wait: many more would leave the caches.
                buffers: in_epoch.clamp(512, 8192),
                duration: None,
            };
            for mut seen in self.lab.epochs(&self.spec, trace, self.epoch, &load)? {
                // More is known of this traffic than a core sees.
                let certain = Minnows::certain_flows(flows, each, seen.load.packets);
                seen.load.flows = seen.load.flows.max(certain);
                frontier.insert(seen.load);
            }
        }
        Ok(())
    }

    /// The frontier from the given traffic.
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

    /// The highest rate of smooth traffic that meets the objective, by flow count.
    fn rates(&mut self, counts: &[u32], rates: &mut RateFrontier) -> Result<(), TrainError> {
        const LENGTH: Nanos = Nanos::from_millis(250);
        let halvings = if self.quick { QUICK_HALVINGS } else { HALVINGS };
        for &flows in counts {
            self.step("rates that meet the objective");
            let base = steady(flows, self.size(), self.packets(), 1e6)?;
            let copy = |rate| evenly(&mut base.source(), rate);
            let most = self.lab.saturated(&self.spec, copy(1e6)?, Some(self.length()))?;
            let (mut low, mut high) = (most * LOWEST_LOAD, most);
            let kept = self.lab.keeps(&self.spec, || copy(low), LENGTH, self.epoch)?;
            let halvings = match (kept, self.quick) {
                (true, _) => halvings,
                (false, true) => 0,
                (false, false) => continue,
            };
            for _ in 0..halvings {
                let middle = (low + high) / 2.0;
                match self.lab.keeps(&self.spec, || copy(middle), LENGTH, self.epoch)? {
                    true => low = middle,
                    false => high = middle,
                }
            }
            rates.insert(flows, low.round());
        }
        Ok(())
    }

    /// What each side of each cut can do with a single flow, where that is more than a helper can do
    /// with the whole flow.
    fn splits(&mut self) -> Result<SplitProfile, TrainError> {
        let mut splits = SplitProfile::new();
        let functions = self.spec.functions.len();
        let mut whole = None;
        for last_functions in 1..functions {
            self.step("splits of the chain");
            let cut = functions - last_functions;
            // Functions of a branch without its classifier have no packets, and so no cost.
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

    /// Packets of one flow that these functions process in an epoch, if each packet also costs `more`
    /// nanoseconds.
    fn of_one_flow(&self, functions: Range<usize>, more: f64) -> Result<u32, TrainError> {
        let mut spec = self.spec.clone();
        spec.functions = self.spec.functions[functions].to_vec();
        let trace = steady(1, self.size(), self.packets(), 1e6)?;
        let rate = self.lab.saturated(&spec, trace, Some(self.length()))?;
        let nanos = 1e9 / rate + more;
        Ok((self.epoch.as_secs_f64() * 1e9 / nanos) as u32)
    }

    /// Service costs, from what saturation showed and from runs that differ in one thing each.
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
        // Flows of one packet, once: when they come again, the table must make room first.
        let flows = PACKETS.min(u64::from(self.spec.flows.capacity / 2)) as u32;
        let trace = steady(flows, frames(SHORT), u64::from(flows), 1e6)?;
        let rate = self.lab.saturated(&self.spec, trace, None)?;
        samples.push(self.sample(batch, SHORT, 1.0, rate));
        Ok(fit(&samples))
    }
}
