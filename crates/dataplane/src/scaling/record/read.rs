//! Bounded reader of decision records: whatever the file contains, a reader holds at most a header and one decision.

use super::format::{
    A_FLOW, A_HELPER, A_LARGE_FLOW, A_SPLIT, BOOST, DEDICATED, FIXED, Flowlets, Header, MAGIC, MOST_DISPATCHERS,
    MOST_TEXT, MOST_WORDS, OUT_OF_CORES, RECRUITED, SERVER, TAKEN, VERSION, WHALE,
};
use super::problem::{Problem, at_most, exactly, half};
use super::server::{self, MOST_SERVER_WORDS, ServerDecision};
use crate::scaling::MOST_BUFFERS;
use std::io::{self, BufRead};
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, Destination, Load, MAX_AUXILIARY_CORES, Notice, Split};

/// Maximum number of flows in a queue: the number of a dispatcher's buffers.
const MOST_FLOWS: u64 = MOST_BUFFERS as u64;

/// Numbers of the longest decision of either kind, without the leading count.
pub(super) const LONGEST: usize = if MOST_WORDS > MOST_SERVER_WORDS {
    MOST_WORDS - 1
} else {
    MOST_SERVER_WORDS - 1
};

/// Error in a file, with its position.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct ReadError {
    /// Number of bytes before the error: the length of a truncated file, or else the offset of the wrong item.
    pub offset: u64,
    /// Cause.
    pub problem: Problem,
}

/// Flow in the local queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedFlow {
    /// Position among all flows in the queue.
    pub position: u32,
    /// Number of packets.
    pub packets: u32,
    /// The flow had to stay.
    pub bound: bool,
    /// Destination in the plan.
    pub place: Destination,
}

/// Decision: the mapper's view, and its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Index of the dispatcher.
    pub dispatcher: u32,
    /// Number of its previous decisions, including omitted ones.
    pub sequence: u64,
    /// Time of the decision, on the run's clock.
    pub now: Nanos,
    /// Arrival of the oldest packet.
    pub oldest: Nanos,
    /// Duration of the decision.
    pub took: Nanos,
    /// Load of the local queue.
    pub queue: Load,
    /// Flows in the queue, in order. If they were too many, only the largest.
    pub listed: Vec<ListedFlow>,
    /// Auxiliary cores.
    pub helpers: Vec<AuxiliaryCore>,
    /// Flowlets placed since the previous decision.
    pub flowlets: Flowlets,
    /// Auxiliary cores to release, as a bit map.
    pub release: u64,
    /// Auxiliary cores to relieve, as a bit map.
    pub relieve: u64,
    /// Load of the packets parked until their flows leave such cores.
    pub held: Load,
    /// Flows to split.
    pub splits: Vec<Split>,
    /// Boost mode.
    pub boost: bool,
    /// Notice to the operator.
    pub notice: Option<Notice>,
}

impl Decision {
    /// Returns `true` if all flows of the queue are listed.
    pub fn is_whole(&self) -> bool {
        self.listed.len() == self.queue.flows as usize
    }

    /// Waiting time of the oldest packet in the local queue.
    pub fn wait(&self) -> Nanos {
        self.now.saturating_sub(self.oldest)
    }

    /// Packets of the largest flow in the local queue.
    pub fn largest(&self) -> u32 {
        let packets = self.listed.iter().map(|flow| flow.packets);
        packets.max().unwrap_or(0)
    }

    /// Load of the listed flows that were to move.
    pub fn moved(&self) -> Load {
        let moved = self.listed.iter().filter(|flow| flow.place != Destination::OWN_CORE);
        moved.fold(Load::default(), |all, flow| Load {
            flows: all.flows + 1,
            packets: all.packets.saturating_add(flow.packets),
        })
    }
}

