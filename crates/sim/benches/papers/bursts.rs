//! NetBlaze's tables 1 and 2: whales and minnows of the presets that correspond to its traces.

use super::published::{MINNOWS, WHALES};
use super::runs::figure;
use super::setting::SEED;
use tailwater_net::Nanos;
use tailwater_traffic::TrafficError;
use tailwater_traffic::bursts::{BurstStudy, StudyOptions};
use tailwater_traffic::generate::preset;

/// Time per packet of a light, a medium and a heavy chain, in microseconds.
const SERVICES: [u64; 3] = [5, 10, 20];
/// Duration of the simulation: the traces' flows last at most a minute, as far as known.
const SECONDS: u64 = 60;
const QUICK_SECONDS: u64 = 5;
/// Memory limit for flows and packets buffered by shapers.
const MEMORY: u64 = 4 << 30;

/// Runs the figures whose names `wanted` accepts.
pub fn tables(quick: bool, wanted: &dyn Fn(&str) -> bool) {
    let name = |table: &str, trace: &str, us: u64| format!("papers/netblaze/{table}/{trace}-{us}us");
    for ((trace, whales), (_, minnows)) in WHALES.into_iter().zip(MINNOWS) {
        let rows = SERVICES
            .iter()
            .flat_map(|us| ["table-1", "table-2"].map(|table| (table, *us)));
        if !rows.into_iter().any(|(table, us)| wanted(&name(table, trace, us))) {
            continue;
        }
        let seconds = if quick { QUICK_SECONDS } else { SECONDS };
        let preset = preset(trace).map(|preset| preset.with(SEED, Nanos::from_secs(seconds)));
        let study = preset.and_then(|preset| study(|| preset.arrivals()));
        let study = study.unwrap_or_else(|error| panic!("{trace}: {error}"));
        for (number, us) in SERVICES.into_iter().enumerate() {
            let p99 = study.whales[number].latency.p99.as_micros_f64();
            let name_1 = name("table-1", trace, us) + "/p99";
            figure(&name_1, p99, "us", Some(whales[number]), "");
            let row = study.minnows[number];
            let Some(latency) = row.latency else { continue };
            let more = format!(
                ", \"p50_us\": {}, \"cores\": {}",
                latency.p50.as_micros_f64(),
                row.cores.unwrap_or(0)
            );
            let (name, p99) = (name("table-2", trace, us) + "/p99", latency.p99.as_micros_f64());
            figure(&name, p99, "us", Some(minnows[number]), &more);
        }
    }
}

fn study<A: tailwater_traffic::bursts::Arrivals>(
    open: impl FnMut() -> Result<A, TrafficError>,
) -> Result<BurstStudy, TrafficError> {
    let options = StudyOptions {
        services: SERVICES.map(Nanos::from_micros).to_vec(),
        memory_limit_bytes: MEMORY,
    };
    BurstStudy::measure(open, &options)
}
