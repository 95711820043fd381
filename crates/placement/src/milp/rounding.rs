//! From counts of choices and patterns to instances on servers.

use super::model::Solution;
use super::patterns::NodePattern;
use crate::demand::Slot;
use crate::plan::{Instance, Plan};
use crate::schedule::Request;
use std::collections::HashMap;

/// Distributes the instances of all SLOs to nodes with the chosen patterns, SLOs with anti-affinity rules first.
/// Returns the SLOs without a suitable place.
pub(super) fn assign<'a>(plan: &mut Plan, requests: &[&'a Request], solution: &Solution<'_>) -> Vec<&'a Request> {
    let mut places = Places::new(plan, solution);
    // By SLO, its choice.
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

/// Key of a place: kind of servers, and cores.
type Key = (usize, u16);
/// Place: its ways, server and node.
type Place = (u16, usize, u16);

/// Free places for instances.
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
            for (NodePattern { pattern, .. }, count) in solution.nodes.iter().filter(|(of, _)| of.kind == kind) {
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
        // Smallest first.
        places.values_mut().for_each(|places| places.sort_unstable());
        Places { places }
    }

    /// Takes a place for each instance of a choice, the smallest that is large enough. If not all are found, none is
    /// taken.
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
