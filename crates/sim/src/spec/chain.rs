//! Chains of a rack spec: costs of their packets, objectives, traffic.

use super::costs;
use super::fields::{CHAIN, MOST_COPIES, MOST_SEED, SCALE, SLO, TRAFFIC};
use super::model::SimulationModel;
use crate::chain::{ChainError, ChainModel};
use crate::rack::{CoreSharing, Rack};
use std::path::{Path, PathBuf};
use tailwater_api::document::{Fields, Located, duration, label, nearest};
use tailwater_api::{SpecError, WhenOverloaded};
use tailwater_baselines::catalog::epoch;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, EpochFrontier, MAX_BYTES, ProfileError, RateFrontier, SplitPoint, SplitProfile,
};
use tailwater_policy::core::Load;
use tailwater_policy::server::IngressConfig;
use tailwater_traffic::generate::{PRESETS, preset};

/// Sustainable load of a core with its own queue, as a share of its capacity. Used if nothing was measured: queues grow
/// without bound at 1.
const SUSTAINED: f64 = 0.85;

/// A chain on a rack.
#[derive(Clone, Debug)]
pub struct RackChain {
    /// Name of the chain, an RFC 1123 label.
    pub name: String,
    /// Its latency objective, for 99 % of the packets.
    pub slo: Nanos,
    /// Measured or stated profile. Parts that the spec does not contain are empty.
    profile: CapacityProfile,
    /// Cost model of its packets, from the profile and the other fields of the spec.
    model: ChainModel,
    /// Steering of prefixes to servers.
    pub ingress: IngressConfig,
    /// Source of its packets.
    pub traffic: TrafficSpec,
    /// Number of servers that it runs on at flow level, or `None` for all.
    pub servers: Option<usize>,
}

/// Source of packets.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficSpec {
    /// Preset or file.
    pub source: TrafficSource,
    /// Factor on a preset's number of flows.
    pub flows_scale: f64,
    /// Factor on the speed.
    pub rate_scale: f64,
    /// Seed of a preset's packets, or `None` to derive it from the run's seed and the chain's number.
    pub seed: Option<u64>,
}

/// Preset or capture file.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficSource {
    /// Name of a preset.
    Preset(String),
    /// Path of a capture file.
    File(PathBuf),
}

impl RackChain {
    /// Chain with a measured profile. `slo` may differ from the objective that the profile was measured for.
    ///
    /// # Errors
    /// The profile has no service costs, or costs that cannot be.
    pub fn from_profile(
        profile: CapacityProfile,
        slo: Nanos,
        ingress: IngressConfig,
        traffic: TrafficSpec,
    ) -> Result<Self, ChainError> {
        let model = ChainModel::from_profile(&profile)?;
        model.compile()?;
        Ok(RackChain {
            name: profile.chain.clone(),
            slo,
            profile,
            model,
            ingress,
            traffic,
            servers: None,
        })
    }

    /// Returns copy `number` of the chain, with a name and traffic of its own.
    pub(super) fn copy(&self, number: u64) -> RackChain {
        let mut copy = self.clone();
        copy.name = format!("{}-{number}", self.name);
        copy.profile.chain.clone_from(&copy.name);
        copy.model.name.clone_from(&copy.name);
        copy.traffic.seed = self.traffic.seed.map(|seed| seed + number - 1);
        copy
    }

    /// Returns the cost model of its packets.
    pub fn model(&self) -> &ChainModel {
        &self.model
    }

