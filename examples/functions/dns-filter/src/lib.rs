//! Drops DNS queries over UDP for names on a list, and for names below them.
//!
//! ```yaml
//! - program:
//!     file: functions/dns-filter/target/release/dns-filter
//!     library: functions/dns-filter/target/release/libdns_filter.so
//!     config: {names: [example.com, ads.example.org]}
//! ```

mod name;

use name::{question, wire_name};
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::Arc;
use tailwater_sdk::{Batch, Config, ConfigError, DropReason, Function, Name, state};

state! {
    /// State of a flow: whether it carries DNS queries, decided on its first packet.
    pub struct Asks {
        dns: u8,
    }
}

/// Filter with its list of names.
pub struct DnsFilter {
    /// Names in wire format: labels with their lengths, in lower case.
    names: Arc<HashSet<Vec<u8>>>,
    /// Buffer for a query's name in lower case.
    lower: Vec<u8>,
}

const UDP: u8 = 17;
const DNS: u16 = 53;

impl Function for DnsFilter {
    const NAME: &'static CStr = c"dns-filter";
    const DROP_REASONS: &'static [DropReason] = &[DropReason::dropped(c"listed")];
    const COUNTERS: &'static [Name] = &[Name::new(c"queries"), Name::new(c"no-query")];
    type State = Asks;
    type Shared = HashSet<Vec<u8>>;

    fn configure(config: &Config) -> Result<Self::Shared, ConfigError> {
        config.only(&["names"])?;
        let names = config.require("names", "a list of names")?.list()?;
        names
            .iter()
            .map(|name| {
                let wrong = || name.error("expected a name such as example.com");
                wire_name(name.text()?).ok_or_else(wrong)
            })
            .collect()
    }

    fn start(names: Arc<Self::Shared>) -> DnsFilter {
        DnsFilter {
            names,
            lower: Vec::with_capacity(name::LONGEST),
        }
    }

    fn process(&mut self, batch: &mut Batch<'_, Asks>) {
        let DnsFilter { names, lower } = self;
        batch.for_each(|packet, counters| {
            if packet.is_new_flow() {
                let key = packet.key();
                let dns = key.protocol() == UDP && key.destination_port() == DNS;
                packet.state().dns = dns.into();
            }
            if packet.state().dns == 0 {
                return;
            }
            if !question(packet.payload(), lower) {
                counters[1] += 1;
                return;
            }
            counters[0] += 1;
            // The full name, then the name without its first label, and so on.
            let mut rest = &lower[..];
            while let [length, after @ ..] = rest {
                if names.contains(rest) {
                    packet.drop(0);
                    return;
                }
                rest = after.get(usize::from(*length)..).unwrap_or_default();
            }
        });
    }
}

tailwater_sdk::export!(DnsFilter);
