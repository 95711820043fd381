//! The chain spec itself: what a chain matches, its functions, its objectives, its flows.

use super::document::{Document, Metadata};
use super::error::{SpecError, quoted};
use super::files::read_text;
use super::functions::{self, Context, ExternalConfig, FunctionConfig, Target};
use super::located::Located;
use super::port_name::PortName;
use super::ports::{PortsSpec, ports_of};
use super::source::{Source, Text};
use super::state::{StateSpec, state};
use super::values::{Fate, Throughput, duration, prefix, protocol, throughput};
use crate::branches::{Branch, MAX_WAYS, Place, SEND, Ways, around};
use crate::flow_table::{IdleTimeouts, WhenFull};
use crate::ipsec::{Identity, IpsecRules};
use crate::library::{Apart, Runs};
use ipnet::IpNet;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// The `kind` of chain specs.
const KIND: &str = "Chain";
/// What a chain spec is, in errors.
const WHAT: &str = "a chain spec";
/// What its `spec` is, in errors.
const PARTS: &str = "a map with functions and slo";
/// The fields of its `spec`.
const FIELDS: &[&str] = &[
    "match",
    "functions",
    "slo",
    "flows",
    "packets",
    "ports",
    "state",
];
/// What its `functions` are, in errors.
const FUNCTIONS: &str = "a list of functions";
/// Most functions in a chain.
const MAX_FUNCTIONS: usize = 16;
/// Most entries in a list of `match`.
const MAX_MATCHES: usize = 1024;
const LATENCY: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);
const IDLE_TIMEOUT: RangeInclusive<Nanos> = Nanos::from_millis(1)..=Nanos::from_secs(86_400);
const CAPACITY: RangeInclusive<u64> = 512..=16_777_216;
const BATCH: RangeInclusive<u64> = 1..=256;

/// A chain of network functions with its objectives.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainSpec {
    /// The chain's name, an RFC 1123 label; equal to `metadata.name`.
    pub name: String,
    /// The object's metadata.
    pub metadata: Metadata,
    /// Which traffic the chain is for.
    pub match_: Match,
    /// The functions in the order in which packets pass them: 1 to 16, names all different. Those of a classifier's
    /// branches follow it, and what is behind it follows them.
    pub functions: Vec<FunctionSpec>,
    /// The branches of all classifiers; none in a chain that is a line.
    pub branches: Vec<Branch>,
    /// The objectives.
    pub slo: Slo,
    /// The flow table.
    pub flows: FlowsSpec,
    /// How packets are taken in.
    pub packets: PacketsSpec,
    /// Where packets come from and go to, if the spec says.
    pub ports: Option<PortsSpec>,
    /// Where flow state is kept that is to outlive this server, if it is.
    pub state: Option<StateSpec>,
    /// Where it was read.
    pub source: Source,
}

/// Which traffic a chain is for: a packet must match every list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Source prefixes; empty matches all.
    pub sources: Vec<IpNet>,
    /// Destination prefixes; empty matches all.
    pub destinations: Vec<IpNet>,
    /// IP protocol numbers; empty matches all.
    pub protocols: Vec<u8>,
    /// VLAN identifiers, 1 to 4094; empty matches all, and packets without a VLAN tag.
    pub vlans: Vec<u16>,
}

/// One function of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The function's name in reports, unique in its chain.
    pub name: String,
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// The files that its configuration was read from, besides the spec: rules, keys, a library.
    pub files: Vec<PathBuf>,
    /// The innermost branch that it is in, as a place in the chain's [list](ChainSpec::branches), if it is in one.
    pub branch: Option<usize>,
}

impl FunctionSpec {
    /// Reads one function of a spec that was read as a whole by another process, by its place in the
    /// [chain's list](ChainSpec::functions): what is wrong with others, or between them, is not seen, and none of their files
    /// is read, so that it is not known which branch it is in. A library is not tried out before it is loaded.
    ///
    /// # Errors
    /// There is no such function; the first thing that is wrong with it, with its place.
    pub fn read_at(path: &Path, place: usize) -> Result<FunctionSpec, SpecError> {
        let document = Document::read(path, WHAT)?;
        let (_, spec) = document.object(KIND, PARTS)?;
        let node = spec.fields(FIELDS)?.required("functions", FUNCTIONS)?;
        let mut items = Vec::new();
        with_branches(&node, &mut items)?;
        let item = items.get(place).ok_or_else(|| {
            node.error(format!(
                "expected functions[{place}], found {}",
                items.len()
            ))
        })?;
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let (_, function) = function(item, &Context::new(base_dir, Runs::Here))?;
        Ok(function)
    }
}