    /// Returns the profile for an objective and packets of `bytes` bytes on average. Measured values are scaled to the
    /// objective's epoch. The rest is computed from the chain's costs.
    pub fn profile(&self, slo: Nanos, bytes: f64) -> CapacityProfile {
        let mut profile = self.profile.clone();
        let length = epoch(slo).unwrap_or(Nanos(1));
        let packet = self.model.packet_nanos(bytes);
        let longer = length.0 as f64 / profile.epoch.0.max(1) as f64;
        // At least one packet, if there was at least one.
        let times = |packets: u32| ((f64::from(packets) * longer) as u32).max(packets.min(1));
        if profile.frontier.is_empty() {
            let packets = (length.0 as f64 / packet) as u32;
            profile.frontier = EpochFrontier::constant(packets.max(1));
        } else {
            profile.frontier = each(&profile.frontier, times);
        }
        let mut splits = SplitProfile::new();
        for point in profile.splits.points() {
            splits.insert(SplitPoint {
                first: times(point.first),
                last: times(point.last),
                ..*point
            });
        }
        if profile.splits.points().is_empty() {
            for split in &self.model.splits {
                let part = |share: f64| (length.0 as f64 / (packet * share)) as u32;
                splits.insert(SplitPoint {
                    last_functions: split.last_functions,
                    first: part(split.first),
                    last: part(split.last),
                });
            }
        }
        profile.splits = splits;
        if profile.rates.is_empty() {
            profile.rates = RateFrontier::constant(SUSTAINED * 1e9 / packet);
        }
        (profile.slo, profile.epoch) = (slo, length);
        profile
    }
}

/// Returns a frontier with other packets in each corner.
fn each(frontier: &EpochFrontier, packets: impl Fn(u32) -> u32) -> EpochFrontier {
    let mut other = EpochFrontier::constant(packets(frontier.any()));
    for &Load { flows, packets: p } in frontier.corners() {
        let packets = packets(p);
        other.insert(Load { flows, packets });
    }
    other
}

/// Number of equal chains, and of servers of each.
pub(super) struct Copies {
    pub count: u64,
    pub servers: Option<usize>,
}

/// Parses the number of chains that a node stands for.
pub(super) fn copies(node: &Located<'_>, model: SimulationModel) -> Result<Copies, SpecError> {
    let fields = node.fields_of(&CHAIN)?;
    let whole = |name: &str| {
        fields
            .optional(name)
            .map(|node| node.whole(1..=MOST_COPIES))
            .transpose()
    };
    let servers = whole("servers")?;
    if let Some(node) = fields.optional("servers").filter(|_| model == SimulationModel::Packets) {
        return Err(node.error("expected model: flows with this field: with packets, a chain has all servers"));
    }
    Ok(Copies {
        count: whole("count")?.unwrap_or(1),
        servers: servers.map(|servers| servers as usize),
    })
}

/// Parses the number of the server that a node's chains run on, counted from 1. Returns it counted from 0.
pub(super) fn home(node: &Located<'_>, rack: &Rack) -> Result<Option<u16>, SpecError> {
    let fields = node.fields_of(&CHAIN)?;
    let Some(node) = fields.optional("server") else {
        return Ok(None);
    };
    if rack.sharing == CoreSharing::FirstCome {
        return Err(node.error("expected coreSharing: own or broker with this field".to_owned()));
    }
    let server = node.whole(1..=rack.servers.len() as u64)?;
    Ok(Some(server as u16 - 1))
}

/// Parses a chain of a spec whose files are relative to `base_dir`, on this number of servers.
pub(super) fn chain(
    node: &Located<'_>,
    ingress: IngressConfig,
    servers: Option<usize>,
    base_dir: &Path,
) -> Result<RackChain, SpecError> {
    let fields = node.fields_of(&CHAIN)?;
    let name = label(&fields.required("name", "the chain's name")?)?;
    let node = fields.required("slo", "a duration such as 200us")?;
    let slo = duration(&node, SLO)?;
    let epoch = epoch(slo).map_err(|error| node.error(error.to_string()))?;
    let (node, profile) = profile(&fields, epoch, base_dir)?;
    let profile = CapacityProfile {
        chain: name.clone(),
        ..profile
    };
    let model = ChainModel::from_profile(&profile).map_err(|error| node.error(error.to_string()))?;
    let mut model = costs::beside(&fields, model)?;
    if let Some(node) = fields.optional("whenOverloaded") {
        model.when_overloaded = WhenOverloaded::parse(&node)?;
    }
    if let Some(node) = fields.optional("rate") {
        let what = "packets per second, above 0";
        let rate = node.number(what)?;
        let within = (rate > 0.0 && rate.is_finite()).then_some(rate);
        model.planned_rate = within.ok_or_else(|| node.expected(what))?;
    }
    // A check across fields: packets must take time.
    let compiled = model.compile();
    compiled.map_err(|error| node.error(error.to_string()))?;
    Ok(RackChain {
        name,
        slo,
        profile,
        model,
        ingress,
        traffic: traffic(&fields.required("traffic", "a map with source")?, base_dir)?,
        servers,
    })
}

