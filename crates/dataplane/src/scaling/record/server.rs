//! Encoding of a server mapper's decisions.

use super::format::SERVER;
use super::problem::{Problem, at_most, exactly};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerView};

/// Maximum number of dedicated cores: each has a bucket, at least at the start.
const MOST_CORES: usize = BUCKETS;

/// Numbers of a decision before its cores, per core, and per bucket.
const FIXED: usize = 7;
const A_CORE: usize = 6;
const A_BUCKET: usize = 4;

/// Numbers of the longest decision, including the leading count.
pub(super) const MOST_SERVER_WORDS: usize = 1 + FIXED + MOST_CORES * A_CORE + BUCKETS * A_BUCKET;

/// Decision of the server mapper: its view, and its plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerDecision {
    /// Number of previous decisions, including omitted ones.
    pub sequence: u64,
    /// Time of the decision, on the run's clock.
    pub now: Nanos,
    /// Duration of the decision.
    pub took: Nanos,
    /// RSS buckets, by number.
    pub buckets: Vec<BucketLoad>,
    /// Dedicated cores.
    pub cores: Vec<CoreLoad>,
    /// Share of packets late or lost since the previous decision.
    pub late: f64,
    /// Buckets to move, by number.
    pub moves: Vec<Move>,
}

impl ServerDecision {
    /// The mapper's view.
    pub fn view(&self) -> ServerView<'_> {
        ServerView {
            now: self.now,
            buckets: &self.buckets,
            cores: &self.cores,
            late: self.late,
        }
    }
}

/// Encodes a decision as numbers, starting with the count of those that follow. Does not allocate if there is room for
/// [`MOST_SERVER_WORDS`].
pub(super) fn encode(words: &mut Vec<u64>, view: &ServerView<'_>, moves: &[Move], [sequence, took]: [u64; 2]) {
    let buckets = &view.buckets[..view.buckets.len().min(BUCKETS)];
    let cores = &view.cores[..view.cores.len().min(MOST_CORES)];
    words.clear();
    words.extend_from_slice(&[
        0,
        SERVER,
        sequence,
        view.now.0,
        took,
        cores.len() as u64,
        buckets.len() as u64,
        view.late.to_bits(),
    ]);
    for core in cores {
        words.extend_from_slice(&[
            u64::from(core.dedicated),
            core.busy.to_bits(),
            core.lost,
            core.batch_p99.0,
            u64::from(core.longest_queue),
            core.worst_delay.0,
        ]);
    }
    let first = words.len();
    for bucket in buckets {
        let core = u64::from(bucket.core);
        words.extend_from_slice(&[core, core, bucket.rate.to_bits(), bucket.flows.to_bits()]);
    }
    for &Move { bucket, to } in moves {
        words[first + usize::from(bucket) * A_BUCKET + 1] = u64::from(to);
    }
    words[0] = words.len() as u64 - 1;
}

/// Decodes a decision from its numbers, the first of which is [`SERVER`].
pub(super) fn decode(words: &[u64], decision: &mut ServerDecision) -> Result<(), Problem> {
    let Some((fixed, rest)) = words.split_first_chunk::<FIXED>() else {
        return Err(Problem::Number {
            what: "numbers in a decision about RSS buckets",
            expected: format!("at least {FIXED}"),
            found: words.len() as u64,
        });
    };
    let [_, sequence, now, took, cores, buckets, late] = *fixed;
    (decision.sequence, decision.now) = (sequence, Nanos(now));
    decision.took = Nanos(took);
    decision.late = amount("as a share of late packets", late)?;
    let cores = at_most("dedicated cores", cores, MOST_CORES as u64)? as usize;
    let buckets = at_most("RSS buckets", buckets, BUCKETS as u64)? as usize;
    exactly(
        "numbers in a decision about RSS buckets",
        words.len() as u64,
        (FIXED + cores * A_CORE + buckets * A_BUCKET) as u64,
    )?;
    let (of_cores, of_buckets) = rest.split_at(cores * A_CORE);
    decision.cores.clear();
    for core in of_cores.as_chunks::<A_CORE>().0 {
        let [dedicated, busy, lost, batch_p99, longest_queue, worst_delay] = *core;
        decision.cores.push(CoreLoad {
            dedicated: at_most("as a flag of a core", dedicated, 1)? == 1,
            busy: amount("as the load of a core", busy)?,
            lost,
            batch_p99: Nanos(batch_p99),
            longest_queue: at_most("packets in a ring", longest_queue, u64::from(u32::MAX))? as u32,
            worst_delay: Nanos(worst_delay),
        });
    }
    let core = |found| at_most("as a core", found, cores.saturating_sub(1) as u64);
    decision.buckets.clear();
    decision.moves.clear();
    for (number, bucket) in of_buckets.as_chunks::<A_BUCKET>().0.iter().enumerate() {
        let [from, to, rate, flows] = *bucket;
        let (from, to) = (core(from)? as u16, core(to)? as u16);
        decision.buckets.push(BucketLoad {
            flows: amount("flows of a bucket", flows)?,
            rate: amount("packets per second of a bucket", rate)?,
            core: from,
        });
        if to != from {
            let bucket = number as u16;
            decision.moves.push(Move { bucket, to });
        }
    }
    Ok(())
}

/// Decodes a finite, non-negative number from its bits.
fn amount(what: &'static str, bits: u64) -> Result<f64, Problem> {
    let number = f64::from_bits(bits);
    match number.is_finite() && number >= 0.0 {
        true => Ok(number),
        false => Err(Problem::Number {
            what,
            expected: "a finite number of at least 0".to_owned(),
            found: bits,
        }),
    }
}
