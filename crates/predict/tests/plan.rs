//! Plans of campaigns: points that fill the space, continue after interruptions, and end when the model is good enough.

mod common;

use common::{Chance, ROUTER, key, schema};
use std::sync::Arc;
use tailwater_predict::design::{COMPETITORS, DesignError, FLOWS, Parameter, READS, STRUCTURE_BYTES, Scale, Space};
use tailwater_predict::{
    Campaign, CampaignPlan, End, Kind, Metric, Next, Observation, PlanError, PlanOptions, Point, Schema, Source,
    TrainOptions, Vector,
};

fn space(seed: u64) -> Space {
    let parameters = vec![
        Parameter::whole(COMPETITORS, 1, 10, Scale::Linear),
        Parameter::whole(STRUCTURE_BYTES, 1 << 20, 20 << 20, Scale::Logarithmic),
        Parameter::new(READS, 0.5, 40.0, Scale::Linear),
        Parameter::whole(FLOWS, 1000, 1_000_000, Scale::Logarithmic),
    ];
    Space::new(parameters, seed).unwrap()
}

fn options() -> PlanOptions {
    PlanOptions {
        first: 20,
        every: 10,
        most: 100,
        error: 0.0,
        train: TrainOptions {
            kind: Kind::Ridge,
            folds: 4,
            ..TrainOptions::default()
        },
        ..PlanOptions::default()
    }
}

fn empty() -> Campaign {
    let mut metrics = schema(Source::Modelled).metrics().to_vec();
    metrics.push(Metric::of_target(FLOWS, "flows"));
    Campaign::new(key("router"), Arc::new(Schema::new(Source::Modelled, metrics).unwrap()))
}

/// Measures a point on the toy server. Noise depends on the point only.
fn measure(schema: &Arc<Schema>, point: &Point, noise: f64) -> Observation {
    let mut chance = Chance(u64::from(point.number));
    let value = |name: &str| point.setting.get(name).unwrap();
    let count = f64::from(point.competitors);
    let size = value(STRUCTURE_BYTES) / 1048576.0 * count;
    let rate = 5e5 * value(READS) * count;
    let occupancy = size.min(20.0 * rate / (rate + 1e7));
    let bandwidth = rate * 2e-7;
    let throughput = ROUTER.throughput(rate, occupancy, bandwidth) * (noise * (chance.next() - 0.5)).exp();
    let values = [rate, occupancy, size, bandwidth, 0.5, value(FLOWS)];
    Observation {
        group: point.number,
        competitors: point.competitors,
        competition: Vector::new(schema.clone(), values.map(Some).to_vec()).unwrap(),
        throughput,
        p99_us: None,
        own: None,
        flagged: false,
    }
}

/// Measures until the end, with an interruption after each point if wanted.
fn run(mut campaign: Campaign, options: PlanOptions, noise: f64, interrupted: bool) -> (Campaign, End) {
    let mut plan = CampaignPlan::new(space(7), options).unwrap();
    loop {
        if interrupted {
            plan = CampaignPlan::new(space(7), options).unwrap();
            campaign = Campaign::parse(&campaign.to_string(), "campaign.yaml").unwrap();
        }
        match plan.next(&campaign).unwrap() {
            Next::Measure(point) => {
                let observation = measure(campaign.schema(), &point, noise);
                campaign.push(observation).unwrap();
            }
            Next::Done(end) => return (campaign, end),
        }
    }
}

#[test]
fn points_fill_each_parameter_and_the_space_more_evenly_than_chance() {
    let shares = |setting: &[(String, f64)]| {
        let share = |(name, value): &(String, f64)| match name.as_str() {
            COMPETITORS => (value - 1.0) / 9.0,
            READS => (value - 0.5) / 39.5,
            STRUCTURE_BYTES => (value / 1048576.0).ln() / 20f64.ln(),
            _ => (value / 1000.0).ln() / 1000f64.ln(),
        };
        setting.iter().map(share).collect::<Vec<f64>>()
    };
    for seed in 1..=5 {
        let space = space(seed);
        let points: Vec<Vec<f64>> = (0..64).map(|at| shares(space.setting(at).values())).collect();
        // Each eighth of a range has about 8 of 64 points; the number of competitors, which is whole, is left out.
        for parameter in 1..4 {
            let mut counts = [0; 8];
            points
                .iter()
                .for_each(|point| counts[((point[parameter] * 8.0) as usize).min(7)] += 1);
            assert!(
                counts.iter().all(|count| (4..=12).contains(count)),
                "seed {seed}, parameter {parameter}: {counts:?}"
            );
        }
        // Mean distance of random places to the nearest point.
        let mut chance = Chance(seed);
        let mut random = |_: usize| (0..4).map(|_| chance.next()).collect::<Vec<f64>>();
        let by_chance: Vec<Vec<f64>> = (0..64).map(&mut random).collect();
        let places: Vec<Vec<f64>> = (0..2000).map(&mut random).collect();
        let uncovered = |points: &[Vec<f64>]| {
            let nearest = |place: &Vec<f64>| {
                let distance = |point: &Vec<f64>| place.iter().zip(point).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                points.iter().map(distance).fold(f64::INFINITY, f64::min).sqrt()
            };
            places.iter().map(nearest).sum::<f64>() / places.len() as f64
        };
        assert!(uncovered(&points) < uncovered(&by_chance), "seed {seed}");
    }
}

