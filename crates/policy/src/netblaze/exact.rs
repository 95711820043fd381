//! All ways to cut a few flows.

use crate::capacity::EpochFrontier;
use crate::core::Load;

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
            loads[set + sets] = super::grown(loads[set], packets);
        }
        sets *= 2;
    }
    let all = sets - 1;

    // For each bin and set that can be put away with the bins up to it: what this bin takes.
    let mut taken = [[0_u8; SETS]; MAX_BINS];
    let mut reached = [false; SETS];
    reached[0] = true;
    let mut bins = 0;
    while !reached[all] {
        let load = before.get(bins)?;
        let mut next = [false; SETS];
        for set in (0..sets).filter(|set| reached[*set]) {
            let rest = all & !set;
            // All subsets of what is still to be put away, the largest first.
            let mut subset = rest;
            loop {
                if frontier.admits(super::sum(*load, loads[subset])) || subset == 0 {
                    next[set | subset] = true;
                    taken[bins][set | subset] = subset as u8;
                }
                if subset == 0 {
                    break;
                }
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
    // Whether a marked set strictly contains this one, or contains it.
    let mut contained = [false; SETS];
    let mut covered = [false; SETS];
    let items = marked.len().trailing_zeros();
    for set in (0..marked.len()).rev() {
        contained[set] = (0..items)
            .map(|i| set | 1 << i)
            .any(|larger| larger != set && covered[larger]);
        covered[set] = contained[set] || marked[set];
    }
    for (marked, contained) in marked.iter_mut().zip(contained) {
        *marked &= !contained;
    }
}
