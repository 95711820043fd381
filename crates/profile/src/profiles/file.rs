//! Files of profiles: YAML, in the form of all Tailwater objects. `docs/reference/profile-files.md` describes every
//! field.

use super::values::{MAX_POINTS, MAX_PROFILES, MAX_TEXT, Quoted, VERSION, numbers, one};
use super::{CacheProfile, ChainProfile, Key, LatencyProfile, Machine, NotHeld, Occupied, Profiles, costs};
use crate::cache::Method;
use crate::curve::{Measured, Point};
use std::fmt::{self, Write as _};
use std::path::Path;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Fields, Located, label, line};

/// The `kind` of files.
const KIND: &str = "ChainProfiles";
/// Name of the file type, in errors.
const WHAT: &str = "profiles of chains";
impl Profiles {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn read(path: &Path) -> Result<Profiles, SpecError> {
        profiles(&Document::read(path, WHAT)?)
    }

    /// Parses the text of a file. `name` is the file's name in errors.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<Profiles, SpecError> {
        profiles(&Document::parse(text, name, WHAT)?)
    }
}

fn profiles(document: &Document) -> Result<Profiles, SpecError> {
    let (_, spec) = document.object(KIND, "a map with version and profiles")?;
    // The fields of another version have an unknown meaning, so they are not parsed.
    if let Some((_, node)) = spec
        .entries("version, profiles")?
        .iter()
        .find(|(name, _)| *name == "version")
        && node.number("a version")? != VERSION as f64
    {
        return Err(node.expected(&format!("{VERSION}, the version that this program reads")));
    }
    let fields = spec.fields(&["version", "profiles"])?;
    fields
        .required("version", &VERSION.to_string())?
        .whole(VERSION..=VERSION)?;
    let mut profiles = Profiles::default();
    let nodes = fields.required("profiles", "a list of profiles")?;
    for node in nodes.list("profiles", MAX_PROFILES)? {
        let profile = profile(&node)?;
        if profiles.list.iter().any(|other| other.key.is(&profile.key)) {
            return Err(node.error(
                "expected each profile once, found another of the same chain, configuration, traffic and machine",
            ));
        }
        profiles.list.push(profile);
    }
    Ok(profiles)
}

fn profile(node: &Located<'_>) -> Result<ChainProfile, SpecError> {
    let fields = node.fields(&[
        "chain",
        "configuration",
        "traffic",
        "machine",
        "cache",
        "latency",
        "costs",
    ])?;
    let (cache, latency) = (fields.optional("cache"), fields.optional("latency"));
    if cache.is_none() && latency.is_none() {
        return Err(fields.error("expected cache or latency, found neither"));
    }
    let costs = fields.optional("costs");
    Ok(ChainProfile {
        key: Key {
            chain: label(&fields.required("chain", "the chain's name")?)?,
            configuration: words(&fields, "configuration")?,
            traffic: words(&fields, "traffic")?,
            machine: Machine::of_fields(
                &fields
                    .required("machine", "a map with processor")?
                    .fields(&Machine::FIELDS)?,
            )?,
        },
        cache: cache.map(|node| self::cache(&node)).transpose()?,
        latency: latency.map(|node| self::latency(&node)).transpose()?,
        costs: costs.map(|node| costs::read(&node)).transpose()?,
    })
}

impl Machine {
    /// Field names of a machine in files.
    pub const FIELDS: [&str; 5] = [
        "processor",
        "megahertz",
        "cacheKibibytes",
        "cacheWays",
        "privateKibibytes",
    ];

    /// Reads a machine from a map; other fields are ignored.
    ///
    /// # Errors
    /// The first field that is missing or invalid.
    pub fn of_fields(fields: &Fields<'_>) -> Result<Machine, SpecError> {
        let number = |name| {
            let node = fields.required(name, "a whole number")?;
            Ok::<u32, SpecError>(node.whole(0..=u64::from(u32::MAX))? as u32)
        };
        Ok(Machine {
            processor: words(fields, "processor")?,
            megahertz: number("megahertz")?,
            cache_kibibytes: number("cacheKibibytes")?,
            cache_ways: number("cacheWays")?,
            private_kibibytes: number("privateKibibytes")?,
        })
    }
}