/// The items of a list of functions, each with those of its branches behind it, as in the chain's list.
fn with_branches<'a>(node: &Located<'a>, items: &mut Vec<Located<'a>>) -> Result<(), SpecError> {
    for item in node.list("functions", MAX_FUNCTIONS)? {
        let branches = functions::functions_of_branches(&item)?;
        if items.len() == MAX_FUNCTIONS {
            return Err(item.error(too_many()));
        }
        items.push(item);
        for branch in &branches {
            with_branches(branch, items)?;
        }
    }
    Ok(())
}

fn too_many() -> String {
    format!(
        "expected at most {MAX_FUNCTIONS} functions in a chain, those of branches included, found more"
    )
}

/// The service level objectives of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Latency from a packet's arrival to its departure, at the percentile: 1 us to 10 s.
    pub latency: Nanos,
    /// What of it the network before and behind this server takes: less than the latency.
    pub network: Nanos,
    /// The percentile of packets that must keep the latency: above 0, below 100.
    pub percentile: f64,
    /// The traffic the chain must carry, if promised.
    pub throughput: Option<Throughput>,
}

impl Slo {
    /// What the network leaves of the latency to this server.
    pub fn budget(&self) -> Nanos {
        self.latency.saturating_sub(self.network)
    }
}

/// The flow table of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowsSpec {
    /// Most flows at a time: 512 to 16,777,216.
    pub capacity: u32,
    /// How long a flow without packets is kept.
    pub idle_timeout: IdleTimeouts,
    /// What happens when a new flow finds no room.
    pub when_full: WhenFull,
    /// Whether flows are looked up even if no function of the chain needs them.
    pub always: bool,
}

/// How packets are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketsSpec {
    /// What happens to packets whose headers cannot be trusted.
    pub malformed: Fate,
    /// What happens to packets that are not IP.
    pub non_ip: Fate,
    /// Most packets processed at a time: 1 to 256.
    pub batch: u16,
}

impl Default for FlowsSpec {
    fn default() -> Self {
        FlowsSpec {
            capacity: 65_536,
            idle_timeout: IdleTimeouts {
                tcp: Nanos::from_secs(300),
                udp: Nanos::from_secs(60),
                other: Nanos::from_secs(30),
            },
            when_full: WhenFull::Evict,
            always: false,
        }
    }
}

impl Default for PacketsSpec {
    fn default() -> Self {
        PacketsSpec {
            malformed: Fate::Drop,
            non_ip: Fate::Pass,
            batch: 32,
        }
    }
}

impl ChainSpec {
    /// The external functions, in order, by name.
    pub fn externals(&self) -> impl Iterator<Item = (&str, &ExternalConfig)> {
        self.functions.iter().filter_map(|function| {
            let FunctionConfig::External(external) = &function.config else {
                return None;
            };
            Some((function.name.as_str(), external))
        })
    }

    /// The chain cut at its external functions: a chain for what is in front of the first one, and for what is
    /// behind each. A part may have no function.
    pub fn parts(&self) -> Vec<ChainSpec> {
        let is_external =
            |function: &FunctionSpec| matches!(function.config, FunctionConfig::External(_));
        let parts = self.functions.split(is_external);
        let part = |functions: &[FunctionSpec]| ChainSpec {
            functions: functions.to_vec(),
            branches: self.branches.clone(),
            name: self.name.clone(),
            metadata: self.metadata.clone(),
            match_: self.match_.clone(),
            ports: self.ports.clone(),
            state: self.state.clone(),
            source: self.source.clone(),
            ..*self
        };
        parts.map(part).collect()
    }

    /// The external function that uses this port, or the device or interface behind it.
    pub fn external_at(&self, port: &PortName) -> Option<&str> {
        user_of(&self.functions, port)
    }

