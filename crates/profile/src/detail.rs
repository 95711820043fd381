//! What simulations need to know of a chain on this machine: what cold packets cost, and what lies
//! between cores.
//!
//! The means that policies go by hide what depends on the moment: a packet of a flow that was silent for long
//! finds nothing of it in the caches. After how many others that is so is seen in runs of flows in turn; what
//! all kinds of packets cost, in the [batches](crate::batches) of the traffic itself. The machine's speed
//! varies within seconds (its memory's most of all), so all runs take turns, several times, and medians count.

use crate::batches::{Contents, QueueCosts, explain, explain_queue};
use crate::costs::BatchCosts;
use crate::error::TrainError;
use crate::lab::{Lab, SATURATED_WINDOW, Setting};
use crate::traffic::{at_rate, frames, steady};
use std::sync::Arc;
use tailwater_dataplane::batches::NotedBatch;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Wake;
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, Place, Plan, View};
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
/// A trace of so many flows is run through so often: the first time they are new.
const LAPS: f64 = 3.0;
/// The load at which a packet comes alone.
const ALONE: f64 = 0.12;
/// Packets of the given traffic without pace.
const TRAFFIC: usize = 1 << 17;
/// The same at its own pace: as part of the rate without pace, so that bursts are more than the core can do; and
/// for how long.
const PACED_TRAFFIC: usize = 400_000;
const PACED: f64 = 0.5;
const PACED_LENGTH: Nanos = Nanos::from_millis(600);
/// Packet buffers of a core that hands over, as many as in real runs: what waits behind many others has left the
/// nearest caches.
const BUFFERS: u32 = 2048;
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
    pub costs: BatchCosts,
    pub cold_after: u32,
    /// One of the given traffic, without pace.
    pub traffic_packet: f64,
    /// How long it takes to find a packet.
    pub poll: f64,
    pub queue: QueueCosts,
}

/// A run that is in one state all the time, once `skipped` packets have passed.
struct Case {
    trace: Trace,
    setting: Setting,
    skipped: u64,
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

/// Batches of a run, and how slow the machine was.
type Run = (Vec<NotedBatch>, f64);

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
        // The traffic without pace is what all else is compared with.
        let measure = Case {
            trace: at_rate(traffic, TRAFFIC, 1e6)?,
            setting: Setting::default(),
            skipped: 0,
        };
        let rate = 1e9 / self.run(&measure)?;
        // Packets that come alone, of few flows or of many: how long that takes follows from what they cost.
        let (many, pace) = (self.many(), rate * ALONE);
        let mut cases = vec![measure];
        for flows in [FEW, many].into_iter().chain(BETWEEN) {
            let packets = f64::from(flows) * LAPS;
            cases.push(Case {
                trace: self.flows(flows.min(many), self.bytes, pace)?,
                setting: Setting {
                    pacing: Pacing::Arrivals,
                    duration: Some(LENGTH.max(Nanos::from_secs_f64(packets / pace))),
                    ..Setting::default()
                },
                // All flows are new at first.
                skipped: flows.into(),
            });
        }
        let paced = at_rate(traffic, PACED_TRAFFIC, rate * PACED)?;
        let (measured, runs) = self.in_turn(&cases, &paced)?;
        let traffic_packet = measured[0];
        // Cold is what costs more than half of the way from few flows to many.
        let half = (measured[1] + measured[2]) / 2.0;
        let warm = BETWEEN.iter().zip(&measured[3..]);
        let warm = warm.take_while(|(_, nanos)| **nanos < half);
        let cold_after = warm.map(|(flows, _)| 2 * flows).last().unwrap_or(BETWEEN[0] / 2);
        let contents = Contents::of(&paced, cold_after)?;
        let (costs, poll) = explain(&contents, &runs[0]);
        let queue = explain_queue(&contents, &costs, &runs[1], &runs[2]);
        Ok(Service {
            costs,
            cold_after,
            traffic_packet,
            poll,
            queue,
        })
    }

    fn run(&self, case: &Case) -> Result<f64, TrainError> {
        let setting = &case.setting;
        let report = self.lab.measured(self.spec, case.trace.clone(), setting)?;
        Ok(case.nanos(&report))
    }

    /// What packets took in each of these cases, of which the first is the measure of the others: each is
    /// compared with how fast that was just before and after, so that it does not matter much when the machine
    /// was slow. Medians over rounds in which all have their turn. The same for the batches of the traffic at
    /// its own pace.
    fn in_turn(&self, cases: &[Case], paced: &Trace) -> Result<(Vec<f64>, [Vec<Run>; 3]), TrainError> {
        let mut ratios: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
        let mut measures = vec![self.run(&cases[0])?];
        let mut runs: [Vec<Run>; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (case, ratios) in cases.iter().zip(&mut ratios).skip(1) {
                let nanos = self.run(case)?;
                let before = measures[measures.len() - 1];
                let after = self.run(&cases[0])?;
                measures.push(after);
                ratios.push(2.0 * nanos / (before + after));
            }
            // Straight through; in the own queue if it waits; to a helper if it waits.
            let own = [None, Some(dealt(None))];
            let helped = self.helper().map(|helper| Some(dealt(Some(helper))));
            let mut batches = Vec::new();
            for scaling in own.into_iter().chain(helped) {
                let trace = paced.clone();
                batches.push(self.lab.batches(self.spec, trace, PACED_LENGTH, scaling)?);
            }
            let before = measures[measures.len() - 1];
            let after = self.run(&cases[0])?;
            measures.push(after);
            let slow = (before + after) / 2.0;
            for (runs, batches) in runs.iter_mut().zip(batches) {
                runs.push((batches, slow));
            }
        }
        let measure = median(&mut measures);
        let each = runs.iter_mut().flatten();
        each.for_each(|(_, slow)| *slow /= measure);
        let nanos = ratios.iter_mut().map(|ratios| match ratios.is_empty() {
            true => measure,
            false => median(ratios) * measure,
        });
        Ok((nanos.collect(), runs))
    }

    /// A core for helpers, if there is one.
    fn helper(&self) -> Option<usize> {
        available().into_iter().find(|core| *core != self.lab.core)
    }

    /// How long helpers take to wake up, where there are two cores.
    pub fn wakes(&self) -> Result<Vec<Wake>, TrainError> {
        let mut wakes = Vec::new();
        if let Some(helper) = self.helper() {
            for asleep in ASLEEP {
                wakes.extend(self.wake(helper, asleep)?);
            }
        }
        Ok(wakes)
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
        Ok(Calls { packets, gap, sent: 0 })
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
