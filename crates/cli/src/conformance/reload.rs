//! The check that functions keep their state while the chain changes around them.

use super::compare::{BATCH, FLOWS, PACKETS, compare, drain, known, numbered};
use super::frames::ordinary;
use super::outcome::Outcome;
use super::rig::Rig;
use std::path::Path;
use tailwater_functions::spec::ChainSpec;

/// Name of the function that comes in front of the others.
const INSERTED: &str = "test-function-inserted";

/// Known flows go on in a chain that takes the place of the one before, with another function in front: what
/// `tailwater serve` does with a changed spec while packets pass.
pub fn reload(spec: &ChainSpec) -> Outcome {
    changed(spec).unwrap_or_else(Outcome::Failed)
}

fn changed(spec: &ChainSpec) -> Result<Outcome, String> {
    let packets = ordinary(PACKETS, FLOWS);
    let frames = numbered(&packets);
    let half = PACKETS / 2;
    let mut old = Rig::new(spec, 1)?;
    if !old.cores[0].is_plain() {
        let text = "chains with branches or with state in Redis begin anew when they change";
        return Ok(Outcome::Skipped(text.to_owned()));
    }
    let mut alone = Rig::new(spec, 1)?;
    let expected = alone.run(0, &frames, BATCH)?;
    let mut found = old.run(0, &frames[..half], BATCH)?;
    let flows = old.cores[0].flows();
    let mut new = old.succeeded(&with_another(spec)?)?;
    found.extend(new.run(0, &frames[half..], BATCH)?);
    compare(&expected, &found, known(&packets)).map_err(|error| format!("flows in a changed chain: {error}"))?;
    drain([alone, new]);
    Ok(Outcome::Passed(match flows {
        0 => "no flow state to keep".to_owned(),
        flows => format!("{flows} flows go on while a function is inserted"),
    }))
}

/// The spec with a function in front that has flow state of its own, so that the others' is elsewhere.
fn with_another(spec: &ChainSpec) -> Result<ChainSpec, String> {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  functions:\n    - name: \
         {INSERTED}\n      count: {{counters: [{{name: all}}]}}\n  slo: {{latency: 1ms}}\n"
    );
    let other = ChainSpec::parse(&text, "test", Path::new("/")).map_err(|error| error.to_string())?;
    let mut spec = spec.clone();
    spec.functions.splice(0..0, other.functions);
    Ok(spec)
}