    /// Reads a spec and the files it names, which are relative to its folder.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let name = path.display().to_string();
        let text = read_text(path, &name)?;
        // A pipe is read once.
        match path.is_file() {
            true => {
                let document = Document::parse(&text, &name, WHAT)?;
                chain(&document, Some(Text::File(path)), base_dir, Runs::Here)
            }
            false => ChainSpec::parse(&text, &name, base_dir),
        }
    }

    /// As [`read`](ChainSpec::read), for a chain whose functions run in processes of their own: no code of others is
    /// loaded here, and `apart` finds out about it.
    ///
    /// # Errors
    /// As there.
    pub fn read_apart(path: &Path, apart: &dyn Apart) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let document = Document::read(path, WHAT)?;
        chain(&document, None, base_dir, Runs::Apart(apart))
    }

    /// Parses the text of a spec. `name` is the file's name in errors; files that the spec
    /// names are relative to `base_dir`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &str, name: &str, base_dir: &Path) -> Result<Self, SpecError> {
        let document = Document::parse(text, name, WHAT)?;
        chain(
            &document,
            Some(Text::Given(text, name)),
            base_dir,
            Runs::Here,
        )
    }

    /// What is dangerous about it, though it is right.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self
            .functions
            .iter()
            .map(|function| match &function.config {
                FunctionConfig::Ipsec(ipsec) => &ipsec.warnings[..],
                _ => &[],
            });
        warnings.flatten().map(String::as_str)
    }
}

impl ChainSpec {
    /// The RSS hash that ports of the chain are to have: where a function tracks connections, one that is the
    /// same for both directions.
    pub fn rss(&self) -> RssHasher {
        let mut functions = self.functions.iter();
        match functions.any(|function| function.config.tracks_connections()) {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        }
    }
}

/// Reads a spec; with `text`, one that can be [read again](Source::read_again).
fn chain(
    document: &Document,
    text: Option<Text<'_>>,
    base_dir: &Path,
    runs: Runs<'_>,
) -> Result<ChainSpec, SpecError> {
    let (metadata, spec) = document.object(KIND, PARTS)?;
    let spec = spec.fields(FIELDS)?;
    let context = Context::new(base_dir, runs);
    let (functions, branches) = functions(&spec.required("functions", FUNCTIONS)?, &context)?;
    let ports = spec.optional("ports");
    let ports = ports.map(|node| ports_of(&node, &functions)).transpose()?;
    let kept = match spec.optional("state") {
        None => None,
        Some(node) if functions.iter().any(|f| f.config.tracks_connections()) => {
            let message =
                "expected no function that tracks connections: their state stays on this server";
            return Err(node.error(message));
        }
        Some(node) if !branches.is_empty() => {
            let message = "expected no classifier: a flow's state is kept outside for all functions of a chain, \
                           and not for those that its packets pass";
            return Err(node.error(message));
        }
        Some(node) => Some(state(&node, base_dir)?),
    };
    let mut chain = ChainSpec {
        name: metadata.name.clone(),
        metadata,
        match_: spec
            .optional("match")
            .map_or(Ok(Match::default()), |node| match_(&node))?,
        functions,
        branches,
        slo: slo(&spec.required("slo", "a map with latency")?)?,
        flows: spec
            .optional("flows")
            .map_or(Ok(FlowsSpec::default()), |node| flows(&node))?,
        packets: spec
            .optional("packets")
            .map_or(Ok(PacketsSpec::default()), |node| packets(&node))?,
        ports,
        state: kept,
        source: Source::default(),
    };
    if let Some(text) = text {
        chain.source = Source::new(&chain, text, base_dir);
    }
    Ok(chain)
}

fn match_(node: &Located<'_>) -> Result<Match, SpecError> {
    let fields = node.fields(&["sources", "destinations", "protocols", "vlans"])?;
    let prefixes = |name| match fields.optional(name) {
        Some(node) => each(&node, "IP prefixes", prefix),
        None => Ok(Vec::new()),
    };
    Ok(Match {
        sources: prefixes("sources")?,
        destinations: prefixes("destinations")?,
        protocols: match fields.optional("protocols") {
            Some(node) => each(&node, "protocols", protocol)?,
            None => Vec::new(),
        },
        vlans: match fields.optional("vlans") {
            Some(node) => each(&node, "VLAN identifiers", |item| {
                item.whole(1..=4094).map(|vlan| vlan as u16)
            })?,
            None => Vec::new(),
        },
    })
}

