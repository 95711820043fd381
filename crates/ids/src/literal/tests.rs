use super::*;
use proptest::prelude::*;

/// Returns the result of a plain search.
fn plain(strings: &[Vec<u8>], text: &[u8], from: usize) -> Vec<u32> {
    let text = text.to_ascii_lowercase();
    let is_in = |string: &[u8]| {
        let mut places = text.windows(string.len()).enumerate();
        places.any(|(at, found)| at + string.len() > from && found == string)
    };
    let all = (0..).zip(strings);
    all.filter(|(_, string)| is_in(string)).map(|(i, _)| i).collect()
}

/// Returns the strings found; `None` if the allowance ran out.
fn found((strings, literals): &(Strings, Literals), text: &[u8], from: usize) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    let all = literals.find(strings, (text, from), |string| found.push(string));
    found.sort_unstable();
    found.dedup();
    all.then_some(found)
}

/// Returns every implementation of the search.
fn ways(strings: &[Vec<u8>]) -> [(Strings, Literals); 3] {
    let all: Vec<u32> = (0..strings.len() as u32).collect();
    ways_of(strings, &all)
}

/// Like [`ways`], for some of the strings.
fn ways_of(strings: &[Vec<u8>], some: &[u32]) -> [(Strings, Literals); 3] {
    let as_they_are: fn(Literals) -> Literals = |literals| literals;
    [as_they_are, Literals::narrow, Literals::portable].map(|way| {
        let strings = Strings::new(strings);
        let literals = way(Literals::new(&strings, some));
        (strings, literals)
    })
}

/// Strategy for strings of all lengths in lower case, most of which share bytes with others.
fn strings(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let bytes = prop_oneof![
        Just(b'a'),
        Just(b'b'),
        Just(0),
        Just(0x20),
        Just(b'@'),
        Just(b'`'),
        Just(0xe1),
        any::<u8>(),
    ];
    let string = prop_oneof![
        prop::collection::vec(bytes.clone(), 1..4),
        prop::collection::vec(bytes.clone(), 4..8),
        prop::collection::vec(bytes, 8..80),
    ];
    prop::collection::vec(string, 1..most).prop_map(|strings| {
        let lower = strings.iter().map(|string| string.to_ascii_lowercase());
        let mut lower: Vec<Vec<u8>> = lower.collect();
        lower.sort();
        lower.dedup();
        lower
    })
}

/// Builds a text of these strings, parts of them, and other bytes, in mixed case.
fn text(strings: &[Vec<u8>], parts: &[(prop::sample::Index, u8, bool, u8)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (which, cut, upper, other) in parts {
        let string = which.get(strings);
        let part = &string[..string.len() - usize::from(*cut % 3).min(string.len())];
        text.extend(part.iter().map(|byte| match upper {
            true => byte.to_ascii_uppercase(),
            false => *byte,
        }));
        text.extend(std::iter::repeat_n(*other, usize::from(*other) % 40));
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every implementation finds the same strings as a plain search, wherever new bytes start. If one runs out of
    /// allowance, all do.
    #[test]
    fn all_ways_find_the_same(
        (strings, parts) in prop_oneof![strings(20), strings(300)].prop_flat_map(|strings| {
            let part = (any::<prop::sample::Index>(), any::<u8>(), any::<bool>(), any::<u8>());
            (Just(strings), prop::collection::vec(part, 0..30))
        }),
        cut in any::<prop::sample::Index>(),
        every in 1usize..4,
    ) {
        let text = text(&strings, &parts);
        let from = cut.index(text.len() + 1);
        let some: Vec<u32> = (0..strings.len() as u32).step_by(every).collect();
        let mut expected = plain(&strings, &text, from);
        expected.retain(|string| some.contains(string));
        let [widest, others @ ..] = ways_of(&strings, &some);
        let widest = found(&widest, &text, from);
        if let Some(widest) = &widest {
            prop_assert_eq!(widest, &expected);
        }
        for other in others {
            prop_assert_eq!(&found(&other, &text, from), &widest);
        }
    }
}

/// Words as in rules; a number makes each distinct.
fn words(count: u32) -> Vec<Vec<u8>> {
    let lengths = (0..count).map(|i| 1 + i as usize * 7 % 30);
    let words = lengths.enumerate().map(|(i, length)| {
        format!("{:x}-word-{i}/", i * 7919).into_bytes()[..]
            .iter()
            .copied()
            .cycle()
            .take(length)
            .collect::<Vec<u8>>()
    });
    let mut words: Vec<Vec<u8>> = words.filter(|word| word.len() > 2).collect();
    words.sort();
    words.dedup();
    words
}

#[test]
fn each_of_thousands_is_found_in_text_that_allows_it() {
    let words = words(3000);
    for literals in ways(&words) {
        let (_, Literals { long, middle, short }) = &literals;
        assert!(long.is_some() && middle.is_some() && short.is_some());
        for (i, word) in words.iter().enumerate().step_by(41) {
            for before in [i % 5, 29 + i % 70] {
                let mut text = vec![b'~'; before];
                text.extend(word.to_ascii_uppercase());
                let found = found(&literals, &text, 0).expect("little of it is alike");
                assert_eq!(found, plain(&words, &text, 0), "{}", word.escape_ascii());
                text.extend([b'~'; 120]);
                assert!(found == self::found(&literals, &text, before).expect("as before"));
            }
        }
    }
}

#[test]
fn text_made_for_it_is_given_up() {
    let words = words(3000);
    let long = words.iter().filter(|word| word.len() > 20);
    let text: Vec<u8> = long.flatten().copied().collect();
    for literals in ways(&words) {
        assert_eq!(found(&literals, &text, 0), None);
        // Other text of the same length does not exhaust the allowance.
        assert!(found(&literals, &vec![b'~'; text.len()], 0).is_some());
    }
}

#[test]
fn what_ends_in_old_bytes_is_not_found_again() {
    let words = words(3000);
    let word = words.iter().find(|word| word.len() == 25).expect("there is one");
    let mut text = b"~~~".to_vec();
    text.extend(word);
    text.extend(b"~~~");
    for literals in ways(&words) {
        let position = words.iter().position(|other| other == word).expect("it is") as u32;
        for from in 0..=text.len() {
            let found = found(&literals, &text, from).expect("little of it is alike");
            assert_eq!(found.contains(&position), from < 28, "{from}");
        }
    }
}
