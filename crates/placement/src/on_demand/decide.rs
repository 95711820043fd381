//! The control loop: observations of a tick, and the resulting decision.

use super::allocation::{Allocation, Class, Kind};
use super::demand::DemandEstimator;
use super::divide::{Wanted, approach};
use super::mask::{Piece, WayMask, arrange, settle};
use super::relief::Relief;
use super::shares::{ClassDemand, level, shares};
use super::situation::{Cache, Config, MAX_INSTANCES, Observed, Situation};
use super::{Decision, Share};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the name of a numbered class. On-demand classes are not named after their instances.
fn numbered(number: usize) -> String {
    format!("on-demand-{number}")
}

/// Divides one cache, tick by tick.
#[derive(Clone, Debug)]
pub struct OnDemand {
    config: Config,
    allocation: Allocation,
    wants: BTreeMap<String, DemandEstimator>,
    /// Instances that have a class of their own.
    isolated: BTreeSet<String>,
    relief: Relief,
    /// `true` if an instance got less than its demand in the last tick.
    short: bool,
    /// Share of each instance in the last tick.
    last: BTreeMap<String, f64>,
}

/// On-demand instances that share a class.
struct Group {
    kind: Kind,
    /// Their indices in the situation.
    members: Vec<usize>,
    /// Name of the existing class that it uses.
    class: Option<String>,
    /// Initial number of ways.
    has: u16,
}

/// Division of a cache: groups of on-demand instances with their demands and ways.
struct Divided {
    groups: Vec<Group>,
    claims: Vec<ClassDemand>,
    given: Vec<u16>,
    targets: Vec<u16>,
    /// `None` if they do not fit.
    masks: Option<Vec<WayMask>>,
}

impl OnDemand {
    /// Creates the loop for a cache with a given allocation, which is empty or left by an earlier agent. Reserved
    /// classes stay where they are.
    pub fn new(config: Config, now: Allocation) -> Self {
        let isolated = now.classes.iter().filter(|class| class.kind == Kind::Isolated);
        OnDemand {
            isolated: isolated.flat_map(|class| class.instances.iter().cloned()).collect(),
            config,
            allocation: now,
            wants: BTreeMap::new(),
            relief: Relief::default(),
            short: false,
            last: BTreeMap::new(),
        }
    }

    /// Returns the last allocation.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Replaces the cache and its allocation by those found in reality. They differ from the last decision if steps
    /// failed, or another program took ways or classes. The state of instances is preserved.
    pub fn found(&mut self, cache: Cache, allocation: Allocation) {
        self.config.cache = cache;
        self.allocation = allocation;
    }

    /// Decides about a tick. Instances beyond [`MAX_INSTANCES`] are ignored.
    pub fn tick(&mut self, situation: &Situation<'_>) -> Decision {
        let seen = &situation.on_demand[..situation.on_demand.len().min(MAX_INSTANCES)];
        let (reserved, refused) = self.reserved(situation);
        let taken = reserved.iter().fold(0, |bits, class| bits | class.mask.bits());
        let usable = self.config.cache.usable() & !taken;
        let ways = situation.ways.min(usable.count_ones() as u16);
        let classes = usize::from(self.config.cache.classes).saturating_sub(reserved.len());

        self.observe(seen, ways);
        let mut divided = self.divide(seen, usable, ways, classes, true);
        if divided.masks.is_none() {
            // The free ways have too many gaps for this number of classes.
            divided = self.divide(seen, usable, ways, classes, false);
        }
        let Divided {
            groups,
            claims,
            given,
            targets,
            masks,
        } = divided;
        let masks = masks.unwrap_or_default();
        self.allocation = self.allocated(reserved, &groups, &masks, seen);

        let all: u16 = claims.iter().map(ClassDemand::most).sum();
        let got: u16 = match masks.is_empty() {
            true => 0,
            false => given.iter().sum(),
        };
        let wants: u16 = match groups.is_empty() {
            // There is no class at all: the demand is that of all instances.
            true => seen
                .iter()
                .map(|seen| self.wants[&seen.name].ways().ceil() as u16)
                .sum(),
            false => all,
        };
        self.short = wants > got;
        let shares = self.shares_of(seen, &groups, &targets, !masks.is_empty());
        self.last = shares.iter().map(|share| (share.name.clone(), share.share)).collect();
        let (mut asks, mut policing) = (Vec::new(), Vec::new());
        for (seen, share) in seen.iter().zip(&shares) {
            let want = &self.wants[&seen.name];
            policing.extend(self.relief.police(seen, want, share.share, &self.config));
            asks.extend(self.relief.ask(situation.now, seen, want, share.share, &self.config));
        }
        Decision {
            allocation: self.allocation.clone(),
            shares,
            short: wants.saturating_sub(got),
            spare: ways.saturating_sub(all.min(ways)),
            asks,
            policing,
            refused,
        }
    }