fn each<'a, T>(
    node: &Located<'a>,
    what: &str,
    parse: impl Fn(&Located<'a>) -> Result<T, SpecError>,
) -> Result<Vec<T>, SpecError> {
    node.list(what, MAX_MATCHES)?.iter().map(parse).collect()
}

/// Reads a function, and tells whether the spec gives it a name.
fn function(item: &Located<'_>, context: &Context<'_>) -> Result<(bool, FunctionSpec), SpecError> {
    let (name, config) = functions::parse(item, context)?;
    let named = name.is_some();
    let function = FunctionSpec {
        name: name.unwrap_or_else(|| config.default_name().to_string()),
        config,
        files: context.take_named(),
        branch: None,
    };
    Ok((named, function))
}

/// The functions of a chain, while they are read.
struct Reader<'c> {
    context: &'c Context<'c>,
    functions: Vec<FunctionSpec>,
    /// Where in the spec each function is.
    paths: Vec<String>,
    branches: Vec<Branch>,
    /// Of tunnels' ends, with the places of their functions.
    keys: HashMap<Vec<u8>, (usize, Identity)>,
}

/// Reads the functions of a chain, with its branches.
fn functions(
    node: &Located<'_>,
    context: &Context<'_>,
) -> Result<(Vec<FunctionSpec>, Vec<Branch>), SpecError> {
    let mut reader = Reader {
        context,
        functions: Vec::new(),
        paths: Vec::new(),
        branches: Vec::new(),
        keys: HashMap::new(),
    };
    reader.list(node, None)?;
    let (functions, branches) = (reader.functions, reader.branches);
    if Ways::new(&branches, &places(&functions)).is_none() {
        let message = format!(
            "expected at most {MAX_WAYS} ways through the branches of a chain, found more: each classifier multiplies \
             them"
        );
        return Err(node.error(message));
    }
    Ok((functions, branches))
}

/// The functions' places.
pub(crate) fn places(functions: &[FunctionSpec]) -> Vec<Place<'_>> {
    let places = functions.iter();
    places
        .map(|function| (function.name.as_str(), function.branch))
        .collect()
}

