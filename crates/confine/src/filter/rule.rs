//! Rule of the filter: a system call and conditions on its arguments.

/// Condition on one argument: `argument & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Index of the argument, 0 to 5.
    pub argument: u8,
    pub mask: u64,
    pub value: u64,
}

/// System call that is allowed if all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub call: u32,
    pub checks: Vec<Check>,
}

impl Rule {
    pub fn allows(&self, call: u32, arguments: &[u64; 6]) -> bool {
        self.call == call
            && self
                .checks
                .iter()
                .all(|check| arguments[check.argument as usize] & check.mask == check.value)
    }
}
