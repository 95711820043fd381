//! The same function twice: in C behind the interface of `tailwater_nf.h`, and in Rust as this program's own.

use bytemuck::{Pod, Zeroable};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::ChainSpec;

/// Limit of the example that no flow reaches.
pub const RATE_LIMIT_CONFIG: &str = "{packetsPerSecond: 1000000000, burst: 1000000}";

/// A chain's function in C, if it has one.
pub fn in_c(chain: &str) -> Option<String> {
    static FORWARD: OnceLock<PathBuf> = OnceLock::new();
    static COUNT: OnceLock<PathBuf> = OnceLock::new();
    static RATE_LIMIT: OnceLock<PathBuf> = OnceLock::new();
    const OWN: &str = "benches/library/functions.c";
    const EXAMPLE: &str = "../../examples/functions/rate-limit/rate_limit.c";
    let file = match chain {
        "forward-c" => FORWARD.get_or_init(|| compile("FORWARD", OWN)),
        "count-c" => COUNT.get_or_init(|| compile("COUNT", OWN)),
        "rate-limit-c" => RATE_LIMIT.get_or_init(|| compile("RATE_LIMIT", EXAMPLE)),
        _ => return None,
    };
    if chain == "rate-limit-c" {
        return Some(format!(
            "{{library: {{file: '{}', config: {RATE_LIMIT_CONFIG}}}}}",
            file.display()
        ));
    }
    Some(format!("{{library: {{file: '{}'}}}}", file.display()))
}

fn compile(which: &str, source: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("tailwater-{}-{which}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-fPIC", "-shared", &format!("-D{which}")])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
        .args(["-o".as_ref(), file.as_os_str(), source.as_os_str()])
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc failed");
    file
}

/// Deletes the libraries' files. Loaded libraries stay loaded.
pub fn clean() {
    for which in ["FORWARD", "COUNT", "RATE_LIMIT"] {
        let name = format!("tailwater-{}-{which}.so", std::process::id());
        // It may not exist.
        let _ = std::fs::remove_file(std::env::temp_dir().join(name));
    }
}

/// Adds the counting function to the chain `count`: it has no name in YAML.
pub fn add_own(chain: &str, spec: &mut ChainSpec) {
    if chain == "count" {
        let make = || -> Box<dyn NetworkFunction> { Box::new(Count) };
        spec.functions[0].config = OwnFunction::new("Count", make).into();
    }
}

/// Counts each flow's packets and bytes.
struct Count;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Flow {
    packets: u64,
    bytes: u64,
}

impl NetworkFunction for Count {
    fn kind(&self) -> &'static str {
        "Count"
    }

    fn state_bytes(&self) -> usize {
        size_of::<Flow>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        for packet in batch.iter() {
            let flow = flows.state::<Flow>(packet);
            flow.packets += 1;
            flow.bytes += packet.length() as u64;
        }
    }
}
