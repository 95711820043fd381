//! Campaigns on a scripted server: no measured time.

use super::*;
use crate::error::TrainError;
use crate::interference::Interference;
use crate::sweep::SweepError;
use std::sync::Arc;
use tailwater_predict::design::{DESCRIPTORS, FRAME_BYTES, RATE, READS, STRUCTURE_BYTES, WRITES};
use tailwater_predict::metric::Resource;
use tailwater_predict::{
    Campaign, CampaignPlan, ContentionModel, End, Key, Kind, Metric, PlanOptions, Point, Schema, Source, TrainOptions,
};

/// A server on which the target loses throughput by the competitors' accesses, and which speeds up and slows down.
struct Scripted {
    schema: Arc<Schema>,
    /// Measurements so far, and the one before which the caller stops.
    measured: u32,
    stop_before: Option<u32>,
    /// Returns the disturbance of a measurement, by its number.
    disturbed: fn(u32) -> Option<Disturbance>,
    cores: u32,
}

fn schema() -> Arc<Schema> {
    let metrics = vec![
        Metric::new("probe.cache", "added time", Resource::Cache),
        Metric::new("probe.memory", "added time", Resource::MemoryBandwidth),
    ];
    Arc::new(Schema::new(Source::Probes, metrics).unwrap())
}

fn scripted() -> Scripted {
    Scripted {
        schema: schema(),
        measured: 0,
        stop_before: None,
        disturbed: |_| None,
        cores: 3,
    }
}

impl Scripted {
    fn next(&mut self) -> Result<f64, ContentionError> {
        if self.stop_before == Some(self.measured) {
            return Err(SweepError::Run(TrainError::Stopped).into());
        }
        self.measured += 1;
        // Drift of the whole machine, which no model should see.
        Ok(1e6 * (1.0 + 0.1 * f64::from(self.measured % 5)))
    }
}

impl CoRuns for Scripted {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn most_competitors(&self) -> u32 {
        self.cores
    }

    fn alone(&mut self) -> Result<AloneRun, ContentionError> {
        self.next()?;
        Ok(AloneRun {
            throughput: 1e6,
            p99_us: Some(10.0),
            own: vec![Some(f64::from(self.measured)), None],
            disturbance: (self.disturbed)(self.measured),
        })
    }

    fn beside(&mut self, point: &Point) -> Result<CoRun, ContentionError> {
        let alone = self.next()?;
        let load = SyntheticLoad::of(&point.setting).map_err(ContentionError::Parameter)?;
        let pressure = f64::from(load.reads + load.writes) * f64::from(point.competitors) / 100.0;
        Ok(CoRun {
            alone,
            beside: alone / (1.0 + 0.2 * pressure),
            p99_us: Some(10.0 * (1.0 + pressure)),
            competition: vec![Some(pressure), Some(pressure * pressure)],
            competitors: Vec::new(),
            disturbance: (self.disturbed)(self.measured),
        })
    }
}

/// A plan of two points alone and at most 30 co-runs, which ends before if the model errs by less than `error`.
fn plan_until(error: f64, competitors: u32, seed: u64) -> CampaignPlan {
    let options = PlanOptions {
        alone: 2,
        first: 10,
        every: 5,
        most: 30,
        error,
        gain: 0.0,
        attempts: 2,
        train: ridge(),
        ..PlanOptions::default()
    };
    CampaignPlan::new(load_space(1 << 20, 32 << 20, competitors, seed), options).unwrap()
}

/// A plan of 32 points.
fn plan() -> CampaignPlan {
    plan_until(0.0, 3, 7)
}

fn ridge() -> TrainOptions {
    TrainOptions {
        kind: Kind::Ridge,
        ..TrainOptions::default()
    }
}

fn empty() -> Campaign {
    let key = Key {
        function: "nat".to_owned(),
        configuration: "0".to_owned(),
        traffic: "made up".to_owned(),
        machine: "made up".to_owned(),
    };
    Campaign::new(key, schema())
}

/// Measures, and returns the campaign as its file has it, with the progress after each point.
fn measure(server: &mut Scripted, campaign: Campaign) -> (Campaign, SessionEnd, Vec<CampaignProgress>) {
    let mut campaign = campaign;
    let (mut text, mut all) = (campaign.to_string(), Vec::new());
    let end = measure_campaign(server, &mut plan(), &mut campaign, |campaign, progress| {
        text = campaign.to_string();
        all.push(progress);
        Ok::<_, ContentionError>(())
    });
    let saved = if all.is_empty() {
        campaign
    } else {
        Campaign::parse(&text, "campaign.yaml").unwrap()
    };
    (saved, end.unwrap(), all)
}

#[test]
fn a_campaign_records_shares_of_the_throughput_alone() {
    let (campaign, end, progress) = measure(&mut scripted(), empty());
    assert_eq!((end, progress.len()), (SessionEnd::Complete(End::Most), 32));
    assert_eq!((progress[0].done, progress[31].done, progress[31].of), (1, 32, 32));
    let of = campaign.observations();
    assert!(
        of[..2]
            .iter()
            .all(|of| of.competitors == 0 && of.competition.values() == [Some(0.0); 2])
    );
    for of in &of[2..] {
        let pressure = of.competition.get("probe.cache").unwrap();
        let expected = 1e6 / (1.0 + 0.2 * pressure);
        assert!(
            (of.throughput / expected - 1.0).abs() < 1e-9,
            "the machine's drift remains: {of:?}"
        );
        // Mean of the two runs alone; a value that is missing stays missing.
        assert_eq!(of.own.as_ref().unwrap().values(), [Some(1.5), None]);
        assert!((1..=3).contains(&of.competitors) && !of.flagged);
    }
    let model = ContentionModel::train(&campaign, &ridge()).unwrap();
    assert!(model.throughput().error() < 0.02, "{}", model.throughput().error());
}

