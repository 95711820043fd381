//! Chains that are valid, and what they need.

use super::objects::{Objects, full_name};
use crate::ingress::{MAX_PARTS, Ranks, chain_identity, parts_of};
use crate::resources::{Chain, ChainInstance, Scale, SharedSlo, local_name, names_a_socket};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use tailwater_api::chain::{ChainDocument, ChainSettings, DESCRIPTION, Match, ambiguity};
use tailwater_api::document::Document;
use tailwater_api::values::Throughput;
use tailwater_net::Nanos;
use tailwater_placement::slo::Curves;

/// Longest number of an instance's name, with its hyphen.
const NUMBER: usize = 6;

/// Facts of a chain's manifest that the controller decides by.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainFacts {
    /// Latency objective on a server.
    pub objective: Nanos,
    /// Packets per second that it must carry, if it says so.
    pub throughput: Option<f64>,
    /// Dedicated cores of an instance.
    pub cores: u16,
    /// Traffic.
    pub match_: Match,
    /// Name of the servers' port, if it names one.
    pub port: Option<String>,
}

/// Reads chains and profiles: what the crate of the functions and the profiler know.
pub trait ChainReader: Send + Sync {
    /// Checks a manifest, as JSON or YAML.
    ///
    /// # Errors
    /// One line: what is wrong, and where.
    fn read(&self, manifest: &str) -> Result<ChainFacts, String>;

    /// Returns the curves of the chain with this manifest from a profile file.
    ///
    /// # Errors
    /// One line: the profile cannot be used.
    fn curves(&self, manifest: &str, file: &str) -> Result<Vec<Curves>, String>;
}

/// Reads everything but the functions' configurations, and no profiles.
#[derive(Clone, Copy, Debug, Default)]
pub struct DocumentReader;

impl ChainReader for DocumentReader {
    fn read(&self, manifest: &str) -> Result<ChainFacts, String> {
        let document = Document::parse(manifest, "chain", DESCRIPTION).map_err(|error| error.to_string())?;
        let chain = ChainDocument::new(&document, Path::new("/")).map_err(|error| error.to_string())?;
        facts(&chain.settings)
    }

    fn curves(&self, _manifest: &str, _file: &str) -> Result<Vec<Curves>, String> {
        Err("this controller does not read profiles".to_owned())
    }
}

/// Returns the facts of a chain's settings.
///
/// # Errors
/// One line: a rack cannot run such a chain.
pub fn facts(settings: &ChainSettings) -> Result<ChainFacts, String> {
    if settings.ports.is_some() {
        return Err("spec.ports: expected spec.port, since ports belong to the servers".to_owned());
    }
    if !settings.match_.macs.is_empty() {
        return Err("spec.match.macs: expected none on a rack, where each instance has its own".to_owned());
    }
    let parts = parts_of(&settings.match_);
    if parts > MAX_PARTS {
        return Err(format!(
            "spec.match: expected at most {MAX_PARTS} combinations of prefixes, protocols and VLANs on a rack, found \
             {parts}"
        ));
    }
    let throughput = match settings.slo.throughput {
        None => None,
        Some(Throughput::PacketsPerSecond(rate)) => Some(rate.max(1) as f64),
        Some(Throughput::BitsPerSecond(_)) => {
            return Err("spec.slo.throughput: expected packets per second, such as 2Mpps, on a rack".to_owned());
        }
    };
    Ok(ChainFacts {
        objective: settings.slo.budget(),
        throughput,
        cores: settings.cores.unwrap_or(1),
        match_: settings.match_.clone(),
        port: settings.port.clone(),
    })
}

/// Reason why a chain is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One word for programs: `Invalid`, `SloMissing`, `SloInvalid`, `Conflict` or `TooManyLengths`.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
}

/// A chain that has been read.
#[derive(Clone, Debug)]
pub struct ReadChain {
    /// Generation of its spec.
    pub generation: i64,
    /// Identity of the object: a chain that is deleted and created again is another one.
    uid: Option<String>,
    /// Facts, or the reason why it is not accepted.
    pub facts: Result<ChainFacts, Rejection>,
    /// Facts of the spec that its instances have, if it is not accepted and has some.
    running: Option<ChainFacts>,
    /// Number of instances.
    pub scale: Scale,
    /// Name of the pool of servers that it is limited to.
    pub pool: Option<String>,
    /// Curves of its profiles.
    pub curves: Vec<Arc<Curves>>,
    /// Reason why a profile is not used, if there is one.
    pub unusable: Option<String>,
    /// Objectives from an Slo.
    shared: SharedSlo,
    /// Versions of the profiles.
    profiles: Vec<(String, String)>,
}

/// All chains, by namespace and name. A chain is read again when it has changed.
pub struct Chains {
    reader: Arc<dyn ChainReader>,
    read: HashMap<String, ReadChain>,
    /// Rejections because of other chains.
    conflicts: BTreeMap<String, Rejection>,
}

