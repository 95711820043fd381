//! @NAME@: a network function for Tailwater.
//!
//! This skeleton limits the number of packets per flow. For everything else that a function can do, see the
//! documentation of `tailwater-sdk`: `cargo doc --open -p tailwater-sdk`.

use std::ffi::CStr;
use std::sync::Arc;
use tailwater_sdk::{Batch, Config, ConfigError, DropReason, Explanation, Function, Name, Packet, state};

/// Configuration shared read-only by all workers.
pub struct Shared {
    packets: u64,
}

state! {
    /// State of a flow; zero when the flow is new.
    pub struct Flow {
        packets: u64,
    }
}

/// A worker's instance.
pub struct Instance {
    shared: Arc<Shared>,
}

// Indices in the lists below.
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

    // Says in a line what decided, for packets that somebody traces: `tailwater trace packets`.
    fn explain(&self, packet: &Packet<'_, Flow>, text: &mut Explanation<'_>) {
        let (seen, limit) = (packet.read().packets, self.shared.packets);
        text.add(format_args!("packets of the flow: {seen}, limit {limit}"));
    }
}

tailwater_sdk::export!(Instance);
