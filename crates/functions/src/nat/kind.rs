//! Kind `nat` of functions.

use super::spec::NatConfig;
use super::{Nat, NatRules, NatTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    StateTransfer, UpdateError,
};
use ipnet::Ipv4Net;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_net::toeplitz::RssHasher;

/// Kind `nat`.
pub static KIND: FunctionKind = FunctionKind {
    name: "nat",
    summary: "Network address and port translation",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(NatConfig::parse(node, context)?.into()),
};

impl FunctionConfig for NatConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::function::state_format())
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = NatTable::new(self.to_rules(), context.rss.clone());
        Ok(Box::new(NatFactory {
            live: Arc::new(Live::new(table)),
            rss: context.rss.clone(),
        }))
    }

    fn translates_addresses(&self) -> bool {
        true
    }
}

impl NatConfig {
    fn to_rules(&self) -> NatRules {
        NatRules {
            external: self.external.iter().flat_map(addresses).collect(),
            internal: self.internal.clone(),
            ports: self.ports.clone(),
            drop_others: self.other_protocols == PacketAction::Drop,
            drop_inbound: self.inbound == PacketAction::Drop,
        }
    }
}

/// Iterates over every address of a prefix; a NAT may use the first and the last as well.
fn addresses(prefix: &Ipv4Net) -> impl Iterator<Item = Ipv4Addr> + use<> {
    let (first, last) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
    (first..=last).map(Ipv4Addr::from_bits)
}

/// Translation tables that all instances share.
struct NatFactory {
    live: Arc<Live<NatTable>>,
    rss: RssHasher,
}

impl FunctionFactory for NatFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Nat::new(Arc::clone(&self.live)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (_, new) = update.configs::<NatConfig>()?;
        if update.has_external_state {
            // Redis was queried for free ports of the old pool.
            return Err(UpdateError::Fixed("the address pool of a chain with external state"));
        }
        let table = NatTable::new(new.to_rules(), self.rss.clone());
        let addresses = new.external.iter().flat_map(addresses).count();
        let summary = match addresses {
            1 => "1 external address".to_owned(),
            _ => format!("{addresses} external addresses"),
        };
        Ok(PreparedUpdate::of_live(summary, &self.live, table, |live| live))
    }
}
