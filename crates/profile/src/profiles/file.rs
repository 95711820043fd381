//! Files of profiles: YAML, in the form of all Tailwater objects. `docs/reference/profile-files.md` describes every
//! field.

use super::values::{
    MAX_POINTS, MAX_PROFILES, MAX_TEXT, OLDEST_VERSION, Quoted, VERSION, Value, numbers, numbers_and_count, one,
};
use super::{CacheProfile, ChainProfile, Key, LatencyProfile, Machine, NotHeld, Occupied, Profiles, Verified, costs};
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
        && !is_read(node.number("a version")?)
    {
        let message = format!("{OLDEST_VERSION} or {VERSION}, the versions that this program reads");
        return Err(node.expected(&message));
    }
    let fields = spec.fields(&["version", "profiles"])?;
    fields
        .required("version", &VERSION.to_string())?
        .whole(OLDEST_VERSION..=VERSION)?;
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

fn is_read(version: f64) -> bool {
    (OLDEST_VERSION..=VERSION).any(|read| read as f64 == version)
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
    let fields = node.fields(&[
        "method",
        "unitKibibytes",
        "mostUnits",
        "points",
        "notHeld",
        "occupied",
        "verified",
        "hiddenBends",
    ])?;
    let method = fields.required("method", "pirate or resctrl")?;
    let unit = fields.required("unitKibibytes", "a whole number")?;
    let most = fields.required("mostUnits", "a whole number")?;
    let most_units = most.whole(1..=1 << 16)? as u32;
    let what = "a list of [units of cache, packets per second, noise, runs, disturbed runs]";
    let points = points(&fields.required("points", what)?, most_units)?;
    let mut not_held = Vec::new();
    if let Some(list) = fields.optional("notHeld") {
        for node in list.list("points", MAX_POINTS)? {
            let ([at, misses, value, noise, runs], disturbed) = numbers_and_count(&node)?;
            let point = point(&node, ([at, value, noise, runs], disturbed), most_units)?;
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
    let mut verified: Vec<Verified> = Vec::new();
    if let Some(list) = fields.optional("verified") {
        for node in list.list("points", MAX_POINTS)? {
            let [at, misses] = numbers(&node)?;
            let least = verified.last().map_or(1.0, |last| f64::from(last.at) + 1.0);
            let is_place = at.fract() == 0.0 && (least..=f64::from(most_units)).contains(&at);
            if !is_place || misses > 1.0 {
                return Err(node.error("expected [units, share] by units, and shares from 0 to 1"));
            }
            verified.push(Verified { at: at as u32, misses });
        }
    }
    Ok(CacheProfile {
        method: method.word(&Method::ALL)?,
        unit_kibibytes: unit.whole(1..=1 << 24)? as u32,
        most_units,
        points,
        not_held,
        occupied,
        verified,
        hidden_bends: places(&fields, "hiddenBends", most_units)?,
    })
}

/// Reads an optional list of positions in increasing order.
fn places(fields: &Fields<'_>, name: &'static str, most: u32) -> Result<Vec<u32>, SpecError> {
    let mut places: Vec<u32> = Vec::new();
    if let Some(list) = fields.optional(name) {
        for node in list.list("positions", MAX_POINTS)? {
            let least = places.last().map_or(1, |last| u64::from(*last) + 1);
            if least > u64::from(most) {
                return Err(node.error(format!("expected positions in increasing order, up to {most}")));
            }
            places.push(node.whole(least..=u64::from(most))? as u32);
        }
    }
    Ok(places)
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
        "hiddenBends",
        "disturbedTrials",
    ])?;
    let throughput = fields.required("throughput", "[packets per second, noise, runs, disturbed runs]")?;
    let (numbers, disturbed) = numbers_and_count(&throughput)?;
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
    let trials = fields.optional("disturbedTrials");
    let trials = trials.map(|node| node.whole(0..=u64::from(u32::MAX))).transpose()?;
    let what = "a list of [load in percent, microseconds, noise, runs, disturbed runs]";
    Ok(LatencyProfile {
        throughput: measured(&throughput, numbers, disturbed)?,
        percentile: percentile("percentile")?,
        points: points(&fields.required("points", what)?, 100)?,
        objective_us: number("objectiveMicroseconds")?,
        objective_percentile: percentile("objectivePercentile")?,
        ndr: rate("nonDropRate")?,
        pdr: rate("partialDropRate")?,
        objective_rate: rate("objectiveRate")?,
        hidden_bends: places(&fields, "hiddenBends", 100)?,
        disturbed_trials: trials.unwrap_or(0) as u32,
    })
}

