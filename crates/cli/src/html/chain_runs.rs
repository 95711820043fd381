//! Runs of `tailwater simulate` by chain and objective.

use crate::simulate::document::{Document, Run};
use tailwater_sim::ChainReport;

/// Runs of one chain with one objective.
pub struct ChainRuns<'d> {
    /// Index of the chain, and its name.
    pub chain: usize,
    pub name: &'d str,
    pub slo_us: f64,
    pub runs: Vec<&'d Run>,
}

impl<'d> ChainRuns<'d> {
    /// Returns all parts: by chain, then by objective.
    pub fn all(document: &'d Document) -> Vec<ChainRuns<'d>> {
        let mut parts: Vec<ChainRuns<'d>> = Vec::new();
        let chains = document.runs.iter().flat_map(|run| {
            let chains = run.report.chains.iter().enumerate();
            chains.map(move |(number, chain)| (number, chain, run))
        });
        for (chain, report, run) in chains {
            let same = |part: &&mut ChainRuns<'_>| part.chain == chain && part.slo_us == report.slo_us;
            match parts.iter_mut().find(same) {
                Some(part) => part.runs.push(run),
                None => parts.push(ChainRuns {
                    chain,
                    name: &report.chain,
                    slo_us: report.slo_us,
                    runs: vec![run],
                }),
            }
        }
        parts.sort_by_key(|part| part.chain);
        parts
    }

    /// Returns the chain's reports by policy, in order of the seeds.
    pub fn policies(&self) -> Vec<(&'static str, Vec<&'d ChainReport>)> {
        let mut policies: Vec<(&'static str, Vec<&'d ChainReport>)> = Vec::new();
        for run in &self.runs {
            let chain = &run.report.chains[self.chain];
            match policies.iter_mut().find(|(name, _)| *name == run.policy) {
                Some((_, chains)) => chains.push(chain),
                None => policies.push((run.policy, vec![chain])),
            }
        }
        policies
    }

    /// Returns the chain's reports of the first seed, by policy.
    pub fn of_one_seed(&self) -> (u64, Vec<(&'static str, &'d ChainReport)>) {
        let seed = self.runs.first().map_or(0, |run| run.report.seed);
        let runs = self.runs.iter().filter(|run| run.report.seed == seed);
        let chains = runs.map(|run| (run.policy, &run.report.chains[self.chain]));
        (seed, chains.collect())
    }

    /// Returns the number of seeds.
    pub fn seeds(&self) -> usize {
        let mut seeds: Vec<u64> = self.runs.iter().map(|run| run.report.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds.len()
    }
}