impl Chains {
    /// No chains.
    pub fn new(reader: Arc<dyn ChainReader>) -> Chains {
        Chains {
            reader,
            read: HashMap::new(),
            conflicts: BTreeMap::new(),
        }
    }

    /// Reads the chains that have changed, and forgets those that are gone.
    pub fn read(&mut self, objects: &Objects) {
        let mut instances: HashMap<String, &ChainInstance> = HashMap::new();
        for instance in &objects.instances {
            let chain = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.spec.chain);
            let newest = instances.entry(chain).or_insert(instance);
            if newest.spec.chain_generation < instance.spec.chain_generation {
                *newest = instance;
            }
        }
        let mut profiles: HashMap<String, Vec<_>> = HashMap::new();
        for profile in &objects.profiles {
            let chain = format!("{}/{}", profile.namespace().unwrap_or_default(), profile.spec.chain);
            profiles.entry(chain).or_default().push(profile);
        }
        let mut has_changed = self.read.len() != objects.chains.len();
        let mut before = std::mem::take(&mut self.read);
        for chain in &objects.chains {
            let name = full_name(&**chain);
            let generation = chain.metadata.generation.unwrap_or_default();
            let of_chain = profiles.get(&name).map(Vec::as_slice).unwrap_or_default();
            let versions = of_chain
                .iter()
                .map(|profile| (profile.name_any(), profile.resource_version().unwrap_or_default()));
            let versions: Vec<_> = versions.collect();
            let known = before.remove(&name).filter(|read| read.uid == chain.metadata.uid);
            let is_same = |read: &ReadChain| {
                (read.generation, &read.profiles, &read.shared) == (generation, &versions, &chain.spec.shared)
            };
            let read = match known.filter(is_same) {
                Some(read) => read,
                None => {
                    has_changed = true;
                    let files: Vec<&str> = of_chain.iter().map(|profile| &*profile.spec.file).collect();
                    self.read_one(chain, &files, versions)
                }
            };
            self.read.insert(name, read);
        }
        // A chain with a wrong spec that goes on as it was still has its packets.
        has_changed |= self.read_running(&instances);
        if has_changed {
            self.conflicts = self.find_conflicts(objects, &instances);
            self.read_running(&instances);
        }
    }

    /// Reads the specs of instances whose chains are not accepted: those go on. Returns `true` if there is a change.
    fn read_running(&mut self, instances: &HashMap<String, &ChainInstance>) -> bool {
        let mut has_changed = false;
        for (name, read) in &mut self.read {
            let is_accepted = read.facts.is_ok() && !self.conflicts.contains_key(name);
            let Some(instance) = instances.get(name).filter(|_| !is_accepted) else {
                has_changed |= read.running.take().is_some();
                continue;
            };
            if read.running.is_none() {
                let manifest = manifest_of(&instance.spec.chain, &without_mac(&instance.spec.chain_spec));
                read.running = self.reader.read(&manifest).ok();
                has_changed |= read.running.is_some();
            }
        }
        has_changed
    }

    fn read_one(&self, chain: &Chain, files: &[&str], profiles: Vec<(String, String)>) -> ReadChain {
        let manifest = manifest_of(&chain.name_any(), &chain.spec.local);
        let facts = match &chain.spec.shared {
            &SharedSlo::Unusable(reason, ref message) => Err(Rejection {
                reason,
                message: message.clone(),
            }),
            SharedSlo::None | SharedSlo::Of(_) => check_name(chain)
                .and_then(|()| check_programs(&chain.spec.local))
                .and_then(|()| self.reader.read(&manifest))
                .map_err(|message| Rejection {
                    reason: "Invalid",
                    message,
                }),
        };
        let (mut curves, mut unusable) = (Vec::new(), None);
        if facts.is_ok() {
            for file in files {
                match self.reader.curves(&manifest, file) {
                    Ok(found) => curves.extend(found.into_iter().map(Arc::new)),
                    Err(reason) => unusable = Some(reason),
                }
            }
        }
        ReadChain {
            generation: chain.metadata.generation.unwrap_or_default(),
            uid: chain.metadata.uid.clone(),
            facts,
            running: None,
            scale: chain.spec.scale,
            pool: chain.spec.pool.clone(),
            curves,
            unusable,
            shared: chain.spec.shared.clone(),
            profiles,
        }
    }

    /// Chains whose matches are ambiguous with those of chains on the same port that run already, or are older.
    fn find_conflicts(
        &self,
        objects: &Objects,
        instances: &HashMap<String, &ChainInstance>,
    ) -> BTreeMap<String, Rejection> {
        let mut by_age: Vec<(String, &ChainFacts)> = Vec::new();
        let mut conflicts = BTreeMap::new();
        // Limits of the ingress.
        let (mut ranks, mut identities) = (Ranks::default(), HashMap::new());
        let mut chains: Vec<&Arc<Chain>> = objects.chains.iter().collect();
        // A chain that runs is not stopped by another one that is as old: the times are whole seconds.
        chains.sort_by_cached_key(|chain| {
            let runs = instances.contains_key(&full_name(&***chain));
            (!runs, chain.metadata.creation_timestamp.as_ref().map(|time| time.0))
        });
        for chain in chains {
            let name = full_name(&**chain);
            let Some(read) = self.read.get(&name) else { continue };
            let Some(facts) = read.facts.as_ref().ok().or(read.running.as_ref()) else {
                continue;
            };
            let other = by_age
                .iter()
                .find(|(_, other)| other.port == facts.port && ambiguity(&other.match_, &facts.match_).is_some());
            let same = identities.get(&chain_identity(&name));
            let fits = other.is_none() && same.is_none() && ranks.add(&facts.match_);
            match other {
                None if fits => {
                    identities.insert(chain_identity(&name), name.clone());
                    by_age.push((name, facts));
                }
                // Its own spec is wrong, which is told already.
                _ if read.facts.is_err() => {}
                None => {
                    let (reason, message) = match same {
                        Some(other) => (
                            "Conflict",
                            format!("its name has the same hash as that of chain {other}: expected another name"),
                        ),
                        None => (
                            "TooManyLengths",
                            "the ingress has no room for more combinations of prefix lengths: expected a spec.match \
                             with some that other chains have, too"
                                .to_owned(),
                        ),
                    };
                    conflicts.insert(name, Rejection { reason, message });
                }
                Some((other, _)) => {
                    let message = format!(
                        "its packets are also those of chain {other}: expected a more or less specific spec.match, or \
                         another spec.port"
                    );
                    let reason = "Conflict";
                    conflicts.insert(name, Rejection { reason, message });
                }
            }
        }
        conflicts
    }

    /// Returns a chain by namespace and name.
    pub fn get(&self, name: &str) -> Option<&ReadChain> {
        self.read.get(name)
    }

    /// Returns the facts of a chain, or the reason why it is not accepted; `None` if there is none of this name.
    pub fn facts(&self, name: &str) -> Option<Result<&ChainFacts, &Rejection>> {
        if let Some(conflict) = self.conflicts.get(name) {
            return Some(Err(conflict));
        }
        self.read.get(name).map(|read| read.facts.as_ref())
    }

    /// Returns the facts that a chain is run by: its own, or, if it is not accepted, those of the spec that its
    /// instances have. `None` if it is not to run.
    pub fn enforced(&self, name: &str) -> Option<(&ChainFacts, &ReadChain)> {
        let read = self.read.get(name)?;
        match self.facts(name)? {
            Ok(facts) => Some((facts, read)),
            Err(_) => read.running.as_ref().map(|facts| (facts, read)),
        }
    }
}