/// Reads a single-line text.
fn words(fields: &Fields<'_>, name: &'static str) -> Result<String, SpecError> {
    let node = fields.required(name, "a text")?;
    Ok(line(&node, MAX_TEXT)?.to_owned())
}

fn measured(node: &Located<'_>, [value, noise, runs]: [f64; 3], disturbed: u32) -> Result<Measured, SpecError> {
    let fits = value > 0.0 && (1.0..=1e6).contains(&runs) && runs.fract() == 0.0 && f64::from(disturbed) <= runs;
    match fits {
        true => Ok(Measured {
            value,
            noise,
            runs: runs as u32,
            disturbed,
        }),
        false => Err(node.error("expected a value above 0, its noise, of how many runs, and how many disturbed ones")),
    }
}

/// A point's numbers, and its disturbed runs.
type Numbers = ([f64; 4], u32);

fn point(node: &Located<'_>, ([at, value, noise, runs], disturbed): Numbers, most: u32) -> Result<Point, SpecError> {
    if at.fract() != 0.0 || !(1.0..=f64::from(most)).contains(&at) {
        let message = format!("expected a whole number from 1 to {most} as first number");
        return Err(node.error(message));
    }
    Ok(Point {
        at: at as u32,
        measured: measured(node, [value, noise, runs], disturbed)?,
    })
}

/// Reads points in increasing order.
fn points(node: &Located<'_>, most: u32) -> Result<Vec<Point>, SpecError> {
    let mut points: Vec<Point> = Vec::new();
    for node in node.list("points", MAX_POINTS)? {
        let point = point(&node, numbers_and_count(&node)?, most)?;
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
            write!(f, "{comma}[{at}, {}]", Value(measured))?;
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
            let doubts = profile.doubts();
            if doubts.disturbed() > 0 {
                writeln!(f, "      # measured with CPU interference: {doubts}")?;
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
    writeln!(
        f,
        "        # [units of cache, packets per second, noise, runs, disturbed runs]"
    )?;
    writeln!(f, "        points: {}", Listed(&cache.points))?;
    if !cache.not_held.is_empty() {
        writeln!(
            f,
            "        # [units, share of {}, packets per second, noise, runs, disturbed runs]",
            match cache.method {
                Method::Pirate => "the pirate's misses",
                Method::Resctrl => "the memory beyond the cache",
            }
        )?;
        write!(f, "        notHeld: [")?;
        for (i, point) in cache.not_held.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let NotHeld { at, misses, measured } = point;
            write!(f, "{comma}[{at}, {misses}, {}]", Value(measured))?;
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
    if !cache.verified.is_empty() {
        write!(
            f,
            "        # [units, highest share of {}]\n        verified: [",
            match cache.method {
                Method::Pirate => "the pirate's misses while it held the rest",
                Method::Resctrl => "the memory beyond the share",
            }
        )?;
        for (i, Verified { at, misses }) in cache.verified.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}[{at}, {misses}]")?;
        }
        writeln!(f, "]")?;
    }
    write_places(f, &cache.hidden_bends)
}

/// Writes the positions of hidden bends, if there are any.
fn write_places(f: &mut fmt::Formatter<'_>, places: &[u32]) -> fmt::Result {
    match places.is_empty() {
        true => Ok(()),
        false => writeln!(
            f,
            "        # noise hides whether the curve bends there\n        hiddenBends: {places:?}"
        ),
    }
}

fn write_latency(f: &mut fmt::Formatter<'_>, latency: &LatencyProfile) -> fmt::Result {
    writeln!(
        f,
        "      latency:\n        # packets per second, noise, runs, disturbed runs"
    )?;
    writeln!(f, "        throughput: [{}]", Value(&latency.throughput))?;
    writeln!(f, "        percentile: {}", latency.percentile)?;
    writeln!(
        f,
        "        # [load in percent, microseconds, noise, runs, disturbed runs]"
    )?;
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
    if latency.disturbed_trials > 0 {
        writeln!(f, "        disturbedTrials: {}", latency.disturbed_trials)?;
    }
    write_places(f, &latency.hidden_bends)
}
