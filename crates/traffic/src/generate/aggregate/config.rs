//! What an aggregate is like.

use tailwater_net::Nanos;

use super::arrivals::FlowArrivals;
use crate::TrafficError;
use crate::generate::frame::{MAX_CLIENTS, MAX_SERVERS};
use crate::generate::mixture::Mixture;
use crate::generate::{HeavyTail, SizeRange};

/// The longest time that can be generated, warm-up included: a day.
const MAX_TIME: Nanos = Nanos::from_secs(86_400);

/// The shortest and longest frame, without the frame check sequence. The shortest is a TCP
/// segment without payload, as captures hold it, without padding.
pub(super) const MIN_FRAME: u16 = 54;
pub(super) const MAX_FRAME: u16 = 1_514;

/// What an aggregate of traffic is like. Sizes are those of frames without the frame check
/// sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct AggregateConfig {
    /// Selects one of 2^64 streams of packets.
    pub seed: u64,
    /// How long, above zero. With the warm-up at most a day.
    pub duration: Nanos,
    /// How long flows come and go before the first packet is yielded.
    pub warm_up: Nanos,
    /// How many flows start.
    pub arrivals: FlowArrivals,
    /// Synchronised starts, out of the flows that `arrivals` counts (minnows).
    pub minnows: Option<MinnowBursts>,
    /// The part of flows that are short (see `short_packets`), 0 to 1.
    pub short_share: f64,
    /// Packets of short flows, of those of minnow bursts and of crowds.
    pub short_packets: HeavyTail,
    /// Packets of the other flows.
    pub flow_packets: Mixture,
    /// The most bytes of a flow: it ends with the last packet that fits.
    pub flow_bytes_max: u64,
    /// The longest life of a flow. Longer flows pause less, so as to end in time.
    pub lifetime_max: Nanos,
    /// The trains of packets that flows send: each train is of one of the classes open to the
    /// flow, by chance.
    pub trains: Vec<TrainClass>,
    /// The mean pause between trains of a flow (exponentially distributed); it is shorter where
    /// a flow would not end in time.
    pub mean_gap: Nanos,
    /// The part of flows that are TCP, 0 to 1; the others are UDP.
    pub tcp_share: f64,
    /// The part of TCP flows to ports 80 and 443 that ask for a host in `blocked.example`.
    pub blocked_share: f64,
    /// Sizes of data packets: 1 to 64 ranges, from 54 bytes up.
    pub sizes: Vec<SizeRange>,
    /// Client addresses, from 10.0.0.1 up: 1 to 16,646,144. All equally likely.
    pub clients: u32,
    /// Server addresses: 1 to 131,834. The first ones are the most popular.
    pub servers: u32,
    /// Most flows at one time, which bounds memory (about 150 bytes each): 1 to 10,000,000.
    /// Beyond it flows are not started, and a notice counts them.
    pub max_active_flows: u32,
}

/// Flows that start together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinnowBursts {
    /// Bursts a second (a Poisson process).
    pub per_second: f64,
    /// Flows of a burst.
    pub flows: HeavyTail,
    /// Its flows start evenly within this time, at most a second.
    pub spread: Nanos,
}

/// A kind of train: packets that a flow sends back to back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainClass {
    /// How likely a train is of this class, relative to the other classes open to the flow.
    pub weight: f64,
    /// Open to flows of at least so many packets; one class must be open to all.
    pub flow_packets_min: u32,
    /// Packets of a train.
    pub packets: HeavyTail,
    /// The line rate at which a train comes, bits a second with preamble and gap, 1e3 to 1e12.
    pub line_rate_bps: f64,
    /// Whether all its packets have the longest size: a bulk transfer.
    pub full_size: bool,
}

impl AggregateConfig {
    /// More (or fewer) flows of the same kind at once: `factor` times the flows and packets a
    /// second, and as many more bursts, each as it was.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.arrivals.mean_per_second *= factor;
        self.arrivals.max_per_second *= factor;
        if let Some(minnows) = &mut self.minnows {
            minnows.per_second *= factor;
        }
        self
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for the first that is out of its range.
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
            "bursts of at most a second that have no more flows a second than start in calm times",
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
