//! Progress on one line of a terminal. Without a terminal nothing is written.

use crate::text::{one_line, short};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tailwater_dataplane::run::Progress;
use tailwater_net::Nanos;
use tailwater_profile::Step;

/// Minimum time between two updates.
const PAUSE: Duration = Duration::from_millis(100);

/// Line that is overwritten, and cleared when dropped.
struct Line {
    terminal: bool,
    written: Option<Instant>,
}

impl Line {
    fn new() -> Self {
        Line {
            terminal: std::io::stderr().is_terminal(),
            written: None,
        }
    }

    fn due(&self) -> bool {
        self.terminal && self.written.is_none_or(|written| written.elapsed() >= PAUSE)
    }

    fn show(&mut self, text: &str) {
        self.written = Some(Instant::now());
        // Errors of the terminal are ignored.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.written.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Progress line of a run.
pub struct Live(Line);

impl Live {
    /// Writes to standard error, if that is a terminal.
    pub fn new() -> Self {
        Live(Line::new())
    }

    /// Shows the progress of a run, at most a few times per second.
    pub fn show(&mut self, progress: &Progress) {
        if self.0.due() {
            self.0.show(&line(progress));
        }
    }
}

fn line(progress: &Progress) -> String {
    let seconds = |time: Nanos| format!("{:.1}", time.as_secs_f64());
    let of = progress
        .duration
        .map_or_else(String::new, |whole| format!("/{}", seconds(whole)));
    let packets = &progress.packets;
    format!(
        "{}{of} s  offered {}  delivered {}  lost {}  p50 {}  p99 {}",
        seconds(progress.elapsed),
        short(packets.offered as f64),
        short(packets.delivered as f64),
        short(packets.lost as f64),
        progress.p50,
        progress.p99,
    )
}

impl Live {
    /// Clears the line before other output.
    pub fn clear(&mut self) {
        if self.0.written.take().is_some() {
            self.0.show("");
            self.0.written = None;
        }
    }
}

/// Progress line of a chain's measurement.
pub struct Measuring(Line);

impl Measuring {
    /// Writes to standard error, if that is a terminal.
    pub fn new() -> Self {
        Measuring(Line::new())
    }

    /// Shows the current measurement.
    pub fn show(&mut self, step: Step) {
        // There are few steps, each of which takes a while.
        if self.0.terminal {
            let number = step.done + 1;
            self.0.show(&format!("measuring {number}/{}: {}", step.of, step.name));
        }
    }
}

/// Progress line of a simulation.
pub struct Simulating(Line);

impl Simulating {
    /// Writes to standard error, if that is a terminal.
    pub fn new() -> Self {
        Simulating(Line::new())
    }

    /// Shows the completed and total runs, and the simulated share of the time of all packets.
    pub fn show(&mut self, done: usize, of: usize, share: f64) {
        if self.0.due() {
            let percent = (share.clamp(0.0, 1.0) * 100.0).floor();
            self.0.show(&format!("{done} of {of} runs simulated, {percent} %"));
        }
    }

    /// Shows the completed and total searches, and the number of runs they took.
    pub fn found(&mut self, done: usize, of: usize, runs: f64) {
        if self.0.due() {
            let text = format!("{done} of {of} searches done, {runs:.1} runs simulated");
            self.0.show(&text);
        }
    }
}

/// Progress of a long simulation: a line on a terminal, and otherwise a line now and then.
pub struct Lasting {
    line: Line,
    began: Instant,
    told: Instant,
}

/// Time between two lines where there is no terminal.
const LASTING: Duration = Duration::from_secs(10);

impl Lasting {
    /// Writes to standard error.
    pub fn new() -> Self {
        Lasting {
            line: Line::new(),
            began: Instant::now(),
            told: Instant::now(),
        }
    }

    /// Shows the share that is done, 0 to 1.
    pub fn show(&mut self, text: &str, share: f64) {
        let is_line = !self.line.terminal && self.told.elapsed() >= LASTING;
        if !is_line && !self.line.due() {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let left = seconds * (1.0 / share.clamp(1e-6, 1.0) - 1.0);
        let text = format!("{text}: {:.1} % after {seconds:.0} s, {left:.0} s left", 100.0 * share);
        match is_line {
            true => {
                self.told = Instant::now();
                // Errors of standard error are ignored.
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            false => self.line.show(&text),
        }
    }
}

/// Progress line of loading or generating traffic.
pub struct Loading {
    line: Line,
    name: String,
}

impl Loading {
    /// Starts a line for traffic of this name.
    pub fn new(name: &str) -> Self {
        Loading {
            line: Line::new(),
            name: one_line(name).chars().take(40).collect(),
        }
    }

    /// Shows the packets so far.
    #[inline]
    pub fn tell(&mut self, packets: u64) {
        // The clock is read for every 4096th packet only.
        if packets % 4096 == 4095 && self.line.due() {
            let text = format!("{}: {} packets read", self.name, short(packets as f64));
            self.line.show(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_dataplane::report::CoreReport;
    use tailwater_dataplane::report::{PacketReport, ReloadCounters};
    use tailwater_dataplane::scaling::buckets::BucketCounters;

    #[test]
    fn a_line_fits_a_terminal() {
        let packets = PacketReport {
            offered: 12_345_678_901,
            delivered: 12_345_678_900,
            lost: 123_456_789,
            ..PacketReport::default()
        };
        let progress = Progress {
            state: None,
            window: None,
            work: Default::default(),
            functions: Vec::new(),
            flows: 0,
            news: Vec::new(),
            elapsed: Nanos::from_secs(86_399),
            duration: Some(Nanos::from_secs(86_400)),
            packets,
            p99: Nanos(123_456_789),
            p50: Nanos(12_345),
            late_by_cause: Default::default(),
            latency: Default::default(),
            gaps: 0,
            cores: CoreReport::default(),
            buckets: BucketCounters::default(),
            scaling: Default::default(),
            reloads: ReloadCounters::default(),
        };
        let line = line(&progress);
        assert_eq!(
            line,
            "86399.0/86400.0 s  offered 12.3G  delivered 12.3G  lost 123M  p50 12.345us  p99 123.457ms"
        );
        assert!(line.len() <= 90);
    }
}
