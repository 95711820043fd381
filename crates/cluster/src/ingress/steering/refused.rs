//! Chains' routes: those that cannot be taken beside the others are kept, and tried again when others have changed.
//!
//! Routes come one after another, but those of a change belong together: two chains may change places. So a refused
//! route is tried with all other refused ones, and it is told a moment later only. Until a chain's new match can be
//! taken its old one stays in force.

use super::super::rows::{MAX_PARTS, Ranks, chain_identity, parts_of};
use super::chain::Chain;
use super::progress::Refused;
use super::{ChainRoute, Output, Steering};
use std::collections::BTreeSet;
use tailwater_api::chain::ambiguity;

/// Most chains, and most that are refused and kept.
const MAX_CHAINS: usize = 4096;

/// Most refused routes that are tried together, and without each other: many that are refused must not hold up the
/// steering.
const MOST_TOGETHER: usize = 256;
const MOST_APART: usize = 32;

impl Steering {
    /// Takes a new or changed chain, or keeps it for later.
    pub(super) fn set_chain(&mut self, route: ChainRoute) {
        let name = route.name.clone();
        let others: Vec<&ChainRoute> = self.taken().filter(|other| other.name != name).collect();
        let ranks = Ranks::new(others.iter().map(|other| &other.matching)).unwrap_or_default();
        let why = refusal(&route, &others, &mut ranks.clone());
        let old = self.chains.get(&name).map(|chain| chain.route.matching.clone());
        let Some(why) = why else {
            let is_free = self.refused.contains_key(&name) || old.is_some_and(|old| old != route.matching);
            self.take(route);
            self.rank();
            if is_free {
                self.try_refused();
            }
            return;
        };
        let is_told = self
            .refused
            .get(&name)
            .is_some_and(|before| before.is_told && before.why == why);
        if self.refused.len() >= MAX_CHAINS && !self.refused.contains_key(&name) {
            return self.output(Output::ChainRefused {
                chain: name,
                why,
                is_steered: old.is_some(),
            });
        }
        if let Some(matching) = &old {
            // Servers come and go though the match cannot change.
            let matching = matching.clone();
            self.put(ChainRoute {
                matching,
                ..route.clone()
            });
            self.writing.is_due = true;
        }
        self.refused.insert(name, Refused { route, why, is_told });
        if old.is_some() {
            self.try_refused();
        }
    }

    /// Forgets a chain.
    pub(super) fn remove_chain(&mut self, name: &str) {
        self.refused.remove(name);
        let Some(mut chain) = self.chains.remove(name) else {
            return;
        };
        let (_, off) = chain.abort();
        off.into_iter().for_each(|planned| {
            let moved = self.shown(name, &planned);
            self.output(Output::MoveCancelled(moved));
        });
        self.rank();
        self.try_refused();
    }

    /// Tells of refused chains that have not been told.
    pub(super) fn tell_refused(&mut self) {
        let chains = &self.chains;
        let untold = self.refused.iter_mut().filter(|(_, refused)| !refused.is_told);
        let outputs: Vec<Output> = untold
            .map(|(name, refused)| {
                refused.is_told = true;
                Output::ChainRefused {
                    chain: name.clone(),
                    why: refused.why.clone(),
                    is_steered: chains.contains_key(name),
                }
            })
            .collect();
        outputs.into_iter().for_each(|output| self.output(output));
    }

    fn taken(&self) -> impl Iterator<Item = &ChainRoute> {
        self.chains.values().map(|chain| &chain.route)
    }

    /// Takes those of the refused routes that can be taken now, alone or together.
    fn try_refused(&mut self) {
        while !self.refused.is_empty() {
            let waiting: Vec<&str> = self.refused.keys().map(|name| &**name).collect();
            let together = waiting.chunks(MOST_TOGETHER);
            let mut found = together.map(|names| self.possible(names.iter().copied().collect()));
            let names = found.find(|names| !names.is_empty());
            let names = names.unwrap_or_else(|| self.possible_apart());
            if names.is_empty() {
                break;
            }
            for name in names {
                let Some(refused) = self.refused.get(&name) else {
                    continue;
                };
                self.take(refused.route.clone());
            }
            self.rank();
        }
    }

