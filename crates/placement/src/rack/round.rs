//! State of a round: the instances of each chain that count, and the actions so far.

use super::actions::{CreateReason, DeleteReason, DrainReason, NewInstance, RackAction, ResizeReason};
use super::fleet::{Fleet, Request};
use super::options::RackOptions;
use super::view::{ChainView, InstancePhase, InstanceView, RackView, ServerState};
use std::collections::{BTreeSet, HashMap, HashSet};
use tailwater_net::Nanos;

/// Instance that counts as capacity of its chain.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub name: String,
    pub server: usize,
    pub rate: f64,
    pub exclusive: bool,
    pub ready: bool,
    /// Not part of a move, and its server reports: it may change.
    pub settled: bool,
    /// Its server is not one of its chain's pool: it moves, and gets no more.
    pub outside: bool,
}

/// A chain with its instances.
#[derive(Debug)]
pub(super) struct Group<'v> {
    pub chain: &'v ChainView,
    /// Starting and ready instances. Of one and its replacement, the replacement. Sorted by name.
    pub slots: Vec<Slot>,
    /// The same, as observed.
    pub observed: Vec<&'v InstanceView>,
    /// Packets per second promised to instances that process packets, those with a replacement included.
    pub ready_rate: f64,
    /// Instances were lost in this round.
    pub has_lost: bool,
    /// Servers on which instances failed in this round.
    pub failed_on: BTreeSet<usize>,
    /// Servers that get none, since one failed there not long ago.
    pub avoided: BTreeSet<usize>,
}

/// A round's decisions so far.
#[derive(Debug)]
pub(super) struct Round<'a, 'v> {
    pub options: &'a RackOptions,
    pub now: Nanos,
    pub fleet: Fleet<'v>,
    pub actions: Vec<RackAction>,
    /// Instances with a replacement, of which one is not yet deleted.
    pub moves: usize,
    /// Names that no new instance gets.
    names: HashSet<String>,
}

impl Group<'_> {
    pub fn rate(&self) -> f64 {
        self.slots.iter().map(|slot| slot.rate).sum()
    }

    /// Servers of the instances, but of one.
    pub fn servers(&self, without: Option<&str>) -> BTreeSet<usize> {
        let others = self.slots.iter().filter(|slot| Some(&*slot.name) != without);
        others.map(|slot| slot.server).collect()
    }

    /// Returns `true` if the chain's redundancy, or as much of it as there is, remains without an instance.
    pub fn can_lose(&self, name: &str) -> bool {
        let redundancy = usize::from(self.chain.redundancy).min(self.servers(None).len());
        self.servers(Some(name)).len() >= redundancy
    }

    pub fn least(&self) -> usize {
        usize::from(self.chain.least.max(self.chain.redundancy).max(1)).min(self.most())
    }

    pub fn most(&self) -> usize {
        usize::from(self.chain.most.max(1))
    }

    pub fn request<'a>(&'a self, name: &'a str, rate: f64, exclusive: bool) -> Request<'a> {
        Request {
            name,
            pool: self.chain.pool.as_deref(),
            cores: self.chain.cores,
            promise: self.chain.promise.as_ref(),
            rate,
            exclusive,
        }
    }
}