/// Returns a chain's profile, and the field that holds it: either a profile file, or stated costs with published
/// frontiers.
fn profile<'a>(
    fields: &Fields<'a>,
    epoch: Nanos,
    base_dir: &Path,
) -> Result<(Located<'a>, CapacityProfile), SpecError> {
    let costs = fields.optional("costs");
    let read = |name: &str| {
        let node = fields.optional(name);
        node.map(|node| named_file(&node, base_dir)).transpose()
    };
    match (fields.optional("profile"), costs) {
        (Some(node), None) => {
            for name in ["frontier", "rates", "splits"] {
                if let Some(node) = fields.optional(name) {
                    return Err(node.error("expected costs instead of profile with this field"));
                }
            }
            let (bytes, file) = named_file(&node, base_dir)?;
            let profile = CapacityProfile::parse(&bytes, &file).map_err(of_profile)?;
            Ok((node, profile))
        }
        (None, Some(node)) => {
            let mut profile = CapacityProfile {
                epoch,
                costs: Some(costs::service(&node)?),
                ..CapacityProfile::default()
            };
            if let Some((bytes, file)) = read("frontier")? {
                let frontier = EpochFrontier::from_published(&bytes, &file);
                profile.frontier = frontier.map_err(of_profile)?;
            }
            if let Some((bytes, file)) = read("rates")? {
                let rates = RateFrontier::from_published(&bytes, &file);
                profile.rates = rates.map_err(of_profile)?;
            }
            Ok((node, profile))
        }
        (Some(_), Some(node)) => Err(node.error("expected either profile or costs, found both")),
        (None, None) => Err(fields.error("expected profile or costs, found neither")),
    }
}

/// Reads a file that a field names. Returns its content, and its name for errors.
fn named_file(node: &Located<'_>, base_dir: &Path) -> Result<(Vec<u8>, String), SpecError> {
    let path = base_dir.join(node.string("the name of a file")?);
    let name = path.display().to_string();
    let bytes = tailwater_files::read(&path, MAX_BYTES as u64);
    let bytes = bytes.map_err(|error| node.error(format!("cannot read {name}: {error}")))?;
    Ok((bytes, name))
}

/// Converts an error of a profile.
fn of_profile(error: ProfileError) -> SpecError {
    SpecError {
        file: error.file,
        line: error.line,
        column: error.column,
        path: error.field,
        message: error.message,
        suggestion: None,
        next: None,
    }
}

fn traffic(node: &Located<'_>, base_dir: &Path) -> Result<TrafficSpec, SpecError> {
    let fields = node.fields_of(&TRAFFIC)?;
    let scale = |name: &str| match fields.optional(name) {
        None => Ok(1.0),
        Some(node) => {
            let what = "a number from 0.001 to 1000000";
            let scale = node.number(what)?;
            let within = SCALE.contains(&scale).then_some(scale);
            within.ok_or_else(|| node.expected(what))
        }
    };
    let node = fields.required("source", "a preset or a capture file")?;
    let text = node.string("a preset or a capture file")?;
    let source = match preset(text) {
        Ok(_) => TrafficSource::Preset(text.to_owned()),
        Err(_) => {
            let path = base_dir.join(text);
            if text.is_empty() || !path.exists() {
                let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
                let what = format!("a capture file or one of {}", names.join(", "));
                let suggestion = nearest(text, names);
                return Err(node.expected(&what).suggest(suggestion));
            }
            TrafficSource::File(path)
        }
    };
    let spec = TrafficSpec {
        flows_scale: scale("flowsScale")?,
        rate_scale: scale("rateScale")?,
        seed: match fields.optional("seed") {
            None => None,
            Some(node) => Some(node.whole(0..=MOST_SEED)?),
        },
        source,
    };
    match (&spec.source, fields.optional("flowsScale")) {
        (TrafficSource::File(_), Some(node)) => Err(node.error("expected a preset with flowsScale, found a capture")),
        _ => Ok(spec),
    }
}
