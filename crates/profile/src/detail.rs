//! What simulations need to know of a chain on this machine: what cold packets cost, and what lies
//! between cores.
//!
//! The means that policies go by hide what depends on the moment: a packet that comes alone waits for all
//! that is fetched for it, one of a flow that was silent for long finds nothing of it in the caches. So
//! here each sample is a run that is in one such state all the time. The machine's speed varies within
//! seconds (its memory's most of all), so all samples take turns, several times, and medians count.

use crate::costs::{Explained, Sample, fit_all};
use crate::lab::{Lab, SATURATED_WINDOW, Setting, judged, rate};
use crate::traffic::{at_rate, evenly, frames, steady};
use crate::train::TrainError;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_nf::spec::{ChainSpec, ForwardConfig, FunctionConfig, FunctionSpec};
use tailwater_policy::capacity::{DetailedCosts, ServiceCosts, Wake};
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, Place, Plan, View};
use tailwater_traffic::bursts::{Arrivals, PacketArrivals};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// How often each sample is taken.
const ROUNDS: usize = 3;
/// How long each run lasts.
const LENGTH: Nanos = Nanos::from_millis(40);
/// Bytes of a trace that no cache holds.
const BEYOND_CACHES: f64 = 48e6;
/// Flows that stay in the nearest caches, and so many that none does.
const FEW: u32 = 64;
const MANY: u32 = 1 << 13;
/// Flow counts between them, to find where flows leave the caches.
const BETWEEN: [u32; 3] = [256, 1024, 4096];
/// Where a trace's packets are sorted into cold and warm ones before it is known where that is.
const COLD_AFTER: usize = 1024;
/// A trace of so many flows is run through so often: the first time they are new.
const LAPS: f64 = 3.0;
/// How often more the traffic counts than any other sample.
const WEIGHT: usize = 8;
/// Packets of a small batch.
const SMALL_BATCH: u16 = 4;
/// The load at which a packet comes alone.
const ALONE: f64 = 0.12;
/// The longest and the shortest frames, without check sequence.
const LONG: f64 = 1514.0;
const SHORT: f64 = 60.0;
/// Packets of the given traffic.
const TRAFFIC: usize = 1 << 17;
/// What is offered beyond what a core does, so that it always has something to do.
const OVERLOAD: f64 = 1.1;
/// The same once it is known what that is.
const BARELY: f64 = 1.03;
/// What a packet takes at least where functions cost little, in nanoseconds.
const LIGHT: f64 = 60.0;
/// Packet buffers of a core that is overloaded: about what waits when a policy looks after it.
const BUFFERS: u32 = 512;
/// For how long a helper sleeps before it is called.
const ASLEEP: [Nanos; 4] = [
    Nanos::from_micros(60),
    Nanos::from_micros(300),
    Nanos::from_millis(1),
    Nanos::from_millis(4),
];
/// Between two packets that open flows.
const OPENING: Nanos = Nanos::from_micros(20);
/// Calls of each kind.
const CALLS: u64 = 150;

/// A chain on a core, and what it is measured with.
pub(crate) struct Detailed<'a> {
    pub lab: &'a Lab<'a>,
    pub spec: &'a ChainSpec,
    /// The mean length of packets, without check sequence.
    pub bytes: f64,
}

/// What packets cost.
pub(crate) struct Service {
    pub explained: Explained,
    pub cold_after: u32,
    /// One of the given traffic, without pace.
    pub traffic_packet: f64,
}

/// What a packet takes of a core that is overloaded, and the functions of that, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Overloaded {
    packet: f64,
    functions: f64,
}

/// A run that is in one state all the time, once `skipped` packets have passed.
struct Case {
    trace: Trace,
    setting: Setting,
    skipped: u64,
    /// Most packets of a batch.
    batch: u16,
    sample: Sample,
}