impl Reader<'_> {
    /// Reads a list of functions, of a branch or of none. Whether packets come out at its end.
    fn list(&mut self, node: &Located<'_>, branch: Option<usize>) -> Result<bool, SpecError> {
        let mut reached = true;
        for item in node.list("functions", MAX_FUNCTIONS)? {
            if !reached {
                let message = "expected no function where no packet comes: all of them leave the chain in front of it";
                return Err(item.error(message));
            }
            reached = self.function(&item, branch)?;
        }
        Ok(reached)
    }

    /// Reads a function, and those of its branches. Whether packets come out behind it.
    fn function(&mut self, item: &Located<'_>, branch: Option<usize>) -> Result<bool, SpecError> {
        let (named, function) = function(item, self.context)?;
        let FunctionSpec {
            name,
            config,
            files,
            ..
        } = function;
        let (functions, paths) = (&self.functions, &self.paths);
        if let Some(other) = functions.iter().position(|function| function.name == name) {
            let hint = if named {
                ""
            } else {
                "; give one of them a name"
            };
            let message = format!(
                "expected a different name for each function, found \"{name}\" as in \
                 {}{hint}",
                paths[other]
            );
            return Err(item.error(message));
        }
        let translates = |config: &FunctionConfig| matches!(config, FunctionConfig::Nat(_));
        let nat = functions
            .iter()
            .position(|function| translates(&function.config));
        if let Some(other) = nat.filter(|_| translates(&config)) {
            // Both directions run the functions in the same order, so that of two translations
            // the return path would undo the wrong one first.
            let message = format!(
                "expected at most one nat in a chain, found {} too",
                paths[other]
            );
            return Err(item.error(message));
        }
        let tracks = |config: &FunctionConfig| config.tracks_connections();
        let tracking = functions
            .iter()
            .position(|function| tracks(&function.config));
        let both = (nat, tracking, translates(&config), tracks(&config));
        if let (_, Some(other), true, _) | (Some(other), _, _, true) = both {
            // Behind a translation both directions of a connection have different addresses.
            let message = format!(
                "expected no nat beside a firewall or ids, found {} too: run them as two chains, \
                 that one on the inner side",
                paths[other]
            );
            return Err(item.error(message));
        }
        let written = config.writes();
        let other = functions.iter().enumerate().find_map(|(other, function)| {
            let writes = function.config.writes();
            let same = |(_, file): &&(_, &PathBuf)| writes.iter().any(|(_, other)| other == file);
            Some((written.iter().find(same)?.1, other))
        });
        if let Some((file, other)) = other {
            let message = format!(
                "expected a file of its own for each export, found {} as in {}",
                quoted(&file.display().to_string()),
                paths[other]
            );
            return Err(item.error(message));
        }
        if let FunctionConfig::External(external) = &config {
            let mut names = external.ports();
            let taken = names.find_map(|name| Some((name, user_of(functions, name)?)));
            if let Some((name, user)) = taken {
                return Err(item.error(self::taken(name, user)));
            }
        }
        let tunnels = match &config {
            FunctionConfig::Ipsec(ipsec) => Some(&ipsec.rules),
            _ => None,
        };
        for end in tunnels.into_iter().flat_map(IpsecRules::ends) {
            let key = end.association.keying.secret().to_vec();
            let place = functions.len();
            if let Some((other, far)) = self.keys.insert(key, (place, end.identity()))
                && !end.is_far_end_of(far)
            {
                let message = format!(
                    "expected a key of its own for each association, found that of {} in {}, too",
                    end.association.name, paths[other]
                );
                return Err(item.error(message));
            }
        }
        if functions.len() == MAX_FUNCTIONS {
            return Err(item.error(too_many()));
        }
        if let Some(message) = self.out_of_place(&config, branch) {
            return Err(item.error(message));
        }
        let classifier = match &config {
            FunctionConfig::Classifier(classifier) => Some(classifier.clone()),
            _ => None,
        };
        self.functions.push(FunctionSpec {
            name: name.clone(),
            config,
            files,
            branch,
        });
        let path = item.path();
        self.paths
            .push(path.strip_prefix("spec.").unwrap_or(&path).to_owned());
        let Some(classifier) = classifier else {
            return Ok(true);
        };
        let first = self.branches.len();
        let out = classifier.sends().then(|| (SEND.to_owned(), true));
        let branches = classifier.branches.iter();
        let branches = branches.map(|branch| (branch.name.clone(), branch.ends));
        self.branches
            .extend(branches.chain(out).map(|(branch_name, ends)| Branch {
                name: branch_name,
                classifier: name.clone(),
                within: branch,
                ends,
            }));
        let mut reached = classifier.ways_out().any(|target| target == Target::Next);
        for (place, node) in functions::functions_of_branches(item)?.iter().enumerate() {
            let goes_on = self.list(node, Some(first + place))?;
            reached |= goes_on && !self.branches[first + place].ends;
        }
        Ok(reached)
    }

    /// Why a function cannot be where it is among branches.
    fn out_of_place(&self, config: &FunctionConfig, branch: Option<usize>) -> Option<&'static str> {
        let external = matches!(config, FunctionConfig::External(_));
        let tracks = config.tracks_connections();
        if external && branch.is_some() {
            return Some(
                "expected no external function in a branch: what comes back from it is a chain of its own, which \
                 begins with all packets",
            );
        }
        if external && self.branches.iter().any(|branch| branch.ends) {
            return Some(
                "expected no external function behind branches that leave the chain: all packets pass it",
            );
        }
        if config.decides_lifetimes()
            && (branch.is_some() || self.branches.iter().any(|branch| branch.ends))
        {
            return Some(
                "expected no firewall in a branch, or behind branches that leave the chain: it decides for the whole chain \
                 how long flows are kept, and would let go those that never come to it; put it in front of the classifier",
            );
        }
        let directed = |branch: usize| {
            let name = &self.branches[branch].classifier;
            let classifier = self
                .functions
                .iter()
                .find(|function| function.name == *name);
            matches!(classifier.map(|function| &function.config), Some(FunctionConfig::Classifier(classifier)) if !classifier.both)
        };
        let mut out = (0..self.branches.len()).filter(|&at| self.branches[at].ends);
        if tracks && (around(&self.branches, branch).any(directed) || out.any(directed)) {
            return Some(
                "expected `directions: both` of the classifier in front: this function needs both directions of each \
                 connection that it sees",
            );
        }
        None
    }
}

