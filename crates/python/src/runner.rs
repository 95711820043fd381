//! Chain that runs packets one after another, and says what became of each.

use crate::call::{Failure, OWN_REASONS, PythonFunction};
use std::io;
use tailwater_api::chain::{MAX_FUNCTIONS, Match, OnFailure};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::{BufferPool, MAX_FRAME};
use tailwater_chain::chain::{Chain, Outcome, Reason};
use tailwater_chain::function::{MAX_DROP_REASONS, NetworkFunction};
use tailwater_dataplane::shared_port::rules::ChainRules;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::classifier::ClassifierConfig;
use tailwater_functions::forward::ForwardConfig;
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_net::parse::{Headers, Malformed, Network, parse};
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos};

/// Function written in Python, and its position in the chain.
pub struct Inserted {
    /// Its name in the chain.
    pub name: String,
    /// The callable.
    pub callable: pyo3::Py<pyo3::PyAny>,
    /// Reasons for which it may drop packets.
    pub reasons: Vec<String>,
    /// `true` in front of the function of this name, `false` behind it; `None`: at the chain's end.
    pub position: Option<(bool, String)>,
}

/// Decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It left the chain.
    Forwarded,
    /// The spec or a function decided to drop it.
    Dropped,
    /// It was lost for lack of resources.
    Lost,
    /// `spec.match` excludes it.
    NotMatched,
}

impl Verdict {
    /// Name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Forwarded => "forwarded",
            Verdict::Dropped => "dropped",
            Verdict::Lost => "lost",
            Verdict::NotMatched => "not-matched",
        }
    }
}

/// Packet that has passed the chain, or not.
pub struct Processed {
    /// Time since the first packet.
    pub time: Nanos,
    /// Length of the frame as it arrived.
    pub length: usize,
    /// Flow as it arrived; `None` for a packet that is malformed or no IP.
    pub key: Option<FlowKey>,
    /// Decision.
    pub verdict: Verdict,
    /// Index among the [reasons](Runner::reasons), of a packet that was dropped or lost.
    pub reason: Option<usize>,
    /// Indices of the other reasons under which the packet was counted.
    pub events: Vec<usize>,
    /// Frame as it left.
    pub frame: Option<Vec<u8>>,
    /// The frame left otherwise than it came.
    pub is_changed: bool,
}

/// Chain with all that its packets need.
pub struct Runner {
    builder: ChainBuilder,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
    /// `None` if the chain takes all packets.
    rules: Option<ChainRules>,
    reasons: Vec<Reason>,
    counts: Vec<u64>,
    /// Time of the first packet, as it was given.
    origin: Option<u64>,
    now: Nanos,
    /// First exception of a function written in Python since it was taken.
    pub failure: Failure,
}

impl Runner {
    /// Builds a chain with functions written in Python.
    ///
    /// # Errors
    /// The chain cannot run in one process and without ports, a function's position does not exist, or the chain cannot
    /// be built.
    pub fn new(mut spec: ChainSpec, inserted: Vec<Inserted>, seed: u64) -> Result<Runner, String> {
        if let Some((name, _)) = spec.externals().next() {
            return Err(format!(
                "function {name}: external functions are programs of their own, which a chain in Python cannot run"
            ));
        }
        if spec.state.is_some() {
            return Err("spec.state: a chain in Python keeps its flow state in memory; leave it out".to_owned());
        }
        let failure = Failure::default();
        let mut others: Vec<(String, Box<dyn NetworkFunction>)> = Vec::new();
        for function in inserted {
            insert(&mut spec, &function)?;
            let python = PythonFunction::new(function.callable, &function.reasons, failure.clone());
            others.push((function.name, Box::new(python)));
        }
        let of_memory = |error: io::Error| format!("no memory for packets: {error}");
        let rss = spec.rss();
        // The builder's are prototypes.
        let prototypes: Vec<(String, Box<dyn NetworkFunction>)> = others
            .iter()
            .map(|(name, function)| -> (String, Box<dyn NetworkFunction>) {
                (name.clone(), Box::new(Prototype(function.drop_reasons())))
            })
            .collect();
        let builder = ChainBuilder::with_others(&spec, &rss, seed, prototypes);
        let mut builder = builder.map_err(|error| error.to_string())?;
        let chain = builder.instance_of(others, |_| true);
        let pool = BufferPool::new(2, MAX_FRAME).map_err(of_memory)?;
        let batch = Batch::new(&pool, 1);
        let rules = (spec.match_ != Match::default()).then(|| ChainRules::new([(0, &spec.match_)]));
        Ok(Runner {
            reasons: chain.reasons(),
            counts: chain.reason_counts().collect(),
            builder,
            chain,
            pool,
            batch,
            rss,
            rules,
            origin: None,
            now: Nanos::ZERO,
            failure,
        })
    }

    /// Names of the functions, in the chain's order.
    pub fn function_names(&self) -> Vec<String> {
        self.chain.function_names().map(str::to_owned).collect()
    }

    /// Reasons under which packets are counted.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// Packets counted so far for each reason.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of flows in the flow table.
    pub fn flows(&self) -> usize {
        self.chain.flows()
    }

