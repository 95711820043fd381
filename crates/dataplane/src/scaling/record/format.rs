//! Format of a decision record, and its encoder.

use crate::scaling::MOST_BUFFERS;
use std::time::SystemTime;
use tailwater_net::Nanos;
use tailwater_policy::core::{Destination, MAX_AUXILIARY_CORES, Notice, Plan, QueuedFlow, View};

/// First bytes of a file.
pub(super) const MAGIC: &[u8; 20] = b"tailwater-decisions\n";
/// Version that is written and read.
pub(super) const VERSION: u64 = 6;
/// Maximum length of a header text, in bytes. Longer ones are truncated.
pub(super) const MOST_TEXT: usize = 1 << 20;

/// Number of flows in a queue beyond which only the largest are listed.
pub const MOST_LISTED: usize = 1024;
/// Number of flows listed in that case.
pub const MOST_LARGEST: usize = 64;
/// Maximum number of splits per decision. More are omitted.
const MOST_SPLITS: usize = 16;

/// Marks a decision of the server mapper, in place of a dispatcher's number.
pub(super) const SERVER: u64 = MOST_DISPATCHERS;
/// Maximum number of dispatchers in a file.
pub(super) const MOST_DISPATCHERS: u64 = 1 << 10;

/// Numbers of a decision before its auxiliary cores.
pub(super) const FIXED: usize = 18;
/// Numbers per auxiliary core, split, and listed flow of a queue that is listed completely or partially.
pub(super) const A_HELPER: usize = 4;
pub(super) const A_SPLIT: usize = 3;
pub(super) const A_FLOW: usize = 2;
pub(super) const A_LARGE_FLOW: usize = 3;

/// Numbers of the longest decision, including the leading count.
pub(super) const MOST_WORDS: usize =
    1 + FIXED + MAX_AUXILIARY_CORES * A_HELPER + MOST_SPLITS * A_SPLIT + MOST_LISTED * A_FLOW;

const _: () = assert!(MOST_LARGEST * A_LARGE_FLOW <= MOST_LISTED * A_FLOW);

pub(super) const BOOST: u64 = 1;
pub(super) const WHALE: u64 = 2;
pub(super) const OUT_OF_CORES: u64 = 4;
pub(super) const RECRUITED: u64 = 1;
pub(super) const TAKEN: u64 = 2;
pub(super) const DEDICATED: u64 = 4;

/// Metadata before the first decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Name of the chain.
    pub chain: String,
    /// Name of the policy.
    pub policy: String,
    /// Latency objective.
    pub slo: Nanos,
    /// Epoch for that objective: half of what the network leaves of it.
    pub epoch: Nanos,
    /// Auxiliary cores per dispatcher, including the dedicated cores that can help it.
    pub auxiliary: usize,
    /// Those of them that are dedicated cores, the last ones.
    pub dedicated: usize,
    /// Creation time of the file, since 1970.
    pub started: Nanos,
    /// [Capacity profile](tailwater_policy::capacity::CapacityProfile) used by the policy, as text. Empty if there is
    /// none.
    pub profile: String,
    /// CPUs of the dedicated cores, by dispatcher. Empty if unknown.
    pub dedicated_cpus: Vec<u32>,
    /// CPUs of the auxiliary cores, by their number. Empty if unknown.
    pub auxiliary_cpus: Vec<u32>,
}

impl Header {
    /// Sets [`started`](Header::started) to the current time.
    pub fn now(self) -> Header {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started = Nanos(since.unwrap_or_default().as_nanos() as u64);
        Header { started, ..self }
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let cores = [self.auxiliary, self.dedicated].map(|cores| cores as u64);
        for number in [VERSION, self.slo.0, self.epoch.0, cores[0], cores[1], self.started.0] {
            put(&mut bytes, number);
        }
        for text in [&self.chain, &self.policy, &self.profile] {
            let mut ends = (0..=text.len().min(MOST_TEXT)).rev();
            let end = ends.find(|at| text.is_char_boundary(*at));
            let text = &text[..end.unwrap_or(0)];
            put(&mut bytes, text.len() as u64);
            bytes.extend_from_slice(text.as_bytes());
        }
        let most = [MOST_DISPATCHERS as usize, MAX_AUXILIARY_CORES];
        for (cpus, most) in [&self.dedicated_cpus, &self.auxiliary_cpus].into_iter().zip(most) {
            let cpus = &cpus[..cpus.len().min(most)];
            put(&mut bytes, cpus.len() as u64);
            cpus.iter().for_each(|&cpu| put(&mut bytes, cpu.into()));
        }
        bytes
    }
}

/// Flowlets that a mapper [placed](tailwater_policy::core::CoreMapper::place) since its last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flowlets {
    /// Total number.
    pub placed: u64,
    /// Number placed on auxiliary cores.
    pub away: u64,
    /// Those of them placed on dedicated cores that helped.
    pub dedicated: u64,
}

/// Appends a number in LEB128.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends the end marker.
pub(super) fn put_end(bytes: &mut Vec<u8>, lost: u64) {
    put(bytes, 0);
    put(bytes, lost);
}

/// Number of decisions in a chunk.
pub(super) fn count_records(mut words: &[u64]) -> u64 {
    let mut records = 0;
    while let Some((length, rest)) = words.split_first() {
        words = rest.get(*length as usize..).unwrap_or_default();
        records += 1;
    }
    records
}

/// Encodes a dispatcher's decisions as numbers, without allocating.
#[derive(Debug)]
pub(super) struct Encoder {
    dispatcher: u32,
    /// Number of previous decisions.
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

    /// Numbers of a decision, starting with the count of those that follow.
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
            u64::from(view.parked.flows),
            u64::from(view.parked.packets),
            flowlets.placed,
            flowlets.away,
            flowlets.dedicated,
            listed as u64,
            splits.len() as u64,
        ]);
        self.sequence += 1;
        for helper in view.auxiliaries {
            let flag = |set, flag| if set { flag } else { 0 };
            let quiet = view.now.saturating_sub(helper.last_done).0;
            words.extend_from_slice(&[
                flag(helper.active, RECRUITED) | flag(helper.taken, TAKEN) | flag(helper.dedicated, DEDICATED),
                u64::from(helper.load.flows),
                u64::from(helper.load.packets),
                quiet,
            ]);
        }
        for split in splits {
            let numbers = [split.flow, split.last_functions, split.auxiliary];
            words.extend(numbers.map(|number| number as u64));
        }
        let flow = |flow: &QueuedFlow, place: &Destination| {
            let packets = u64::from(flow.packets) << 1 | u64::from(flow.bound);
            [packets, place.index() as u64]
        };
        if whole {
            let flows = view.queued.iter().zip(&plan.destinations);
            flows.for_each(|(queued, place)| words.extend_from_slice(&flow(queued, place)));
        } else {
            let positions = &mut self.positions;
            positions.clear();
            positions.extend(0..view.queued.len() as u32);
            // Ties are broken by position, so the list does not depend on the algorithm.
            positions.select_nth_unstable_by_key(MOST_LARGEST, |at| {
                let packets = view.queued[*at as usize].packets;
                (std::cmp::Reverse(packets), *at)
            });
            positions.truncate(MOST_LARGEST);
            positions.sort_unstable();
            for at in positions {
                let i = *at as usize;
                words.push(u64::from(*at));
                words.extend_from_slice(&flow(&view.queued[i], &plan.destinations[i]));
            }
        }
        words[0] = words.len() as u64 - 1;
        words
    }
}
