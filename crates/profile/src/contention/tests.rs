//! Campaigns on a scripted server: no measured time.

use super::*;
use crate::error::TrainError;
use crate::interference::Interference;
use crate::sweep::SweepError;
use std::sync::Arc;
use tailwater_predict::metric::Resource;
use tailwater_predict::{Campaign, ContentionModel, Key, Kind, Metric, Schema, Source, TrainOptions};

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

    fn beside(&mut self, point: &CoRunPoint) -> Result<CoRun, ContentionError> {
        let alone = self.next()?;
        let load = point.load;
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

fn points() -> EvenPoints {
    EvenPoints::new(LoadRange::of_caches(1 << 20, 32 << 20, 3), 2, 30, 7)
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
    let end = measure_campaign(server, &mut points(), &mut campaign, |campaign, progress| {
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
    assert_eq!((end, progress.len()), (SessionEnd::Complete, 32));
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
    let options = TrainOptions {
        kind: Kind::Ridge,
        ..TrainOptions::default()
    };
    let model = ContentionModel::train(&campaign, &options).unwrap();
    assert!(model.throughput().error() < 0.02, "{}", model.throughput().error());
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
        assert_eq!(end, SessionEnd::Complete);
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
    assert_eq!(end, SessionEnd::Complete);
    let flagged: Vec<u32> = campaign
        .observations()
        .iter()
        .filter(|of| of.flagged)
        .map(|of| of.group)
        .collect();
    assert_eq!(flagged, [4]);
    assert_eq!(progress[4].flagged, Some(Disturbance::Run(Interference::Preempted)));
    // It comes again after all others, and is usable then.
    let last = campaign.observations().last().unwrap();
    assert_eq!(
        (last.group, last.flagged, campaign.observations().len()),
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
    assert_eq!(end, SessionEnd::Complete);
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
    let other = &mut EvenPoints::new(LoadRange::of_caches(1 << 20, 32 << 20, 3), 5, 30, 7);
    let mut continued = campaign.clone();
    let save = |_: &Campaign, _| Ok::<_, ContentionError>(());
    let error = measure_campaign(&mut scripted(), other, &mut continued, save).unwrap_err();
    assert!(error.to_string().contains("another plan"), "{error}");
    assert_eq!(continued, campaign);
}

#[test]
fn more_competitors_than_cores_are_refused() {
    let mut server = scripted();
    server.cores = 1;
    let mut campaign = empty();
    let save = |_: &Campaign, _| Ok::<_, ContentionError>(());
    let error = measure_campaign(&mut server, &mut points(), &mut campaign, save).unwrap_err();
    assert!(
        error.to_string().starts_with("expected at most 1 competitors"),
        "{error}"
    );
}

#[test]
fn points_spread_over_all_ranges() {
    let points = EvenPoints::new(LoadRange::of_caches(1 << 20, 32 << 20, 4), 0, 64, 3);
    let all: Vec<CoRunPoint> = (0..64).map(|number| points.point(number)).collect();
    assert_eq!(all, (0..64).map(|number| points.point(number)).collect::<Vec<_>>());
    let half = |value: fn(&CoRunPoint) -> f64, middle: f64| all.iter().filter(|of| value(of) < middle).count();
    for (name, below) in [
        ("structure", half(|of| of.load.structure_bytes as f64, 4194304.0)),
        ("rate", half(|of| of.load.rate.unwrap(), 2e6)),
        ("frames", half(|of| f64::from(of.load.frame_bytes), 301.0)),
        ("descriptors", half(|of| f64::from(of.load.descriptors), 256.0)),
        ("accesses", half(|of| f64::from(of.load.reads + of.load.writes), 8.5)),
        ("competitors", half(|of| f64::from(of.competitors), 2.5)),
    ] {
        assert!((26..=38).contains(&below), "{name}: {below} of 64 below the middle");
    }
    assert!(all.iter().all(|of| of.load.reads + of.load.writes > 0));
    assert!(all.iter().any(|of| of.load.writes > of.load.reads));
}
