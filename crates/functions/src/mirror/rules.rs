//! Selection of the packets and bytes to copy.

use crate::bpf_filter::{Filter, Instruction, VerifyError};

/// Sampling of matching packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// All packets.
    #[default]
    All,
    /// One packet in this many, per core.
    Packets(u32),
    /// All packets of one flow in this many, chosen by RSS hash: the same flows on every core and in every run.
    Flows(u32),
}

/// Selection of packets and bytes to copy.
#[derive(Debug)]
pub struct MirrorRules {
    pub(super) filter: Option<Filter>,
    pub(super) sampling: Sampling,
    pub(super) snap: usize,
}

impl MirrorRules {
    /// Selects packets matched by `program`, or all, after sampling; copies at most `snap` bytes of each.
    ///
    /// # Errors
    /// The program is not valid.
    pub fn new(program: Option<&[Instruction]>, sampling: Sampling, snap: usize) -> Result<MirrorRules, VerifyError> {
        Ok(MirrorRules {
            filter: program.map(Filter::new).transpose()?,
            sampling,
            snap,
        })
    }
}
