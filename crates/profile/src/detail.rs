//! Details of a chain on this machine that simulations need: the costs of cold packets, and those of communication
//! between cores.
//!
//! The means used by policies hide transient effects: a packet of a flow that was silent for long misses the caches.
//! Runs of flows in turn show after how many other packets that happens. The [batches](crate::batches) of the traffic
//! itself show the costs of all kinds of packets. The speed of the machine, and of its memory most of all, varies
//! within seconds. So all runs take turns, several times, and medians count.

use crate::batches::{Contents, QueueCosts, explain, fit_queue_costs};
use crate::costs::BatchCosts;
use crate::error::TrainError;
use crate::measurement_core::{MeasurementCore, SATURATED_WINDOW, Setting};
use crate::traffic::{at_rate, frames, steady};
use std::sync::Arc;
use tailwater_dataplane::batches::BatchTimes;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Wake;
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, View};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Repetitions of each sample.
const ROUNDS: usize = 3;
/// Length of each run.
const LENGTH: Nanos = Nanos::from_millis(40);
/// Size of a trace that exceeds all caches, bytes.
const BEYOND_CACHES: f64 = 48e6;
/// Flow counts whose state stays in the nearest caches, and in none.
const FEW: u32 = 64;
const MANY: u32 = 1 << 13;
/// Flow counts between them, to locate where flows leave the caches.
const BETWEEN: [u32; 3] = [256, 1024, 4096];
/// Passes over a trace of many flows; in the first pass they are new.
const LAPS: f64 = 3.0;
/// Load at which packets arrive singly.
const ALONE: f64 = 0.12;
/// Packets of the given traffic in saturated runs.
const TRAFFIC: usize = 1 << 17;
/// The same at its own pace: packets, the load as a share of the saturated rate, so that bursts exceed the core, and
/// the duration.
const PACED_TRAFFIC: usize = 400_000;
const PACED: f64 = 0.5;
const PACED_LENGTH: Nanos = Nanos::from_millis(600);
/// Packet buffers of a core that offloads, as in real runs: a packet behind many others has left the nearest caches.
const BUFFERS: u32 = 2048;
/// Sleep times of an auxiliary core before it is woken.
const ASLEEP: [Nanos; 4] = [
    Nanos::from_micros(60),
    Nanos::from_micros(300),
    Nanos::from_millis(1),
    Nanos::from_millis(4),
];
/// Gap between two packets that open flows.
const OPENING: Nanos = Nanos::from_micros(20);
/// Wake-ups of each kind.
const CALLS: u64 = 150;

/// A chain on a core, and the measurement's parameters.
pub(crate) struct Detailed<'a> {
    pub lab: &'a MeasurementCore<'a>,
    pub spec: &'a ChainSpec,
    /// Mean packet length, bytes without check sequence.
    pub bytes: f64,
}

/// Service costs of packets.
pub(crate) struct Service {
    pub costs: BatchCosts,
    pub cold_after: u32,
    /// Cost of a packet of the given traffic in a saturated run, nanoseconds.
    pub traffic_packet: f64,
    /// Poll delay of a packet, nanoseconds.
    pub poll: f64,
    pub queue: QueueCosts,
}

/// A run in a steady state after the first `skipped` packets.
struct Case {
    trace: Trace,
    setting: Setting,
    skipped: u64,
}

impl Case {
    /// Returns the cost per packet of a run, nanoseconds, of the median window.
    fn nanos(&self, report: &RunReport) -> f64 {
        let (mut passed, mut values) = (0, Vec::new());
        let windows = &report.windows.list;
        // The last window is incomplete.
        for window in &windows[..windows.len().saturating_sub(1)] {
            if passed >= self.skipped && !window.flagged && window.offered > 0 {
                values.push(match self.setting.pacing {
                    Pacing::Saturate => SATURATED_WINDOW.0 as f64 / window.offered as f64,
                    // Latency of a packet that arrives alone.
                    Pacing::Arrivals => window.latency_us.p50 * 1e3,
                });
            }
            passed += window.offered;
        }
        match values.is_empty() {
            // Shorter than a window.
            true => report.duration_s * 1e9 / report.packets.offered.max(1) as f64,
            false => median(&mut values),
        }
    }
}

/// Batches of a run, and the machine's slowdown.
type Run = (Vec<BatchTimes>, f64);

