//! Kind `mirror` of functions.

use super::spec::MirrorConfig;
use super::{Mirror, MirrorRules, MirrorTable};
use crate::bpf_filter::VerifyError;
use crate::exporter::{ExportError, Exported};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError,
};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `mirror`.
pub static KIND: FunctionKind = FunctionKind {
    name: "mirror",
    summary: "Copies of packets to a capture file or an interface",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(MirrorConfig::parse(node, context)?.into()),
};

impl FunctionConfig for MirrorConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let rules = self.to_rules()?;
        let table = MirrorTable::new(self.options.clone(), rules)?;
        Ok(Box::new(MirrorFactory { table: Arc::new(table) }))
    }

    fn in_process_only_reason(&self) -> Option<&'static str> {
        Some("all its instances write to one file or interface")
    }

    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        let files = self.files().into_iter();
        files.map(|file| ("to.file", file)).collect()
    }

    fn exports(&self) -> bool {
        self.options.to.is_some()
    }

    fn remove_exports(&mut self) {
        self.options.to = None;
    }
}

impl MirrorConfig {
    fn to_rules(&self) -> Result<MirrorRules, VerifyError> {
        MirrorRules::new(self.program.as_deref(), self.sampling, self.snap)
    }
}

/// Writer that all instances share.
struct MirrorFactory {
    table: Arc<MirrorTable>,
}

impl FunctionFactory for MirrorFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Mirror::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<MirrorConfig>()?;
        if old.options != new.options {
            return Err(UpdateError::Fixed("to and buffer"));
        }
        let rules = new.to_rules().map_err(UpdateError::rejected)?;
        let summary = "copy settings".to_owned();
        Ok(PreparedUpdate::of_live(summary, &self.table, rules, MirrorTable::live))
    }

    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        self.table.finish().map(Vec::from_iter)
    }
}
