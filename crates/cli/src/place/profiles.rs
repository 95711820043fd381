//! Chains whose curves come from files of profiles (`tailwater profile`), by chain, configuration, traffic and machine.

use crate::text::one_line;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tailwater_api::SpecError;
use tailwater_api::document::{Fields, Located, label, line, nearest, percentile};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_placement::cluster::{MAX_CORES, MAX_KINDS, ServerKind};
use tailwater_placement::curve::{CacheCurve, CurveError, LoadCurve};
use tailwater_placement::slo::{ChainProfile as Chain, Curves};
use tailwater_placement::spec::{CHAIN_PROFILE, HARDWARE, Profiles};
use tailwater_profile::Fnv;
use tailwater_profile::fingerprint;
use tailwater_profile::profiles::{ChainProfile, MAX_TEXT, Machine, Profiles as File, Rising};

/// Maximum files and directories in a set of SLOs, and maximum files of a directory.
const MAX_FILES: usize = 1000;
/// File name suffix of profiles in a directory.
const ENDING: &str = ".curves.yaml";

/// Hardware of servers of a machine.
#[derive(Clone, PartialEq)]
struct Hardware {
    machine: Machine,
    /// Fields in which a profile's machine may differ.
    may_differ: Vec<&'static str>,
}

/// A profile and its file.
struct Found {
    file: String,
    profile: ChainProfile,
}

/// Files of profiles, relative to a directory.
pub struct ProfileFiles {
    folder: PathBuf,
    machines: BTreeMap<String, Option<Hardware>>,
    found: Vec<Found>,
    /// Notices for the operator.
    pub notices: Vec<String>,
}

impl ProfileFiles {
    /// Returns the files that the set of SLOs `slos` may name.
    pub fn of(slos: &Path) -> Self {
        ProfileFiles {
            folder: slos.parent().unwrap_or(Path::new("")).to_owned(),
            machines: BTreeMap::new(),
            found: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Returns the names of a machine in models of contention: that of the cluster, and its hardware's description and
    /// label.
    pub fn names(&self, machine: &str) -> Vec<String> {
        let mut names = vec![machine.to_owned()];
        if let Some(Some(Hardware { machine, .. })) = self.machines.get(machine) {
            names.extend([machine.to_string(), machine.label()]);
        }
        names
    }

    fn read(&mut self, file: &Path) -> Result<(), SpecError> {
        let profiles = File::read(file)?;
        let file = one_line(&file.display().to_string());
        let found = profiles.list.into_iter().map(|profile| Found {
            file: file.clone(),
            profile,
        });
        self.found.extend(found);
        Ok(())
    }
}

/// Returns the files of profiles in a directory, by name.
///
/// # Errors
/// One line: the directory cannot be read, or has none or too many.
pub fn files_of_profiles(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let shown = folder.display();
    let unread = |error| format!("folder {shown} cannot be read: {error}");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        if entry.file_name().to_string_lossy().ends_with(ENDING) {
            files.push(entry.path());
        }
        if files.len() > MAX_FILES {
            return Err(format!(
                "expected at most {MAX_FILES} files *{ENDING} in folder {shown}, found more"
            ));
        }
    }
    if files.is_empty() {
        return Err(format!("expected files *{ENDING} in folder {shown}, found none"));
    }
    files.sort();
    Ok(files)
}

impl Profiles for ProfileFiles {
    fn servers(&mut self, kind: &ServerKind, node: Option<&Located<'_>>) -> Result<(), SpecError> {
        let machine = &kind.machine;
        let known = self.machines.entry(machine.clone()).or_default();
        let Some(node) = node else {
            return Ok(());
        };
        let found = hardware(node)?;
        has_cache(&found.machine, kind, node)?;
        match known {
            Some(known) if *known != found => Err(node.error(format!(
                "expected the same hardware for all servers of machine \"{machine}\", found other: name it as \
                 another machine"
            ))),
            _ => {
                *known = Some(found);
                Ok(())
            }
        }
    }

