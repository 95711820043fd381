//! Campaigns beside synthetic competitors, and co-runs of real functions. Both are kept in files, and continued.

use crate::functions::{Chance, Function, measure, own, schema, together};
use std::path::{Path, PathBuf};
use tailwater_predict::design::{
    COMPETITORS, DESCRIPTORS, FRAME_BYTES, Parameter, RATE, READS, STRUCTURE_BYTES, Scale, Space, WRITES,
};
use tailwater_predict::{Campaign, CampaignPlan, Kind, Next, Observation, PlanOptions, Point, TrainOptions};
use tailwater_socket::{Competitor, SocketConfig, Workload};

/// Scale of the benchmark.
#[derive(Clone)]
pub struct Size {
    pub config: SocketConfig,
    pub plan: PlanOptions,
    /// Co-runs of real functions in which each of them is a target.
    pub mixes: usize,
    pub is_quick: bool,
    pub seed: u64,
}

impl Size {
    pub fn new(is_quick: bool, seed: u64) -> Size {
        let mut config = SocketConfig::broadwell_e5_2620_v4();
        let train = TrainOptions {
            kind: if is_quick { Kind::Ridge } else { Kind::Kernel },
            ..TrainOptions::default()
        };
        let mut plan = PlanOptions {
            most: 240,
            train,
            ..PlanOptions::default()
        };
        if is_quick {
            config.sample = 64;
            (plan.first, plan.most) = (10, 12);
        }
        Size {
            config,
            plan,
            mixes: if is_quick { 4 } else { 150 },
            is_quick,
            seed,
        }
    }

    pub fn most_competitors(&self) -> u64 {
        self.config.cores as u64 - 1
    }
}

/// Settings of the synthetic competitor, from nearly idle to twice the cache.
pub fn space(size: &Size) -> Space {
    let parameters = vec![
        Parameter::whole(COMPETITORS, 1, size.most_competitors(), Scale::Linear),
        Parameter::whole(STRUCTURE_BYTES, 64 << 10, 40 << 20, Scale::Logarithmic),
        Parameter::new(READS, 0.5, 30.0, Scale::Logarithmic),
        Parameter::new(WRITES, 0.0, 10.0, Scale::Linear),
        Parameter::new(RATE, 2e5, 4e7, Scale::Logarithmic),
        Parameter::whole(FRAME_BYTES, 64, 1518, Scale::Logarithmic),
        Parameter::whole(DESCRIPTORS, 64, 1024, Scale::Logarithmic),
    ];
    Space::new(parameters, size.seed).expect("ranges are valid")
}

fn competitor(point: &Point) -> Workload {
    let value = |name: &str| point.setting.get(name).expect("a parameter of the space");
    let competitor = Competitor {
        descriptors: value(DESCRIPTORS) as u64,
        reads: value(READS),
        writes: value(WRITES),
        bytes: value(STRUCTURE_BYTES) as u64,
        packets_per_second: Some(value(RATE)),
        frame_bytes: value(FRAME_BYTES) as u64,
    };
    competitor.workload()
}

/// Folder of files that are kept between runs.
fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prediction-socket");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// File of a function's measurements. `suffix` names what differs from others.
fn file(function: &Function, size: &Size, suffix: &str) -> PathBuf {
    let scale = if size.is_quick { ".quick" } else { "" };
    folder().join(format!("{}{suffix}.{}{scale}.yaml", function.name, size.seed))
}

/// Campaign of a file, if it measured the same as `empty` will, or `empty`.
fn kept(file: &Path, empty: Campaign) -> Campaign {
    match Campaign::read(file) {
        Ok(campaign) if campaign.key() == empty.key() && campaign.schema() == empty.schema() => campaign,
        _ => empty,
    }
}

