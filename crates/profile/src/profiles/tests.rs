use super::*;
use proptest::prelude::*;

fn machine() -> Machine {
    Machine {
        processor: "AMD EPYC \"9\" \u{2028}é".to_owned(),
        megahertz: 2600,
        cache_kibibytes: 32_768,
        cache_ways: 16,
        private_kibibytes: 1024,
    }
}

fn measured() -> impl Strategy<Value = Measured> {
    (1e-3f64..1e12, 0.0f64..1e9, 1u32..100, 0u32..100).prop_map(|(value, noise, runs, disturbed)| Measured {
        value,
        noise,
        runs,
        disturbed: disturbed.min(runs),
    })
}

fn points(most: u32) -> impl Strategy<Value = Vec<Point>> {
    proptest::collection::btree_map(1..=most, measured(), 1..12).prop_map(|points| {
        let points = points.into_iter();
        points.map(|(at, measured)| Point { at, measured }).collect()
    })
}

prop_compose! {
    fn cache()(unit in 1u32..1 << 20, points in points(16), not_held in points(16), misses in 0.0f64..1.0,
               pirate in any::<bool>(),
               occupied in proptest::collection::btree_map(1u32..=16, any::<u32>(), 0..4),
               verified in proptest::collection::btree_map(1u32..=16, 0.0f64..=1.0, 0..4),
               hidden_bends in proptest::collection::btree_set(1u32..=16, 0..4)) -> CacheProfile {
        CacheProfile {
            method: if pirate { Method::Pirate } else { Method::Resctrl },
            unit_kibibytes: unit,
            most_units: 16,
            points,
            not_held: not_held
                .into_iter()
                .map(|Point { at, measured }| NotHeld { at, misses, measured })
                .collect(),
            occupied: occupied
                .into_iter()
                .map(|(at, kibibytes)| Occupied { at, kibibytes })
                .collect(),
            verified: verified
                .into_iter()
                .map(|(at, misses)| Verified { at, misses })
                .collect(),
            hidden_bends: hidden_bends.into_iter().collect(),
        }
    }
}

prop_compose! {
    fn latency()(throughput in measured(), points in points(100), rates in [0.0f64..1e9, 0.0..1e9],
                 pdr in any::<bool>(), hidden_bends in proptest::collection::btree_set(1u32..=100, 0..4),
                 trials in 0u32..4) -> LatencyProfile {
        LatencyProfile {
            throughput,
            percentile: 99.9,
            points,
            objective_us: 160.0,
            objective_percentile: 99.0,
            ndr: Some(rates[0]),
            pdr: pdr.then_some(rates[1]),
            objective_rate: None,
            hidden_bends: hidden_bends.into_iter().collect(),
            disturbed_trials: trials,
        }
    }
}

fn costs() -> impl Strategy<Value = CostProfile> {
    let each = (measured(), 0.0f64..=1.0);
    let functions = proptest::collection::vec(each, 1..5);
    (measured(), functions).prop_map(|(whole, functions)| {
        let functions = functions.into_iter().enumerate();
        let functions = functions.map(|(number, (cost, share))| FunctionCost {
            function: format!("function-{number}"),
            cost,
            share,
        });
        CostProfile {
            whole,
            functions: functions.collect(),
        }
    })
}