    fn files(&mut self, node: &Located<'_>) -> Result<(), SpecError> {
        for node in node.list("files or folders of profiles", MAX_FILES)? {
            let path = self.folder.join(node.string("a file or folder of profiles")?);
            match fs::metadata(&path) {
                Err(error) => {
                    let path = path.display();
                    return Err(node.error(format!("{path} cannot be read: {error}")));
                }
                Ok(found) if found.is_dir() => {
                    for file in files_of_profiles(&path).map_err(|error| node.error(error))? {
                        self.read(&file)?;
                    }
                }
                Ok(_) => self.read(&path)?,
            }
        }
        Ok(())
    }

    fn chain(&mut self, name: &str, node: &Located<'_>) -> Result<Chain, SpecError> {
        let fields = node.fields_of(&CHAIN_PROFILE)?;
        let cores = match fields.optional("cores") {
            None => 1,
            Some(node) => node.whole(1..=MAX_CORES.into())? as u16,
        };
        let asked = fields.optional("percentile");
        let asked = asked.map(|node| percentile(&node)).transpose()?;
        let left = self.fitting(name, node, &fields)?;
        let mut chain: Option<Chain> = None;
        let mut notices = Vec::new();
        for machine in self.wanted(&fields)? {
            let (found, notice) = self.on(&machine, name, node, &left)?;
            notices.extend(notice);
            let doubts = found.profile.doubts();
            if doubts.disturbed() > 0 {
                notices.push(format!(
                    "chain {name} on machine {machine}: the profile in {} was measured with CPU interference: {doubts}",
                    found.file
                ));
            }
            let key = &found.profile.key;
            let rising = Rising::of(&found.profile).map_err(|error| node.error(format!("{}: {error}", found.file)))?;
            if asked.is_some_and(|asked| asked != rising.percentile) || rising.percentile >= 100.0 {
                let asked = asked.map_or("below 100".to_owned(), |asked| asked.to_string());
                let (is, file) = (rising.percentile, &found.file);
                return Err(node.error(format!(
                    "expected latency over load of percentile {asked}, found percentile {is} in {file}: it is measured \
                     for the percentile of the chain's spec"
                )));
            }
            let curves =
                curves(machine, cores, &rising).map_err(|error| node.error(format!("{}: {error}", found.file)))?;
            let first = chain.get_or_insert_with(|| Chain {
                name: name.to_owned(),
                configuration: Some(key.configuration.clone()),
                traffic: Some(key.traffic.clone()),
                percentile: Some(rising.percentile),
                curves: Vec::new(),
            });
            // All machines must share one configuration, traffic and percentile, since the SLO holds for all instances.
            if first.configuration.as_ref() != Some(&key.configuration)
                || first.traffic.as_ref() != Some(&key.traffic)
                || first.percentile != Some(rising.percentile)
            {
                return Err(node.error(format!(
                    "expected profiles of one configuration, traffic and percentile on all machines, found another on \
                     \"{}\" in {}: choose with configuration, traffic, percentile or machines",
                    curves.machine, found.file
                )));
            }
            first.curves.push(curves);
        }
        self.notices.append(&mut notices);
        chain.ok_or_else(|| node.error("expected servers with hardware in the cluster, found none"))
    }
}

impl ProfileFiles {
    /// Returns the profiles of a chain with the requested configuration and traffic, on any machine.
    fn fitting(&self, name: &str, node: &Located<'_>, fields: &Fields<'_>) -> Result<Vec<&Found>, SpecError> {
        if self.found.is_empty() {
            return Err(node
                .error("expected spec.profiles, a list of files and folders, for a chain with a profile, found none"));
        }
        let chain = fields.optional("chain").map(|node| label(&node));
        let chain = chain.transpose()?.unwrap_or_else(|| name.to_owned());
        let of = |found: &&Found| found.profile.key.chain == chain;
        let mut left: Vec<&Found> = self.found.iter().filter(of).collect();
        if left.is_empty() {
            let names: BTreeSet<&str> = self.found.iter().map(|f| &*f.profile.key.chain).collect();
            let error = node.error(format!(
                "expected a profile of chain \"{chain}\", found profiles of {}",
                listed(names.iter().copied())
            ));
            return Err(error.suggest(nearest(&chain, names.iter().copied())));
        }
        let configuration = match (fields.optional("spec"), fields.optional("configuration")) {
            (Some(_), Some(node)) => {
                return Err(node.error("expected either spec or configuration, found both"));
            }
            (Some(node), None) => {
                let path = self.folder.join(node.string("a chain spec")?);
                let spec = ChainSpec::read(&path)?;
                let of = format!(" (of {})", one_line(&path.display().to_string()));
                Some((node, fingerprint(&spec), of))
            }
            (None, Some(node)) => {
                let text = line(&node, MAX_TEXT)?.to_owned();
                Some((node, text, String::new()))
            }
            (None, None) => None,
        };
        if let Some((node, configuration, of)) = configuration {
            let there = told(&left, |found| &found.profile.key.configuration);
            left.retain(|found| found.profile.key.configuration == configuration);
            if left.is_empty() {
                return Err(node.error(format!(
                    "expected a profile of chain \"{chain}\" with configuration \"{configuration}\"{of}, found \
                     {there}: it was measured with another configuration or version of Tailwater; \
                     `tailwater profile all` measures it again"
                )));
            }
        }
        if let Some(node) = fields.optional("traffic") {
            let traffic = line(&node, MAX_TEXT)?;
            let there = told(&left, |found| &found.profile.key.traffic);
            left.retain(|found| found.profile.key.traffic == traffic);
            if left.is_empty() {
                return Err(node.error(format!(
                    "expected a profile of chain \"{chain}\" with traffic \"{traffic}\", found {there}"
                )));
            }
        }
        Ok(left)
    }

