//! What a simulation needs to know of a machine beyond what a packet costs in the mean.

/// What was measured beside [`ServiceCosts`](super::ServiceCosts), in nanoseconds. None is negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetailedCosts {
    /// A packet of the traffic that was trained on, if there are always more: tells whether the machine is
    /// still as fast.
    pub traffic_packet: f64,
    /// A packet is *cold* if so many others, or more, came since its flow's last one: what the flow
    /// needs has left the nearest caches.
    pub cold_after: u32,
    /// Each batch with a cold packet, or one that opens a flow: what is fetched first is waited for.
    pub cold_batch: f64,
    /// Each cold packet, and each that opens a flow.
    pub cold_packet: f64,
    /// Of what a packet costs, receiving it and looking its flow up.
    pub receive_packet: f64,
    /// Each packet of a core with a backlog: what it cannot take at once passes the NIC's ring.
    pub ring_packet: f64,
    /// Each packet that does not go straight through, but waits in the core's own queue.
    pub queue_packet: f64,
    /// Each packet that goes to a helper, beside receiving it and looking it up: sorting it, handing it
    /// over, and hearing that it is done.
    pub hand_over_packet: f64,
    /// What a packet costs a helper more than the functions cost at home.
    pub take_over_packet: f64,
    /// How long helpers take to wake up; the longer asleep, the later in the list.
    pub wakes: Vec<Wake>,
}

/// How long a helper takes from a call until it runs, if it was asleep for so long. In nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// How long it was asleep.
    pub asleep: u64,
    /// In half of all cases it takes no longer.
    pub p50: u64,
    /// In nine of ten.
    pub p90: u64,
    /// In 99 of 100.
    pub p99: u64,
}

/// The most rows of [`DetailedCosts::wakes`].
pub const MAX_WAKES: usize = 16;