fn profiles() -> impl Strategy<Value = Profiles> {
    let part = || any::<bool>();
    let each = (
        (cache(), latency(), proptest::option::of(costs())),
        part(),
        part(),
        any::<String>(),
    );
    proptest::collection::vec(each, 1..5).prop_map(|list| {
        let mut profiles = Profiles::default();
        for (number, ((cache, latency, costs), has_cache, is_first, text)) in list.into_iter().enumerate() {
            let mut traffic: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
            traffic.push_str("...");
            profiles.list.push(ChainProfile {
                key: Key {
                    chain: format!("chain-{number}"),
                    configuration: "8aeab16f0f64ef6d".to_owned(),
                    traffic,
                    machine: machine(),
                },
                cache: has_cache.then_some(cache),
                latency: (is_first || !has_cache).then_some(latency),
                costs,
            });
        }
        profiles
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_the_same(profiles in profiles()) {
        let text = profiles.to_string();
        let read = Profiles::parse(&text, "file");
        prop_assert_eq!(read.as_ref(), Ok(&profiles), "{}", text);
    }

    #[test]
    fn nothing_differs_from_itself(profiles in profiles()) {
        prop_assert_eq!(compare(&profiles, &profiles), Ok(Vec::new()));
    }

    #[test]
    fn what_is_merged_twice_is_there_once(profiles in profiles()) {
        let mut merged = Profiles::default();
        for profile in profiles.list.iter().chain(&profiles.list) {
            merged.merge(profile.clone());
        }
        prop_assert_eq!(merged, profiles);
    }
}

fn point(at: u32, value: f64, noise: f64) -> Point {
    Point {
        at,
        measured: Measured {
            value,
            noise,
            runs: 3,
            disturbed: 0,
        },
    }
}

fn one(points: Vec<Point>) -> Profiles {
    let key = Key {
        chain: "acl-nat".to_owned(),
        configuration: "8aeab16f0f64ef6d".to_owned(),
        traffic: "backbone, seed 1".to_owned(),
        machine: machine(),
    };
    let cache = CacheProfile {
        method: Method::Pirate,
        unit_kibibytes: 2048,
        most_units: 12,
        points,
        not_held: Vec::new(),
        occupied: vec![Occupied { at: 9, kibibytes: 2000 }],
        verified: vec![Verified { at: 9, misses: 0.25 }],
        hidden_bends: vec![9],
    };
    Profiles {
        list: vec![ChainProfile {
            key,
            cache: Some(cache),
            latency: None,
            costs: None,
        }],
    }
}

#[test]
fn only_what_was_measured_anew_is_replaced() {
    let mut profiles = one(vec![point(1, 10.0, 0.0)]);
    let mut newer = one(vec![point(2, 20.0, 0.0)]);
    newer.list[0].key.machine.megahertz = 2550;
    profiles.merge(newer.list[0].clone());
    assert_eq!(profiles, newer);
    newer.list[0].cache = None;
    profiles.merge(newer.list[0].clone());
    assert!(profiles.list[0].cache.is_some());
    newer.list[0].key.traffic = "smooth, seed 1".to_owned();
    profiles.merge(newer.list[0].clone());
    assert_eq!(profiles.list.len(), 2);
}

#[test]
fn points_differ_beyond_their_noise_and_between_points_lines_do() {
    let was = one(vec![point(1, 100.0, 3.0), point(9, 180.0, 3.0)]);
    let within = one(vec![point(1, 105.0, 3.0), point(9, 181.0, 0.0)]);
    assert_eq!(compare(&was, &within), Ok(Vec::new()));
    let beyond = one(vec![point(1, 100.0, 0.0), point(5, 150.0, 3.0), point(9, 180.0, 3.0)]);
    let changes = compare(&was, &beyond).unwrap();
    let expected = Difference::Point {
        curve: Curve::Cache,
        at: 5,
        was: point(0, 140.0, 3.0).measured,
        is: point(0, 150.0, 3.0).measured,
    };
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].difference, expected);
    let mut other = was.clone();
    other.list[0].key.configuration.push('0');
    other.list[0].cache.as_mut().unwrap().unit_kibibytes = 1024;
    let changes = compare(&was, &other).unwrap();
    let found: Vec<Difference> = changes.into_iter().map(|change| change.difference).collect();
    assert_eq!(found, [Difference::Configuration, Difference::Units]);
    // Shares by ways cannot be compared with shares by lines either.
    let mut other = was.clone();
    other.list[0].cache.as_mut().unwrap().method = Method::Resctrl;
    let changes = compare(&was, &other).unwrap();
    assert_eq!(changes.len(), 1);
    let apart = Difference::Method {
        was: Method::Pirate,
        is: Method::Resctrl,
    };
    assert_eq!(changes[0].difference, apart);
    other.list[0].key.machine.cache_ways = 8;
    let machines = compare(&was, &other).unwrap_err();
    assert_eq!(machines[0], machine());
    other.list[0].key.chain = "nat".to_owned();
    let found: Vec<Difference> = compare(&was, &other)
        .unwrap()
        .into_iter()
        .map(|change| change.difference)
        .collect();
    let only = |first| Difference::Only { first };
    assert_eq!(found, [only(true), only(false)]);
}