/// The function that uses this port, or the device or interface behind it.
pub(super) fn user_of<'f>(functions: &'f [FunctionSpec], port: &PortName) -> Option<&'f str> {
    let uses = |function: &&FunctionSpec| match &function.config {
        FunctionConfig::External(external) => external.ports().any(|other| other.conflicts(port)),
        _ => false,
    };
    let user = functions.iter().find(uses);
    user.map(|function| function.name.as_str())
}

pub(super) fn taken(port: &PortName, user: &str) -> String {
    format!(
        "expected a device and interface of its own for each port, found \"{port}\", which function \
         {user} uses; number devices of one driver differently"
    )
}

fn slo(node: &Located<'_>) -> Result<Slo, SpecError> {
    let fields = node.fields(&["latency", "network", "percentile", "throughput"])?;
    let latency = fields.required("latency", "a duration such as 200us")?;
    let latency = duration(&latency, LATENCY)?;
    Ok(Slo {
        latency,
        network: match fields.optional("network") {
            None => Nanos::ZERO,
            Some(node) => duration(&node, Nanos::ZERO..=Nanos(latency.0 - 1))?,
        },
        percentile: match fields.optional("percentile") {
            None => 99.0,
            Some(node) => percentile(&node)?,
        },
        throughput: fields
            .optional("throughput")
            .map(|node| throughput(&node))
            .transpose()?,
    })
}

fn percentile(node: &Located<'_>) -> Result<f64, SpecError> {
    const WHAT: &str = "a number above 0 and below 100, such as 99.9";
    let percentile = node.number(WHAT)?;
    if percentile <= 0.0 || percentile >= 100.0 {
        return Err(node.expected(WHAT));
    }
    Ok(percentile)
}

fn flows(node: &Located<'_>) -> Result<FlowsSpec, SpecError> {
    let default = FlowsSpec::default();
    let fields = node.fields(&["capacity", "idleTimeout", "whenFull", "lookUp"])?;
    Ok(FlowsSpec {
        capacity: match fields.optional("capacity") {
            None => default.capacity,
            Some(node) => node.whole(CAPACITY)? as u32,
        },
        idle_timeout: match fields.optional("idleTimeout") {
            None => default.idle_timeout,
            Some(node) => idle_timeout(&node, default.idle_timeout)?,
        },
        when_full: match fields.optional("whenFull") {
            None => default.when_full,
            Some(node) => node.word(&[("evict", WhenFull::Evict), ("refuse", WhenFull::Refuse)])?,
        },
        always: match fields.optional("lookUp") {
            None => default.always,
            Some(node) => node.word(&[("as-needed", false), ("always", true)])?,
        },
    })
}

/// One duration for all flows, or one for each protocol.
fn idle_timeout(node: &Located<'_>, default: IdleTimeouts) -> Result<IdleTimeouts, SpecError> {
    if node.is_list() {
        return Err(node.expected("a duration such as 60s, or a map of tcp, udp, other"));
    }
    if !node.is_map() {
        let all = duration(node, IDLE_TIMEOUT)?;
        return Ok(IdleTimeouts {
            tcp: all,
            udp: all,
            other: all,
        });
    }
    let fields = node.fields(&["tcp", "udp", "other"])?;
    let timeout = |name, default| {
        let node = fields.optional(name);
        node.map_or(Ok(default), |node| duration(&node, IDLE_TIMEOUT))
    };
    Ok(IdleTimeouts {
        tcp: timeout("tcp", default.tcp)?,
        udp: timeout("udp", default.udp)?,
        other: timeout("other", default.other)?,
    })
}

fn packets(node: &Located<'_>) -> Result<PacketsSpec, SpecError> {
    let default = PacketsSpec::default();
    let fields = node.fields(&["malformed", "nonIp", "batch"])?;
    let fate = |name, default| {
        let node = fields.optional(name);
        node.map_or(Ok(default), |node| Fate::parse(&node))
    };
    Ok(PacketsSpec {
        malformed: fate("malformed", default.malformed)?,
        non_ip: fate("nonIp", default.non_ip)?,
        batch: match fields.optional("batch") {
            None => default.batch,
            Some(node) => node.whole(BATCH)? as u16,
        },
    })
}