/// Reads the traffic of a spec, as JSON text. `None` if it is none.
pub(crate) fn read_match(text: &str) -> Option<Match> {
    let matching: Value = serde_json::from_str(text).ok()?;
    let spec = json!({"match": matching, "functions": [{"count": {}}], "slo": {"latency": "1s"}});
    let facts = DocumentReader.read(&manifest_of("match", spec.as_object()?));
    facts.ok().map(|facts| facts.match_)
}

/// Spec of an instance without its MAC address.
pub(crate) fn without_mac(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut spec = spec.clone();
    if let Some(Value::Object(fields)) = spec.get_mut("match") {
        fields.remove("macs");
    }
    spec
}

/// The socket of a program would be created with the rights of the agent.
fn check_programs(spec: &Map<String, Value>) -> Result<(), String> {
    match names_a_socket(spec) {
        false => Ok(()),
        true => Err(
            "spec.functions: a program has a socket: expected the name of a Function (function) on a rack".to_owned(),
        ),
    }
}

fn check_name(chain: &Chain) -> Result<(), String> {
    let name = chain.name_any();
    if name.contains("--") || name.contains('.') {
        return Err("metadata.name: expected a name without \"--\" and \".\"".to_owned());
    }
    let longest = format!("{name}{}", "0".repeat(NUMBER));
    local_name(&chain.namespace().unwrap_or_default(), &longest)
        .map(drop)
        .map_err(|error| format!("metadata.name: {error}"))
}

/// Manifest of a chain, as the file for a single machine has it.
pub(crate) fn manifest_of(name: &str, spec: &Map<String, Value>) -> String {
    let manifest = json!({
        "apiVersion": "tailwater.dev/v1alpha1",
        "kind": "Chain",
        "metadata": {"name": name},
        "spec": spec,
    });
    manifest.to_string()
}

#[cfg(test)]
mod tests;
