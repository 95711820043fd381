//! The objectives of a chain.

use crate::error::SpecError;
use crate::located::Located;
use crate::values::{Throughput, duration, percentile, throughput};
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

const LATENCY: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);

/// The service level objectives of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Latency from a packet's arrival to its departure, at the percentile: 1 us to 10 s.
    pub latency: Nanos,
    /// What of it the network before and behind this server takes: less than the latency.
    pub network: Nanos,
    /// The percentile of packets that must keep the latency: above 0, below 100.
    pub percentile: f64,
    /// The traffic the chain must carry, if promised.
    pub throughput: Option<Throughput>,
}

impl Slo {
    /// What the network leaves of the latency to this server.
    pub fn budget(&self) -> Nanos {
        self.latency.saturating_sub(self.network)
    }
}

/// Reads `slo`.
///
/// # Errors
/// A field is missing, unknown or out of range.
pub fn slo(node: &Located<'_>) -> Result<Slo, SpecError> {
    let fields = node.fields(&["latency", "network", "percentile", "throughput"])?;
    let latency = fields.required("latency", "a duration such as 200us")?;
    let latency = duration(&latency, LATENCY)?;
    Ok(Slo {
        latency,
        network: match fields.optional("network") {
            None => Nanos::ZERO,
            Some(node) => duration(&node, Nanos::ZERO..=Nanos(latency.0 - 1))?,
        },
        percentile: match fields.optional("percentile") {
            None => 99.0,
            Some(node) => percentile(&node)?,
        },
        throughput: fields
            .optional("throughput")
            .map(|node| throughput(&node))
            .transpose()?,
    })
}