#[test]
fn curves_for_placement_rise_and_are_of_one_machine() {
    let mut profiles = one(vec![point(1, 100.0, 0.0), point(4, 130.0, 0.0), point(8, 120.0, 0.0)]);
    let missing = placement(&profiles, None, "here").unwrap_err();
    assert!(missing.to_string().contains("tailwater profile latency"));
    profiles.list[0].latency = Some(LatencyProfile {
        throughput: point(0, 120.0, 0.0).measured,
        percentile: 99.0,
        points: vec![point(10, 8.0, 0.0), point(50, 7.5, 0.0), point(100, 90.0, 0.0)],
        objective_us: 160.0,
        objective_percentile: 99.0,
        ndr: None,
        pdr: None,
        objective_rate: None,
        hidden_bends: Vec::new(),
        disturbed_trials: 0,
    });
    let text = placement(&profiles, Some(&machine()), "here").unwrap();
    assert!(
        text.contains("throughput: [[2048, 100], [8192, 120], [16384, 120]]"),
        "{text}"
    );
    assert!(
        text.contains("latency: [[0.1, 8.000], [0.5, 8.000], [1, 90.000]]"),
        "{text}"
    );
    let mut elsewhere = machine();
    elsewhere.cache_ways = 11;
    let error = placement(&profiles, Some(&elsewhere), "here").unwrap_err();
    assert!(matches!(error, CurvesError::OtherMachine { .. }), "{error}");
    let mut twice = profiles.list[0].clone();
    twice.key.traffic = "smooth, seed 1".to_owned();
    profiles.list.push(twice);
    let error = placement(&profiles, None, "here").unwrap_err();
    assert!(matches!(error, CurvesError::Several { .. }), "{error}");
}

#[test]
fn wrong_files_are_refused_with_their_place() {
    let text = one(vec![point(1, 100.0, 3.0), point(9, 180.0, 3.0)]).to_string();
    for (from, to, expected) in [
        (
            "version: 2\n",
            "version: 3\n",
            "f:5:12: spec.version: expected 1 or 2, the versions that this program reads, found 3",
        ),
        ("version: 2\n", "", "spec.version: missing"),
        (
            "[9, 180, 3, 3]",
            "[1, 180, 3, 3]",
            "points[1]: expected points in increasing order",
        ),
        ("[9, 180, 3, 3]", "[13, 180, 3, 3]", "a whole number from 1 to 12"),
        (
            "[9, 180, 3, 3]",
            "[9, 180, 3]",
            "points[1]: expected 4 or 5 numbers, found 3",
        ),
        (
            "[9, 180, 3, 3]",
            "[9, -180, 3, 3]",
            "expected a number from 0 up, found -180",
        ),
        ("[9, 180, 3, 3]", "[9, 0, 3, 3]", "expected a value above 0"),
        ("[9, 180, 3, 3]", "[9, 180, 3, 3, 4]", "and how many disturbed ones"),
        ("[9, 180, 3, 3]", "[9, 180, 3, 3, 0.5]", "expected a whole number"),
        ("verified: [[9, 0.25]]", "verified: [[9, 1.25]]", "shares from 0 to 1"),
        (
            "verified: [[9, 0.25]]",
            "verified: [[13, 0.25]]",
            "expected [units, share]",
        ),
        (
            "hiddenBends: [9]",
            "hiddenBends: [9, 9]",
            "hiddenBends[1]: expected a whole number",
        ),
        (
            "hiddenBends: [9]",
            "hiddenBends: [12, 9]",
            "expected positions in increasing order",
        ),
        (
            "method: pirate",
            "method: cat",
            "expected pirate or resctrl, found \"cat\"",
        ),
        ("chain: \"acl-nat\"", "chain: \"ACL\"", "profiles[0].chain: expected"),
        ("mostUnits: 12", "mostUnits: many", "mostUnits: expected a whole number"),
        (
            "occupied: [[9, 2000]]",
            "occupied: [[9, 2000], [9, 2000]]",
            "occupied[1]: expected [units, KiB] in whole numbers, by units",
        ),
        (
            "occupied: [[9, 2000]]",
            "occupied: [[13, 2000]]",
            "occupied[0]: expected [units, KiB]",
        ),
        ("      cache:\n", "      cash:\n", "found \"cash\""),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Profiles::parse(&text.replace(from, to), "f").unwrap_err();
        let shown = error.to_line();
        assert!(shown.contains(expected), "{shown}, not {expected}");
    }
    let list = text.split_once("profiles:\n").unwrap().1;
    let error = Profiles::parse(&(text.clone() + list), "f").unwrap_err();
    assert!(
        error.to_line().contains("expected each profile once"),
        "{}",
        error.to_line()
    );
}

