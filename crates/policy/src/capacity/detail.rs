//! Detailed costs of a machine that a simulation needs in addition to the mean cost of a packet.

/// Costs measured in addition to [`ServiceCosts`](super::ServiceCosts), in nanoseconds. None is negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetailedCosts {
    /// A packet of the training traffic, with a permanent backlog. A repeated measurement shows whether the machine is
    /// still as fast.
    pub traffic_packet: f64,
    /// Number of other packets since a flow's last one from which on a packet is *cold*: the flow's state has left the
    /// nearest caches.
    pub cold_after: u32,
    /// Each batch with a packet that is cold or opens a flow: the wait for the first fetch.
    pub cold_batch: f64,
    /// Each packet that is cold or opens a flow.
    pub cold_packet: f64,
    /// Each batch with a packet that opens a flow: data that only such packets need has left the nearest caches.
    pub new_batch: f64,
    /// Part of a packet's cost spent on receiving it and looking up its flow.
    pub receive_packet: f64,
    /// Each packet of a core with a backlog: packets that the core cannot take at once pass the NIC's ring.
    pub ring_packet: f64,
    /// Each packet that waits in the core's own queue instead of passing straight through.
    pub queue_packet: f64,
    /// Each packet offloaded to an auxiliary core, in addition to receiving it and looking up its flow: sorting it,
    /// offloading it, and handling its completion.
    pub hand_over_packet: f64,
    /// Extra cost of an offloaded packet on the auxiliary core, compared with the functions' cost on the dispatching
    /// core.
    pub take_over_packet: f64,
    /// Mean time from a packet's arrival until a continuously polling core has found it.
    pub poll: f64,
    /// Wake-up times of auxiliary cores, sorted by the time asleep.
    pub wakes: Vec<Wake>,
    /// Interruptions of the core, sorted by duration.
    pub pauses: Vec<Pause>,
}

/// Interruptions in which the machine takes a core away from its task: timer ticks and other interrupts, and preemption
/// by a hypervisor. They occur at any time, with or without work on the core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pause {
    /// Interruptions per second.
    pub per_second: f64,
    /// Duration of each, in nanoseconds.
    pub nanos: u64,
}

/// Maximum number of rows of [`DetailedCosts::pauses`].
pub const MAX_PAUSES: usize = 64;

/// Maximum number of pauses per second.
pub const MAX_PAUSES_PER_SECOND: f64 = 1e6;
/// Maximum share of a second that pauses can take.
pub const MAX_PAUSED: f64 = 0.5;

/// Time in nanoseconds from a call until an auxiliary core runs, after it was asleep for a given time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// Time asleep.
    pub asleep: u64,
    /// Median time to wake up.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
}

/// Part of a batch's cost spent on receiving it, in nanoseconds. It is assumed, not measured separately.
pub const RECEIVE_BATCH: f64 = 60.0;

/// Maximum number of rows of [`DetailedCosts::wakes`].
pub const MAX_WAKES: usize = 16;
