//! Length of turns.

use super::us;
use tailwater_net::Nanos;
use tailwater_policy::broker::{TurnChain, turn_length};

fn chains(count: usize, objective: u64, load: f64) -> Vec<TurnChain> {
    let chain = TurnChain {
        objective: us(objective),
        load,
        batch: us(5),
        idle_turn: Nanos(100),
    };
    vec![chain; count]
}

fn length(chains: &[TurnChain]) -> Option<Nanos> {
    turn_length(chains.iter().copied(), 25)
}

#[test]
fn the_tightest_objective_decides() {
    let mut all = chains(4, 1_000, 0.1);
    assert_eq!(length(&all), Some(Nanos((250_000 - 400) / 4)));
    all[2].objective = us(200);
    assert_eq!(length(&all), Some(Nanos((50_000 - 400) / 4)));
    // Four turns of a batch no longer fit.
    all[2].objective = us(80);
    assert_eq!(length(&all), None);
    assert_eq!(length(&[]), None);
}

#[test]
fn sleeping_chains_cost_a_look() {
    let mut all = chains(32, 200, 0.0);
    assert_eq!(length(&all), Some(Nanos((50_000 - 3_200) / 2)));
    all.iter_mut().take(8).for_each(|chain| chain.load = 0.02);
    assert_eq!(length(&all), Some(Nanos((50_000 - 3_200) / 8)));
    all.iter_mut().for_each(|chain| chain.idle_turn = us(2));
    assert_eq!(length(&all), None);
    assert_eq!(length(&all[..1]), Some(us(48)));
}