#[test]
fn costs_differ_function_by_function() {
    let measured = |value: f64| point(0, value, 0.5).measured;
    let costs = |whole: f64, acl: f64, nat: f64| {
        let mut profiles = one(vec![point(1, 10.0, 0.0)]);
        let function = |name: &str, value: f64, share: f64| FunctionCost {
            function: name.to_owned(),
            cost: measured(value),
            share,
        };
        profiles.list[0].costs = Some(CostProfile {
            whole: measured(whole),
            functions: vec![function("acl", acl, 1.0), function("nat", nat, 0.5)],
        });
        profiles
    };
    let was = costs(50.0, 10.0, 20.0);
    assert_eq!(was.list[0].costs.as_ref().unwrap().rest(), 30.0);
    // As far apart as their noise, or closer than 5 %.
    let near = costs(52.0, 11.0, 20.9);
    assert_eq!(compare(&was, &near), Ok(Vec::new()));
    let changes = compare(&was, &costs(60.0, 10.0, 30.0)).unwrap();
    let found = changes.into_iter().map(|change| change.difference);
    let cost = |function: Option<&str>, was, is| Difference::Cost {
        function: function.map(str::to_owned),
        was: measured(was),
        is: measured(is),
    };
    let expected = [cost(None, 50.0, 60.0), cost(Some("nat"), 20.0, 30.0)];
    assert!(found.eq(expected));
    // Older files have none, and a new measurement without them keeps them.
    let without = one(vec![point(1, 10.0, 0.0)]);
    assert_eq!(compare(&was, &without), Ok(Vec::new()));
    let mut merged = was.clone();
    merged.merge(without.list[0].clone());
    assert_eq!(merged, was);
}

#[test]
fn wrong_costs_are_told_with_their_place() {
    let mut profiles = one(vec![point(1, 10.0, 0.0)]);
    profiles.list[0].costs = Some(CostProfile {
        whole: point(0, 50.0, 0.5).measured,
        functions: ["acl", "nat"]
            .map(|name| FunctionCost {
                function: name.to_owned(),
                cost: point(0, 10.0, 0.5).measured,
                share: 1.0,
            })
            .to_vec(),
    });
    let text = profiles.to_string();
    let error = |from: &str, to: &str| {
        let wrong = text.replacen(from, to, 1);
        assert_ne!(wrong, text);
        Profiles::parse(&wrong, "file").unwrap_err().to_string()
    };
    for (from, to, expected) in [
        ("share: 1", "share: 1.5", "expected a number from 0 to 1"),
        ("\"nat\"", "\"acl\"", "expected each function once"),
        ("[10, 0.5, 3]", "[10, 0.5]", "expected 3 or 4 numbers, found 2"),
        ("[50, 0.5, 3]", "[50, 0.5, 0]", "of how many runs"),
        ("[50, 0.5, 3]", "[-1, 0.5, 3]", "a number from 0 up"),
        ("        whole:", "        hole:", "hole"),
    ] {
        let error = error(from, to);
        assert!(error.contains(expected) && error.starts_with("file:"), "{error}");
    }
}

/// A profile with a p99 of ± 7318 % was a curve for placement, like any other.
#[test]
fn what_is_not_repeatable_is_told_and_no_curve_for_placement() {
    let mut profiles = one(vec![point(1, 100.0, 50.0), point(9, 180.0, 3.0)]);
    let latency = LatencyProfile {
        throughput: point(1, 180.0, 3.0).measured,
        percentile: 99.0,
        points: vec![point(10, 8.0, 8.0), point(50, 7.5, 0.0), point(100, 90.0, 0.0)],
        objective_us: 200.0,
        objective_percentile: 99.0,
        ndr: None,
        pdr: None,
        objective_rate: None,
        hidden_bends: Vec::new(),
        disturbed_trials: 0,
    };
    profiles.list[0].latency = Some(latency);
    assert_eq!(profiles.list[0].unrepeatable(), []);
    let text = placement(&profiles, None, "m").expect("curves");
    assert!(text.contains("latency: [[0.1, 16.000]"), "{text}");
    assert!(!profiles.to_string().contains("not repeatable"));
    let refused = |change: &dyn Fn(&mut ChainProfile), what: &str| {
        let mut profiles = profiles.clone();
        change(&mut profiles.list[0]);
        let error = placement(&profiles, None, "m").expect_err("refused").to_string();
        assert!(
            error.contains(&format!("that is not repeatable: {what}; measure it")),
            "{error}"
        );
        let text = profiles.to_string();
        assert!(
            text.contains(&format!("# not repeatable, and not used for placement: {what}\n")),
            "{text}"
        );
        assert_eq!(Profiles::parse(&text, "file"), Ok(profiles));
    };
    let latency = |profile: &mut ChainProfile, point: Point| {
        profile.latency.as_mut().expect("latency").points[0] = point;
    };
    refused(
        &|profile| latency(profile, point(10, 8.639, 632.2)),
        "latency at load 0.10 (± 7318 %, 3 runs)",
    );
    // One run has no noise.
    let once = Measured {
        value: 8.0,
        noise: 0.0,
        runs: 1,
        disturbed: 0,
    };
    refused(
        &|profile| latency(profile, Point { at: 10, measured: once }),
        "latency at load 0.10 (± 0 %, 1 run)",
    );
    refused(
        &|profile| profile.cache.as_mut().expect("cache").points[0] = point(1, 100.0, 51.0),
        "throughput with 2048 KiB of cache (± 51 %, 3 runs)",
    );
    refused(
        &|profile| profile.latency.as_mut().expect("latency").throughput = point(1, 180.0, 91.0).measured,
        "throughput (± 51 %, 3 runs)",
    );
}