    /// Runs a packet of 1 to [`MAX_FRAME`] bytes. `at` is its time in nanoseconds; earlier times count as the latest so
    /// far. With `keep`, the frame that leaves is returned also if it has not changed.
    pub fn process(&mut self, at: u64, frame: &[u8], keep: bool) -> Processed {
        let origin = *self.origin.get_or_insert(at);
        self.now = self.now.max(Nanos(at.saturating_sub(origin)));
        let parsed: Result<Headers, Malformed> = parse(frame);
        let is_ip = |headers: &&Headers| headers.network != Network::NotIp;
        let mut processed = Processed {
            time: self.now,
            length: frame.len(),
            key: parsed.as_ref().ok().filter(is_ip).map(|headers| headers.key),
            verdict: Verdict::Forwarded,
            reason: None,
            events: Vec::new(),
            frame: None,
            is_changed: false,
        };
        let matches = self.rules.as_ref().is_none_or(|rules| rules.chain_of(frame).is_some());
        if !matches {
            processed.verdict = Verdict::NotMatched;
            return processed;
        }
        let hash = parsed.map_or(0, |headers| self.rss.hash_headers(&headers));
        self.chain.expire(self.now);
        // Flows that end are counted, too, but not for this packet.
        self.note(&mut Vec::new());
        self.batch.push(&mut self.pool, frame, self.now, hash);
        self.chain.process(&mut self.batch, self.now);
        let mut counted = Vec::new();
        self.note(&mut counted);
        let is_end = |reason: &usize| self.reasons[*reason].outcome != Outcome::Passed;
        if self.batch.is_empty() {
            processed.reason = counted.iter().copied().find(is_end);
            let outcome = processed.reason.map(|reason| self.reasons[reason].outcome);
            processed.verdict = match outcome {
                Some(Outcome::Lost) => Verdict::Lost,
                _ => Verdict::Dropped,
            };
        } else {
            let left = self.batch.frame(0);
            processed.is_changed = left != frame;
            processed.frame = (keep || processed.is_changed).then(|| left.to_vec());
        }
        counted.retain(|reason| processed.reason != Some(*reason));
        processed.events = counted;
        self.batch.release(&mut self.pool);
        processed
    }

    /// Updates the counts; adds the reasons whose counts have grown.
    fn note(&mut self, grown: &mut Vec<usize>) {
        let counts = self.chain.reason_counts().zip(&mut self.counts);
        for (reason, (now, before)) in counts.enumerate() {
            if now != *before {
                *before = now;
                grown.push(reason);
            }
        }
    }

    /// Ends all flows, and waits until the functions' files are written. Returns the final counts.
    ///
    /// # Errors
    /// A file is not complete.
    pub fn finish(self) -> (Vec<Reason>, Vec<u64>, Result<(), String>) {
        let Runner {
            builder,
            chain,
            reasons,
            mut counts,
            ..
        } = self;
        for (count, more) in counts.iter_mut().zip(chain.drain()) {
            *count += more;
        }
        let exported = builder.finish_exports(&[]);
        (reasons, counts, exported.map(|_| ()).map_err(|error| error.to_string()))
    }
}

/// Function in the builder's chain, which processes nothing.
struct Prototype(&'static [&'static str]);

impl NetworkFunction for Prototype {
    fn kind(&self) -> &'static str {
        "python"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        self.0
    }

    fn process(&mut self, _: &mut Batch, _: &mut tailwater_chain::function::FlowStates<'_>) {}
}

/// Puts a function that forwards into the spec, in whose place the one written in Python comes.
fn insert(spec: &mut ChainSpec, function: &Inserted) -> Result<(), String> {
    let name = &function.name;
    if !is_label(name) {
        return Err(format!(
            "function \"{name}\": expected a name of lower-case letters, digits and hyphens"
        ));
    }
    if spec.functions.iter().any(|other| other.name == *name) {
        return Err(format!("function {name}: the chain has one of this name"));
    }
    if spec.functions.len() == MAX_FUNCTIONS {
        return Err(format!(
            "function {name}: expected at most {MAX_FUNCTIONS} functions in a chain"
        ));
    }
    let most = MAX_DROP_REASONS - OWN_REASONS.len();
    if function.reasons.len() > most {
        let found = function.reasons.len();
        return Err(format!(
            "function {name}: expected at most {most} drop reasons, found {found}"
        ));
    }
    let mut wrong = function.reasons.iter().enumerate();
    let wrong = wrong.find(|(at, reason)| {
        let is_taken = OWN_REASONS.contains(&reason.as_str()) || function.reasons[..*at].contains(reason);
        !is_label(reason) || is_taken
    });
    if let Some((_, reason)) = wrong {
        return Err(format!(
            "function {name}: expected drop reasons of lower-case letters, digits and hyphens, each once and none of \
             {}, found \"{reason}\"",
            OWN_REASONS.join(", ")
        ));
    }
    let (at, branch) = match &function.position {
        None => (spec.functions.len(), None),
        Some((is_before, neighbour)) => {
            let found = spec.functions.iter().position(|other| other.name == *neighbour);
            let Some(found) = found else {
                let names: Vec<&str> = spec.functions.iter().map(|other| other.name.as_str()).collect();
                return Err(format!(
                    "function {name}: expected a position beside one of {}, found \"{neighbour}\"",
                    names.join(", ")
                ));
            };
            let beside = &spec.functions[found];
            if !is_before && beside.config.is::<ClassifierConfig>() {
                return Err(format!(
                    "function {name}: behind the classifier {neighbour} are its branches; give the function that it \
                     comes before"
                ));
            }
            (found + usize::from(!is_before), beside.branch)
        }
    };
    let forwards = ForwardConfig {
        source_mac: None,
        destination_mac: None,
    };
    let stand_in = FunctionSpec {
        name: name.clone(),
        config: forwards.into(),
        files: Vec::new(),
        branch,
        on_failure: OnFailure::default(),
    };
    spec.functions.insert(at, stand_in);
    Ok(())
}

/// Returns `true` for an RFC 1123 label, as names in specs are.
fn is_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    (1..=63).contains(&bytes.len()) && bytes.iter().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
}
