//! Version and parts of this build: `tailwater --version`. `-V` prints the version alone.

use std::sync::LazyLock;

/// Optional parts of the program, and whether this build has them.
const PARTS: [(&str, bool); 8] = [
    ("cluster", cfg!(feature = "cluster")),
    ("control", cfg!(feature = "control")),
    ("dpdk", cfg!(feature = "dpdk")),
    ("ipsec", cfg!(feature = "ipsec")),
    ("metrics", cfg!(feature = "metrics")),
    ("milp", cfg!(feature = "milp")),
    ("redis", cfg!(feature = "redis")),
    ("wasm", cfg!(feature = "wasm")),
];

/// Commit of the sources, which `tools/release.sh` and the packages set.
const COMMIT: Option<&str> = option_env!("TAILWATER_COMMIT");

/// Instructions that the program needs, from the features that it was compiled for.
const BASELINE: &str = match cfg!(target_feature = "avx2") {
    true => "x86-64-v3 (AVX2, BMI, MOVBE)",
    false => "any CPU of this architecture",
};

/// Version, commit, optional parts and CPU baseline, a line each.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    &TEXT
}

fn text() -> String {
    let parts = |is_there| -> String {
        let names = PARTS.iter().filter(|part| part.1 == is_there).map(|part| part.0);
        match names.collect::<Vec<_>>() {
            names if names.is_empty() => "none".into(),
            names => names.join(" "),
        }
    };
    format!(
        "{}\ncommit    {}\nwith      {}\nwithout   {}\nbaseline  {BASELINE}\nmachine   {}-{}{}",
        env!("CARGO_PKG_VERSION"),
        COMMIT.unwrap_or("unknown"),
        parts(true),
        parts(false),
        std::env::consts::ARCH,
        std::env::consts::OS,
        if cfg!(debug_assertions) { ", not optimised" } else { "" },
    )
}
