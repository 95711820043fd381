//! Weights of chains on a core, by which it divides its time.

/// Weight of a whole core that is promised.
const WHOLE: f64 = 65_536.0;
/// Maximum number of chains of a port, which may all be on one core without a promise.
const MOST_CHAINS: f64 = 64.0;

/// Returns the weight of a chain by the share that it is promised, or of one without a promise.
///
/// As long as all promises of a core together leave `headroom`, each chain's part of the sum of weights is at least its
/// share: up to 64 chains without a promise weigh no more than the headroom.
pub fn weight(share: Option<f64>, headroom: f64) -> u32 {
    let weight = match share {
        Some(share) => (share * WHOLE).ceil(),
        None => (headroom * WHOLE / (2.0 * MOST_CHAINS)).floor(),
    };
    (weight as u32).max(1)
}
