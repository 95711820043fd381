//! Rights of chains, and the choice among cores.

use super::{BrokerCore, ChainLoad, CoreNumber, CoreUse};

/// Multiples of the entitled load up to which a chain is not in overload: over the long window, since measured costs
/// vary, and over the short one, since bursts are what auxiliary cores are for.
const TOLERANCE: f64 = 1.1;
const BURST: f64 = 3.0;

/// Returns the number of cores that chains can use.
pub(super) fn usable(cores: &[BrokerCore]) -> usize {
    cores.iter().filter(|core| core.usage != CoreUse::Reserved).count()
}

/// Returns the number of auxiliary cores, lent or not.
pub(super) fn auxiliary(uses: impl Iterator<Item = CoreUse>) -> usize {
    uses.filter(|usage| matches!(usage, CoreUse::Free | CoreUse::Lent(_)))
        .count()
}

/// Returns a chain's share of `cores` by weight, when weights sum up to `weights`.
pub(super) fn share(cores: usize, weight: u32, weights: u64) -> f64 {
    cores as f64 * f64::from(weight.max(1)) / weights.max(1) as f64
}

/// Returns `true` if more is offered to a chain than it is entitled to: the load that it was admitted with, or its
/// `share` of the server's cores. A burst is no overload.
pub(super) fn is_overloaded(chain: &ChainLoad, share: f64) -> bool {
    let entitled = match chain.planned > 0.0 {
        true => chain.planned,
        false => share,
    };
    chain.long > entitled * TOLERANCE || chain.short > entitled * BURST
}

/// Returns the free core to use next: `preferred` if its node is as good as any, otherwise the first from the highest
/// number down, since dedicated cores are taken from the lowest up; cores of `node` first.
pub(super) fn nearest(
    cores: &[BrokerCore],
    node: u16,
    preferred: Option<CoreNumber>,
    is_free: impl Fn(usize) -> bool,
) -> Option<usize> {
    let far = |number: &usize| cores[*number].node != node;
    let best = (0..cores.len())
        .rev()
        .filter(|&number| is_free(number))
        .min_by_key(far)?;
    let preferred = preferred.map(usize::from).filter(|&number| {
        // A caller's number is not trusted.
        number < cores.len() && is_free(number)
    });
    match preferred {
        Some(number) if far(&number) <= far(&best) => Some(number),
        _ => Some(best),
    }
}
