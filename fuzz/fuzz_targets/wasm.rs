//! Any bytes as a WebAssembly module: it is refused, or set up within its limits of instructions and memory.
//!
//! ```text
//! cargo +nightly fuzz run wasm
//! ```
//!
//! Input: a module. `examples/programs/wasm/rate_limit.wasm` and `crates/functions/tests/wasm/hostile.wasm` are good
//! seeds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_functions::wasm::{Limits, Machine, Program};

const LIMITS: Limits = Limits {
    instructions: 4096,
    memory: 4 << 20,
    setup: 1 << 20,
};
/// Most of the area that the host adds.
const AREA: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Ok(program) = Program::parse(bytes) else {
        return;
    };
    for config in ["{}", "{\"packetsPerSecond\":10}"] {
        if let Ok((machine, description)) = Machine::new(&program, config, &LIMITS) {
            assert!(machine.memory_bytes() <= LIMITS.memory + AREA);
            assert!(machine.setup_cost() <= 2 * LIMITS.setup);
            assert!(description.drop_reasons.len() <= 18 && description.state_bytes <= 1024);
        }
    }
});