/// Returns the median, or zero for an empty slice.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Detailed<'_> {
    fn size(&self) -> FrameSize {
        frames(self.bytes)
    }

    /// Returns the largest number of flows to measure, bounded by the flow table with a margin.
    fn many(&self) -> u32 {
        MANY.min(self.spec.flows.capacity / 4).max(FEW)
    }

    /// Returns a trace of `flows` flows in turn that exceeds all caches.
    fn flows(&self, flows: u32, bytes: f64, rate: f64) -> Result<Trace, TrainError> {
        let line = (bytes / 64.0).ceil() * 64.0 + 64.0;
        let packets = ((BEYOND_CACHES / line) as u64).max(flows.into());
        let packets = packets.next_multiple_of(flows.into());
        Ok(steady(flows, frames(bytes), packets, rate)?)
    }

    /// Measures the costs of cold and warm packets, and the number of other packets after which one is cold.
    ///
    /// # Errors
    /// The traffic cannot be made, or a run fails or is stopped.
    pub fn service(&self, traffic: &Trace) -> Result<Service, TrainError> {
        // All other cases are compared with the saturated traffic.
        let measure = Case {
            trace: at_rate(traffic, TRAFFIC, 1e6)?,
            setting: Setting::default(),
            skipped: 0,
        };
        let rate = 1e9 / self.run(&measure)?;
        // Packets that arrive singly, of few flows or of many: their latency follows from their cost.
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
        // A packet is cold if it costs more than halfway between few flows and many.
        let half = (measured[1] + measured[2]) / 2.0;
        let warm = BETWEEN.iter().zip(&measured[3..]);
        let warm = warm.take_while(|(_, nanos)| **nanos < half);
        let cold_after = warm.map(|(flows, _)| 2 * flows).last().unwrap_or(BETWEEN[0] / 2);
        let contents = Contents::of(&paced, cold_after)?;
        let (costs, poll) = explain(&contents, &runs[0]);
        let queue = fit_queue_costs(&contents, &costs, &runs[1], &runs[2]);
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

    /// Measures the cost per packet of these cases, and the batches of the traffic at its own pace. The first case is
    /// the reference: each other case is compared with the reference just before and after it, which compensates for a
    /// slow machine. Returns medians over rounds in which all cases take turns.
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
            // Without queueing; with waiting packets in the own queue; with waiting packets offloaded.
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

    /// Returns a core to use as an auxiliary core, if there is one.
    fn helper(&self) -> Option<usize> {
        available().into_iter().find(|core| *core != self.lab.core)
    }

    /// Measures the wake-up latency of an auxiliary core, if there are two cores.
    ///
    /// # Errors
    /// The traffic cannot be made, or a run fails or is stopped.
    pub fn wakes(&self) -> Result<Vec<Wake>, TrainError> {
        let mut wakes = Vec::new();
        if let Some(helper) = self.helper() {
            for asleep in ASLEEP {
                wakes.extend(self.wake(helper, asleep)?);
            }
        }
        Ok(wakes)
    }

    /// Measures the wake-up latency of an auxiliary core after a sleep of `asleep`.
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

/// A burst that waits, so that an auxiliary core is activated, and then packets that arrive singly.
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
            // Arrival times are set below.
            rate_pps: 1_000_000,
            packets: u64::from(4 * FEW) + CALLS,
        })?;
        Ok(Calls { packets, gap, sent: 0 })
    }
}

impl PacketSource for Calls {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        // A packet that arrives alone first opens each flow.
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

/// Returns a configuration that offloads everything to the auxiliary core, if there is one.
fn dealt(helper: Option<usize>) -> ScalingConfig {
    let place = helper.map_or(Destination::OWN_CORE, |_| Destination::auxiliary(0));
    ScalingConfig {
        auxiliary: helper.into_iter().collect(),
        dedicated_help: false,
        mapper: Arc::new(move || Box::new(Always(place))),
        park: Mode::Sleep,
        buffers: BUFFERS,
    }
}

/// A mapper that places all flowlets alike and migrates nothing.
struct Always(Destination);

impl CoreMapper for Always {
    fn measures_queues(&self) -> bool {
        true
    }

    fn due(&self, _now: Nanos, _packets: u32) -> bool {
        false
    }

    fn decide(&mut self, _view: &View<'_>, _plan: &mut Plan) {}

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        self.0
    }
}