impl<'a, 'v> Round<'a, 'v> {
    /// Reads a view: fills the servers, ends what has to end, and returns the chains in the order of the view.
    pub fn new(options: &'a RackOptions, view: &'v RackView) -> (Self, Vec<Group<'v>>) {
        let mut round = Round {
            options,
            now: view.now,
            fleet: Fleet::new(&view.servers, view.now, options.lost_after),
            actions: Vec::new(),
            moves: 0,
            names: HashSet::new(),
        };
        for instance in &view.instances {
            // A new instance with the name of a predecessor would look like that.
            round
                .names
                .extend([instance.name.clone()].into_iter().chain(instance.replaces.clone()));
        }
        let group = |chain| Group {
            chain,
            slots: Vec::new(),
            observed: Vec::new(),
            ready_rate: 0.0,
            has_lost: false,
            failed_on: BTreeSet::new(),
            avoided: BTreeSet::new(),
        };
        let mut groups: Vec<Group<'v>> = view.chains.iter().map(group).collect();
        let mut chains: HashMap<&str, usize> = HashMap::new();
        for (at, chain) in view.chains.iter().enumerate() {
            chains.entry(&chain.name).or_insert(at);
        }
        round.fill(view, &chains);
        let by_name: HashMap<&str, &InstanceView> = view.instances.iter().map(|one| (&*one.name, one)).collect();
        // Instances by what takes their place.
        let mut successors: HashMap<&str, &InstanceView> = HashMap::new();
        for instance in &view.instances {
            let predecessor = instance.replaces.as_deref().filter(|name| by_name.contains_key(name));
            if let Some(name) = predecessor
                && instance.is_active()
                && round.server_of(instance).is_some()
            {
                round.moves += 1;
                successors.insert(name, instance);
            }
        }
        for instance in &view.instances {
            let group = chains.get(&*instance.chain).map(|at| &mut groups[*at]);
            let is_in_move = instance
                .replaces
                .as_deref()
                .is_some_and(|name| by_name.contains_key(name));
            round.observe(instance, successors.get(&*instance.name).copied(), is_in_move, group);
        }
        for group in &mut groups {
            group.slots.sort_by(|one, two| one.name.cmp(&two.name));
            group.observed.sort_by(|one, two| one.name.cmp(&two.name));
        }
        (round, groups)
    }

    fn fill(&mut self, view: &'v RackView, chains: &HashMap<&str, usize>) {
        let mut on: Vec<Vec<(Request<'v>, &'v [u32])>> = vec![Vec::new(); view.servers.len()];
        for instance in &view.instances {
            let Some(server) = self.fleet.named(&instance.server) else {
                continue;
            };
            let chain = chains.get(&*instance.chain).map(|at| &view.chains[*at]);
            let request = Request {
                name: &instance.name,
                pool: chain.and_then(|chain| chain.pool.as_deref()),
                cores: chain.map_or(1, |chain| chain.cores),
                promise: chain.and_then(|chain| chain.promise.as_ref()),
                rate: instance.promised,
                exclusive: instance.exclusive,
            };
            on[server].push((request, &instance.cores));
        }
        for (server, instances) in on.iter().enumerate().filter(|(_, instances)| !instances.is_empty()) {
            self.fleet.fill(server, instances);
        }
    }

    /// Server of an instance, unless that is lost.
    fn server_of(&self, instance: &InstanceView) -> Option<usize> {
        let server = self.fleet.named(&instance.server)?;
        self.fleet.servers[server].alive.then_some(server)
    }

    fn reports(&self, server: usize) -> bool {
        !matches!(self.fleet.servers[server].view.state, ServerState::Lost { .. })
    }