    /// Returns chains whose refused routes can be taken together, if not one of them has its way, or only one.
    fn possible_apart(&self) -> Vec<String> {
        let names = || self.refused.keys().take(MOST_APART).map(|name| &**name);
        let without = names().map(|left_out| names().filter(|name| *name != left_out).collect());
        let sets = without.chain(names().map(|name| [name].into()));
        let mut found = sets.map(|set| self.possible(set));
        found.find(|names| !names.is_empty()).unwrap_or_default()
    }

    /// Returns chains of these whose refused routes can be taken together. Others keep what they have.
    fn possible(&self, mut tried: BTreeSet<&str>) -> Vec<String> {
        loop {
            let mut all: Vec<&ChainRoute> = self.taken().filter(|route| !tried.contains(&*route.name)).collect();
            let mut ranks = Ranks::new(all.iter().map(|route| &route.matching)).unwrap_or_default();
            let before = tried.len();
            tried.retain(|name| {
                let Some(refused) = self.refused.get(*name) else {
                    return false;
                };
                let is_possible = refusal(&refused.route, &all, &mut ranks).is_none();
                if is_possible {
                    all.push(&refused.route);
                }
                is_possible
            });
            // One that is not possible keeps its old route, with which others may not be.
            if tried.len() == before {
                return tried.into_iter().map(str::to_owned).collect();
            }
        }
    }

    /// Takes a route that is possible. Ranks have to be set after that.
    fn take(&mut self, route: ChainRoute) {
        if let Some(Refused { is_told: true, .. }) = self.refused.remove(&route.name) {
            self.output(Output::ChainAccepted(route.name.clone()));
        }
        self.put(route);
    }

    fn put(&mut self, route: ChainRoute) {
        let name = route.name.clone();
        let mut chain = match self.chains.remove(&name) {
            Some(mut chain) if chain.route.mapping == route.mapping => {
                chain.route = route;
                chain
            }
            old => {
                let mut chain = Chain::new(route, self.servers.len());
                chain.grow(self.servers.len());
                chain.set_most_fill(self.config.most_fill);
                if let Some(old) = old {
                    self.join(&mut chain);
                    chain.start(&old.rows, self.now);
                }
                chain
            }
        };
        self.join(&mut chain);
        self.chains.insert(name, chain);
    }

    fn rank(&mut self) {
        let matches = self.chains.values().map(|chain| &chain.route.matching);
        // Checked when a chain is taken.
        self.ranks = Ranks::new(matches).unwrap_or_default();
        self.writing.is_due = true;
    }
}

/// Returns the reason why a route cannot be taken beside others, of which these are the ranks. If it can, its own are
/// added.
fn refusal(route: &ChainRoute, others: &[&ChainRoute], ranks: &mut Ranks) -> Option<String> {
    let mapping = &route.mapping;
    if mapping.prefix_v4 > 32 || mapping.prefix_v6 > 128 {
        return Some("expected prefix lengths of at most 32 and 128".to_owned());
    }
    let parts = parts_of(&route.matching);
    if parts > MAX_PARTS {
        return Some(format!(
            "expected a spec.match with at most {MAX_PARTS} combinations of prefixes, protocols and VLANs, found \
             {parts}"
        ));
    }
    if others.len() >= MAX_CHAINS {
        return Some(format!("expected at most {MAX_CHAINS} chains"));
    }
    let mut with = ranks.clone();
    if !with.add(&route.matching) {
        return Some(
            "there are too many different combinations of prefix lengths in all chains' spec.match: expected some \
             that other chains have, too"
                .to_owned(),
        );
    }
    let identity = chain_identity(&route.name);
    if let Some(other) = others.iter().find(|other| chain_identity(&other.name) == identity) {
        return Some(format!(
            "its name has the same hash as that of chain {}: expected another name",
            other.name
        ));
    }
    let is_ambiguous = |other: &&&ChainRoute| ambiguity(&other.matching, &route.matching).is_some();
    if let Some(other) = others.iter().find(is_ambiguous) {
        return Some(format!(
            "its packets are also those of chain {}: expected a more or less specific spec.match",
            other.name
        ));
    }
    *ranks = with;
    None
}
