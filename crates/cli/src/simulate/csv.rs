//! Comparisons as comma-separated values, for spreadsheets and scripts.

use super::document::{Bound, Document};
use crate::error::CliError;
use crate::output::not_json;
use serde_json::{Value, json};
use tailwater_sim::policies::ORACLE;
use tailwater_sim::report::{Cause, Loss};

/// Column: its name, and its field in the JSON document, of a run or of its chain.
type Column = (&'static str, &'static str);

/// Columns of a run. Names and units are stable.
const OF_RUN: &[Column] = &[
    ("policy", "/policy"),
    ("seed", "/seed"),
    ("duration_s", "/duration_s"),
    ("rack_cores_average", "/cores/average"),
    ("rack_cores_most", "/cores/most"),
];

/// Columns of each chain of a run.
const OF_CHAIN: &[Column] = &[
    ("chain", "/chain"),
    ("traffic", "/traffic"),
    ("slo_us", "/slo_us"),
    ("slo_met", "/slo_met"),
    ("p50_us", "/latency_us/p50"),
    ("p90_us", "/latency_us/p90"),
    ("p99_us", "/latency_us/p99"),
    ("p999_us", "/latency_us/p999"),
    ("max_us", "/latency_us/max"),
    ("mean_us", "/latency_us/mean"),
    ("offered", "/packets/offered"),
    ("delivered", "/packets/delivered"),
    ("delivered_bytes", "/packets/delivered_bytes"),
    ("lost", "/packets/lost"),
    ("loss_rate", "/loss_rate"),
    ("flows", "/packets/flows"),
    ("cores_dedicated", "/cores/dedicated"),
    ("cores_auxiliary", "/cores/auxiliary"),
    ("cores_total", "/cores/total"),
    ("cores_busy", "/cores/busy"),
    ("decisions", "/decisions/decisions"),
    ("moves", "/decisions/moves"),
    ("flows_moved", "/decisions/flows_moved"),
    ("packets_handed", "/decisions/packets_handed"),
    ("relieved", "/decisions/relieved"),
    ("packets_held", "/decisions/packets_held"),
    ("recruited", "/decisions/recruited"),
    ("released", "/decisions/released"),
    ("boosts", "/decisions/boosts"),
    ("splits", "/decisions/splits"),
    ("whales_beyond_split", "/decisions/whales_beyond_split"),
    ("out_of_cores", "/decisions/out_of_cores"),
    ("no_benefit", "/decisions/no_benefit"),
    ("remaps", "/decisions/remaps"),
    ("buckets_moved", "/decisions/buckets_moved"),
    ("flows_migrated", "/decisions/flows_migrated"),
    ("kept_back", "/decisions/kept_back"),
    ("longest_move_ns", "/decisions/longest_move_ns"),
    ("rules", "/decisions/rules"),
    ("waited_for_rule", "/decisions/waited_for_rule"),
    ("rows_moved", "/decisions/rows_moved"),
    ("held_for_move", "/decisions/held_for_move"),
    ("longest_row_move_ns", "/decisions/longest_row_move_ns"),
    ("loss_reaction_ns", "/decisions/loss_reaction_ns"),
    ("flows_reopened", "/decisions/flows_reopened"),
    ("servers_emptied", "/decisions/servers_emptied"),
];

/// Formats a line of names, and one per chain of each run; then the same of each bound, with its known fields only.
///
/// # Errors
/// The document cannot be serialised.
pub fn comparison(document: &Document) -> Result<String, CliError> {
    let columns = OF_RUN.iter().chain(OF_CHAIN);
    let mut names: Vec<String> = columns.map(|(name, _)| (*name).to_owned()).collect();
    names.extend(Loss::ALL.map(|loss| format!("lost_{}", loss.name())));
    names.extend(Cause::ALL.map(|cause| format!("late_{}", cause.name())));
    let mut text = line(names.into_iter());
    for run in &document.runs {
        let whole = serde_json::to_value(run).map_err(not_json)?;
        let of_run = OF_RUN.iter().map(|(_, place)| field(whole.pointer(place)));
        let of_run: Vec<String> = of_run.collect();
        for (chain, report) in run.report.chains.iter().enumerate() {
            let chain = &whole["chains"][chain];
            let of_chain = OF_CHAIN.iter().map(|(_, place)| field(chain.pointer(place)));
            // The map contains only reasons that occurred.
            let count =
                |map: &std::collections::BTreeMap<String, u64>, name| map.get(name).copied().unwrap_or(0).to_string();
            let packets = &report.packets;
            let lost = Loss::ALL.map(|loss| count(&packets.lost_by_reason, loss.name()));
            let late = Cause::ALL.map(|cause| count(&report.late_by_cause, cause.name()));
            let fields = of_run.iter().cloned().chain(of_chain);
            text.push_str(&line(fields.chain(lost).chain(late)));
        }
    }
    for bound in &document.bounds {
        let whole = as_run(bound);
        for chain in whole["chains"].as_array().into_iter().flatten() {
            let of = |columns: &[Column], from: &Value| -> Vec<String> {
                let places = columns.iter().map(|(_, place)| from.pointer(place));
                places.map(field).collect()
            };
            let known = [of(OF_RUN, &whole), of(OF_CHAIN, chain)].concat();
            let unknown = vec![String::new(); Loss::ALL.len() + Cause::ALL.len()];
            text.push_str(&line(known.into_iter().chain(unknown)));
        }
    }
    Ok(text)
}

/// Returns a bound in the form of a run.
fn as_run(bound: &Bound) -> Value {
    let chains = bound.report.chains.iter().map(|chain| {
        json!({
            "chain": chain.chain,
            "traffic": chain.traffic,
            "slo_us": chain.slo_us,
            "packets": {"offered": chain.packets, "flows": chain.flows},
            "cores": {"total": chain.cores},
        })
    });
    json!({
        "policy": ORACLE,
        "seed": bound.seed,
        "cores": bound.report.cores,
        "chains": chains.collect::<Vec<_>>(),
    })
}

/// Formats fields as a line, quoted where necessary (RFC 4180).
pub fn line(fields: impl Iterator<Item = String>) -> String {
    let quoted = fields.map(|field| match field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

/// Formats a figure as in JSON, text without quotes, and a missing value as nothing.
pub fn field(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        let fields = ["a", "b,c", "say \"d\"", ""].map(str::to_owned);
        assert_eq!(line(fields.into_iter()), "a,\"b,c\",\"say \"\"d\"\"\",\n");
    }
}
