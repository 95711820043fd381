//! Any bytes as SLOs, a cluster and a placement's state, separated by lines of `===`. Reading never panics, and an
//! error is one line that points into the text. Specs that were read are within their bounds, and give a plan that
//! meets all admitted SLOs.
//!
//! ```text
//! cargo +nightly fuzz run placement fuzz/corpus/placement fuzz/seeds/placement
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_api::SpecError;
use tailwater_placement::admit::Answer;
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, MAX_KINDS, MAX_SERVERS};
use tailwater_placement::curve::MAX_POINTS;
use tailwater_placement::progress::resume;
use tailwater_placement::reconcile::reconcile;
use tailwater_placement::schedule::MAX_INSTANCES;
use tailwater_placement::spec::{ClusterSpec, SloSet, StateSpec};
use tailwater_placement::tailwater::Tailwater;

/// Maximum number of servers and SLOs that are placed; more only take time.
const SERVERS: usize = 50;
const SLOS: usize = 20;
/// Maximum number of steps that are resumed.
const STEPS: usize = 100;

/// Returns the result of reading, or nothing after checking the format of the error.
fn read<T>(text: &str, read: Result<T, SpecError>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            let lines = text.split(['\n', '\r']).count() + 1;
            assert!(error.line <= lines, "{shown}");
            None
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut parts = text.split("\n===\n");
    let mut next = || parts.next().unwrap_or_default();
    let (slos, cluster, state) = (next(), next(), next());
    let set = read(slos, SloSet::parse(slos, "slos.yaml"));
    let spec = read(cluster, ClusterSpec::parse(cluster, "cluster.yaml"));
    let kept = read(state, StateSpec::parse(state, "state.json"));
    if let Some(spec) = &spec {
        let servers = spec.cluster.servers();
        assert!(servers.len() <= MAX_SERVERS && spec.cluster.kinds().len() <= MAX_KINDS);
        // A state's names follow the general rules: names that were read can be written and read again.
        assert!(servers.iter().all(|server| server.name.len() <= 63));
    }
    if let Some(kept) = &kept {
        let mut slos = kept.slos.iter();
        assert!(slos.all(|slo| slo.instances.len() <= MAX_INSTANCES));
    }
    let (Some(set), Some(spec)) = (set, spec) else {
        return;
    };
    let curves = set.chains.iter().flat_map(|chain| &chain.curves);
    for curves in curves {
        assert!(curves.cache.points().len() <= MAX_POINTS);
        assert!(curves.load.points().len() <= MAX_POINTS);
    }
    let cluster: Cluster = spec.cluster;
    if cluster.servers().len() > SERVERS || set.slos.len() > SLOS {
        return;
    }
    let mut kept = kept.unwrap_or_default();
    let mut pending = std::mem::take(&mut kept.migration);
    // The first half of a migration is carried out, if possible.
    let half = pending.steps.len() / 2;
    let half = pending.numbered().nth(half).map(|(number, _)| number);
    let _ = half.map(|number| pending.done(number, &mut kept.slos));
    let outcome = reconcile(&cluster, &kept.slos, &set.slos, &set.chains, &Tailwater);
    if pending.steps.len() <= STEPS {
        let last = pending.numbered().map(|(number, _)| number).last();
        let left = resume(&outcome.plan, &pending).pending;
        assert!(left.steps.len() <= pending.steps.len());
        // A number stands for the same step as before, or is new.
        assert!(left.steps == pending.steps || Some(left.first) > last);
    }
    assert_eq!(check(&cluster, outcome.plan.placed()), []);
    for answered in &outcome.answers {
        if let Answer::Admitted(instances) = &answered.answer {
            let placed = outcome.plan.get(&answered.name);
            assert_eq!(placed.map(|placed| &placed.instances), Some(instances));
        }
    }
});
