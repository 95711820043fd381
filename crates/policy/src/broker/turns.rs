//! Light chains that take turns on one core.

use tailwater_net::Nanos;

/// Load in cores from which on a chain is expected to have packets in a round.
const AWAKE: f64 = 0.01;
/// Least number of chains expected to have packets in a round.
const LEAST_AWAKE: usize = 2;

/// Chain that takes turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnChain {
    /// Latency objective.
    pub objective: Nanos,
    /// Load in cores.
    pub load: f64,
    /// Longest time of a batch: a turn is not shorter.
    pub batch: Nanos,
    /// Time of a turn in which no packet waits.
    pub idle_turn: Nanos,
}

/// Returns the length of a turn with which a round of these chains takes at most `percent` of the tightest objective,
/// or `None` if that is less than a batch: they do not fit on one core.
///
/// A round consists of a turn for each chain that is expected to have packets, at least two, and a look at each of the
/// others. A chain that begins to have packets lengthens the round by its turn, until the next call sees its load.
pub fn turn_length(chains: impl Iterator<Item = TurnChain> + Clone, percent: u32) -> Option<Nanos> {
    let tightest = chains.clone().map(|chain| chain.objective.0).min()?;
    let batch = chains.clone().map(|chain| chain.batch.0).max()?;
    let looks: u64 = chains.clone().map(|chain| chain.idle_turn.0).sum();
    let count = chains.clone().count();
    let awake = chains.filter(|chain| chain.load >= AWAKE).count();
    let turns = awake.max(LEAST_AWAKE.min(count)) as u64;
    let round = tightest / 100 * u64::from(percent);
    let turn = round.checked_sub(looks)? / turns;
    (turn >= batch.max(1)).then_some(Nanos(turn))
}
