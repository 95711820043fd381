//! From counts of choices and patterns to instances on servers.

use super::model::Solution;
use crate::demand::Slot;
use crate::plan::{Instance, Plan};
use crate::schedule::Request;
use std::collections::HashMap;

/// Deals the instances of all SLOs out to nodes with the patterns that were chosen; SLOs that must be apart first.
/// Those that find no place are left.
pub(super) fn assign<'a>(plan: &mut Plan, requests: &[&'a Request], solution: &Solution<'_>) -> Vec<&'a Request> {
    let mut places = Places::new(plan, solution);
    // By SLO, the choice that it takes.
    let mut choices: Vec<(&'a Request, &[Slot])> = Vec::new();
    for (sort, taken) in solution.sorts.iter().zip(&solution.taken) {
        let counted = sort.choices.iter().zip(taken);
        let dealt = counted.flat_map(|(choice, &count)| std::iter::repeat_n(&choice[..], count));
        let members = sort.members.iter().map(|&member| requests[member]);
        choices.extend(members.zip(dealt));
    }
    let free = |request: &Request| !request.slo.spread && request.slo.apart.is_none();
    choices.sort_by_key(|(request, _)| free(request));
    let mut left = Vec::new();
    for (request, choice) in choices {
        let instances = places.find(plan, request, choice);
        let put = instances.map(|instances| plan.put(request, instances));
        if !matches!(put, Some(Ok(()))) {
            left.push(request);
        }
    }
    left
}

/// What a place is for: a kind of servers, and cores.
type Key = (usize, u16);
/// A place: its ways, its server and node.
type Place = (u16, usize, u16);

/// Places for instances that are not taken yet.
struct Places {
    places: HashMap<Key, Vec<Place>>,
}

impl Places {
    fn new(plan: &Plan, solution: &Solution<'_>) -> Self {
        let cluster = plan.cluster();
        let mut places: HashMap<Key, Vec<Place>> = HashMap::new();
        for (kind, room) in cluster.kinds().iter().enumerate() {
            let servers = cluster.servers().iter().enumerate();
            let servers = servers.filter(|(i, server)| server.kind == kind && !plan.is_active(*i));
            let mut nodes = servers.flat_map(|(i, _)| (0..room.nodes).map(move |node| (i, node)));
            for (_, pattern, count) in solution.nodes.iter().filter(|(k, ..)| *k == kind) {
                for (server, node) in nodes.by_ref().take(*count) {
                    for &(size, count) in pattern {
                        let slot = solution.sizes[size];
                        let entry = places.entry((kind, slot.cores)).or_default();
                        let place = (slot.ways, server, node);
                        entry.extend(std::iter::repeat_n(place, count as usize));
                    }
                }
            }
        }
        // The smallest first.
        places.values_mut().for_each(|places| places.sort_unstable());
        Places { places }
    }

    /// Places for a choice's instances, each the smallest that is large enough; none are taken if not all are
    /// found.
    fn find(&mut self, plan: &Plan, request: &Request, choice: &[Slot]) -> Option<Vec<Instance>> {
        let mut found: Vec<(Key, Place, Instance)> = Vec::new();
        let mut complete = true;
        for slot in choice {
            let key = (slot.kind, slot.cores);
            let places = self.places.entry(key).or_default();
            let first = places.partition_point(|&(ways, ..)| ways < slot.ways);
            let fits = |&(_, server, _): &Place| {
                let group = request.slo.apart.as_deref();
                let together = group.is_some_and(|group| plan.has_group(group, server));
                let twice = request.slo.spread && found.iter().any(|f| f.2.server == server);
                !together && !twice
            };
            let Some(place) = places[first..].iter().position(fits) else {
                complete = false;
                break;
            };
            let place = places.remove(first + place);
            let (_, server, node) = place;
            let ways = slot.ways;
            found.push((key, place, Instance { server, node, ways }));
        }
        if complete {
            return Some(found.into_iter().map(|(.., instance)| instance).collect());
        }
        for (key, place, _) in found {
            let places = self.places.entry(key).or_default();
            let at = places.partition_point(|other| *other < place);
            places.insert(at, place);
        }
        None
    }
}