#[test]
fn a_campaign_ends_when_its_model_is_good_enough() {
    let mut campaign = empty();
    let save = |_: &Campaign, _| Ok::<_, ContentionError>(());
    let mut plan = plan_until(0.05, 3, 7);
    let end = measure_campaign(&mut scripted(), &mut plan, &mut campaign, save).unwrap();
    assert_eq!(end, SessionEnd::Complete(End::Error));
    let (co_runs, error) = plan.errors().last().unwrap();
    assert!(
        error <= 0.05 && campaign.observations().len() as u32 == 2 + co_runs,
        "{co_runs}: {error}"
    );
    assert!(co_runs < 30);
    // Continued, there is nothing left to measure.
    let mut again = scripted();
    let end = measure_campaign(&mut again, &mut plan_until(0.05, 3, 7), &mut campaign, save).unwrap();
    assert_eq!((end, again.measured), (SessionEnd::Complete(End::Error), 0));
}

#[test]
fn a_campaign_that_is_stopped_anywhere_is_valid_and_continues_with_the_same_points() {
    let (whole, ..) = measure(&mut scripted(), empty());
    for stop_before in [0, 1, 2, 3, 17, 31] {
        let mut server = scripted();
        server.stop_before = Some(stop_before);
        let (part, end, progress) = measure(&mut server, empty());
        assert_eq!((end, progress.len() as u32), (SessionEnd::Stopped, stop_before));
        assert_eq!(part.observations().len() as u32, stop_before);
        server.stop_before = None;
        let (rest, end, progress) = measure(&mut server, part);
        assert_eq!(end, SessionEnd::Complete(End::Most));
        assert!(progress.iter().all(|of| of.of == 32 - stop_before));
        let values = |campaign: &Campaign| {
            let of = campaign.observations().iter();
            of.map(|of| (of.group, of.competitors, of.competition.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(values(&rest), values(&whole), "stopped before {stop_before}");
    }
}

#[test]
fn a_disturbed_point_is_measured_again_and_flagged_if_it_stays_disturbed() {
    let mut server = scripted();
    // Measurement 4 is the second co-run; its repetition is undisturbed. Measurements 6 to 8 are the third co-run's.
    server.disturbed = |number| match number {
        4 => Some(Disturbance::Drift),
        6..=8 => Some(Disturbance::Run(Interference::Preempted)),
        _ => None,
    };
    let (campaign, end, progress) = measure(&mut server, empty());
    assert_eq!(end, SessionEnd::Complete(End::Most));
    let flagged: Vec<u32> = campaign
        .observations()
        .iter()
        .filter(|of| of.flagged)
        .map(|of| of.group)
        .collect();
    assert_eq!(flagged, [4]);
    assert_eq!(progress[4].flagged, Some(Disturbance::Run(Interference::Preempted)));
    // It comes again, and is usable then.
    let again = &campaign.observations()[5];
    assert_eq!(
        (again.group, again.flagged, campaign.observations().len()),
        (4, false, 33)
    );
    // One more measurement of point 3, four of point 4.
    assert_eq!(server.measured, 32 + 1 + 3);
}

#[test]
fn a_machine_that_stays_busy_ends_and_flags_everything() {
    let mut server = scripted();
    server.disturbed = |_| Some(Disturbance::Competitor);
    let (campaign, end, _) = measure(&mut server, empty());
    assert_eq!(end, SessionEnd::Complete(End::Most));
    assert!(campaign.observations().iter().all(|of| of.flagged));
    assert_eq!((campaign.observations().len(), server.measured), (64, 64 * 3));
    // Without an undisturbed run alone there is no own vector.
    assert!(
        campaign
            .observations()
            .iter()
            .all(|of| of.competitors == 0 || of.own.is_none())
    );
}

#[test]
fn a_campaign_of_another_plan_is_refused() {
    let (campaign, ..) = measure(&mut scripted(), empty());
    let other = &mut plan_until(0.0, 3, 8);
    let mut continued = campaign.clone();
    let save = |_: &Campaign, _| Ok::<_, ContentionError>(());
    let error = measure_campaign(&mut scripted(), other, &mut continued, save).unwrap_err();
    assert!(error.to_string().contains("of another plan"), "{error}");
    assert_eq!(continued, campaign);
}

#[test]
fn more_competitors_than_cores_are_refused() {
    let mut server = scripted();
    server.cores = 1;
    let mut campaign = empty();
    let save = |_: &Campaign, _| Ok::<_, ContentionError>(());
    let error = measure_campaign(&mut server, &mut plan(), &mut campaign, save).unwrap_err();
    assert!(
        error.to_string().starts_with("expected at most 1 competitors"),
        "{error}"
    );
}

#[test]
fn points_spread_over_all_ranges() {
    let space = load_space(1 << 20, 32 << 20, 4, 3);
    let all: Vec<_> = (0..64).map(|number| space.setting(number)).collect();
    for (name, middle) in [
        (STRUCTURE_BYTES, 4_194_304.0),
        (READS, 8.5),
        (WRITES, 16.5),
        (RATE, 2e6),
        (FRAME_BYTES, 301.0),
        (DESCRIPTORS, 256.0),
    ] {
        let below = all.iter().filter(|of| of.get(name).unwrap() < middle).count();
        assert!((26..=38).contains(&below), "{name}: {below} of 64 below the middle");
    }
    let loads: Vec<_> = all.iter().map(|of| SyntheticLoad::of(of).unwrap()).collect();
    assert!(loads.iter().any(|of| of.writes > of.reads) && loads.iter().any(|of| of.writes == 0));
    assert!(loads.iter().all(|of| of.reads > 0 && of.rate.is_some()));
}
