//! Kind `accounting` of functions.

use super::spec::AccountingConfig;
use super::{Accounting, AccountingTable, ExportError, Exported};
use crate::kind::{
    BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, SharedTable, StateTransfer,
};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `accounting`.
pub static KIND: FunctionKind = FunctionKind {
    name: "accounting",
    summary: "Packets and bytes of each flow",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(AccountingConfig::parse(node, context)?.into()),
};

impl FunctionConfig for AccountingConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::function::state_format())
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = match &self.export {
            None => AccountingTable::new(),
            Some(export) => AccountingTable::with_export(&export.file, export.format)?,
        };
        Ok(Box::new(AccountingFactory { table: Arc::new(table) }))
    }

    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        let export = self.export.iter();
        export.map(|export| ("export.file", export.file.clone())).collect()
    }

    fn remove_exports(&mut self) {
        self.export = None;
    }
}

/// Totals that all instances share.
struct AccountingFactory {
    table: Arc<AccountingTable>,
}

impl FunctionFactory for AccountingFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Accounting::new(Arc::clone(&self.table)))
    }

    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        self.table.finish().map(Vec::from_iter)
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
