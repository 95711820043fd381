//! Errors of predictions on the modelled socket: models of functions beside synthetic competitors, tested on co-runs of
//! real functions that no training saw.
//!
//! `cargo bench -p tailwater-predict --bench socket [-- SECTION... --seed N --quick]` prints one JSON line per figure,
//! named `prediction/socket/<section>/...`. `published` is SLOMO's figure on its own machines, where there is one.
//! Campaigns and co-runs are kept below `target/tmp/prediction-socket`, and continued after an interruption. Sections:
//!
//! | section | figures |
//! |---|---|
//! | `errors` | end to end, by function and number of competitors, beside baselines; intervals (Figures 10, 12) |
//! | `metrics` | by set of metrics (Table 6) |
//! | `regressors` | by method (Figure 15) |
//! | `composition` | composed vectors, vectors alone, and as measured (Figure 16) |
//! | `extrapolation` | for a target whose flows changed (Figure 17) |
//! | `placement` | servers and violations of online placement (Table 8) |
//! | `partitions` | with a cache partition of the target's own (Table 9) |
//! | `few-shot` | by number of measured points |

mod campaigns;
mod changes;
mod figures;
mod functions;
mod placement;
mod subjects;

use campaigns::Size;
use functions::Function;
use subjects::Subject;

/// Prints a figure, with what was published.
fn print(name: &str, value: f64, unit: &str, published: Option<&str>, more: &[(&str, f64)]) {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let mut figure = serde_json::json!({
        "name": format!("prediction/socket/{name}"),
        "value": round(value),
        "unit": unit,
    });
    for (name, value) in more {
        figure[*name] = round(*value).into();
    }
    if let Some(published) = published {
        figure["published"] = published.into();
    }
    println!("{figure}");
}

type Section = fn(&[Subject], &Size);

const SECTIONS: &[(&str, Section)] = &[
    ("errors", figures::errors),
    ("metrics", figures::metrics),
    ("regressors", figures::regressors),
    ("composition", figures::composition),
    ("extrapolation", changes::extrapolation),
    ("placement", placement::placement),
    ("partitions", changes::partitions),
    ("few-shot", figures::few_shot),
];

fn main() {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    // Added by cargo. `cargo test --benches` runs benchmarks without it, and only as a check.
    let is_bench = wanted.iter().any(|argument| argument == "--bench");
    let is_quick = !is_bench || wanted.iter().any(|argument| argument == "--quick");
    let mut seed = 1;
    if let Some(at) = wanted.iter().position(|argument| argument == "--seed") {
        let number = wanted.get(at + 1).and_then(|number| number.parse().ok());
        seed = number.unwrap_or_else(|| panic!("--seed: expected a whole number"));
        wanted.drain(at..at + 2);
    }
    wanted.retain(|argument| !argument.starts_with("--"));
    for name in &wanted {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        let names_all = names.join(", ");
        assert!(
            names.contains(&name.as_str()),
            "no section {name}; there are {names_all}"
        );
    }
    let size = Size::new(is_quick, seed);
    let mut functions = Function::all();
    if is_quick {
        functions.truncate(3);
    }
    let subjects = subjects::subjects(&functions, &size, "");
    for (name, run) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            run(&subjects, &size);
        }
    }
}