/// Decision of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// Decision of a core mapper, about the queue of a core.
    Core(&'a Decision),
    /// Decision of the server mapper, about RSS buckets.
    Server(&'a ServerDecision),
}

/// Reads a file, one decision at a time.
#[derive(Debug)]
pub struct Reader<R> {
    bytes: R,
    offset: u64,
    header: Header,
    words: Vec<u64>,
    decision: Decision,
    server: ServerDecision,
    lost: Option<u64>,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// If the header is invalid, has another version, or cannot be read.
    pub fn new(bytes: R) -> Result<Reader<R>, ReadError> {
        let mut reader = Reader {
            bytes,
            offset: 0,
            header: Header::default(),
            words: Vec::new(),
            decision: Decision::default(),
            server: ServerDecision::default(),
            lost: None,
        };
        for expected in MAGIC {
            if reader.byte()? != Some(*expected) {
                return Err(error(0, Problem::NotARecord));
            }
        }
        let offset = reader.offset;
        let version = reader.number()?;
        if version != VERSION {
            return Err(error(offset, Problem::Version(version)));
        }
        reader.header.slo = Nanos(reader.number()?);
        reader.header.epoch = Nanos(reader.number()?);
        let offset = reader.offset;
        let helpers = reader.number()?;
        reader.header.auxiliary =
            at_most("helpers", helpers, MAX_AUXILIARY_CORES as u64).map_err(|p| error(offset, p))? as usize;
        let offset = reader.offset;
        let dedicated = reader.number()?;
        reader.header.dedicated =
            at_most("dedicated cores", dedicated, helpers).map_err(|p| error(offset, p))? as usize;
        reader.header.started = Nanos(reader.number()?);
        reader.header.chain = reader.text("chain")?;
        reader.header.policy = reader.text("policy")?;
        reader.header.profile = reader.text("profile")?;
        reader.header.dedicated_cpus = reader.cpus("dedicated cores", MOST_DISPATCHERS)?;
        reader.header.auxiliary_cpus = reader.cpus("auxiliary cores", MAX_AUXILIARY_CORES as u64)?;
        Ok(reader)
    }

    /// Reads at most `most` CPUs of cores.
    fn cpus(&mut self, what: &'static str, most: u64) -> Result<Vec<u32>, ReadError> {
        let offset = self.offset;
        let number = self.number()?;
        at_most(what, number, most).map_err(|problem| error(offset, problem))?;
        let mut cpus = Vec::new();
        for _ in 0..number {
            let offset = self.offset;
            let cpu = self.number()?;
            cpus.push(half("as CPU", cpu).map_err(|problem| error(offset, problem))?);
        }
        Ok(cpus)
    }

    /// Metadata of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of decisions omitted from the file, or `None` before its end.
    pub fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Next decision, or `None` at the end. Decisions of one mapper are in order, those of several mappers are
    /// interleaved. Must not be called after an error.
    ///
    /// # Errors
    /// If the decision is invalid, or cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        if self.lost.is_some() {
            return Ok(None);
        }
        let offset = self.offset;
        let length = self.number()?;
        if length == 0 {
            self.lost = Some(self.number()?);
            let offset = self.offset;
            return match self.byte()? {
                None => Ok(None),
                Some(_) => Err(error(offset, Problem::AfterEnd)),
            };
        }
        let at = |problem| error(offset, problem);
        at_most("numbers in a decision", length, LONGEST as u64).map_err(at)?;
        self.words.clear();
        for _ in 0..length {
            let number = self.number()?;
            self.words.push(number);
        }
        if self.words[0] == SERVER {
            server::decode(&self.words, &mut self.server).map_err(at)?;
            return Ok(Some(Entry::Server(&self.server)));
        }
        decode(&self.words, self.header.auxiliary, &mut self.decision).map_err(at)?;
        Ok(Some(Entry::Core(&self.decision)))
    }

    fn byte(&mut self) -> Result<Option<u8>, ReadError> {
        let bytes = loop {
            match self.bytes.fill_buf() {
                Ok(bytes) => break bytes,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(error(self.offset, Problem::Io(source))),
            }
        };
        let byte = bytes.first().copied();
        if byte.is_some() {
            self.bytes.consume(1);
            self.offset += 1;
        }
        Ok(byte)
    }

    fn next_byte(&mut self) -> Result<u8, ReadError> {
        let byte = self.byte()?;
        byte.ok_or_else(|| error(self.offset, Problem::Cut))
    }

    fn number(&mut self) -> Result<u64, ReadError> {
        let offset = self.offset;
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.next_byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || bits << shift >> shift != bits {
                return Err(error(offset, Problem::Long));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    fn text(&mut self, what: &'static str) -> Result<String, ReadError> {
        let offset = self.offset;
        let length = self.number()?;
        at_most("bytes of text", length, MOST_TEXT as u64).map_err(|p| error(offset, p))?;
        let mut bytes = Vec::new();
        for _ in 0..length {
            bytes.push(self.next_byte()?);
        }
        String::from_utf8(bytes).map_err(|_| error(offset, Problem::Text(what)))
    }
}

fn error(offset: u64, problem: Problem) -> ReadError {
    ReadError { offset, problem }
}

/// Decodes a decision from its numbers.
fn decode(words: &[u64], helpers: usize, decision: &mut Decision) -> Result<(), Problem> {
    let short = |what| Problem::Number {
        what,
        expected: format!("at least {FIXED}"),
        found: words.len() as u64,
    };
    let Some((fixed, rest)) = words.split_first_chunk::<FIXED>() else {
        return Err(short("numbers in a decision"));
    };
    let [
        dispatcher,
        sequence,
        now,
        wait,
        took,
        packets,
        flows,
        flags,
        beyond,
        release,
        relieve,
        held_flows,
        held_packets,
        placed,
        away,
        dedicated,
        listed,
        splits,
    ] = *fixed;
    decision.dispatcher = at_most("as a dispatcher", dispatcher, MOST_DISPATCHERS - 1)? as u32;
    decision.sequence = sequence;
    decision.now = Nanos(now);
    decision.oldest = Nanos(now - at_most("nanoseconds of waiting", wait, now)?);
    decision.took = Nanos(took);
    let flows = at_most("flows in a queue", flows, MOST_FLOWS)?;
    decision.queue = Load {
        flows: flows as u32,
        packets: half("packets in a queue", packets)?,
    };
    at_most("as flags", flags, BOOST | WHALE | OUT_OF_CORES)?;
    decision.boost = flags & BOOST != 0;
    let beyond = half("packets of a notice", beyond)?;
    decision.notice = match (flags & WHALE != 0, flags & OUT_OF_CORES != 0) {
        (true, _) => Some(Notice::WhaleBeyondSplit { packets: beyond }),
        (_, true) => Some(Notice::OutOfCores { packets: beyond }),
        _ => None,
    };
    decision.release = at_most("as auxiliary cores to release", release, (1 << helpers) - 1)?;
    decision.relieve = at_most("as auxiliary cores to relieve", relieve, (1 << helpers) - 1)?;
    decision.held = Load {
        flows: half("parked flows", held_flows)?,
        packets: half("parked packets", held_packets)?,
    };
    decision.flowlets = Flowlets {
        placed,
        away: at_most("flowlets on auxiliary cores", away, placed)?,
        dedicated: at_most("flowlets on dedicated cores", dedicated, away)?,
    };

    // Both are bounded by the number of words, so the sum cannot overflow.
    let most = MOST_WORDS as u64;
    let listed = at_most("listed flows", listed, flows.min(most))?;
    let splits = at_most("splits", splits, most)?;
    let whole = listed == flows;
    let a_flow = if whole { A_FLOW } else { A_LARGE_FLOW };
    let expected = helpers * A_HELPER + splits as usize * A_SPLIT + listed as usize * a_flow;
    exactly("numbers in a decision", words.len() as u64, (FIXED + expected) as u64)?;
    let (of_helpers, rest) = rest.split_at(helpers * A_HELPER);
    let (of_splits, of_flows) = rest.split_at(splits as usize * A_SPLIT);

    decision.helpers.clear();
    for helper in of_helpers.chunks_exact(A_HELPER) {
        let flags = at_most(
            "as flags of an auxiliary core",
            helper[0],
            RECRUITED | TAKEN | DEDICATED,
        )?;
        let idle = at_most("nanoseconds since an auxiliary core became idle", helper[3], now)?;
        decision.helpers.push(AuxiliaryCore {
            active: flags & RECRUITED != 0,
            taken: flags & TAKEN != 0,
            dedicated: flags & DEDICATED != 0,
            load: Load {
                flows: half("flows of an auxiliary core", helper[1])?,
                packets: half("packets of an auxiliary core", helper[2])?,
            },
            last_done: Nanos(now - idle),
        });
    }
    let position = |found| at_most("as a flow's position", found, flows.saturating_sub(1));
    decision.splits.clear();
    for split in of_splits.chunks_exact(A_SPLIT) {
        decision.splits.push(Split {
            flow: position(split[0])? as usize,
            last_functions: half("functions", split[1])? as usize,
            auxiliary: at_most("as an auxiliary core", split[2], helpers.saturating_sub(1) as u64)? as usize,
        });
    }
    decision.listed.clear();
    let (mut all, mut after) = (0_u64, 0);
    for (i, flow) in of_flows.chunks_exact(a_flow).enumerate() {
        let [at, packets, place] = match *flow {
            [packets, place] => [i as u64, packets, place],
            [at, packets, place] => [at, packets, place],
            _ => continue,
        };
        let at = position(at)?;
        if at < after {
            return Err(Problem::Number {
                what: "as the next flow's position",
                expected: format!("at least {after}"),
                found: at,
            });
        }
        after = at + 1;
        let place = at_most("as a destination", place, helpers as u64)? as usize;
        let listed = ListedFlow {
            position: at as u32,
            packets: half("packets of a flow", packets >> 1)?,
            bound: packets & 1 != 0,
            place: place
                .checked_sub(1)
                .map_or(Destination::OWN_CORE, Destination::auxiliary),
        };
        all += u64::from(listed.packets);
        decision.listed.push(listed);
    }
    // Flows that are not listed have at least one packet.
    let queued = u64::from(decision.queue.packets);
    if whole {
        exactly("packets in all flows", all, queued)?;
    } else {
        at_most("packets in all flows", all + flows - listed, queued)?;
    }
    Ok(())
}
