//! Auxiliary cores, as a dispatcher shares them with others.

/// Availability of an auxiliary core to a dispatcher that has not activated it, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// No dispatcher has activated it.
    Free,
    /// A dispatcher has activated it, this one or another.
    Taken,
    /// It is another dedicated core, with few packets of its own, and works for this dispatcher or for none. It
    /// takes some buckets for a while.
    Helpful,
    /// It has a port queue of its own now. A dispatcher that has activated it sends nothing new, but for flows split
    /// with it before, and releases it once it is done.
    Withdrawn,
}

/// Activation of auxiliary cores, each by one dispatcher at a time.
pub trait AuxiliaryCores {
    /// Activates an auxiliary core that is not active for this dispatcher. Returns `true` on success, `false` if
    /// another has it.
    fn activate(&mut self, auxiliary: usize) -> bool;

    /// Releases an auxiliary core that is active for this dispatcher.
    fn release(&mut self, auxiliary: usize);
}
