//! What stands in a file of decisions, and how it is written.

use crate::scaling::MOST_BUFFERS;
use std::time::SystemTime;
use tailwater_net::Nanos;
use tailwater_policy::core::{MAX_HELPERS, Notice, Place, Plan, QueuedFlow, View};

/// The first bytes.
pub(super) const MAGIC: &[u8; 20] = b"tailwater-decisions\n";
/// The version that is written and read.
pub(super) const VERSION: u64 = 3;
/// The longest text of a header, in bytes. Longer ones are cut.
pub(super) const MOST_TEXT: usize = 1 << 20;

/// Of a queue of more flows than this only the largest are listed.
pub const MOST_LISTED: usize = 1024;
/// How many flows are listed then.
pub const MOST_LARGEST: usize = 64;
/// Splits of a decision; more are left out.
const MOST_SPLITS: usize = 16;

/// Stands for a dispatcher's number in a decision of the server mapper.
pub(super) const SERVER: u64 = MOST_DISPATCHERS;
/// Most dispatchers that a file may name.
pub(super) const MOST_DISPATCHERS: u64 = 1 << 10;

/// Numbers of a decision before its helpers.
pub(super) const FIXED: usize = 17;
/// Numbers for each helper, split, and listed flow of a queue that is listed whole or in part.
pub(super) const A_HELPER: usize = 4;
pub(super) const A_SPLIT: usize = 3;
pub(super) const A_FLOW: usize = 2;
pub(super) const A_LARGE_FLOW: usize = 3;

/// Numbers of the longest decision, with the one that tells how many there are.
pub(super) const MOST_WORDS: usize = 1 + FIXED + MAX_HELPERS * A_HELPER + MOST_SPLITS * A_SPLIT + MOST_LISTED * A_FLOW;

const _: () = assert!(MOST_LARGEST * A_LARGE_FLOW <= MOST_LISTED * A_FLOW);

pub(super) const BOOST: u64 = 1;
pub(super) const WHALE: u64 = 2;
pub(super) const OUT_OF_CORES: u64 = 4;
pub(super) const RECRUITED: u64 = 1;
pub(super) const TAKEN: u64 = 2;

/// What a file says before the first decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The chain's name.
    pub chain: String,
    /// The policy's name.
    pub policy: String,
    /// The latency objective.
    pub slo: Nanos,
    /// The epoch for that objective, half of what the network leaves of it.
    pub epoch: Nanos,
    /// Helpers of each dispatcher.
    pub helpers: usize,
    /// When the file was created, since 1970.
    pub started: Nanos,
    /// The [capacity profile](tailwater_policy::capacity::CapacityProfile) that the policy went by,
    /// as text; empty if there is none.
    pub profile: String,
}

impl Header {
    /// The header as [`started`](Header::started) now.
    pub fn now(self) -> Header {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started = Nanos(since.unwrap_or_default().as_nanos() as u64);
        Header { started, ..self }
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.slo.0, self.epoch.0, self.helpers as u64, self.started.0] {
            put(&mut bytes, number);
        }
        for text in [&self.chain, &self.policy, &self.profile] {
            let mut ends = (0..=text.len().min(MOST_TEXT)).rev();
            let end = ends.find(|at| text.is_char_boundary(*at));
            let text = &text[..end.unwrap_or(0)];
            put(&mut bytes, text.len() as u64);
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }
}

/// Flowlets that a mapper [placed](tailwater_policy::core::CoreMapper::place) since its last
/// decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flowlets {
    /// All.
    pub placed: u64,
    /// Those placed with helpers.
    pub away: u64,
}

/// Adds a number in LEB128.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Adds the end.
pub(super) fn put_end(bytes: &mut Vec<u8>, lost: u64) {
    put(bytes, 0);
    put(bytes, lost);
}

/// How many decisions stand in a chunk.
pub(super) fn count_records(mut words: &[u64]) -> u64 {
    let mut records = 0;
    while let Some((length, rest)) = words.split_first() {
        words = rest.get(*length as usize..).unwrap_or_default();
        records += 1;
    }
    records
}

/// Makes numbers of a dispatcher's decisions, without allocating.
#[derive(Debug)]
pub(super) struct Encoder {
    dispatcher: u32,
    /// Decisions before.
    sequence: u64,
    words: Vec<u64>,
    /// Positions of queued flows, to find the largest.
    positions: Vec<u32>,
}

impl Encoder {
    pub(super) fn new(dispatcher: u32) -> Encoder {
        Encoder {
            dispatcher,
            sequence: 0,
            words: Vec::with_capacity(MOST_WORDS),
            positions: Vec::with_capacity(MOST_BUFFERS as usize),
        }
    }

    /// The numbers of a decision, the first of which tells how many follow.
    pub(super) fn decision(&mut self, view: &View<'_>, plan: &Plan, took: Nanos, flowlets: Flowlets) -> &[u64] {
        let (notice, beyond) = match plan.notice {
            None => (0, 0),
            Some(Notice::WhaleBeyondSplit { packets }) => (WHALE, packets),
            Some(Notice::OutOfCores { packets }) => (OUT_OF_CORES, packets),
        };
        let whole = view.queued.len() <= MOST_LISTED;
        let listed = if whole { view.queued.len() } else { MOST_LARGEST };
        let splits = &plan.splits[..plan.splits.len().min(MOST_SPLITS)];
        let words = &mut self.words;
        words.clear();
        words.extend_from_slice(&[
            0,
            u64::from(self.dispatcher),
            self.sequence,
            view.now.0,
            view.now.saturating_sub(view.oldest).0,
            took.0,
            u64::from(view.packets),
            view.queued.len() as u64,
            notice | if plan.boost { BOOST } else { 0 },
            u64::from(beyond),
            plan.release,
            plan.relieve,
            u64::from(view.held.flows),
            u64::from(view.held.packets),
            flowlets.placed,
            flowlets.away,
            listed as u64,
            splits.len() as u64,
        ]);
        self.sequence += 1;
        for helper in view.helpers {
            let flag = |set, flag| if set { flag } else { 0 };
            let quiet = view.now.saturating_sub(helper.last_done).0;
            words.extend_from_slice(&[
                flag(helper.recruited, RECRUITED) | flag(helper.taken, TAKEN),
                u64::from(helper.load.flows),
                u64::from(helper.load.packets),
                quiet,
            ]);
        }
        for split in splits {
            let numbers = [split.flow, split.last_functions, split.helper];
            words.extend(numbers.map(|number| number as u64));
        }
        let flow = |flow: &QueuedFlow, place: &Place| {
            let packets = u64::from(flow.packets) << 1 | u64::from(flow.bound);
            [packets, place.index() as u64]
        };
        if whole {
            let flows = view.queued.iter().zip(&plan.places);
            flows.for_each(|(queued, place)| words.extend_from_slice(&flow(queued, place)));
        } else {
            let positions = &mut self.positions;
            positions.clear();
            positions.extend(0..view.queued.len() as u32);
            // Of equals those in front, so that what is listed does not depend on the algorithm.
            positions.select_nth_unstable_by_key(MOST_LARGEST, |at| {
                let packets = view.queued[*at as usize].packets;
                (std::cmp::Reverse(packets), *at)
            });
            positions.truncate(MOST_LARGEST);
            positions.sort_unstable();
            for at in positions {
                let i = *at as usize;
                words.push(u64::from(*at));
                words.extend_from_slice(&flow(&view.queued[i], &plan.places[i]));
            }
        }
        words[0] = words.len() as u64 - 1;
        words
    }
}
