//! Objectives of a chain.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{Field, Map, Type};
use crate::values::{Throughput, duration, percentile, throughput};
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

const LATENCY: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);
/// Percentile of packets.
pub const PERCENTILE: Type = Type::Number {
    least: 0.0,
    most: 100.0,
    above: true,
    below: true,
};

/// Fields of `slo`.
pub static SLO: Map = Map {
    fields: &[
        Field::new(
            "latency",
            Type::duration(&LATENCY),
            "Longest time from a packet's arrival to its departure, including `network`.",
        )
        .required()
        .example("200us"),
        Field::new(
            "network",
            Type::Duration(Nanos::ZERO, Nanos(LATENCY.end().0 - 1)),
            "Part of `latency` spent in the network before and behind this server; less than `latency`. The \
             rest is the objective on this server.",
        )
        .or("0us"),
        Field::new(
            "percentile",
            PERCENTILE,
            "Percentage of packets that must meet the latency.",
        )
        .or("99")
        .example("99.9"),
        Field::new("throughput", Type::Rate, "Traffic the chain must carry.")
            .otherwise("none")
            .example("2Mpps"),
    ],
    ..Map::PLAIN
};
/// Words of `whenOverloaded`.
pub const WHEN_OVERLOADED: Type = Type::Words(&["in-order", "serve-fresh"]);

/// Service level objectives of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Maximum latency from a packet's arrival to its departure, at the percentile: 1 us to 10 s.
    pub latency: Nanos,
    /// Part of the latency that the network in front of and behind this server takes; less than the latency.
    pub network: Nanos,
    /// Percentile of packets that must meet the latency: above 0, below 100.
    pub percentile: f64,
    /// Throughput that the chain must carry, if there is such an objective.
    pub throughput: Option<Throughput>,
}

impl Slo {
    /// Returns the part of the latency that remains for this server.
    pub fn budget(&self) -> Nanos {
        self.latency.saturating_sub(self.network)
    }
}

/// Treatment of packets that cannot meet the latency objective any more, while others wait behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenOverloaded {
    /// Processes all packets in order of arrival.
    #[default]
    InOrder,
    /// Discards packets that are too late, so that those behind them are in time.
    ServeFresh,
}

impl WhenOverloaded {
    /// Reads it.
    ///
    /// # Errors
    /// It is neither `in-order` nor `serve-fresh`.
    pub fn parse(node: &Located<'_>) -> Result<WhenOverloaded, SpecError> {
        node.word(&[
            ("in-order", WhenOverloaded::InOrder),
            ("serve-fresh", WhenOverloaded::ServeFresh),
        ])
    }
}

/// Reads `slo`.
///
/// # Errors
/// A field is missing, unknown or out of range.
pub fn slo(node: &Located<'_>) -> Result<Slo, SpecError> {
    let fields = node.fields_of(&SLO)?;
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