    /// Returns the machines of a chain; by default all of the cluster.
    fn wanted(&self, fields: &Fields<'_>) -> Result<Vec<String>, SpecError> {
        let Some(node) = fields.optional("machines") else {
            return Ok(self.machines.keys().cloned().collect());
        };
        let mut names = Vec::new();
        for node in node.list("machines of the cluster", MAX_KINDS)? {
            let name = label(&node)?;
            if !self.machines.contains_key(&name) {
                let error = node.expected("a machine of the cluster");
                let all = self.machines.keys().map(String::as_str);
                return Err(error.suggest(nearest(&name, all)));
            }
            if names.contains(&name) {
                return Err(node.expected("each machine once"));
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Returns the profile for servers of a machine, and a notice if it is of another machine.
    fn on<'f>(
        &self,
        machine: &str,
        name: &str,
        node: &Located<'_>,
        profiles: &[&'f Found],
    ) -> Result<(&'f Found, Option<String>), SpecError> {
        let Some(Some(hardware)) = self.machines.get(machine) else {
            return Err(node.error(format!(
                "expected `hardware` for machine \"{machine}\" in the cluster, which selects profiles, found none; \
                 `machines` excludes it"
            )));
        };
        let here = &hardware.machine;
        let by = |found: &&'f Found| (here.differences(&found.profile.key.machine), *found);
        let mut all: Vec<(Vec<&str>, &Found)> = profiles.iter().map(by).collect();
        all.sort_by_key(|(differ, _)| differ.len());
        let accepted = |(differ, _): &&(Vec<&str>, &Found)| differ.iter().all(|f| hardware.may_differ.contains(f));
        let words = |differ: &[&str], found: &Found| {
            let there = &found.profile.key.machine;
            let value = |machine: &Machine, field| machine.value(field).unwrap_or_default();
            let fields = differ
                .iter()
                .map(|&field| format!("{field} {} instead of {}", value(there, field), value(here, field)));
            fields.collect::<Vec<_>>().join(", ")
        };
        let Some((differ, found)) = all.iter().find(accepted) else {
            let Some((differ, found)) = all.first() else {
                return Err(node.error("expected a profile, found none"));
            };
            let other: Vec<&str> = differ.to_vec();
            return Err(node.error(format!(
                "expected a profile of chain \"{name}\" measured on machine \"{machine}\", found one of another \
                 machine in {}: {}; `mayDiffer: [{}]` in the cluster's hardware accepts it",
                found.file,
                words(differ, found),
                other.join(", ")
            )));
        };
        let as_near = |(other, _): &&(Vec<&str>, &Found)| other.len() == differ.len();
        let same: Vec<&Found> = all
            .iter()
            .filter(accepted)
            .filter(as_near)
            .map(|(_, found)| *found)
            .collect();
        if same.len() > 1 {
            let each = same.iter().map(|found| {
                let key = &found.profile.key;
                let (configuration, traffic) = (&key.configuration, &key.traffic);
                format!(
                    "configuration \"{configuration}\", traffic \"{traffic}\" in {}",
                    found.file
                )
            });
            return Err(node.error(format!(
                "expected one profile of chain \"{name}\" for machine \"{machine}\", found {}: {}; choose with \
                 configuration, spec or traffic",
                same.len(),
                each.take(3).collect::<Vec<_>>().join("; ")
            )));
        }
        let notice = (!differ.is_empty()).then(|| {
            format!(
                "chain {name} on machine {machine}: the profile in {} is of another machine, as `mayDiffer` allows: {}",
                found.file,
                words(differ, found)
            )
        });
        Ok((found, notice))
    }
}

fn hardware(node: &Located<'_>) -> Result<Hardware, SpecError> {
    let fields = node.fields_of(&HARDWARE)?;
    let words = Machine::FIELDS.map(|field| (field, field));
    let may_differ = match fields.optional("mayDiffer") {
        None => Vec::new(),
        Some(node) => {
            let list = node.list("fields of hardware", Machine::FIELDS.len())?;
            let list = list.iter().map(|node| node.word(&words));
            list.collect::<Result<_, _>>()?
        }
    };
    Ok(Hardware {
        machine: Machine::of_fields(&fields)?,
        may_differ,
    })
}

/// Checks that servers have no more cache than their machine, if that is known: the excess would be allocated but not
/// exist.
fn has_cache(machine: &Machine, kind: &ServerKind, node: &Located<'_>) -> Result<(), SpecError> {
    let way = kind.way_bytes / 1024;
    let given = u64::from(kind.ways) * way;
    let (cache, ways) = (machine.cache_kibibytes, machine.cache_ways);
    let problem = if ways > 0 && u32::from(kind.ways) > ways {
        format!("cacheWays of at least the servers' {} ways, found {ways}", kind.ways)
    } else if cache > 0 && given > cache.into() {
        format!(
            "cacheKibibytes of at least the servers' {} ways of {way} KiB, {given}, found {cache}",
            kind.ways
        )
    } else {
        return Ok(());
    };
    Err(node.error(format!("expected {problem}")))
}

/// Returns the curves for placement.
///
/// # Errors
/// They are not valid.
pub fn curves(machine: String, cores: u16, rising: &Rising) -> Result<Curves, CurveError> {
    let throughput = rising.throughput.iter();
    let latency = rising.latency.iter();
    Ok(Curves {
        machine,
        cores,
        cache: CacheCurve::new(throughput.map(|&(kib, rate)| (kib * 1024, rate)).collect())?,
        load: LoadCurve::new(
            latency
                .map(|&(load, micros)| (load, Nanos((micros * 1e3).round().max(1.0) as u64)))
                .collect(),
        )?,
    })
}

/// Lists the different values of profiles, each with a file.
fn told<'f>(profiles: &[&'f Found], value: fn(&'f Found) -> &'f str) -> String {
    let by: BTreeMap<&str, &str> = profiles.iter().map(|f| (value(f), &*f.file)).collect();
    let all = by.iter().map(|(value, file)| format!("\"{value}\" in {file}"));
    all.take(3).collect::<Vec<_>>().join(", ")
}

fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.take(5).collect::<Vec<_>>().join(", ")
}

/// Returns a fingerprint of all points of a chain's curves, to detect changes.
pub fn of_curves(chain: &Chain) -> String {
    let mut hash = Fnv::default();
    for curves in &chain.curves {
        let mut numbers: Vec<u64> = vec![curves.machine.len() as u64, curves.cores.into()];
        hash.bytes(curves.machine.as_bytes());
        let cache = curves.cache.points().iter();
        numbers.extend(cache.flat_map(|&(bytes, rate)| [bytes, rate.to_bits()]));
        let load = curves.load.points().iter();
        numbers.extend(load.flat_map(|&(load, latency)| [load.to_bits(), latency.0]));
        let bytes = numbers.into_iter().map(u64::to_le_bytes);
        bytes.for_each(|bytes| hash.bytes(&bytes));
    }
    hash.to_string()
}
