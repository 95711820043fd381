//! Configuration of an aggregate.

use tailwater_net::Nanos;

use super::arrivals::FlowArrivals;
use crate::TrafficError;
use crate::generate::frame::{MAX_CLIENTS, MAX_SERVERS};
use crate::generate::mixture::Mixture;
use crate::generate::{HeavyTail, SizeRange};

/// Maximum generated time, warm-up included: one day.
const MAX_TIME: Nanos = Nanos::from_secs(86_400);

/// Minimum and maximum frame length, without the frame check sequence. The minimum is a TCP segment without payload and
/// without padding, as in captures.
pub(super) const MIN_FRAME: u16 = 54;
pub(super) const MAX_FRAME: u16 = 1_514;

/// Configuration of an aggregate of traffic. Sizes are those of frames without the frame check sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct AggregateConfig {
    /// Selects one of 2^64 streams of packets.
    pub seed: u64,
    /// Duration, above zero; with the warm-up at most one day.
    pub duration: Nanos,
    /// Simulated time before the first packet is yielded.
    pub warm_up: Nanos,
    /// Arrival process of flows.
    pub arrivals: FlowArrivals,
    /// Synchronised starts, part of the flows of `arrivals` (minnows).
    pub minnows: Option<MinnowBursts>,
    /// Fraction of flows that are short (see `short_packets`), 0 to 1.
    pub short_share: f64,
    /// Packets of short flows, and of those in minnow bursts and crowds.
    pub short_packets: HeavyTail,
    /// Packets of all other flows.
    pub flow_packets: Mixture,
    /// Maximum size of a flow in bytes: it ends with the last packet that fits.
    pub flow_bytes_max: u64,
    /// Maximum lifetime of a flow. Long flows have shorter gaps, so that they end in time.
    pub lifetime_max: Nanos,
    /// Packet trains that flows send. The class of each train is drawn from the classes open to the flow.
    pub trains: Vec<TrainClass>,
    /// Mean gap between trains of a flow (exponentially distributed). It is shorter if the flow would not end in time.
    pub mean_gap: Nanos,
    /// Fraction of flows that are TCP, 0 to 1; the others are UDP.
    pub tcp_share: f64,
    /// Fraction of TCP flows to ports 80 and 443 that request a host in `blocked.example`.
    pub blocked_share: f64,
    /// Sizes of data packets: 1 to 64 ranges, from 54 bytes up.
    pub sizes: Vec<SizeRange>,
    /// Number of client addresses, from 10.0.0.1 up: 1 to 16,646,144. All are equally likely.
    pub clients: u32,
    /// Number of server addresses: 1 to 131,834. The first ones are the most popular.
    pub servers: u32,
    /// Maximum number of active flows, which bounds memory (about 150 bytes each): 1 to 10,000,000. Further flows are
    /// not started, and a notice counts them.
    pub max_active_flows: u32,
}

/// Bursts of flows that start together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinnowBursts {
    /// Bursts per second (a Poisson process).
    pub per_second: f64,
    /// Flows per burst.
    pub flows: HeavyTail,
    /// Time over which its flows start, evenly; at most one second.
    pub spread: Nanos,
}

/// Class of trains: packets that a flow sends back to back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainClass {
    /// Weight of this class, relative to the other classes open to the flow.
    pub weight: f64,
    /// Minimum packets of a flow to which this class is open. One class must be open to all flows.
    pub flow_packets_min: u32,
    /// Packets per train.
    pub packets: HeavyTail,
    /// Line rate of a train in bits per second, with preamble and gap, 1e3 to 1e12.
    pub line_rate_bps: f64,
    /// `true`: all its packets have the maximum size, as in a bulk transfer.
    pub full_size: bool,
}