    /// Returns classes for on-demand instances, and their masks. There is only one class unless instances may be
    /// `alone`.
    fn divide(&mut self, seen: &[Observed], usable: u32, ways: u16, classes: usize, alone: bool) -> Divided {
        let groups = self.groups(seen, ways, classes, alone);
        let claims: Vec<ClassDemand> = groups.iter().map(|group| self.claim(group, seen)).collect();
        let (least, moves) = (self.config.cache.least.max(1), self.config.moves);
        let given = shares(&claims, ways, least);
        let targets = match &groups[..] {
            // A single shared class has all ways.
            [only] if only.kind == Kind::Shared => vec![ways],
            _ => given.clone(),
        };
        let wanted = groups.iter().zip(&targets).map(|(group, &target)| Wanted {
            before: self.mask(group.class.as_deref()),
            has: match group.class {
                Some(_) => group.has,
                None => target,
            },
            target,
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let masks = approach(usable, ways, least, moves, &wanted).or_else(|| {
            // The free ways have gaps: each class goes where it fits.
            let anew = wanted.iter().map(|w| Wanted { before: None, ..*w });
            approach(usable, ways, least, moves, &anew.collect::<Vec<_>>())
        });
        Divided {
            groups,
            claims,
            given,
            targets,
            masks,
        }
    }

    /// Returns the reserved classes, at their old ways or at new ones where there is room, and the names of instances
    /// without room.
    fn reserved(&self, situation: &Situation<'_>) -> (Vec<Class>, Vec<String>) {
        let usable = self.config.cache.usable();
        let mut placed: Vec<(usize, WayMask)> = Vec::new();
        let mut new = Vec::new();
        for (i, reserved) in situation.reserved.iter().enumerate() {
            let before = self.allocation.class(&reserved.name);
            match before.filter(|class| class.kind == Kind::Reserved) {
                Some(class) if class.mask.ways() == reserved.ways => placed.push((i, class.mask)),
                Some(class) => new.push((i, Some(class.mask))),
                None => new.push((i, None)),
            }
        }
        let mut refused = Vec::new();
        for (i, before) in new {
            let reserved = &situation.reserved[i];
            let taken = placed.iter().fold(0, |bits, (_, mask)| bits | mask.bits());
            let full = placed.len() >= usize::from(self.config.cache.classes) || reserved.ways == 0;
            let piece = Piece {
                before,
                ways: reserved.ways,
            };
            let place = match before {
                Some(_) => arrange(usable & !taken, &[piece]).map(|masks| masks[0]),
                None => settle(usable & !taken, reserved.ways),
            };
            if let Some(mask) = place.filter(|_| !full) {
                placed.push((i, mask));
                continue;
            }
            // There are enough ways, but not adjacent ones: the others move together, each with all of its ways.
            let others = placed.iter().map(|(i, mask)| Piece {
                before: Some(*mask),
                ways: situation.reserved[*i].ways,
            });
            let pieces: Vec<Piece> = others.chain([piece]).collect();
            match arrange(usable, &pieces).filter(|_| !full) {
                Some(masks) => {
                    placed.push((i, masks[masks.len() - 1]));
                    placed.iter_mut().zip(masks).for_each(|(place, mask)| place.1 = mask);
                }
                None => refused.push(reserved.name.clone()),
            }
        }
        placed.sort_by_key(|(i, _)| *i);
        let class = |(i, mask): (usize, WayMask)| {
            let reserved = &situation.reserved[i];
            Class {
                name: reserved.name.clone(),
                kind: Kind::Reserved,
                mask,
                instances: vec![reserved.name.clone()],
                tasks: reserved.tasks.clone(),
            }
        };
        (placed.into_iter().map(class).collect(), refused)
    }

    /// Updates the state of instances from the observations, and removes that of ended ones.
    fn observe(&mut self, seen: &[Observed], ways: u16) {
        let names: BTreeSet<&str> = seen.iter().map(|seen| &*seen.name).collect();
        self.wants.retain(|name, _| names.contains(&**name));
        self.isolated.retain(|name| names.contains(&**name));
        self.relief.keep(|name| names.contains(name));
        let fair = f64::from(ways) / seen.len().max(1) as f64;
        for seen in seen {
            let class = self.allocation.class_of(&seen.name);
            let alone = class.filter(|class| class.instances.len() == 1 && class.kind != Kind::Reserved);
            let alone = alone.map(|class| class.mask.ways());
            let want = self.wants.entry(seen.name.clone()).or_insert_with(DemandEstimator::new);
            want.observe(seen, &self.config, alone, fair, self.short);
        }
    }

    /// Returns the groups of instances by class. Instances that are late because of the cache get a class of their own
    /// (ResQ §5.3.2).
    fn groups(&mut self, seen: &[Observed], ways: u16, classes: usize, alone: bool) -> Vec<Group> {
        let least = self.config.cache.least.max(1);
        let most = classes.min(usize::from(ways / least)).min(match alone {
            true => usize::MAX,
            false => 1,
        });
        if most == 0 || seen.is_empty() {
            self.isolated.clear();
            return Vec::new();
        }
        let patience = self.config.patience.max(1);
        let calm = |want: &DemandEstimator| want.on_time >= self.config.rejoin && want.ways() <= f64::from(least);
        // While ways are short, an instance that exceeds its share would be isolated again at once.
        let short = self.short;
        self.isolated.retain(|name| short || !calm(&self.wants[name]));
        let lateness = |seen: &Observed| {
            let latency = seen.latency.map_or(0.0, |latency| latency.0 as f64);
            latency / seen.objective.0.max(1) as f64
        };
        let waits = |seen: &&Observed| {
            let want = &self.wants[&seen.name];
            want.late >= patience && !want.few_misses && !self.isolated.contains(&seen.name)
        };
        let mut late: Vec<&Observed> = seen.iter().filter(waits).collect();
        late.sort_by(|a, b| lateness(b).total_cmp(&lateness(a)).then(a.name.cmp(&b.name)));
        for next in late.into_iter().chain(self.hog(seen)) {
            let one_more = self.isolated.len() + 1;
            if one_more + usize::from(one_more < seen.len()) <= most {
                self.isolated.insert(next.name.clone());
            }
        }
        // There are fewer classes, or ways, than before: instances with the smallest demand share.
        while self.isolated.len() + usize::from(self.isolated.len() < seen.len()) > most {
            let ways = |name: &&String| self.wants[*name].ways();
            let smallest = self.isolated.iter().min_by(|a, b| ways(a).total_cmp(&ways(b))).cloned();
            match smallest {
                Some(name) => self.isolated.remove(&name),
                None => break,
            };
        }
        let group = |kind, members| Group {
            kind,
            members,
            class: None,
            has: 0,
        };
        let alone = |i: &usize| self.isolated.contains(&seen[*i].name);
        let (alone, together): (Vec<usize>, Vec<usize>) = (0..seen.len()).partition(|i| alone(i));
        let mut groups: Vec<Group> = Vec::new();
        if !together.is_empty() {
            groups.push(group(Kind::Shared, together));
        }
        groups.extend(alone.into_iter().map(|i| group(Kind::Isolated, vec![i])));
        self.go_on(&mut groups, seen);
        groups
    }

    /// Returns the instance in the shared class that exceeds its share most, by more than one way, if an isolated
    /// instance is late for lack of ways. A shared class is not fair by itself.
    fn hog<'a>(&self, seen: &'a [Observed]) -> Option<&'a Observed> {
        let share = |seen: &Observed| self.last.get(&seen.name).copied();
        let alone = |seen: &Observed| self.isolated.contains(&seen.name);
        let starves = |seen: &Observed| {
            let want = &self.wants[&seen.name];
            alone(seen) && want.late >= self.config.patience && share(seen).is_some_and(|share| share < want.ways())
        };
        if !seen.iter().any(starves) {
            return None;
        }
        let beyond = |seen: &'a Observed| {
            let held = self.config.cache.in_ways(seen.occupancy?);
            Some((held - share(seen)?, seen))
        };
        let shared = seen.iter().filter(|seen| !alone(seen)).filter_map(beyond);
        let most = shared.max_by(|a, b| a.0.total_cmp(&b.0));
        most.filter(|(beyond, _)| *beyond > 1.0).map(|(_, seen)| seen)
    }

    /// Assigns existing classes to groups. It reuses as many as possible, so that none is created while another is
    /// removed.
    fn go_on(&self, groups: &mut [Group], seen: &[Observed]) {
        let classes = self.allocation.classes.iter();
        let mut left: Vec<&Class> = classes.filter(|class| class.kind != Kind::Reserved).collect();
        for group in groups.iter_mut() {
            let same = |class: &&Class| match group.kind {
                Kind::Shared => class.kind == Kind::Shared,
                _ => class.kind == Kind::Isolated && class.instances == [&*seen[group.members[0]].name],
            };
            if let Some(at) = left.iter().position(same) {
                let class = left.remove(at);
                (group.class, group.has) = (Some(class.name.clone()), class.mask.ways());
            }
        }
        for group in groups.iter_mut().filter(|group| group.class.is_none()) {
            let mine = |class: &&Class| group.members.iter().any(|&i| class.instances.contains(&seen[i].name));
            let at = left.iter().position(mine).unwrap_or(0);
            if at < left.len() {
                let class = left.remove(at);
                (group.class, group.has) = (Some(class.name.clone()), class.mask.ways());
            }
        }
        // An instance that returns to the shared class adds the ways of its old class.
        if let Some(shared) = groups.iter_mut().find(|group| group.kind == Kind::Shared) {
            let names = |class: &&Class| {
                let mut members = shared.members.iter();
                members.any(|&i| class.instances.contains(&seen[i].name))
            };
            let brought: u16 = left.iter().copied().filter(names).map(|c| c.mask.ways()).sum();
            shared.has += brought;
        }
    }

    fn claim(&self, group: &Group, seen: &[Observed]) -> ClassDemand {
        let ways = |&i: &usize| self.wants[&seen[i].name].ways();
        let least = f64::from(self.config.cache.least.max(1));
        ClassDemand {
            demands: match group.kind {
                Kind::Shared => group.members.iter().map(ways).collect(),
                _ => group.members.iter().map(|i| ways(i).ceil().max(least)).collect(),
            },
            has: group.has,
        }
    }

    fn mask(&self, class: Option<&str>) -> Option<WayMask> {
        Some(self.allocation.class(class?)?.mask)
    }

    /// Returns the allocation with these masks.
    fn allocated(&self, reserved: Vec<Class>, groups: &[Group], masks: &[WayMask], seen: &[Observed]) -> Allocation {
        let mut classes = reserved;
        let kept: BTreeSet<&str> = groups.iter().filter_map(|group| group.class.as_deref()).collect();
        let taken: BTreeSet<&str> = classes.iter().map(|class| &*class.name).collect();
        let mut free = (0..)
            .map(numbered)
            .filter(|name| !kept.contains(&**name) && !taken.contains(&**name));
        let mut new = Vec::new();
        for (group, &mask) in groups.iter().zip(masks) {
            let members = || group.members.iter().map(|&i| &seen[i]);
            let name = group.class.clone().or_else(|| free.next());
            new.extend(name.map(|name| Class {
                name,
                kind: group.kind,
                mask,
                instances: members().map(|seen| seen.name.clone()).collect(),
                tasks: members().flat_map(|seen| seen.tasks.iter().copied()).collect(),
            }));
        }
        classes.extend(new);
        Allocation { classes }
    }

    /// Returns the share of each instance.
    fn shares_of(&self, seen: &[Observed], groups: &[Group], targets: &[u16], placed: bool) -> Vec<Share> {
        let mut shares: Vec<Share> = seen
            .iter()
            .map(|seen| Share {
                name: seen.name.clone(),
                class: self.allocation.class_of(&seen.name).map(|class| class.name.clone()),
                demand: self.wants[&seen.name].ways(),
                share: 0.0,
            })
            .collect();
        for (group, &ways) in groups.iter().zip(targets).filter(|_| placed) {
            let demands = || group.members.iter().map(|&i| self.wants[&seen[i].name].ways());
            let most = level(demands(), f64::from(ways));
            for &i in &group.members {
                shares[i].share = match group.kind {
                    Kind::Shared => shares[i].demand.min(most),
                    _ => f64::from(ways),
                };
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests;
