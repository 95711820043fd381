//! One direction of a connection: its bytes, its messages, and progress of the rules on it.

use bytemuck::{Pod, Zeroable};
use tailwater_streams::http::messages::Cursor;
use tailwater_streams::window::WindowState;

/// Largest number of partly matched rules per stream.
pub(crate) const MAX_PENDING: usize = 8;
/// Largest number of rules remembered as matched per stream.
const MAX_DONE: usize = 8;

/// State of one direction. All zeros is a direction without packets so far. The order of the fields keeps those that
/// every packet needs in two cache lines: the end of the rules' progress, the messages, and the start of the bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Side {
    /// Progress of the rules.
    pub(crate) rules: RuleProgress,
    /// Position in the messages.
    pub(crate) message: Cursor,
    /// Position of the bytes in the window.
    pub(crate) bytes: WindowState,
}

impl Side {
    /// Starts the stream at this sequence number.
    pub(crate) fn start(&mut self, first: u32) {
        *self = Side::zeroed();
        self.bytes.start(first);
    }

    /// Skips bytes that the receiver has acknowledged but that were never seen. Returns `true` if there was such a gap.
    pub(crate) fn skip_to(&mut self, window: &mut [u8], acknowledged: u32) -> bool {
        let skipped = self.bytes.skip_to(window, acknowledged);
        if skipped {
            self.rules.forget_pending();
        }
        skipped
    }
}

/// Rules partly matched and matched on a stream.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RuleProgress {
    pending: [u32; MAX_PENDING],
    done: [u32; MAX_DONE],
    /// Version of the rule set that the rules above belong to.
    version: u32,
    pending_count: u8,
    done_count: u8,
    /// Padding: the structure must have no implicit padding bytes.
    unused: [u8; 2],
}

impl RuleProgress {
    /// Returns the partly matched rules.
    #[inline]
    pub(crate) fn pending(&self) -> &[u32] {
        &self.pending[..usize::from(self.pending_count)]
    }

    /// Adds a partly matched rule; returns `false` if there is no room.
    pub(crate) fn wait_for(&mut self, rule: u32) -> bool {
        if self.pending().contains(&rule) {
            return true;
        }
        let Some(free) = self.pending.get_mut(usize::from(self.pending_count)) else {
            return false;
        };
        *free = rule;
        self.pending_count += 1;
        true
    }

    /// Marks a rule as matched: it is not evaluated again while it is remembered.
    pub(crate) fn finish(&mut self, rule: u32) {
        if let Some(at) = self.pending().iter().position(|known| *known == rule) {
            self.pending_count -= 1;
            self.pending[at] = self.pending[usize::from(self.pending_count)];
        }
        self.done[usize::from(self.done_count) % MAX_DONE] = rule;
        self.done_count = match self.done_count + 1 {
            // From here on the oldest entry is overwritten.
            count if usize::from(count) == 2 * MAX_DONE => MAX_DONE as u8,
            count => count,
        };
    }

    /// Returns `true` if a rule is remembered as matched.
    pub(crate) fn is_done(&self, rule: u32) -> bool {
        let count = usize::from(self.done_count).min(MAX_DONE);
        self.done[..count].contains(&rule)
    }

    /// Clears the partly matched rules.
    pub(crate) fn forget_pending(&mut self) {
        self.pending_count = 0;
    }

    /// Clears rule state of an older rule set.
    pub(crate) fn renew(&mut self, version: u32) {
        if self.version != version {
            self.version = version;
            (self.pending_count, self.done_count) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_matched_are_remembered_and_the_oldest_forgotten() {
        let mut rules = RuleProgress::zeroed();
        assert!((0..8).all(|rule| rules.wait_for(rule)) && rules.wait_for(3) && !rules.wait_for(8));
        rules.finish(3);
        assert!(rules.is_done(3) && !rules.pending().contains(&3) && rules.wait_for(8));
        for rule in 100..130 {
            rules.finish(rule);
            assert!(rules.is_done(rule));
        }
        assert!(!rules.is_done(3) && (122..130).all(|rule| rules.is_done(rule)));
        rules.renew(1);
        assert!(rules.pending().is_empty() && !rules.is_done(129));
    }
}