#[test]
fn values_are_within_their_ranges_and_constants_constant() {
    let parameters = vec![
        Parameter::whole(COMPETITORS, 1, 3, Scale::Linear),
        Parameter::whole(FLOWS, 500, 500, Scale::Logarithmic),
        Parameter::new(READS, 1.0, 2.0, Scale::Linear),
    ];
    let space = Space::new(parameters, 1).unwrap();
    let mut counts = [0; 3];
    for number in (0..300).chain([u32::MAX]) {
        let setting = space.setting(number);
        assert_eq!(setting.get(FLOWS), Some(500.0));
        assert!((1.0..=2.0).contains(&setting.get(READS).unwrap()));
        counts[setting.get(COMPETITORS).unwrap() as usize - 1] += 1;
    }
    assert!(counts.iter().all(|count| *count >= 95), "{counts:?}");
}

#[test]
fn a_campaign_interrupted_after_every_point_measures_the_same_points_and_ends_at_the_same_one() {
    let (whole, end) = run(empty(), options(), 0.05, false);
    let (interrupted, same_end) = run(empty(), options(), 0.05, true);
    assert_eq!((&whole, end), (&interrupted, same_end));
    assert_eq!(end, End::NoGain);
    // A file whose observations are in another order, and of which some are lost, gets the lost ones.
    let kept: Vec<usize> = (0..whole.observations().len()).rev().filter(|at| at % 5 != 2).collect();
    let (repaired, same_end) = run(whole.subset(&kept), options(), 0.05, false);
    let sorted = |campaign: &Campaign| {
        let mut observations = campaign.observations().to_vec();
        observations.sort_by_key(|of| of.group);
        observations
    };
    assert_eq!((sorted(&repaired), same_end), (sorted(&whole), end));
}

#[test]
fn a_campaign_ends_when_the_model_is_good_enough_or_the_budget_is_spent() {
    let (good, end) = run(
        empty(),
        PlanOptions {
            error: 0.2,
            ..options()
        },
        0.05,
        false,
    );
    assert_eq!((good.observations().len(), end), (23, End::Error));
    let patient = PlanOptions {
        patience: 50,
        most: 60,
        ..options()
    };
    let (all, end) = run(empty(), patient, 0.05, false);
    assert_eq!((all.observations().len(), end), (63, End::Most));
    assert!(all.observations()[..3].iter().all(|of| of.competitors == 0));
    assert!(all.observations()[3..].iter().all(|of| of.competitors > 0));
}

#[test]
fn a_disturbed_point_is_measured_again_and_given_up_at_last() {
    let mut plan = CampaignPlan::new(space(7), options()).unwrap();
    let mut campaign = empty();
    let mut measured = Vec::new();
    for attempt in 0.. {
        let Next::Measure(point) = plan.next(&campaign).unwrap() else {
            break;
        };
        measured.push(point.number);
        let observation = measure(campaign.schema(), &point, 0.05);
        // Point 4 is disturbed always, point 6 once.
        let flagged = point.number == 4 || point.number == 6 && measured[..attempt].iter().all(|of| *of != 6);
        campaign.push(Observation { flagged, ..observation }).unwrap();
    }
    assert_eq!(&measured[..11], [0, 1, 2, 3, 4, 4, 4, 5, 6, 6, 7]);
}

#[test]
fn a_campaign_of_another_plan_is_refused() {
    let (campaign, _) = run(
        empty(),
        PlanOptions {
            error: 0.2,
            ..options()
        },
        0.0,
        false,
    );
    let mut other = CampaignPlan::new(space(8), options()).unwrap();
    let error = other.next(&campaign).unwrap_err();
    let PlanError::OtherPlan {
        at: 1, number: 0, name, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(name, FLOWS);
    assert!(error.to_string().contains("of another plan"), "{error}");
}

#[test]
fn spaces_and_plans_refuse_what_cannot_be_measured() {
    let competitors = || Parameter::whole(COMPETITORS, 1, 3, Scale::Linear);
    let refused = |of: Parameter| Space::new(vec![competitors(), of], 1).unwrap_err();
    for of in [
        Parameter::new(READS, 0.0, 1.0, Scale::Logarithmic),
        Parameter::new(READS, 2.0, 1.0, Scale::Linear),
        Parameter::new(READS, 1.0, f64::NAN, Scale::Linear),
    ] {
        assert!(matches!(refused(of), DesignError::Range { name } if name == READS));
    }
    assert!(matches!(refused(competitors()), DesignError::Parameters { .. }));
    assert!(matches!(
        Space::new(vec![Parameter::whole(READS, 1, 2, Scale::Linear)], 1),
        Err(DesignError::Parameters { .. })
    ));
    for wrong in [
        PlanOptions { every: 0, ..options() },
        PlanOptions {
            error: f64::NAN,
            ..options()
        },
        PlanOptions {
            most: 20_000,
            ..options()
        },
    ] {
        assert!(matches!(
            CampaignPlan::new(space(1), wrong),
            Err(PlanError::Option { .. })
        ));
    }
}
