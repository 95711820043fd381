//! Kind `xdp` of functions.

use super::Xdp;
use super::function::Loaded;
use super::spec::XdpConfig;
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    Requirements, UpdateError, count,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `xdp`.
pub static KIND: FunctionKind = FunctionKind {
    name: "xdp",
    summary: "XDP program, run in user space",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(XdpConfig::parse(node, context)?.into()),
};

impl FunctionConfig for XdpConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    /// Only its operator knows the program, and the spec says so.
    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn reads_only(&self) -> bool {
        self.read_only
    }

    fn bound_to_core_reason(&self) -> Option<&'static str> {
        let has_state = self.program.has_state();
        has_state.then_some("its maps belong to one core, and do not move with flows")
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            reads_only: self.read_only,
            mixes_flows: !self.read_only,
            private_bytes: self.program.map_bytes(),
            ..Requirements::default()
        }
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(XdpFactory {
            live: Arc::new(Live::new(self.loaded())),
            seed: context.seed,
            workers: AtomicU32::new(0),
        }))
    }

    fn remove_sources(&mut self) {
        self.file = PathBuf::new();
    }
}

impl XdpConfig {
    fn loaded(&self) -> Loaded {
        Loaded {
            program: Arc::clone(&self.program),
            read_only: self.read_only,
            limit: self.limit,
        }
    }
}

/// Program that all instances share. Each has maps of its own.
struct XdpFactory {
    live: Arc<Live<Loaded>>,
    seed: u64,
    /// Instances so far.
    workers: AtomicU32,
}

impl FunctionFactory for XdpFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        let worker = self.workers.fetch_add(1, Ordering::Relaxed);
        Box::new(Xdp::new(Arc::clone(&self.live), worker, self.seed))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<XdpConfig>()?;
        if old.read_only != new.read_only {
            return Err(UpdateError::Fixed("readOnly"));
        }
        if !new.program.has_maps_of(&old.program) {
            return Err(UpdateError::Fixed("the program's maps"));
        }
        let summary = count(new.program.instructions(), "instruction");
        Ok(PreparedUpdate::of_live(summary, &self.live, new.loaded(), |live| live))
    }
}
