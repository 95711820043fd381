//! Files of campaigns and models: the same after writing and reading, and clear errors for anything else.

mod common;

use common::{ROUTER, alone, campaign, key, schema};
use proptest::prelude::*;
use tailwater_predict::{
    Campaign, ContentionModel, Kind, Observation, PredictOptions, Source, TrainOptions, Vector, predict,
};

fn model(kind: Kind) -> ContentionModel {
    let options = TrainOptions {
        kind,
        folds: 3,
        ..TrainOptions::default()
    };
    ContentionModel::train(&campaign(&ROUTER, "router", 24, 0.02, 1), &options).unwrap()
}

#[test]
fn campaigns_and_models_are_the_same_after_writing_and_reading() {
    let written = campaign(&ROUTER, "router", 24, 0.02, 1);
    let read = Campaign::parse(&written.to_string(), "file").unwrap();
    assert_eq!(read, written);
    assert_eq!(read.checksum(), written.checksum());
    for kind in Kind::ALL {
        let written = model(kind);
        let read = ContentionModel::parse(&written.to_string(), "file").unwrap();
        assert_eq!(read, written, "{kind}");
        assert_eq!(read.campaign(), campaign(&ROUTER, "router", 24, 0.02, 1).checksum());
    }
}

/// Cut anywhere, a file is refused: what is left may well be YAML.
#[test]
fn a_file_that_was_cut_short_is_refused() {
    let campaign = campaign(&ROUTER, "router", 6, 0.02, 1).to_string();
    let model = model(Kind::Ridge).to_string();
    for at in (0..campaign.len() - 1).filter(|at| at % 7 == 0 || campaign.as_bytes()[*at] == b'\n') {
        let error = Campaign::parse(&campaign[..at], "file").unwrap_err().to_line();
        assert!(!error.contains('\n'), "{error}");
    }
    for at in (0..model.len() - 1).filter(|at| at % 13 == 0 || model.as_bytes()[*at] == b'\n') {
        let error = ContentionModel::parse(&model[..at], "file").unwrap_err().to_line();
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn mistakes_in_files_are_named_with_their_place() {
    let campaign = campaign(&ROUTER, "router", 2, 0.0, 1).to_string();
    let model = model(Kind::Boosted).to_string();
    let first = "throughput: 5e6";
    assert!(campaign.contains(first));
    for (text, from, to, expected) in [
        (
            &campaign,
            "version: 1",
            "version: 2",
            "expected 1, the version that this program reads",
        ),
        (&campaign, "source: modelled", "source: guessed", "expected"),
        (&campaign, first, "throughput: .nan", "a finite number"),
        (&campaign, first, "throughput: -5e6", "above 0"),
        (&campaign, first, "throughput: 4e6", "the file was cut short or changed"),
        (
            &campaign,
            "competition: [0e0, ",
            "competition: [",
            "expected 5 numbers, found 4",
        ),
        (
            &campaign,
            "name: \"workingSet\"",
            "name: \"cacheOccupancy\"",
            "unique names",
        ),
        (
            &campaign,
            "kind: ContentionCampaign",
            "kind: ContentionModel",
            "expected ContentionCampaign",
        ),
        (
            &model,
            "version: 1",
            "version: 2",
            "expected 1, the version that this program reads",
        ),
        (&model, "kind: boosted", "kind: oracle", "expected"),
        (
            &model,
            "soloThroughput: 5e6",
            "soloThroughput: 4e6",
            "the file was cut short or changed",
        ),
        (
            &model,
            "        \"",
            "        \"9:1 ",
            "expected a whole tree over inputs 0 to",
        ),
        (&model, "range: [", "range: [1e300, ", "found 3"),
        (&model, "base: ", "base: .inf, x: ", "expected"),
    ] {
        let broken = text.replacen(from, to, 1);
        assert_ne!(&broken, text, "{from}");
        let error = match text == &campaign {
            true => Campaign::parse(&broken, "file").unwrap_err(),
            false => ContentionModel::parse(&broken, "file").unwrap_err(),
        };
        let error = error.to_line();
        assert!(error.starts_with("file:") && error.contains(expected), "{to}: {error}");
    }
}

/// Comments and spaces are no values.
#[test]
fn a_comment_does_not_change_the_checksum() {
    let written = campaign(&ROUTER, "router", 2, 0.0, 1);
    let commented = written
        .to_string()
        .replace("  metrics:", "  # measured on a quiet day\n  metrics:");
    assert_eq!(Campaign::parse(&commented, "file").unwrap(), written);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_values_survive_a_file(
        rows in prop::collection::vec(
            (any::<u32>(), 0u32..=1024, prop::collection::vec(prop::option::of(-1e18..1e18f64), 5),
             1e-9..1e15f64, prop::option::of(1e-9..1e15f64), any::<bool>(), any::<bool>()),
            1..20,
        ),
        machine in "\\PC{1,60}",
    ) {
        let schema = schema(Source::Hardware);
        let mut key = key("any");
        key.machine = machine;
        let mut written = Campaign::new(key, schema.clone());
        for (group, competitors, values, throughput, p99_us, flagged, has_own) in rows {
            let vector = Vector::new(schema.clone(), values).unwrap();
            written.push(Observation {
                group, competitors, competition: vector.clone(), throughput, p99_us,
                own: has_own.then_some(vector), flagged,
            }).unwrap();
        }
        let text = written.to_string();
        match Campaign::parse(&text, "file") {
            Ok(read) => prop_assert_eq!(read, written),
            // Control characters and blank lines are refused, also by name.
            Err(error) => prop_assert!(error.to_line().contains("machine"), "{}\n{}", error.to_line(), text),
        }
    }
}

#[test]
fn a_solo_observation_is_kept() {
    let schema = schema(Source::Probes);
    let mut written = Campaign::new(key("router"), schema.clone());
    written.push(alone(&ROUTER, &schema)).unwrap();
    let read = Campaign::parse(&written.to_string(), "file").unwrap();
    assert_eq!(read.solo().unwrap().throughput, ROUTER.solo);
    assert!(read.solo().unwrap().measured);
}

/// Models with damaged values and the right checksum answer or refuse, and do not panic.
#[test]
fn a_damaged_model_does_not_panic() {
    let kinds = [Kind::Boosted, Kind::Kernel, Kind::WorkingSet, Kind::Ridge];
    let texts = kinds.map(|kind| model(kind).to_string());
    let mut chance = common::Chance(1);
    let mut read = 0;
    for round in 0..300 {
        let text = &texts[round % texts.len()];
        let start = text.find("soloThroughput").unwrap();
        let at = start + (chance.next() * (text.len() - start) as f64) as usize;
        let with = ["9", "-", "e", "0", "null", "[", ":", "1e300"][(chance.next() * 8.0) as usize];
        if !text.is_char_boundary(at) || !text.is_char_boundary(at + 1) {
            continue;
        }
        let damaged = format!("{}{with}{}", &text[..at], &text[at + 1..]);
        let corrected = match ContentionModel::parse(&damaged, "file") {
            Ok(_) => damaged,
            Err(error) => {
                let error = error.to_line();
                let Some((_, right)) = error
                    .split_once("expected ")
                    .filter(|_| error.contains("of the values"))
                else {
                    continue;
                };
                let old = damaged.find("checksum: \"").unwrap() + 11;
                format!("{}{}{}", &damaged[..old], &right[..16], &damaged[old + 16..])
            }
        };
        let model = ContentionModel::parse(&corrected, "file").unwrap();
        let _ = predict(&model, &[&model], &PredictOptions::default());
        let middle = model
            .throughput()
            .ranges()
            .iter()
            .map(|(low, high)| f64::midpoint(*low, *high));
        let _ = model.throughput().predict_at(&middle.collect::<Vec<f64>>(), 0.5);
        read += 1;
    }
    assert!(read > 30, "{read}");
}
