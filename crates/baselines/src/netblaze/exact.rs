//! All ways to cut a few flows.

use super::load::{grown, sum};
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::Load;

/// The most flows that are tried in all ways.
pub(super) const MAX_ITEMS: usize = 8;
/// The most bins: as many that are partly filled, and one for each flow.
pub(super) const MAX_BINS: usize = 2 * MAX_ITEMS;

/// Sets of flows, one bit each.
const SETS: usize = 1 << MAX_ITEMS;

/// Puts all flows, given by their packets, into the bins, of which each has what `before` says.
/// Returns each flow's bin; the later bins are empty unless the earlier cannot do. `None` if there
/// is no way.
///
/// Bin by bin it notes which sets of flows can be put away with the bins so far. Of these it keeps
/// those that no other contains, so a bin costs some hundreds of steps.
pub(super) fn assign(
    frontier: &EpochFrontier,
    packets: impl Iterator<Item = u32>,
    before: &[Load],
) -> Option<[u8; MAX_ITEMS]> {
    let mut loads = [Load::default(); SETS];
    let mut sets = 1;
    for packets in packets {
        for set in 0..sets {
            loads[set + sets] = grown(loads[set], packets);
        }
        sets *= 2;
    }
    let all = sets - 1;

    // For each bin and set that can be put away with the bins up to it: what this bin takes.
    let mut taken = [[0_u8; SETS]; MAX_BINS];
    let mut reached = [false; SETS];
    reached[0] = true;
    // Which sets the bin has room for.
    let mut fits = [false; SETS];
    let mut bins = 0;
    while !reached[all] {
        let load = before.get(bins)?;
        if bins == 0 || *load != before[bins - 1] {
            for (fits, subset) in fits[..sets].iter_mut().zip(&loads) {
                *fits = frontier.admits(sum(*load, *subset));
            }
        }
        let mut next = [false; SETS];
        for set in (0..sets).filter(|set| reached[*set]) {
            let rest = all & !set;
            if fits[rest] {
                next[all] = true;
                taken[bins][all] = rest as u8;
                break;
            }
            // All subsets of what is still to be put away; nothing always fits. Which of them fit
            // no processor predicts, so there is no branch.
            next[set] = true;
            taken[bins][set] = 0;
            let mut subset = rest;
            while subset != 0 {
                next[set | subset] |= fits[subset];
                let taken = &mut taken[bins][set | subset];
                *taken = if fits[subset] { subset as u8 } else { *taken };
                subset = (subset - 1) & rest;
            }
        }
        keep_largest(&mut next[..sets]);
        reached = next;
        bins += 1;
    }

    let mut bin_of = [0; MAX_ITEMS];
    let mut set = all;
    for bin in (0..bins).rev() {
        let subset = usize::from(taken[bin][set]);
        for (i, bin_of) in bin_of.iter_mut().enumerate() {
            if subset & 1 << i != 0 {
                *bin_of = bin as u8;
            }
        }
        set &= !subset;
    }
    Some(bin_of)
}

/// Of the sets that are marked, leaves those that no other contains.
fn keep_largest(marked: &mut [bool]) {
    // Sets that are marked or contained in one that is, and of these those that lack a flow of it.
    let mut covered = [false; SETS];
    let mut contained = [false; SETS];
    let (covered, contained) = (&mut covered[..marked.len()], &mut contained[..marked.len()]);
    covered.copy_from_slice(marked);
    let flows = marked.len().trailing_zeros();
    // Sets of which each second half has a flow that the first lacks.
    let halves = |flow: u32| 2 << flow;
    for flow in 0..flows {
        for sets in covered.chunks_exact_mut(halves(flow)) {
            let (without, with) = sets.split_at_mut(1 << flow);
            without.iter_mut().zip(with).for_each(|(a, b)| *a |= *b);
        }
    }
    for flow in 0..flows {
        let larger = covered.chunks_exact(halves(flow));
        for (sets, larger) in contained.chunks_exact_mut(halves(flow)).zip(larger) {
            let with = &larger[1 << flow..];
            sets.iter_mut().zip(with).for_each(|(a, b)| *a |= *b);
        }
    }
    for (marked, contained) in marked.iter_mut().zip(contained) {
        *marked &= !*contained;
    }
}