    fn observe(
        &mut self,
        instance: &'v InstanceView,
        successor: Option<&'v InstanceView>,
        is_in_move: bool,
        group: Option<&mut Group<'v>>,
    ) {
        let Some(server) = self.server_of(instance) else {
            self.delete(&instance.name, DeleteReason::ServerLost);
            if let Some(group) = group.filter(|_| instance.is_active() && successor.is_none()) {
                group.has_lost = true;
            }
            return;
        };
        let is_ready = instance.phase == InstancePhase::Ready;
        match (instance.phase, group) {
            (InstancePhase::Lost, group) => {
                self.delete(&instance.name, DeleteReason::Failed);
                if let Some(group) = group {
                    group.has_lost = true;
                    group.failed_on.insert(server);
                }
            }
            (InstancePhase::Drained, _) => self.delete(&instance.name, DeleteReason::Drained),
            (InstancePhase::Draining, _) => {}
            (InstancePhase::Starting, None) => self.delete(&instance.name, DeleteReason::Cancelled),
            (InstancePhase::Ready, None) => self.drain(&instance.name, DrainReason::ChainGone),
            (_, Some(group)) => {
                if is_ready {
                    group.ready_rate += instance.promised;
                }
                let Some(successor) = successor else {
                    group.observed.push(instance);
                    group.slots.push(Slot {
                        name: instance.name.clone(),
                        server,
                        rate: instance.promised,
                        exclusive: instance.exclusive,
                        ready: is_ready,
                        settled: !is_in_move && self.reports(server),
                        outside: !self.fleet.servers[server].view.is_for(group.chain.pool.as_deref()),
                    });
                    return;
                };
                let takes_over = self.server_of(successor).is_some_and(|server| self.reports(server));
                if successor.phase == InstancePhase::Ready && takes_over {
                    match is_ready {
                        true => self.drain(&instance.name, DrainReason::Replaced),
                        false => self.delete(&instance.name, DeleteReason::Cancelled),
                    }
                }
            }
        }
    }

    pub fn delete(&mut self, instance: &str, reason: DeleteReason) {
        self.actions.push(RackAction::Delete {
            instance: instance.to_owned(),
            reason,
        });
    }

    pub fn drain(&mut self, instance: &str, reason: DrainReason) {
        self.actions.push(RackAction::Drain {
            instance: instance.to_owned(),
            reason,
        });
    }

    /// Changes the promise of an instance if its server still keeps all promises.
    pub fn resize(&mut self, slot: &mut Slot, rate: f64, reason: ResizeReason) -> bool {
        let is_kept = slot.outside && rate > slot.rate;
        if slot.exclusive || is_kept || !self.fleet.servers[slot.server].resizes() {
            return false;
        }
        let Some(share) = self.fleet.resize(slot.server, &slot.name, rate) else {
            return false;
        };
        slot.rate = rate;
        self.actions.push(RackAction::Resize {
            instance: slot.name.clone(),
            rate,
            share,
            reason,
        });
        true
    }

    /// First name of a chain that is free.
    fn name_for(&self, chain: &str) -> String {
        let names = (0..=self.names.len()).map(|number| format!("{chain}-{number}"));
        let mut free = names.filter(|name| !self.names.contains(name));
        free.next().unwrap_or_else(|| chain.to_owned())
    }

    /// Creates an instance of a chain, with a rate or exclusive, on one of the `allowed` servers of its pool. Returns
    /// `false` if none takes it, or `most` of the used ones refuse it.
    pub fn create(
        &mut self,
        group: &mut Group<'_>,
        (rate, exclusive): (f64, bool),
        (reason, replaces): (CreateReason, Option<&str>),
        (most, allowed): (usize, &dyn Fn(usize) -> bool),
    ) -> bool {
        let name = self.name_for(&group.chain.name);
        let rate = match group.chain.promise {
            Some(_) => rate,
            None => 0.0,
        };
        let allowed = |server: usize| allowed(server) && !group.avoided.contains(&server);
        let Some(found) = self.fleet.place(&group.request(&name, rate, exclusive), most, &allowed) else {
            return false;
        };
        self.actions.push(RackAction::Create(NewInstance {
            name: name.clone(),
            chain: group.chain.name.clone(),
            server: self.fleet.servers[found.server].view.name.clone(),
            cores: group.chain.cores,
            rate,
            share: found.share,
            exclusive,
            replaces: replaces.map(str::to_owned),
            reason,
        }));
        self.names.insert(name.clone());
        // The replacement counts in place of its predecessor.
        group.slots.retain(|slot| Some(&*slot.name) != replaces);
        group.slots.push(Slot {
            name,
            server: found.server,
            rate,
            exclusive,
            ready: false,
            settled: false,
            outside: false,
        });
        true
    }
}
