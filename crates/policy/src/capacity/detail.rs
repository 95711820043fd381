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
    /// Each batch with a packet that opens a flow: what only those need has left the nearest caches.
    pub new_batch: f64,
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
    /// From a packet's arrival until a core that looks for packets all the time has found it, in the mean.
    pub poll: f64,
    /// How long helpers take to wake up; the longer asleep, the later in the list.
    pub wakes: Vec<Wake>,
    /// What takes the core away for moments; the shorter first.
    pub pauses: Vec<Pause>,
}

/// Moments in which the machine takes a core away from what runs on it: timer ticks and other interrupts, and a
/// hypervisor's. They come at any time, whether the core has work or not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pause {
    /// How many there are in a second.
    pub per_second: f64,
    /// How long each lasts, in nanoseconds.
    pub nanos: u64,
}

/// The most rows of [`DetailedCosts::pauses`].
pub const MAX_PAUSES: usize = 64;

/// The most pauses of a second, and the part of it that they may take.
pub const MAX_PAUSES_PER_SECOND: f64 = 1e6;
/// See [`MAX_PAUSES_PER_SECOND`].
pub const MAX_PAUSED: f64 = 0.5;

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

/// Of what a batch costs, receiving it, in nanoseconds: it is not measured by itself.
pub const RECEIVE_BATCH: f64 = 60.0;

/// The most rows of [`DetailedCosts::wakes`].
pub const MAX_WAKES: usize = 16;
