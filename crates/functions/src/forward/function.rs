//! `Forward`: sends every packet on, optionally with other MAC addresses.

use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction};

/// A MAC address.
pub type Mac = [u8; 6];

/// Sends every packet on.
#[derive(Clone, Debug, Default)]
pub struct Forward {
    source: Option<Mac>,
    destination: Option<Mac>,
}

impl Forward {
    /// Forwards packets, rewriting the MAC addresses that are given.
    pub fn new(source: Option<Mac>, destination: Option<Mac>) -> Forward {
        Forward { source, destination }
    }
}

impl NetworkFunction for Forward {
    fn kind(&self) -> &'static str {
        "Forward"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn process(&mut self, batch: &mut Batch, _flows: &mut FlowStates<'_>) {
        if self.source.is_none() && self.destination.is_none() {
            return;
        }
        batch.for_each(|_, frame| {
            // A parsed frame has an Ethernet header.
            if let Some((destination, rest)) = frame.split_first_chunk_mut::<6>()
                && let Some(source) = rest.first_chunk_mut::<6>()
            {
                *destination = self.destination.unwrap_or(*destination);
                *source = self.source.unwrap_or(*source);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::rig::{ChainRig, INPUT, udp};
    use tailwater_net::Nanos;

    #[test]
    fn only_the_given_addresses_change() {
        let frame = udp(1);
        for (source, destination) in [
            (None, None),
            (Some([9; 6]), None),
            (None, Some([8; 6])),
            (Some([9; 6]), Some([8; 6])),
        ] {
            let functions: Vec<Box<dyn NetworkFunction>> = vec![Box::new(Forward::new(source, destination))];
            let sent = ChainRig::new(functions, INPUT).run(std::slice::from_ref(&frame), Nanos::ZERO);
            let mut expected = frame.clone();
            if let Some(mac) = destination {
                expected[..6].copy_from_slice(&mac);
            }
            if let Some(mac) = source {
                expected[6..12].copy_from_slice(&mac);
            }
            assert_eq!(sent, [expected]);
        }
    }
}
