//! How work stands, on one line of a terminal. Nothing is written where there is no terminal.

use crate::text::{one_line, short};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tailwater_dataplane::run::Progress;
use tailwater_net::Nanos;
use tailwater_profile::Step;

/// Between two lines.
const PAUSE: Duration = Duration::from_millis(100);

/// A line that is written over; gone when dropped.
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
        // A terminal that is gone is no reason to stop.
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

/// The line of a run.
pub struct Live(Line);

impl Live {
    /// On standard error, if that is a terminal.
    pub fn new() -> Self {
        Live(Line::new())
    }

    /// Shows how the run stands, a few times a second at most.
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
    /// Clears the line, so that something else can be written.
    pub fn clear(&mut self) {
        if self.0.written.take().is_some() {
            self.0.show("");
            self.0.written = None;
        }
    }
}

/// The line while a chain is measured.
pub struct Measuring(Line);

impl Measuring {
    /// On standard error, if that is a terminal.
    pub fn new() -> Self {
        Measuring(Line::new())
    }

    /// Shows what is measured now.
    pub fn show(&mut self, step: Step) {
        // There are few steps, each of which takes a while.
        if self.0.terminal {
            let number = step.done + 1;
            self.0.show(&format!("measuring {number}/{}: {}", step.of, step.name));
        }
    }
}

/// The line while racks are simulated.
pub struct Simulating(Line);

impl Simulating {
    /// On standard error, if that is a terminal.
    pub fn new() -> Self {
        Simulating(Line::new())
    }

    /// Shows how many runs are done of how many, and what share of all packets' time.
    pub fn show(&mut self, done: usize, of: usize, share: f64) {
        if self.0.due() {
            let percent = (share.clamp(0.0, 1.0) * 100.0).floor();
            self.0.show(&format!("{done} of {of} runs simulated, {percent} %"));
        }
    }

    /// Shows how many searches are done of how many, and how many runs that took.
    pub fn found(&mut self, done: usize, of: usize, runs: f64) {
        if self.0.due() {
            let text = format!("{done} of {of} searches done, {runs:.1} runs simulated");
            self.0.show(&text);
        }
    }
}

/// The line while traffic is read or made.
pub struct Loading {
    line: Line,
    name: String,
}

impl Loading {
    /// For traffic of this name.
    pub fn new(name: &str) -> Self {
        Loading {
            line: Line::new(),
            name: one_line(name).chars().take(40).collect(),
        }
    }

    /// Packets so far.
    #[inline]
    pub fn tell(&mut self, packets: u64) {
        // The clock is not read for every packet.
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
    use tailwater_dataplane::report::PacketReport;
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
        };
        let line = line(&progress);
        assert_eq!(
            line,
            "86399.0/86400.0 s  offered 12.3G  delivered 12.3G  lost 123M  p50 12.345us  p99 123.457ms"
        );
        assert!(line.len() <= 90);
    }
}
