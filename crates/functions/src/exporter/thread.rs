//! Thread of an exporter.

use super::sink::{Sink, Source};
use super::state::{ExporterState, Phase};
use crate::out_file::GRACE;
use std::io;
use std::time::Instant;

/// Exports records from the senders' rings until the exporter is stopped.
pub(super) fn run<S: Sink>(state: &ExporterState<S>, mut sink: S) -> io::Result<u64> {
    let mut sources: Vec<Source<S>> = Vec::new();
    let mut ready_timeout = ReadyTimeout::default();
    loop {
        state.pulse.beat();
        // The phase is read before the rings: records sent before it began are popped below.
        let phase = state.phase();
        state.take_new(&mut sources);
        let intake = ready_timeout.intake(&mut sink, phase);
        if pop(&mut sources, &mut sink, intake) > 0 {
            continue;
        }
        // A closed ring gets no more records.
        sources.retain(|source| !source.ring.is_closed() || !source.ring.is_empty());
        let is_drained = sources.iter().all(|source| source.ring.is_empty());
        let abandoned = phase == Phase::Abandoned;
        let ends = abandoned || phase == Phase::Stopping && is_drained;
        if ends || sink.on_idle(&sources).is_break() {
            return sink.finish(&sources, abandoned);
        }
        std::thread::park_timeout(S::POLL_INTERVAL);
    }
}

/// Treatment of the records in the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Put,
    Keep,
    Discard,
}

/// Pops records from each ring and returns their number.
fn pop<S: Sink>(sources: &mut [Source<S>], sink: &mut S, intake: Intake) -> usize {
    let mut popped = 0;
    for Source { ring, state } in sources {
        popped += match intake {
            Intake::Put => ring.pop_each(S::RECORDS_PER_POLL, |record| sink.put(&record, state)),
            Intake::Discard => ring.pop_each(S::RECORDS_PER_POLL, |record| sink.discard(&record)),
            Intake::Keep => 0,
        };
    }
    popped
}

/// Timeout of a sink that is not ready while workers at the end of a run wait for it.
#[derive(Debug, Default)]
struct ReadyTimeout {
    not_ready_since: Option<Instant>,
    given_up: bool,
}

impl ReadyTimeout {
    /// Returns the treatment of records now. Once the sink is given up, they are discarded.
    fn intake<S: Sink>(&mut self, sink: &mut S, phase: Phase) -> Intake {
        if self.given_up {
            return Intake::Discard;
        }
        if sink.is_ready() {
            self.not_ready_since = None;
            return Intake::Put;
        }
        if phase >= Phase::Draining {
            self.given_up = self.not_ready_since.get_or_insert_with(Instant::now).elapsed() >= GRACE;
        }
        Intake::Keep
    }
}