impl Case {
    /// What a run shows of a packet's cost, in nanoseconds: the median window's.
    fn nanos(&self, report: &RunReport) -> f64 {
        let (mut passed, mut values) = (0, Vec::new());
        let windows = &report.windows.list;
        // The last is not whole.
        for window in &windows[..windows.len().saturating_sub(1)] {
            if passed >= self.skipped && !window.flagged && window.offered > 0 {
                values.push(match self.setting.pacing {
                    Pacing::Saturate => SATURATED_WINDOW.0 as f64 / window.offered as f64,
                    // What one takes that comes alone, from its arrival.
                    Pacing::Arrivals => window.latency_us.p50 * 1e3,
                });
            }
            passed += window.offered;
        }
        match values.is_empty() {
            // Too short for windows.
            true => report.duration_s * 1e9 / report.packets.offered.max(1) as f64,
            false => median(&mut values),
        }
    }
}

/// Zero of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Detailed<'_> {
    fn size(&self) -> FrameSize {
        frames(self.bytes)
    }

    /// As many flows as the table holds with some room, at the most.
    fn many(&self) -> u32 {
        MANY.min(self.spec.flows.capacity / 4).max(FEW)
    }

    /// A trace of so many flows in turn that no cache holds.
    fn flows(&self, flows: u32, bytes: f64, rate: f64) -> Result<Trace, TrainError> {
        let line = (bytes / 64.0).ceil() * 64.0 + 64.0;
        let packets = ((BEYOND_CACHES / line) as u64).max(flows.into());
        let packets = packets.next_multiple_of(flows.into());
        Ok(steady(flows, frames(bytes), packets, rate)?)
    }

    /// What packets cost, cold and warm, and after how many others one is cold.
    pub fn service(&self, traffic: &Trace) -> Result<Service, TrainError> {
        let batch = self.spec.packets.batch;
        let full = 1.0 / f64::from(batch);
        let saturated = Setting {
            duration: Some(LENGTH),
            ..Setting::default()
        };
        let few = |bytes| {
            let sample = Sample {
                batches: full,
                bytes,
                ..Sample::default()
            };
            Ok::<_, TrainError>(Case {
                trace: self.flows(FEW, bytes, 1e6)?,
                setting: saturated.clone(),
                skipped: 0,
                batch,
                sample,
            })
        };
        let mut cases = vec![few(SHORT)?, few(LONG)?, few(self.bytes)?];
        // How long others must last follows from what these packets cost.
        let rate = 1e9 / self.run(&cases[2])?;
        let many = self.many();
        let lasting = |flows: u32, rate: f64| {
            let packets = f64::from(flows) * LAPS;
            LENGTH.max(Nanos::from_secs_f64(packets / rate))
        };
        cases.push(Case {
            trace: self.flows(many, self.bytes, 1e6)?,
            setting: Setting {
                duration: Some(lasting(many, rate)),
                ..saturated.clone()
            },
            // All flows are new at first.
            skipped: many.into(),
            batch,
            sample: Sample {
                batches: full,
                bytes: self.bytes,
                cold: 1.0,
                cold_batches: full,
                ..Sample::default()
            },
        });
        // Packets that come alone.
        let pace = rate * ALONE;
        let alone = cases.len();
        let counts = [(FEW, 0.0), (many, 1.0)].into_iter();
        for (flows, cold) in counts.chain(BETWEEN.map(|flows| (flows.min(many), 1.0))) {
            cases.push(Case {
                trace: self.flows(flows, self.bytes, pace)?,
                setting: Setting {
                    pacing: Pacing::Arrivals,
                    duration: Some(lasting(flows, pace)),
                    ..Setting::default()
                },
                skipped: flows.into(),
                batch,
                sample: Sample {
                    batches: 1.0,
                    bytes: self.bytes,
                    cold,
                    cold_batches: cold,
                    ..Sample::default()
                },
            });
        }
        // Flows of one packet, once: when they come again, the table must make room first.
        let flows = (1 << 16).min(self.spec.flows.capacity / 4);
        cases.push(Case {
            trace: steady(flows, frames(SHORT), flows.into(), 1e6)?,
            setting: Setting::default(),
            skipped: 0,
            batch,
            sample: Sample {
                batches: full,
                bytes: SHORT,
                new: 1.0,
                cold: 1.0,
                cold_batches: full,
                ..Sample::default()
            },
        });
        // The traffic itself, of all sizes and flows.
        let first = at_rate(traffic, TRAFFIC, 1e6)?;
        for batch in [batch, batch.min(SMALL_BATCH)] {
            cases.push(Case {
                trace: first.clone(),
                setting: Setting::default(),
                skipped: 0,
                batch,
                sample: shares(&first, batch, COLD_AFTER)?,
            });
        }
        cases.push(Case {
            trace: evenly(&mut first.source(), pace)?,
            setting: Setting {
                pacing: Pacing::Arrivals,
                ..Setting::default()
            },
            skipped: 0,
            batch,
            sample: shares(&first, 1, COLD_AFTER)?,
        });
        // The traffic itself is what the others are compared with.
        let traffic = cases.len() - 3;
        let (measured, traffic_packet) = self.in_turn(&cases, traffic)?;
        // Cold is what costs more than half of the way from few flows to many.
        let between = alone + 2..alone + 2 + BETWEEN.len();
        let half = (measured[alone] + measured[alone + 1]) / 2.0;
        let warm = BETWEEN.iter().zip(&measured[between.clone()]);
        let warm = warm.take_while(|(_, nanos)| **nanos < half);
        let cold_after = warm
            .map(|(flows, _)| 2 * flows)
            .last()
            .unwrap_or(BETWEEN[0] / 2);
        let samples: Vec<Sample> = (0..cases.len())
            .filter(|at| !between.contains(at))
            .map(|at| Sample {
                nanos: measured[at],
                ..cases[at].sample
            })
            .collect();
        // What matters most is that the traffic costs what it costs.
        let whole = Sample {
            nanos: measured[traffic],
            ..cases[traffic].sample
        };
        let samples: Vec<Sample> = samples.into_iter().chain([whole; WEIGHT]).collect();
        let explained = fit_all(&samples);
        Ok(Service {
            explained,
            cold_after,
            traffic_packet,
        })
    }

    fn run(&self, case: &Case) -> Result<f64, TrainError> {
        let mut spec = self.spec.clone();
        spec.packets.batch = case.batch;
        let report = self
            .lab
            .measured(&spec, case.trace.clone(), &case.setting)?;
        Ok(case.nanos(&report))
    }

    /// What packets took in each of these cases, and in the one that is the measure of the others: each is
    /// compared with how fast that was just before and after, so that it does not matter much when the machine
    /// was slow. Medians over rounds in which all have their turn.
    fn in_turn(&self, cases: &[Case], measure: usize) -> Result<(Vec<f64>, f64), TrainError> {
        let mut ratios: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
        let mut measures = vec![self.run(&cases[measure])?];
        for _ in 0..ROUNDS {
            for (case, ratios) in cases.iter().zip(&mut ratios) {
                let nanos = self.run(case)?;
                let before = measures[measures.len() - 1];
                let after = self.run(&cases[measure])?;
                measures.push(after);
                ratios.push(2.0 * nanos / (before + after));
            }
        }
        let measure = median(&mut measures);
        let nanos = ratios.iter_mut().map(|ratios| median(ratios) * measure);
        Ok((nanos.collect(), measure))
    }

    /// What lies between cores, where there are two: what queueing, handing over and taking over cost, and
    /// how long helpers take to wake up.
    pub fn dispatch(
        &self,
        costs: &ServiceCosts,
        details: &mut DetailedCosts,
    ) -> Result<(), TrainError> {
        let trace = self.flows(1024, self.bytes, 1e6)?;
        let short = self.flows(1024, SHORT, 1e6)?;
        let light = light(self.spec)?;
        let helper = available().into_iter().find(|core| *core != self.lab.core);
        let mut found: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
            let straight = Setting {
                duration: Some(LENGTH),
                in_parts: true,
                ..Setting::default()
            };
            let report = self.lab.measured(self.spec, trace.clone(), &straight)?;
            let whole = 1e9 / rate(&report);
            let own = self.overloaded(self.spec, &trace, None, whole)?;
            found[0].push(whole - own.functions);
            found[1].push(own.packet - whole);
            let ring = self.offered(self.spec, &trace, None, whole / OVERLOAD)?;
            found[4].push(ring.packet - whole);
            if helper.is_none() {
                continue;
            }
            let helped = self.overloaded(self.spec, &trace, helper, whole)?;
            found[2].push(helped.functions - own.functions);
            // Functions that cost little, so that it is the dispatcher that has too much to do.
            let own = self.overloaded(&light, &short, None, LIGHT)?;
            let handed = self.overloaded(&light, &short, helper, LIGHT)?;
            found[3].push(handed.packet - (own.packet - own.functions));
        }
        let [receive, queue, take_over, hand_over, ring] =
            found.map(|mut values| (median(&mut values).max(0.0) * 1e3).round() / 1e3);
        details.receive_packet = receive.min(costs.packet);
        details.queue_packet = queue;
        details.ring_packet = ring;
        details.hand_over_packet = hand_over;
        details.take_over_packet = take_over;
        if let Some(helper) = helper {
            for asleep in ASLEEP {
                details.wakes.extend(self.wake(helper, asleep)?);
            }
        }
        Ok(())
    }

    /// What a packet takes of a core that has more to do than it can, if everything waits in its own queue or,
    /// with a helper, everything is handed over. A packet takes about `guess` nanoseconds.
    fn overloaded(
        &self,
        spec: &ChainSpec,
        trace: &Trace,
        helper: Option<usize>,
        guess: f64,
    ) -> Result<Overloaded, TrainError> {
        let scaling = || Some(dealt(helper));
        let first = self.offered(spec, trace, scaling(), guess / OVERLOAD)?;
        match helper {
            // With less than goes straight through, nothing would wait.
            None => Ok(first),
            // Now that it is known what a core can do, there is not much to throw away.
            Some(_) => self.offered(spec, trace, scaling(), first.packet / BARELY),
        }
    }

    /// The same with a packet every `gap` nanoseconds; without `scaling`, what waits does so in the NIC's ring.
    fn offered(
        &self,
        spec: &ChainSpec,
        trace: &Trace,
        scaling: Option<ScalingConfig>,
        gap: f64,
    ) -> Result<Overloaded, TrainError> {
        let trace = evenly(&mut trace.source(), 1e9 / gap)?;
        let helpers = scaling.iter().flat_map(|scaling| &scaling.auxiliary);
        // Of all workers' time; a packet's functions run once.
        let workers = 1.0 + helpers.count() as f64;
        let setting = Setting {
            pacing: Pacing::Arrivals,
            duration: Some(LENGTH),
            in_parts: true,
            ring: 4096,
            scaling,
        };
        let report = self.lab.measured(spec, trace, &setting)?;
        let mut delivered: Vec<f64> = judged(&report)
            .iter()
            .map(|window| window.delivered as f64)
            .collect();
        let step_nanos = report.timeline.step_ms * 1e6 * workers;
        let steps = report.timeline.list.iter();
        let steps = steps.filter(|step| step.flagged == 0 && step.delivered > 0);
        let mut busy: Vec<f64> = steps
            .map(|step| step.busy * step_nanos / step.delivered as f64)
            .collect();
        Ok(Overloaded {
            packet: SATURATED_WINDOW.0 as f64 / median(&mut delivered).max(1.0),
            functions: median(&mut busy),
        })
    }

    /// How long a helper takes to wake up that has slept for so long.
    fn wake(&self, helper: usize, asleep: Nanos) -> Result<Option<Wake>, TrainError> {
        let mut source = Calls::new(self.size(), asleep)?;
        let trace = Trace::load(&mut source, &LoadOptions::default())?;
        let setting = Setting {
            pacing: Pacing::Arrivals,
            duration: None,
            in_parts: true,
            scaling: Some(dealt(Some(helper))),
            ..Setting::default()
        };
        let report = self.lab.measured(self.spec, trace, &setting)?;
        let nanos = |us: f64| (us * 1e3) as u64;
        let wake = report.wake_us.map(|took| Wake {
            asleep: asleep.0,
            p50: nanos(took.p50).max(1),
            p90: nanos(took.p90).max(1),
            p99: nanos(took.p99).max(1),
        });
        Ok(wake)
    }
}

