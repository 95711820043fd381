//! Division of a server's last-level cache.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{Field, Map, Type};
use std::ops::RangeInclusive;

/// Ways of a class, or of everything else: caches have at most 32.
const WAYS: RangeInclusive<u64> = 1..=31;
/// Fields of `cache`.
pub(super) static CACHE: Map = Map {
    fields: &[
        Field::new(
            "others",
            Type::whole(&WAYS),
            "Ways that everything else on the machine keeps, beside those that devices write into (DDIO).",
        )
        .or("1"),
        Field::new(
            "onDemand",
            Type::whole(&WAYS),
            "Ways that cores without a promise have at least, together.",
        )
        .or("2"),
    ],
    nullable: true,
    ..Map::PLAIN
};
/// Default of `others`.
const DEFAULT_OTHERS: u16 = 1;
/// Default of `onDemand`.
const DEFAULT_ON_DEMAND: u16 = 2;

/// Division of the last-level cache among the cores of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Ways that everything else on the machine keeps, apart from those that devices write into.
    pub others: u16,
    /// Ways that cores without a promise have at least, together. They get more by leases.
    pub on_demand: u16,
}

/// Reads `cache`.
pub(super) fn cache(node: &Located<'_>) -> Result<CacheSpec, SpecError> {
    let fields = node.fields_of(&CACHE)?;
    let ways = |name: &str, default: u16| match fields.optional(name) {
        None => Ok(default),
        Some(node) => node.whole(WAYS).map(|ways| ways as u16),
    };
    Ok(CacheSpec {
        others: ways("others", DEFAULT_OTHERS)?,
        on_demand: ways("onDemand", DEFAULT_ON_DEMAND)?,
    })
}