impl AggregateConfig {
    /// Multiplies the flows and packets per second, and the number of bursts, by `factor`. Each flow and each burst is
    /// unchanged.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.arrivals.mean_per_second *= factor;
        self.arrivals.max_per_second *= factor;
        if let Some(minnows) = &mut self.minnows {
            minnows.per_second *= factor;
        }
        self
    }

    /// Validates every field.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for the first field out of range.
    pub fn validate(&self) -> Result<(), TrafficError> {
        let check = |inside: bool, field, value: &dyn ToString, expected| match inside {
            true => Ok(()),
            false => Err(TrafficError::setting(field, value.to_string(), expected)),
        };
        let share = |field, value: f64| check((0.0..=1.0).contains(&value), field, &value, "0 to 1");
        let total = self.duration.0.saturating_add(self.warm_up.0);
        check(
            self.duration > Nanos::ZERO && total <= MAX_TIME.0,
            "duration",
            &self.duration,
            "above zero, with the warm-up at most a day",
        )?;
        self.arrivals.validate()?;
        self.validate_minnows()?;
        share("short_share", self.short_share)?;
        self.short_packets.validate("short_packets")?;
        self.flow_packets.validate("flow_packets")?;
        check(
            self.flow_bytes_max >= 2_000,
            "flow_bytes_max",
            &self.flow_bytes_max,
            "at least 2000 bytes",
        )?;
        check(
            (Nanos::from_millis(1)..=MAX_TIME).contains(&self.lifetime_max),
            "lifetime_max",
            &self.lifetime_max,
            "1ms to a day",
        )?;
        self.validate_trains()?;
        check(self.mean_gap <= MAX_TIME, "mean_gap", &self.mean_gap, "at most a day")?;
        share("tcp_share", self.tcp_share)?;
        share("blocked_share", self.blocked_share)?;
        let sound = |range: &SizeRange| {
            (0.0..=1e9).contains(&range.weight)
                && MIN_FRAME <= range.min
                && range.min <= range.max
                && range.max <= MAX_FRAME
        };
        let sum: f64 = self.sizes.iter().map(|range| range.weight).sum();
        check(
            self.sizes.iter().all(sound) && self.sizes.len() <= 64 && sum > 0.0,
            "sizes",
            &format!("{:?}", self.sizes),
            "1 to 64 ranges with 54 <= min <= max <= 1514 and weights that are not all zero",
        )?;
        check(
            (1..=MAX_CLIENTS).contains(&self.clients),
            "clients",
            &self.clients,
            "1 to 16,646,144",
        )?;
        check(
            (1..=MAX_SERVERS).contains(&self.servers),
            "servers",
            &self.servers,
            "1 to 131,834",
        )?;
        check(
            (1..=10_000_000).contains(&self.max_active_flows),
            "max_active_flows",
            &self.max_active_flows,
            "1 to 10,000,000",
        )
    }

    fn validate_minnows(&self) -> Result<(), TrafficError> {
        let Some(minnows) = &self.minnows else {
            return Ok(());
        };
        minnows.flows.validate("minnows.flows")?;
        let flows = minnows.per_second * minnows.flows.mean();
        if minnows.per_second >= 0.0
            && flows <= self.arrivals.calm_per_second()
            && minnows.spread <= Nanos::from_secs(1)
        {
            return Ok(());
        }
        Err(TrafficError::setting(
            "minnows",
            format!("{minnows:?}"),
            "bursts of at most a second, with at most the flow rate of calm times",
        ))
    }

    fn validate_trains(&self) -> Result<(), TrafficError> {
        for class in &self.trains {
            class.packets.validate("trains.packets")?;
        }
        let sound =
            |class: &TrainClass| (0.0..=1e9).contains(&class.weight) && (1e3..=1e12).contains(&class.line_rate_bps);
        let open_to_all = |class: &TrainClass| class.flow_packets_min <= 1 && class.weight > 0.0;
        if self.trains.len() <= 16 && self.trains.iter().all(sound) && self.trains.iter().any(open_to_all) {
            return Ok(());
        }
        Err(TrafficError::setting(
            "trains",
            format!("{:?}", self.trains),
            "1 to 16 classes at 1e3 to 1e12 bits per second, one of them open to all flows",
        ))
    }
}