fn cache(node: &Located<'_>) -> Result<CacheProfile, SpecError> {
    let fields = node.fields(&["method", "unitKibibytes", "mostUnits", "points", "notHeld", "occupied"])?;
    let method = fields.required("method", "pirate or resctrl")?;
    let unit = fields.required("unitKibibytes", "a whole number")?;
    let most = fields.required("mostUnits", "a whole number")?;
    let most_units = most.whole(1..=1 << 16)? as u32;
    let what = "a list of [units of cache, packets per second, noise, runs]";
    let points = points(&fields.required("points", what)?, most_units)?;
    let mut not_held = Vec::new();
    if let Some(list) = fields.optional("notHeld") {
        for node in list.list("points", MAX_POINTS)? {
            let [at, misses, value, noise, runs] = numbers(&node)?;
            let point = point(&node, [at, value, noise, runs], most_units)?;
            if misses > 1.0 || not_held.last().is_some_and(|last: &NotHeld| last.at >= point.at) {
                return Err(node.error("expected points by units, and misses from 0 to 1"));
            }
            not_held.push(NotHeld {
                at: point.at,
                misses,
                measured: point.measured,
            });
        }
    }
    let mut occupied: Vec<Occupied> = Vec::new();
    if let Some(list) = fields.optional("occupied") {
        for node in list.list("points", MAX_POINTS)? {
            let [at, kibibytes] = numbers(&node)?;
            let is_whole = |number: f64, least: f64, most: u32| {
                number.fract() == 0.0 && (least..=f64::from(most)).contains(&number)
            };
            let least = occupied.last().map_or(1.0, |last| f64::from(last.at) + 1.0);
            if !is_whole(at, least, most_units) || !is_whole(kibibytes, 0.0, u32::MAX) {
                return Err(node.error("expected [units, KiB] in whole numbers, by units"));
            }
            occupied.push(Occupied {
                at: at as u32,
                kibibytes: kibibytes as u32,
            });
        }
    }
    Ok(CacheProfile {
        method: method.word(&Method::ALL)?,
        unit_kibibytes: unit.whole(1..=1 << 24)? as u32,
        most_units,
        points,
        not_held,
        occupied,
    })
}

fn latency(node: &Located<'_>) -> Result<LatencyProfile, SpecError> {
    let fields = node.fields(&[
        "throughput",
        "percentile",
        "points",
        "objectiveMicroseconds",
        "objectivePercentile",
        "nonDropRate",
        "partialDropRate",
        "objectiveRate",
    ])?;
    let throughput = fields.required("throughput", "[packets per second, noise, runs]")?;
    let [value, noise, runs] = numbers(&throughput)?;
    let number = |name| {
        let node = fields.required(name, "a number")?;
        one(&node)
    };
    let percentile = |name| {
        let node = fields.required(name, "a percentile")?;
        let value = one(&node)?;
        match value > 0.0 && value <= 100.0 {
            true => Ok(value),
            false => Err(node.expected("a percentile up to 100")),
        }
    };
    let rate = |name| fields.optional(name).map(|node| one(&node)).transpose();
    let what = "a list of [load in percent, microseconds, noise, runs]";
    Ok(LatencyProfile {
        throughput: measured(&throughput, [value, noise, runs])?,
        percentile: percentile("percentile")?,
        points: points(&fields.required("points", what)?, 100)?,
        objective_us: number("objectiveMicroseconds")?,
        objective_percentile: percentile("objectivePercentile")?,
        ndr: rate("nonDropRate")?,
        pdr: rate("partialDropRate")?,
        objective_rate: rate("objectiveRate")?,
    })
}

/// Reads a single-line text.
fn words(fields: &Fields<'_>, name: &'static str) -> Result<String, SpecError> {
    let node = fields.required(name, "a text")?;
    Ok(line(&node, MAX_TEXT)?.to_owned())
}

fn measured(node: &Located<'_>, [value, noise, runs]: [f64; 3]) -> Result<Measured, SpecError> {
    let fits = value > 0.0 && (1.0..=1e6).contains(&runs) && runs.fract() == 0.0;
    match fits {
        true => Ok(Measured {
            value,
            noise,
            runs: runs as u32,
        }),
        false => Err(node.error("expected a value above 0, its noise, and of how many runs")),
    }
}

fn point(node: &Located<'_>, [at, value, noise, runs]: [f64; 4], most: u32) -> Result<Point, SpecError> {
    if at.fract() != 0.0 || !(1.0..=f64::from(most)).contains(&at) {
        let message = format!("expected a whole number from 1 to {most} as first number");
        return Err(node.error(message));
    }
    Ok(Point {
        at: at as u32,
        measured: measured(node, [value, noise, runs])?,
    })
}

