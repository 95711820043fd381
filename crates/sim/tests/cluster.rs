//! A rack's controller in virtual time: what holds for every policy.

use tailwater_baselines::QuadrantConfig;
use tailwater_net::Nanos;
use tailwater_placement::rack::TailwaterScaling;
use tailwater_sim::cluster::{ClusterOptions, ClusterPolicy, ClusterReport, simulate_cluster};

fn tailwater(consolidation: u64) -> ClusterPolicy {
    ClusterPolicy::Tailwater {
        scaling: TailwaterScaling::default(),
        consolidation,
    }
}

fn quadrant() -> ClusterPolicy {
    ClusterPolicy::Quadrant(QuadrantConfig::new(Nanos::from_millis(1), 1.0))
}

/// A rack of ten servers with 30 chains, for three minutes of a day of six, some of which fail.
fn options(policy: ClusterPolicy) -> ClusterOptions {
    let mut options = ClusterOptions::new(10, policy);
    (options.chains, options.load) = (30, 50.0);
    (options.seconds, options.warm_up, options.day) = (180, 20, 360);
    options.failure = (90, 0.1);
    options
}

fn run(options: &ClusterOptions) -> ClusterReport {
    simulate_cluster(options).expect("presets of traffic")
}

#[test]
fn servers_accept_every_plan_and_no_policy_is_below_the_oracle() {
    let policies = [tailwater(30), tailwater(0), quadrant(), ClusterPolicy::StaticPeak];
    let reports = policies.map(|policy| run(&options(policy)));
    for (policy, report) in policies.iter().zip(&reports) {
        assert_eq!(report.refused, 0, "{policy:?}");
        assert_eq!((report.seconds, report.chain_seconds), (160, 160 * 30));
        assert!(
            report.core_seconds >= report.oracle_core_seconds,
            "{policy:?}: {report:?}"
        );
        assert_eq!(report.oracle_core_seconds, reports[0].oracle_core_seconds);
        assert!(report.kept_share() > 0.96, "{policy:?}: {report:?}");
        assert!(report.over_oracle() < 3.5, "{policy:?}: {report:?}");
        assert_eq!(report.failed, 1);
        assert!(
            report.affected > 0 && report.recovery.len() == report.affected,
            "{report:?}"
        );
        // Two seconds without a report, and one in which new instances start.
        assert!(report.recovered_within(0.5) >= 2, "{report:?}");
        assert!(report.recovered_within(1.0) < 60, "{report:?}");
    }
    let [scaled, unmoved, _, peak] = reports;
    assert!(scaled.core_seconds < 0.9 * peak.core_seconds, "{scaled:?} {peak:?}");
    assert!(peak.kept >= scaled.kept, "{scaled:?} {peak:?}");
    assert_eq!((peak.resized, peak.moved), (0, 0));
    assert_eq!(unmoved.moved, 0);
}

#[test]
fn equal_options_give_equal_reports_and_another_seed_another_load() {
    let mut options = options(tailwater(30));
    (options.seconds, options.failure) = (60, (0, 0.0));
    let report = run(&options);
    assert_eq!(report, run(&options));
    assert_eq!((report.failed, report.recovery.len()), (0, 0));
    options.seed += 1;
    assert_ne!(report.oracle_core_seconds, run(&options).oracle_core_seconds);
}

/// The round in which a tenth of the servers is lost does not predict again what a server has refused.
#[test]
fn a_lost_tenth_of_a_rack_takes_few_predictions() {
    let mut options = ClusterOptions::new(60, tailwater(0));
    (options.seconds, options.warm_up, options.day) = (12, 4, 3600);
    options.failure = (8, 0.1);
    let report = run(&options);
    // 1,062 without memory of refusals.
    assert!(report.predictions.1 < 500, "{report:?}");
    assert!(report.affected > 0 && report.refused == 0, "{report:?}");
}
