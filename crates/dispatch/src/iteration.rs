//! Loop iteration of a dispatcher.

/// Maximum number of packets received per iteration, before the local queue is served again.
pub const MOST_RECEIVED: usize = 2048;

/// Progress of a loop iteration that receives one or more batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    received: usize,
}

impl Iteration {
    /// Counts `packets` received packets. Returns `true` if the iteration receives another batch: packets
    /// wait in the port, there is room for them, and fewer than [`MOST_RECEIVED`] packets were received.
    #[inline]
    pub fn receives_again(&mut self, packets: usize, is_waiting: bool, has_room: bool) -> bool {
        self.received += packets;
        is_waiting && self.received < MOST_RECEIVED && has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_receives_while_packets_wait_and_there_is_room() {
        let mut iteration = Iteration::default();
        assert!(!iteration.receives_again(32, false, true));
        assert!(!iteration.receives_again(32, true, false));
        assert!(iteration.receives_again(MOST_RECEIVED - 65, true, true));
        assert!(!iteration.receives_again(1, true, true), "the local queue is served");
    }
}
