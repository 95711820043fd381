//! Auxiliary cores, as a dispatcher shares them with others.

/// Activation of auxiliary cores, each by one dispatcher at a time.
pub trait AuxiliaryCores {
    /// Activates an auxiliary core that is not active for this dispatcher. Returns `true` on success, `false` if
    /// another has it.
    fn activate(&mut self, auxiliary: usize) -> bool;

    /// Releases an auxiliary core that is active for this dispatcher.
    fn release(&mut self, auxiliary: usize);
}
