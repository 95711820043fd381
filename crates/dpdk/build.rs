//! Compiles the shim and links DPDK, if the feature is on.

fn main() {
    #[cfg(feature = "dpdk")]
    dpdk();
}

#[cfg(feature = "dpdk")]
fn dpdk() {
    let versions = "22.11".."26.0";
    let found = pkg_config::Config::new()
        .cargo_metadata(false)
        .range_version(versions.clone())
        .probe("libdpdk");
    if let Err(error) = found {
        println!(
            "cargo::error=the feature `dpdk` requires DPDK {} to 25.11, not found by pkg-config: \
             `make deps` installs it, or on Debian `apt-get install libdpdk-dev` ({})",
            versions.start,
            error.to_string().lines().next().unwrap_or_default()
        );
        std::process::exit(1);
    }
    let mut shim = cc::Build::new();
    shim.file("csrc/shim.c").std("gnu11").extra_warnings(true);
    // DPDK's own flags: the `pkg-config` crate would drop those that are neither include paths nor definitions.
    for flag in flags("--cflags") {
        shim.flag(&flag);
    }
    shim.compile("tailwater_shim");
    // After the shim, which needs them. Drivers are loaded at run time.
    for flag in flags("--libs") {
        if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib={library}");
        } else if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        }
    }
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
}

/// Flags that pkg-config prints for DPDK.
#[cfg(feature = "dpdk")]
fn flags(which: &str) -> Vec<String> {
    let program = std::env::var_os("PKG_CONFIG").unwrap_or("pkg-config".into());
    let output = std::process::Command::new(program)
        .args([which, "libdpdk"])
        .output()
        .unwrap_or_else(|error| panic!("pkg-config cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace().map(str::to_owned).peekable();
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        flags.push(word.clone());
        if word == "-include" {
            flags.extend(words.next());
        }
    }
    flags
}