/// Replaces the file as a whole, so that an interruption leaves the one before.
fn keep(file: &Path, campaign: &Campaign) {
    let new = file.with_extension("new");
    let written = std::fs::write(&new, campaign.to_string()).and_then(|()| std::fs::rename(&new, file));
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Measures a function beside synthetic competitors, as its plan says. `suffix` names what differs from others.
pub fn campaign(function: &Function, size: &Size, suffix: &str) -> Campaign {
    let schema = schema();
    let file = file(function, size, suffix);
    let empty = Campaign::new(function.key(&size.config, size.seed), schema.clone());
    let mut campaign = kept(&file, empty.clone());
    let mut plan = CampaignPlan::new(space(size), size.plan).expect("options are valid");
    if plan.next(&campaign).is_err() {
        campaign = empty;
    }
    while let Next::Measure(point) = plan.next(&campaign).expect("observations are of this plan") {
        let competitor = competitor(&point);
        let mut all = vec![&function.workload];
        all.extend(std::iter::repeat_n(&competitor, point.competitors as usize));
        let mut chance = Chance::of(size.seed << 32 | u64::from(point.number), &function.name);
        let measured = measure(&size.config, &all, &mut chance);
        let observation = Observation {
            group: point.number,
            competitors: point.competitors,
            competition: together(&schema, &measured[1..].iter().collect::<Vec<_>>()),
            throughput: measured[0].packets_per_second,
            p99_us: Some(measured[0].p99_us),
            own: Some(own(&schema, &measured[0])),
            flagged: false,
        };
        campaign.push(observation).expect("a measured co-run");
        if point.number % 20 == 0 {
            keep(&file, &campaign);
        }
    }
    keep(&file, &campaign);
    campaign
}

/// Members of a mix of real functions: 3 to all cores, drawn with replacement.
pub fn members(number: usize, functions: usize, size: &Size) -> Vec<usize> {
    let mut chance = Chance(size.seed ^ 0x006d_6978_6573 ^ (number as u64) << 20);
    let count = 3 + chance.below(size.config.cores - 2);
    (0..count).map(|_| chance.below(functions)).collect()
}

/// Co-runs of real functions, by target: an observation's group is the number of its mix. Each function is the target
/// of the first mixes that have it, once per mix.
pub fn mixes(functions: &[Function], size: &Size, suffix: &str) -> Vec<Campaign> {
    let schema = schema();
    let all: String = functions
        .iter()
        .map(|of| of.key(&size.config, size.seed).configuration)
        .collect();
    let mut campaigns: Vec<(PathBuf, Campaign)> = Vec::new();
    for function in functions {
        let mut key = function.key(&size.config, size.seed);
        key.configuration = format!(
            "{:016x}",
            crate::functions::fingerprint(&(all.clone() + &key.configuration))
        );
        let file = file(function, size, &format!("{suffix}.mixes"));
        let campaign = kept(&file, Campaign::new(key, schema.clone()));
        campaigns.push((file, campaign));
    }
    let mut number = 0;
    while campaigns.iter().any(|(_, of)| of.observations().len() < size.mixes) {
        let members = members(number, functions.len(), size);
        let is_known = |(_, of): &(PathBuf, Campaign)| of.observations().iter().any(|of| of.group == number as u32);
        let is_wanted = |of: &(PathBuf, Campaign)| of.1.observations().len() < size.mixes && !is_known(of);
        if members.iter().any(|at| is_wanted(&campaigns[*at])) {
            let workloads: Vec<&Workload> = members.iter().map(|at| &functions[*at].workload).collect();
            let measured = measure(&size.config, &workloads, &mut Chance(size.seed << 40 | number as u64));
            for (core, at) in members.iter().enumerate() {
                let is_first = members[..core].iter().all(|other| other != at);
                if !is_first || !is_wanted(&campaigns[*at]) {
                    continue;
                }
                let others = (0..members.len()).filter(|other| *other != core);
                let others: Vec<_> = others.map(|other| &measured[other]).collect();
                let observation = Observation {
                    group: number as u32,
                    competitors: others.len() as u32,
                    competition: together(&schema, &others),
                    throughput: measured[core].packets_per_second,
                    p99_us: Some(measured[core].p99_us),
                    own: None,
                    flagged: false,
                };
                campaigns[*at].1.push(observation).expect("a measured co-run");
            }
            if number % 25 == 0 {
                eprintln!("mix {number}");
                campaigns.iter().for_each(|(file, of)| keep(file, of));
            }
        }
        number += 1;
    }
    campaigns.iter().for_each(|(file, of)| keep(file, of));
    campaigns.into_iter().map(|(_, of)| of).collect()
}