/// A burst that waits, so that a helper is recruited, and then packets that come alone.
struct Calls {
    packets: Uniform,
    gap: Nanos,
    sent: u64,
}

impl Calls {
    fn new(size: FrameSize, gap: Nanos) -> Result<Calls, TrainError> {
        let packets = Uniform::new(UniformConfig {
            seed: 1,
            flows: 2 * FEW,
            size,
            transport: Transport::Tcp,
            // Times are set here.
            rate_pps: 1_000_000,
            packets: u64::from(4 * FEW) + CALLS,
        })?;
        Ok(Calls {
            packets,
            gap,
            sent: 0,
        })
    }
}

impl PacketSource for Calls {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        // Each flow is opened first, by a packet that comes alone.
        let flows = u64::from(2 * FEW);
        let (opening, alone) = (self.sent.min(flows), self.sent.saturating_sub(2 * flows));
        self.sent += 1;
        let packet = self.packets.next_packet()?;
        Ok(packet.map(|packet| Packet {
            timestamp: Nanos(opening * OPENING.0 + alone * self.gap.0),
            ..packet
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "calls"
    }
}

/// What a trace's packets are like that no batch takes apart: their length, and the shares that open flows
/// and that are cold after so many others.
fn shares(trace: &Trace, batch: u16, cold_after: usize) -> Result<Sample, TrainError> {
    let mut arrivals = PacketArrivals::new(trace.source());
    let mut last: HashMap<Option<u64>, usize> = HashMap::new();
    let (mut new, mut cold, mut cold_batches, mut number) = (0, 0, 0, 0_usize);
    let (mut cold_in_batch, batch) = (false, usize::from(batch));
    while let Some(arrival) = arrivals.next_arrival()? {
        let before = last.insert(arrival.flow, number);
        let is_cold = before.is_none_or(|before| number - before > cold_after);
        new += usize::from(before.is_none());
        cold += usize::from(is_cold);
        cold_in_batch |= is_cold;
        number += 1;
        if number.is_multiple_of(batch) {
            cold_batches += usize::from(std::mem::take(&mut cold_in_batch));
        }
    }
    let share = |count: usize| count as f64 / number.max(1) as f64;
    Ok(Sample {
        batches: 1.0 / batch as f64,
        mixed: 1.0,
        bytes: trace.bytes() as f64 / number.max(1) as f64,
        new: share(new),
        cold: share(cold),
        cold_batches: share(cold_batches),
        ..Sample::default()
    })
}

/// Functions that cost little, behind the same flow table.
fn light(spec: &ChainSpec) -> Result<ChainSpec, TrainError> {
    let mut light = spec.clone();
    let forward = |name: &str| FunctionSpec {
        name: name.to_owned(),
        config: FunctionConfig::Forward(ForwardConfig::default()),
    };
    light.functions = vec![forward("first")];
    light.flows.always = true;
    Ok(light)
}

/// Everything goes to the helper, if there is one.
fn dealt(helper: Option<usize>) -> ScalingConfig {
    let place = helper.map_or(Place::HERE, |_| Place::helper(0));
    ScalingConfig {
        auxiliary: helper.into_iter().collect(),
        mapper: Arc::new(move || Box::new(Always(place))),
        park: Mode::Sleep,
        buffers: BUFFERS,
    }
}

/// A mapper that places all flowlets alike, and moves nothing.
struct Always(Place);

impl CoreMapper for Always {
    fn due(&self, _now: Nanos, _packets: u32) -> bool {
        false
    }

    fn decide(&mut self, _view: &View<'_>, _plan: &mut Plan) {}

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Place {
        self.0
    }
}