/// Reads points in increasing order.
fn points(node: &Located<'_>, most: u32) -> Result<Vec<Point>, SpecError> {
    let mut points: Vec<Point> = Vec::new();
    for node in node.list("points", MAX_POINTS)? {
        let point = point(&node, numbers(&node)?, most)?;
        if points.last().is_some_and(|last| last.at >= point.at) {
            return Err(node.error("expected points in increasing order"));
        }
        points.push(point);
    }
    Ok(points)
}

/// Points as lists of numbers.
struct Listed<'a>(&'a [Point]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('[')?;
        for (i, Point { at, measured }) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let Measured { value, noise, runs } = measured;
            write!(f, "{comma}[{at}, {value}, {noise}, {runs}]")?;
        }
        f.write_char(']')
    }
}

/// Formats the file so that [`parse`](Profiles::parse) reads back the same values.
impl fmt::Display for Profiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.list.first().map_or("none", |first| &first.key.chain);
        writeln!(
            f,
            "apiVersion: tailwater.dev/v1alpha1\nkind: {KIND}\nmetadata: {{name: {}}}\nspec:\n  version: {VERSION}\n  \
             profiles:",
            Quoted(name)
        )?;
        for profile in &self.list {
            let ChainProfile {
                key,
                cache,
                latency,
                costs,
            } = profile;
            writeln!(f, "    - chain: {}", Quoted(&key.chain))?;
            writeln!(f, "      configuration: {}", Quoted(&key.configuration))?;
            writeln!(f, "      traffic: {}", Quoted(&key.traffic))?;
            for value in profile.unrepeatable() {
                writeln!(f, "      # not repeatable, and not used for placement: {value}")?;
            }
            let machine = &key.machine;
            writeln!(
                f,
                "      machine: {{processor: {}, megahertz: {}, cacheKibibytes: {}, cacheWays: {}, privateKibibytes: \
                 {}}}",
                Quoted(&machine.processor),
                machine.megahertz,
                machine.cache_kibibytes,
                machine.cache_ways,
                machine.private_kibibytes
            )?;
            cache.iter().try_for_each(|cache| write_cache(f, cache))?;
            latency.iter().try_for_each(|latency| write_latency(f, latency))?;
            costs.iter().try_for_each(|costs| costs::write(f, costs))?;
        }
        Ok(())
    }
}

fn write_cache(f: &mut fmt::Formatter<'_>, cache: &CacheProfile) -> fmt::Result {
    writeln!(f, "      cache:\n        method: {}", cache.method)?;
    writeln!(f, "        unitKibibytes: {}", cache.unit_kibibytes)?;
    writeln!(f, "        mostUnits: {}", cache.most_units)?;
    writeln!(f, "        # [units of cache, packets per second, noise, runs]")?;
    writeln!(f, "        points: {}", Listed(&cache.points))?;
    if !cache.not_held.is_empty() {
        writeln!(
            f,
            "        # [units, share of {}, packets per second, noise, runs]",
            match cache.method {
                Method::Pirate => "the pirate's misses",
                Method::Resctrl => "the memory beyond the cache",
            }
        )?;
        write!(f, "        notHeld: [")?;
        for (i, point) in cache.not_held.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let NotHeld {
                at,
                misses,
                measured: Measured { value, noise, runs },
            } = point;
            write!(f, "{comma}[{at}, {misses}, {value}, {noise}, {runs}]")?;
        }
        writeln!(f, "]")?;
    }
    if !cache.occupied.is_empty() {
        write!(f, "        # [units, KiB that the chain had]\n        occupied: [")?;
        for (i, Occupied { at, kibibytes }) in cache.occupied.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}[{at}, {kibibytes}]")?;
        }
        writeln!(f, "]")?;
    }
    Ok(())
}

fn write_latency(f: &mut fmt::Formatter<'_>, latency: &LatencyProfile) -> fmt::Result {
    let Measured { value, noise, runs } = latency.throughput;
    writeln!(f, "      latency:\n        # packets per second, noise, runs")?;
    writeln!(f, "        throughput: [{value}, {noise}, {runs}]")?;
    writeln!(f, "        percentile: {}", latency.percentile)?;
    writeln!(f, "        # [load in percent, microseconds, noise, runs]")?;
    writeln!(f, "        points: {}", Listed(&latency.points))?;
    writeln!(f, "        objectiveMicroseconds: {}", latency.objective_us)?;
    writeln!(f, "        objectivePercentile: {}", latency.objective_percentile)?;
    for (name, rate) in [
        ("nonDropRate", latency.ndr),
        ("partialDropRate", latency.pdr),
        ("objectiveRate", latency.objective_rate),
    ] {
        rate.iter().try_for_each(|rate| writeln!(f, "        {name}: {rate}"))?;
    }
    Ok(())
}
