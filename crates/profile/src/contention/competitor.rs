//! Competitors: programs that run beside a target.

use super::error::ContentionError;
use crate::measurement_core::{MeasurementCore, Setting, lost};
use crate::sweep::SweepError;
use crate::traffic::evenly;
use crate::train::without_files;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};

/// Rate of evenly spaced traffic before it is scaled, packets per second.
const BASE_RATE: f64 = 1e6;
/// Flows of the synthetic competitor's traffic: its flow table stays in the private cache.
const FLOWS: u32 = 64;
/// Bytes of the synthetic competitor's traffic, and bounds of its packets.
const TRAFFIC_BYTES: u64 = 16 << 20;
const PACKETS: [u64; 2] = [4096, 65_536];
/// Window of a competitor's report.
const WINDOW: Nanos = Nanos::from_millis(50);
/// Upper bound of a competitor's run.
const LONGEST: Nanos = Nanos::from_secs(3600);
/// Time after which a competitor that has not processed a packet counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for its caches to fill after its first packets.
const WARM_UP: Duration = Duration::from_millis(20);
/// Share of its time without its core from which on a competitor presses less than it should.
const MOST_LOST: f64 = 0.1;

/// Load of the synthetic competitor: the function `synthetic` with uniform traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticLoad {
    /// Size of its structure, bytes.
    pub structure_bytes: u64,
    /// Lines that a packet reads at random places.
    pub reads: u32,
    /// Lines that it then writes.
    pub writes: u32,
    /// Packets per second; `None`: as many as its core processes.
    pub rate: Option<f64>,
    /// Length of its frames without check sequence, bytes.
    pub frame_bytes: u16,
    /// Receive descriptors, each with a packet buffer.
    pub descriptors: u32,
}

impl SyntheticLoad {
    /// Returns the chain with its traffic. Values out of range are brought into it.
    ///
    /// # Errors
    /// The traffic cannot be generated.
    pub fn workload(&self, seed: u64) -> Result<Workload, ContentionError> {
        let kibibytes = (self.structure_bytes / 1024).clamp(1, 1 << 20);
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: competitor}}\nspec:\n  functions:\n    \
             - synthetic: {{reads: {}, writes: {}, workingSet: {kibibytes}KiB, pattern: random}}\n  \
             slo: {{latency: 50ms}}\n",
            self.reads.min(65_536),
            self.writes.min(65_536)
        );
        let frame = self.frame_bytes.clamp(60, 1514);
        let [least, most] = PACKETS;
        let mut source = Uniform::new(UniformConfig {
            seed,
            flows: FLOWS,
            size: FrameSize::Fixed(frame + 4),
            transport: Transport::Udp,
            rate_pps: BASE_RATE as u64,
            packets: (TRAFFIC_BYTES / u64::from(frame)).clamp(least, most),
        })
        .map_err(SweepError::from)?;
        Ok(Workload {
            spec: ChainSpec::parse(&text, "synthetic competitor", Path::new(""))?,
            traffic: evenly(&mut source, BASE_RATE).map_err(SweepError::from)?,
            rate: self.rate,
            ring: (self.descriptors as usize).clamp(32, 1 << 16),
            seed,
        })
    }
}

/// A chain with its traffic, to run beside another one.
#[derive(Clone, Debug)]
pub struct Workload {
    spec: ChainSpec,
    /// Evenly spaced at [`BASE_RATE`].
    traffic: Trace,
    rate: Option<f64>,
    ring: usize,
    seed: u64,
}

impl Workload {
    /// Creates one that saturates its core. It writes no files.
    ///
    /// # Errors
    /// The traffic cannot be spaced evenly.
    pub fn saturated(spec: &ChainSpec, traffic: &Trace, seed: u64) -> Result<Workload, ContentionError> {
        Ok(Workload {
            spec: without_files(spec),
            traffic: evenly(&mut traffic.source(), BASE_RATE).map_err(SweepError::from)?,
            rate: None,
            ring: TraceNicConfig::default().ring,
            seed,
        })
    }

    /// Returns its chain.
    pub fn spec(&self) -> &ChainSpec {
        &self.spec
    }
}

/// Result of a competitor's run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompetitorRun {
    /// Packets that it processed per second.
    pub packets_per_second: f64,
    /// `true` if it lacked its core for so long that it pressed less than it should.
    pub is_disturbed: bool,
}

/// A workload that runs on a core of its own until it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<RunReport, ContentionError>>>,
}

