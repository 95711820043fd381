//! Choices at their limits, and dealt ways at equality.

use super::*;
use crate::demand::Offer;

/// Demand on one kind of servers, where an instance with 1, 2, 3 ... ways has these rates.
fn demand(need: f64, rates: &[f64]) -> Demand {
    Demand {
        need,
        offers: vec![Offer {
            kind: 0,
            cores: 1,
            rates: rates.to_vec(),
        }],
    }
}

fn ways(choices: &[Vec<Slot>]) -> Vec<Vec<u16>> {
    let each = |choice: &Vec<Slot>| choice.iter().map(|slot| slot.ways).collect();
    choices.iter().map(each).collect()
}

fn dealt_of(count: usize, rates: &[f64], need: f64) -> Option<Vec<u16>> {
    let demand = demand(need, rates);
    dealt(count, |ways| demand.offers[0].rate(ways), rates.len() as u16, &demand)
}

#[test]
fn ways_are_dealt_one_by_one_until_they_just_suffice() {
    const RATES: [f64; 3] = [0.0, 10.0, 20.0];
    for (count, need, expected) in [
        (4, 1.0, Some(vec![2, 2, 2, 2])),
        (4, 40.0, Some(vec![2, 2, 2, 2])),
        (4, 41.0, Some(vec![3, 2, 2, 2])),
        (4, 50.0, Some(vec![3, 2, 2, 2])),
        (4, 51.0, Some(vec![3, 3, 2, 2])),
        (4, 70.0, Some(vec![3, 3, 3, 2])),
        (4, 80.0, Some(vec![3, 3, 3, 3])),
        (4, 81.0, None),
        (1, 20.0, Some(vec![3])),
        (2, 30.0, Some(vec![3, 2])),
    ] {
        assert_eq!(dealt_of(count, &RATES, need), expected, "{count} for {need}");
    }
    assert_eq!(dealt_of(4, &[0.0, 0.0], 1.0), None);
}

#[test]
fn even_choices_go_from_the_fewest_instances_to_the_smallest() {
    let all = even(&demand(60.0, &[10.0, 20.0, 30.0]), 100);
    let expected: [&[u16]; 5] = [&[3, 3], &[2, 2, 2], &[2, 2, 1, 1], &[2, 1, 1, 1, 1], &[1; 6]];
    assert_eq!(ways(&all), expected);
    // No more than allowed; and just as many are allowed.
    assert_eq!(ways(&even(&demand(60.0, &[10.0, 20.0, 30.0]), 3)), expected[..2]);
    assert_eq!(ways(&even(&demand(100.0, &[30.0]), 4)), [[1; 4]]);
    assert_eq!(even(&demand(100.0, &[30.0]), 3), Vec::<Vec<Slot>>::new());
    // Less than one instance is one.
    assert_eq!(ways(&even(&demand(30.0, &[30.0]), 9)), [[1]]);
    assert_eq!(ways(&even(&demand(0.1, &[30.0]), 9)), [[1]]);
}

#[test]
fn of_many_even_choices_the_first_and_last_are_among_those_tried() {
    let counts: Vec<usize> = even(&demand(1000.5, &[1.0, 100.0]), 4096)
        .iter()
        .map(Vec::len)
        .collect();
    let step = (1001_usize - 11).div_ceil(MOST_EVEN);
    assert_eq!(counts[..3], [11, 11 + step, 11 + 2 * step]);
    assert_eq!(counts.last(), Some(&1001));
    assert!(counts.len() <= MOST_EVEN + 1, "{}", counts.len());
    // Each count once, also if the last step meets the end.
    assert!(counts.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn even_choices_are_listed_where_all_would_be_too_many() {
    let rates: Vec<f64> = (1..=20).map(f64::from).collect();
    let many = demand(400.0, &rates);
    let found = choices(&many, 4096);
    assert!(!found.complete);
    assert_eq!(found.list, even(&many, 4096));
    assert!(found.list.iter().all(|choice| {
        let sizes: Vec<u16> = choice.iter().map(|slot| slot.ways).collect();
        sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1
    }));
}

#[test]
fn the_instances_of_all_choices_together_are_bounded() {
    // As many choices, each `times` of the largest size and the same small ones.
    let long = |times: usize| {
        let rates = [1.0, 2.0, 3.0, 4.0, 5.0, 1000.0];
        choices(&demand(times as f64 * 1000.0 + 20.0, &rates), times + 10)
    };
    let few = long(20);
    assert!(few.complete);
    let slots = |times: usize| few.list.len() * (times + 4);
    assert!(slots(20) < MOST_SLOTS && slots(1000) > MOST_SLOTS, "{}", few.list.len());
    assert!(!long(1000).complete);
}

#[test]
fn as_many_instances_as_allowed_may_be_needed() {
    let exact = choices(&demand(30.0, &[10.0]), 3);
    assert_eq!((ways(&exact.list), exact.complete), (vec![vec![1, 1, 1]], true));
    let beyond = choices(&demand(30.1, &[10.0]), 3);
    assert_eq!((beyond.list.len(), beyond.complete), (0, true));
    // A size that is not faster than a smaller one is none.
    let flat = choices(&demand(10.0, &[10.0, 10.0, 20.0]), 3);
    assert_eq!(ways(&flat.list), [[1]]);
}