/// Placement admitted by the values, whatever their noise.
#[test]
fn curves_for_placement_are_derated_by_the_interval() {
    let mut profiles = one(vec![point(1, 100.0, 10.0), point(9, 180.0, 3.0)]);
    profiles.list[0].latency = Some(LatencyProfile {
        throughput: point(1, 180.0, 3.0).measured,
        percentile: 99.0,
        points: vec![point(10, 8.0, 2.0), point(50, 7.5, 4.0), point(100, 90.0, 5.0)],
        objective_us: 200.0,
        objective_percentile: 99.0,
        ndr: None,
        pdr: None,
        objective_rate: None,
        hidden_bends: Vec::new(),
        disturbed_trials: 0,
    });
    let curves = Rising::of(&profiles.list[0]).expect("curves");
    assert_eq!(curves.throughput, [(2048, 90.0), (18_432, 177.0)]);
    assert_eq!(curves.latency, [(0.1, 10.0), (0.5, 11.5), (1.0, 95.0)]);
}

/// A profile of 256 kpps where the chain has 1.1 Mpps was used like any other.
#[test]
fn interference_is_told_and_a_curve_of_nothing_else_is_refused() {
    let mut profiles = one(vec![point(1, 100.0, 1.0), point(9, 180.0, 3.0)]);
    let profile = &mut profiles.list[0];
    profile.latency = Some(LatencyProfile {
        throughput: point(1, 180.0, 3.0).measured,
        percentile: 99.0,
        points: vec![point(10, 8.0, 2.0), point(100, 90.0, 5.0)],
        objective_us: 200.0,
        objective_percentile: 99.0,
        ndr: None,
        pdr: None,
        objective_rate: None,
        hidden_bends: vec![10, 100],
        disturbed_trials: 1,
    });
    let points = &mut profile.cache.as_mut().expect("a curve").points;
    points[0].measured.disturbed = 3;
    let doubts = profiles.list[0].doubts();
    let expected = Doubts {
        unrepeatable: 0,
        disturbed_values: 1,
        disturbed_runs: 3,
        disturbed_trials: 1,
        hidden_bends: 3,
    };
    assert_eq!((doubts, doubts.is_none()), (expected, false));
    let text = profiles.to_string();
    assert!(
        text.contains("# measured with CPU interference: 3 runs of 1 value, 1 trial of rates\n"),
        "{text}"
    );
    assert!(text.contains("[[1, 100, 1, 3, 3], [9, 180, 3, 3]]"), "{text}");
    assert!(placement(&profiles, None, "m").is_ok());
    let points = &mut profiles.list[0].cache.as_mut().expect("a curve").points;
    points[1].measured.disturbed = 3;
    let error = placement(&profiles, None, "m").expect_err("all noise").to_string();
    assert!(
        error.contains("CPU interference disturbed all runs of throughput over cache, so the profile is all noise"),
        "{error}"
    );
}

#[test]
fn files_of_version_1_are_read() {
    let profiles = one(vec![point(1, 100.0, 3.0), point(9, 180.0, 3.0)]);
    let text = profiles.to_string().replace("version: 2\n", "version: 1\n");
    let new_fields = ["verified: [[9, 0.25]]", "hiddenBends: [9]"];
    let old: String = text
        .lines()
        .filter(|line| !new_fields.contains(&line.trim()))
        .map(|line| format!("{line}\n"))
        .collect();
    let read = Profiles::parse(&old, "file").expect("an older file");
    let cache = read.list[0].cache.as_ref().expect("a curve");
    assert_eq!((cache.verified(9), &cache.hidden_bends), (None, &Vec::new()));
    assert!(cache.points.iter().all(|point| point.measured.disturbed == 0));
}
