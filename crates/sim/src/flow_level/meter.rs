//! Counts and latencies of a chain's packets, as amounts instead of packets.

use crate::report::WindowReport;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::Nanos;

/// Steps of utilisation in which packets that wait for no backlog are counted.
const STEPS: usize = 64;
/// Utilisation from which on these are not collected but recorded at once, since some may be late.
pub(super) const CALM: f64 = 0.9;
/// Points at which a change of latency is sampled.
const POINTS: usize = 8;

/// Packets of some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amounts {
    pub offered: f64,
    pub lost: f64,
    pub late: f64,
    pub flows: f64,
}

/// Latency of packets that wait for no backlog: the model of a queue at random arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calm {
    /// Time of a packet alone, in nanoseconds.
    pub alone: f64,
    /// Mean wait of those that wait on a core that is nearly idle: the overhead of a batch, and half of the time of a
    /// packet times the dispersion of arrivals.
    pub wait: f64,
    /// Time of a packet alone, as a multiple of its time in a full batch.
    pub dearer: f64,
    /// Utilisation from which on a queue takes longer than a step to reach its steady state. What happens beyond is in
    /// the variation from step to step.
    pub most: f64,
}

impl Calm {
    /// Returns the mean wait of the packets that wait, at a utilisation.
    fn wait(&self, utilisation: f64) -> f64 {
        self.wait / (1.0 - utilisation.min(self.most))
    }

    /// Returns the share of packets that wait.
    fn waiting(&self, utilisation: f64) -> f64 {
        (utilisation * self.dearer).min(1.0)
    }
}

/// Meter of a chain.
#[derive(Debug)]
pub(super) struct Meter {
    slo: f64,
    calm: Calm,
    pub window: Amounts,
    pub total: Amounts,
    collected: [f64; STEPS],
    latency: LatencyHistogram,
    /// Fractions of packets that the histogram still lacks.
    rest: f64,
    pub all: LatencyHistogram,
    pub windows: Vec<WindowReport>,
}

impl Meter {
    pub fn new(slo: Nanos, calm: Calm) -> Meter {
        Meter {
            slo: slo.0 as f64,
            calm,
            window: Amounts::default(),
            total: Amounts::default(),
            collected: [0.0; STEPS],
            latency: LatencyHistogram::default(),
            rest: 0.0,
            all: LatencyHistogram::default(),
            windows: Vec::new(),
        }
    }

    /// Counts packets that wait for no backlog, at a utilisation. Returns the number of late ones. `helped` is `true` if
    /// auxiliary cores would take the backlog that makes packets late: none is late then.
    #[inline]
    pub fn steady(&mut self, packets: f64, utilisation: f64, helped: bool) -> f64 {
        self.window.offered += packets;
        if utilisation < CALM {
            self.collected[(utilisation * STEPS as f64) as usize] += packets;
            return 0.0;
        }
        let wait = self.calm.wait(utilisation);
        let wait = if helped { wait.min(self.slo / 10.0) } else { wait };
        self.record_waits(packets, self.calm.waiting(utilisation), wait);
        if helped {
            return 0.0;
        }
        let late = packets * libm::exp((self.calm.alone - self.slo).min(0.0) / wait);
        self.window.late += late;
        late
    }

    /// Counts packets whose latency goes evenly from `from` to `to` nanoseconds, or anything between, by `latency`.
    /// Returns the number of late ones.
    #[inline]
    pub fn ramp(&mut self, packets: f64, latency: impl Fn(f64) -> f64) -> f64 {
        self.window.offered += packets;
        let points = if packets < 2.0 { 1 } else { POINTS };
        let each = packets / points as f64;
        let mut late = 0.0;
        for point in 0..points {
            let latency = latency((point as f64 + 0.5) / points as f64);
            if latency > self.slo {
                late += each;
            }
            self.record(latency, each);
        }
        self.window.late += late;
        late
    }

    /// Counts lost packets.
    #[inline]
    pub fn lost(&mut self, packets: f64) {
        self.window.offered += packets;
        self.window.lost += packets;
        self.window.late += packets;
    }

    #[inline]
    fn record(&mut self, latency: f64, packets: f64) {
        let exact = packets + self.rest;
        let whole = exact.max(0.0) as u64;
        self.rest = exact - whole as f64;
        self.latency.record_many(Nanos(latency as u64), whole);
    }

    /// Records packets of which a share `waiting` waits for an exponentially distributed time.
    fn record_waits(&mut self, packets: f64, waiting: f64, mean: f64) {
        self.record(self.calm.alone, packets * (1.0 - waiting));
        const QUANTILES: [(f64, f64); 7] = [
            (0.25, 0.134),
            (0.25, 0.47),
            (0.25, 1.0),
            (0.15, 1.75),
            (0.07, 2.8),
            (0.02, 4.1),
            (0.01, 5.6),
        ];
        for (share, wait) in QUANTILES {
            self.record(self.calm.alone + mean * wait, packets * waiting * share);
        }
    }

    fn settle(&mut self) {
        for step in 0..STEPS {
            let packets = std::mem::take(&mut self.collected[step]);
            if packets > 0.0 {
                let utilisation = (step as f64 + 0.5) / STEPS as f64;
                self.record_waits(packets, self.calm.waiting(utilisation), self.calm.wait(utilisation));
            }
        }
    }

    /// Ends a window that began at `start`.
    pub fn roll(&mut self, start: Nanos, cores: f64, dedicated: u32) {
        self.settle();
        let Amounts {
            offered,
            lost,
            late,
            flows,
        } = std::mem::take(&mut self.window);
        let percentile = |p| self.latency.percentile(p).as_micros_f64();
        let whole = |amount: f64| amount.round() as u64;
        self.windows.push(WindowReport {
            start_s: start.as_secs_f64(),
            offered: whole(offered),
            delivered: whole(offered) - whole(lost).min(whole(offered)),
            lost: whole(lost),
            late: whole(late),
            new_flows: whole(flows),
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            max_us: self.latency.max().as_micros_f64(),
            cores,
            dedicated,
        });
        self.total.offered += offered;
        self.total.lost += lost;
        self.total.late += late;
        self.total.flows += flows;
        self.all.merge(&self.latency);
        self.latency.clear();
    }

    /// Discards all counts.
    pub fn restart(&mut self) {
        self.window = Amounts::default();
        self.collected = [0.0; STEPS];
        self.latency.clear();
        self.rest = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_packets_are_in_the_histogram() {
        let calm = Calm {
            alone: 800.0,
            wait: 400.0,
            dearer: 1.3,
            most: 0.97,
        };
        let mut meter = Meter::new(Nanos::from_micros(200), calm);
        for step in 0..1000 {
            meter.steady(300.7, f64::from(step) / 1000.0, false);
            meter.ramp(91.3, |at| at * 400_000.0);
        }
        meter.lost(1000.0);
        meter.roll(Nanos::ZERO, 1.0, 1);
        let expected = 392_000.0;
        assert!(
            (meter.all.total() as f64 - expected).abs() < 2.0,
            "{}",
            meter.all.total()
        );
        assert_eq!(meter.windows[0].offered, 393_000);
        let late = meter.windows[0].late as f64;
        assert!((late / (91_300.0 / 2.0 + 1000.0) - 1.0).abs() < 0.01, "{late}");
    }
}
