//! Kind `synthetic` of functions.

use super::spec::SyntheticConfig;
use super::{Memory, Synthetic, Work, WorkingSet};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    StateTransfer, UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `synthetic`.
pub static KIND: FunctionKind = FunctionKind {
    name: "synthetic",
    summary: "Configurable synthetic load",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(SyntheticConfig::parse(node, context)?.into()),
};

impl FunctionConfig for SyntheticConfig {
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
        // Each instance allocates its own working set; the check here means that it cannot fail later.
        WorkingSet::new(&self.memory).map_err(|source| format!("not enough memory for its workingSet ({source})"))?;
        Ok(Box::new(SyntheticFactory {
            live: Arc::new(Live::new(self.work)),
            memory: self.memory,
        }))
    }
}

/// Work that all instances share.
struct SyntheticFactory {
    live: Arc<Live<Work>>,
    memory: Memory,
}

impl FunctionFactory for SyntheticFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Synthetic::new(Arc::clone(&self.live), &self.memory))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<SyntheticConfig>()?;
        let with_flows = |work: &Work| work.new_flow_cycles > 0;
        if self.memory != new.memory || with_flows(&old.work) != with_flows(&new.work) {
            return Err(UpdateError::Fixed(
                "workingSet, pattern, stride, per and the use of newFlowCycles",
            ));
        }
        let summary = count(new.work.cycles as usize, "cycle");
        Ok(PreparedUpdate::of_live(summary, &self.live, new.work, |live| live))
    }
}
