//! Load of split flows.

use crate::core::SplitFlow;
use tailwater_net::Nanos;

/// Maximum number of split flows that are watched.
const WATCHED: usize = 16;

/// Load of a split flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    number: u16,
    /// Last change of the split.
    since: Nanos,
    /// Start of the interval, and the packets up to then.
    pub from: Nanos,
    pub passed: u64,
    /// Intervals in a row with a load for fewer cores.
    pub calm: u32,
}

/// Split flows.
#[derive(Debug)]
pub(super) struct Whales {
    /// Auxiliary cores with a part of a split flow, as of the last reviews, as a bit map.
    pub split_on: u64,
    /// Time of the packets of late split flows in the own queue, as of the last reviews. Others there do not wait for
    /// them, but they wait for the others.
    pub here: u64,
    /// Queued packets of a flow for which no division suffices.
    pub beyond: Option<u32>,
    /// The first `len` are watched.
    watched: [Watched; WATCHED],
    len: usize,
}

impl Whales {
    pub fn new() -> Whales {
        Whales {
            split_on: 0,
            here: 0,
            beyond: None,
            watched: [Watched::default(); WATCHED],
            len: 0,
        }
    }

    /// Returns the record of a flow, which begins with this call after a change of the split.
    pub fn watch(&mut self, split: &SplitFlow<'_>) -> &mut Watched {
        let mut known = self.watched[..self.len].iter();
        let known = known.position(|watched| watched.number == split.number);
        let new = Watched {
            number: split.number,
            since: split.since,
            from: split.now,
            passed: split.passed,
            calm: 0,
        };
        let at = match known {
            Some(at) => at,
            None if self.len < WATCHED => {
                self.watched[self.len] = new;
                self.len += 1;
                self.len - 1
            }
            None => {
                // The one that was looked at least recently is the most likely to be over.
                let oldest = (0..WATCHED).min_by_key(|at| self.watched[*at].from);
                let oldest = oldest.unwrap_or(0);
                self.watched[oldest] = new;
                oldest
            }
        };
        let watched = &mut self.watched[at];
        if watched.since != split.since || watched.passed > split.passed {
            *watched = new;
        }
        watched
    }
}