impl Running {
    /// Starts a workload. Returns when it has processed packets and its caches are warm.
    ///
    /// # Errors
    /// It cannot run, or processes nothing, or `stop` is set.
    pub(super) fn start(workload: &Workload, core: usize, stop: &AtomicBool) -> Result<Running, ContentionError> {
        let own = Arc::new(AtomicBool::new(false));
        let offered = Arc::new(AtomicU64::new(0));
        let (ended, is_ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("competitor".to_owned())
            .spawn({
                let (workload, own, offered) = (workload.clone(), Arc::clone(&own), Arc::clone(&offered));
                move || {
                    // Dropped at the end, also by a panic.
                    let _ended = ended;
                    run(workload, core, &own, &offered)
                }
            })
            .map_err(ContentionError::Thread)?;
        let mut running = Running {
            stop: own,
            thread: Some(thread),
        };
        let start = Instant::now();
        while offered.load(Ordering::Relaxed) == 0 {
            if stop.load(Ordering::Relaxed) {
                return Err(ContentionError::stopped());
            }
            let is_over = is_ended.recv_timeout(Duration::from_millis(5)) == Err(mpsc::RecvTimeoutError::Disconnected);
            if is_over || start.elapsed() > PATIENCE {
                running.end()?;
                return Err(ContentionError::NoPackets { core });
            }
        }
        sleep(WARM_UP);
        Ok(running)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// The run failed.
    pub(super) fn end(&mut self) -> Result<CompetitorRun, ContentionError> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Err(ContentionError::stopped());
        };
        let report = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(CompetitorRun {
            packets_per_second: report.packets.delivered as f64 / report.duration_s.max(1e-9),
            is_disturbed: lost(&report).as_secs_f64() > MOST_LOST * report.duration_s,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its error comes after another one, which is reported.
            let _ = thread.join();
        }
    }
}

fn run(workload: Workload, core: usize, stop: &AtomicBool, offered: &AtomicU64) -> Result<RunReport, ContentionError> {
    let Workload {
        spec,
        mut traffic,
        rate,
        ring,
        seed,
    } = workload;
    if let Some(rate) = rate {
        traffic.scale_rate(rate / BASE_RATE).map_err(SweepError::from)?;
    }
    let setting = Setting {
        pacing: match rate {
            Some(_) => Pacing::Arrivals,
            None => Pacing::Saturate,
        },
        duration: Some(LONGEST),
        ring,
        window: WINDOW,
        ..Setting::default()
    };
    let lab = MeasurementCore { core, seed, stop };
    let report = lab.until_stopped(&spec, traffic, &setting, |progress| {
        offered.store(progress.packets.offered, Ordering::Relaxed);
    });
    Ok(report.map_err(SweepError::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_dataplane::cores::default_core;

    const LOAD: SyntheticLoad = SyntheticLoad {
        structure_bytes: 256 << 10,
        reads: 4,
        writes: 1,
        rate: None,
        frame_bytes: 60,
        descriptors: 512,
    };

    #[test]
    fn every_load_is_a_chain() {
        let extremes = [
            LOAD,
            SyntheticLoad {
                structure_bytes: 0,
                reads: 0,
                writes: 0,
                rate: Some(1e5),
                frame_bytes: 0,
                descriptors: 0,
            },
            SyntheticLoad {
                structure_bytes: u64::MAX,
                reads: u32::MAX,
                writes: u32::MAX,
                rate: None,
                frame_bytes: 1514,
                descriptors: 1024,
            },
        ];
        for load in extremes {
            let workload = load.workload(1).unwrap();
            assert_eq!(workload.spec().name, "competitor");
            let bytes: usize = (0..workload.traffic.len())
                .map(|at| workload.traffic.packet(at).len())
                .sum();
            assert!(bytes <= 17 << 20, "{bytes}");
        }
    }

    #[test]
    fn a_competitor_runs_until_it_is_ended() {
        let stop = AtomicBool::new(false);
        let workload = LOAD.workload(1).unwrap();
        let mut running = Running::start(&workload, default_core(), &stop).unwrap();
        let run = running.end().unwrap();
        assert!(run.packets_per_second > 0.0, "{run:?}");
        // One that is forgotten ends, too.
        drop(Running::start(&workload, default_core(), &stop).unwrap());
        stop.store(true, Ordering::Relaxed);
        assert!(
            Running::start(&workload, default_core(), &stop)
                .unwrap_err()
                .is_stopped()
        );
    }

    #[test]
    fn a_competitor_that_cannot_run_is_an_error() {
        let workload = LOAD.workload(1).unwrap();
        let error = Running::start(&workload, 1 << 20, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("core 1048576"), "{error}");
    }
}
