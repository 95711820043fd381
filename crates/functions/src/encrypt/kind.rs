//! Kind `encrypt` of functions.

use super::spec::EncryptConfig;
use super::{Encrypt, EncryptRules, PacketNumbers};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, StateTransfer, UpdateError,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `encrypt`.
pub static KIND: FunctionKind = FunctionKind {
    name: "encrypt",
    summary: "Encryption of payloads",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(EncryptConfig::parse(node, context)?.into()),
};

impl FunctionConfig for EncryptConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::transfer::state_format())
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(EncryptFactory::new(self, PacketNumbers::among(0, 1))))
    }

    fn build_isolated(
        &self,
        _context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let [part, of] = isolation.part;
        Ok(Box::new(EncryptFactory::new(self, PacketNumbers::among(part, of))))
    }
}

/// Key and options that all instances share.
struct EncryptFactory {
    live: Arc<Live<EncryptRules>>,
    numbers: Arc<PacketNumbers>,
}

impl FunctionFactory for EncryptFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Encrypt::new(Arc::clone(&self.live), Arc::clone(&self.numbers)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (_, new) = update.configs::<EncryptConfig>()?;
        let summary = "key and options".to_owned();
        Ok(PreparedUpdate::of_live(
            summary,
            &self.live,
            new.rules.clone(),
            |live| live,
        ))
    }
}

impl EncryptFactory {
    fn new(config: &EncryptConfig, numbers: PacketNumbers) -> EncryptFactory {
        EncryptFactory {
            live: Arc::new(Live::new(config.rules.clone())),
            numbers: Arc::new(numbers),
        }
    }
}
