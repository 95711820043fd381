//! Scope of a profile: a configuration and a machine.

use std::fmt::{self, Write};
use tailwater_functions::spec::ChainSpec;
use tailwater_policy::capacity::MAX_NAME_BYTES;

/// FNV-1a hash, 64 bits (Fowler, Noll, Vo), of everything written to it. Not cryptographic; the same on every machine.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(u64);

impl Default for Fnv {
    /// Returns the hash of no bytes.
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes to the hash.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for Fnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns a fingerprint of everything that determines a chain's cost: its functions with the contents of the files
/// they name, its flow table, its packet options, and the version of this program.
///
/// Names, objectives, comments and file paths do not count, nor does `match`.
pub fn fingerprint(spec: &ChainSpec) -> String {
    let mut hash = Fnv::default();
    let build = (env!("CARGO_PKG_VERSION"), cfg!(debug_assertions));
    // Writing into a hash cannot fail.
    let _ = write!(hash, "{build:?}{:?}{:?}", spec.flows, spec.packets);
    for function in &spec.functions {
        let mut config = function.config.clone();
        let changed = config.make_mut();
        changed.remove_sources();
        changed.remove_exports();
        let _ = write!(hash, "{config:?}");
        if let Some(branch) = function.branch {
            let _ = write!(hash, "{branch}");
        }
    }
    hash.to_string()
}

/// Returns this machine's name and processor, as in `edge-3 (Intel(R) Xeon(R) ...)`.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    let cpus = read("/proc/cpuinfo");
    let mut machine = format!("{} ({})", name.trim(), processor(&cpus));
    let fits = |end: &usize| machine.is_char_boundary(*end);
    let end = (0..=machine.len().min(MAX_NAME_BYTES)).rev().find(fits);
    machine.truncate(end.unwrap_or(0));
    machine
}

/// Returns the processor's name from `/proc/cpuinfo`.
pub(crate) fn processor(description: &str) -> &str {
    let model = description.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "model name").then_some(value.trim())
    });
    model.unwrap_or("unknown processor")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn spec(functions: &str, rest: &str) -> ChainSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\n\
             spec:\n  functions: {functions}\n  slo: {{latency: 200us}}\n{rest}"
        );
        ChainSpec::parse(&text, "test.yaml", Path::new("")).unwrap()
    }

    #[test]
    fn the_fingerprint_is_of_what_costs() {
        let first = fingerprint(&spec("[{nat: {external: [203.0.113.0/28]}}]", ""));
        assert_eq!(first.len(), 16);
        let mut same = spec("[{name: edge, nat: {external: [203.0.113.0/28]}}]", "# a");
        same.slo.latency = tailwater_net::Nanos::from_millis(1);
        assert_eq!(fingerprint(&same), first);
        for other in [
            spec("[{nat: {external: [203.0.113.0/29]}}]", ""),
            spec("[{nat: {external: [203.0.113.0/28]}}, {forward: }]", ""),
            spec("[{nat: {external: [203.0.113.0/28]}}]", "  packets: {batch: 8}\n"),
            spec("[{nat: {external: [203.0.113.0/28]}}]", "  flows: {capacity: 512}\n"),
        ] {
            assert_ne!(fingerprint(&other), first, "{other:?}");
        }
        let plain = fingerprint(&spec("[{accounting: }]", ""));
        let export = spec("[{accounting: {export: {file: a.csv, format: csv}}}]", "");
        assert_eq!(fingerprint(&export), plain);
    }

    #[test]
    fn the_machine_has_a_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags\t: a: b\n";
        assert_eq!(processor(cpuinfo), "Fast CPU @ 3 GHz");
        assert_eq!(processor(""), "unknown processor");
        assert!((1..=MAX_NAME_BYTES).contains(&machine().len()));
    }
}
