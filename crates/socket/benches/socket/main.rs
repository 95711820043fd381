//! The modelled socket: its speed, and its figures beside those of machines.
//!
//! `cargo bench -p tailwater-socket --bench socket [-- SECTION...]` prints one JSON line per figure, named
//! `socket/<section>/...`. `published` is the figure of a paper or of this project's reference machine, where there is
//! one. Sections:
//!
//! | section | figures |
//! |---|---|
//! | `speed` | time of a co-run |
//! | `sampling` | throughput with one in 16 cache sets over that with all |
//! | `sweep` | latency of dependent loads by working set |
//! | `writer` | random reads beside a streaming writer |
//! | `flows` | cost of more flows: recorded functions |
//! | `cache` | throughput by ways of the last-level cache (ResQ, Figure 6) |
//! | `leaky` | memory traffic and misses of devices by descriptors (ResQ, §4.3 and Table 2) |
//! | `partitions` | slowdown beside competitors, with and without partitions |
//! | `bandwidth` | slowdown by memory bandwidth alone (SLOMO, §3.3) |
//! | `contention` | slowdown of recorded functions by competitors' number and working set |
//! | `machine` | `sweep` and `writer` on the machine at hand; only if named |

mod machine;
mod model;

/// Prints a figure, with what was published.
fn print(name: &str, value: f64, unit: &str, published: Option<&str>) {
    let mut figure = serde_json::json!({
        "name": format!("socket/{name}"),
        "value": (value * 1000.0).round() / 1000.0,
        "unit": unit,
    });
    if let Some(published) = published {
        figure["published"] = published.into();
    }
    println!("{figure}");
}

const SECTIONS: &[(&str, fn())] = &[
    ("speed", model::speed),
    ("sampling", model::sampling),
    ("sweep", model::sweep),
    ("writer", model::writer),
    ("flows", model::flows),
    ("cache", model::cache),
    ("leaky", model::leaky),
    ("partitions", model::partitions),
    ("bandwidth", model::bandwidth),
    ("contention", model::contention),
    ("machine", machine::print_all),
];

fn main() {
    // Added by cargo.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    for name in &wanted {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        assert!(
            names.contains(&name.as_str()),
            "no section {name}; there are {}",
            names.join(", ")
        );
    }
    for (name, run) in SECTIONS {
        if wanted.iter().any(|wanted| wanted == name) || wanted.is_empty() && *name != "machine" {
            eprintln!("{name}");
            run();
        }
    }
}
