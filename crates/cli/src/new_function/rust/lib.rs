//! @NAME@: a network function for Tailwater.
//!
//! As it stands, it lets each flow have so many packets. The documentation of `tailwater-sdk` says what else it
//! could do: `cargo doc --open -p tailwater-sdk`.

use std::ffi::CStr;
use std::sync::Arc;
use tailwater_sdk::{Batch, Config, ConfigError, DropReason, Function, Name, state};

/// What all workers share, read-only: made of the configuration.
pub struct Shared {
    packets: u64,
}

state! {
    /// What is kept of each flow: zero when the flow is new.
    pub struct Flow {
        packets: u64,
    }
}

/// A worker's instance.
pub struct Instance {
    shared: Arc<Shared>,
}

// Places in the lists below.
const TOO_MANY: u8 = 0;
const FLOWS: usize = 0;

impl Function for Instance {
    const NAME: &'static CStr = c"@NAME@";
    const DROP_REASONS: &'static [DropReason] = &[DropReason::dropped(c"too-many")];
    const COUNTERS: &'static [Name] = &[Name::new(c"flows")];
    const HEADERS_ONLY: bool = true;
    type State = Flow;
    type Shared = Shared;

    fn configure(config: &Config) -> Result<Shared, ConfigError> {
        config.only(&["packets"])?;
        let packets = config.require("packets", "a whole number")?.u64()?;
        Ok(Shared { packets })
    }

    fn start(shared: Arc<Shared>) -> Instance {
        Instance { shared }
    }

    // Runs for every batch: no allocation, lock, system call or output in here.
    fn process(&mut self, batch: &mut Batch<'_, Flow>) {
        batch.for_each(|packet, counters| {
            if packet.is_new_flow() {
                counters[FLOWS] += 1;
            }
            let flow = packet.state();
            flow.packets += 1;
            if flow.packets > self.shared.packets {
                packet.drop(TOO_MANY);
            }
        });
    }
}

tailwater_sdk::export!(Instance);
