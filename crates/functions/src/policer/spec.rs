//! Configuration of `policer`.

use crate::kind::Context;
use crate::policer::{ExceedAction, Limit, MAX_LIMITS, Meter, Rate, Scope};
use tailwater_api::error::{SpecError, nearest};
use tailwater_api::located::Located;
use tailwater_api::values::{Throughput, prefix, protocol, throughput};

/// Minimum burst in bytes: a full Ethernet frame, which could never pass otherwise.
const LEAST_BYTES: u64 = 1514;
/// Maximum burst in bytes or packets.
const MOST_TOKENS: u64 = 1 << 40;

/// Code points with a name (RFC 2474, 2597, 3246, 8622).
const CODE_POINTS: [(&str, u8); 22] = [
    ("be", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Rate limits of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicerConfig {
    /// Limits in order, at least one; the first that matches applies.
    pub limits: Vec<Limit>,
    /// Outcome for packets that no limit matches.
    pub default: ExceedAction,
}

impl PolicerConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_or_none(&["limits", "default"])?;
        let list = fields.required("limits", "a list of limits")?;
        let items = list.list("limits", MAX_LIMITS)?;
        let default = fields.optional("default");
        Ok(PolicerConfig {
            limits: items.iter().map(limit).collect::<Result<_, _>>()?,
            default: default.map_or(Ok(ExceedAction::Pass), |node| outcome(&node))?,
        })
    }
}

fn limit(node: &Located<'_>) -> Result<Limit, SpecError> {
    let fields = node.fields(&[
        "match",
        "per",
        "rate",
        "burst",
        "peak",
        "conforming",
        "exceeding",
        "violating",
    ])?;
    let rate = fields.required("rate", "a rate such as 100Mbps or 20kpps")?;
    let (committed, kind) = meter(&rate, fields.required("burst", "a burst size in bytes or packets")?)?;
    let peak = fields.optional("peak");
    let exceeding = fields.optional("exceeding");
    if let (None, Some(exceeding)) = (&peak, &exceeding) {
        let message = "expected exceeding only with a peak; without one, packets above the rate are violating";
        return Err(exceeding.error(message));
    }
    let given = |name, usual| fields.optional(name).map_or(Ok(usual), |node| outcome(&node));
    let mut limit = Limit {
        source: None,
        destination: None,
        protocol: None,
        scope: match fields.optional("per") {
            None => Scope::All,
            Some(node) => node.word(&[("limit", Scope::All), ("flow", Scope::Flow)])?,
        },
        committed,
        peak: peak.map(|node| peak_meter(&node, kind)).transpose()?,
        conforming: given("conforming", ExceedAction::Pass)?,
        exceeding: exceeding.map_or(Ok(ExceedAction::Pass), |node| outcome(&node))?,
        violating: given("violating", ExceedAction::Drop)?,
    };
    let Some(conditions) = fields.optional("match") else {
        return Ok(limit);
    };
    let fields = conditions.fields(&["source", "destination", "protocol"])?;
    let given = |name| fields.optional(name);
    limit.source = given("source").map(|node| prefix(&node)).transpose()?;
    limit.destination = given("destination").map(|node| prefix(&node)).transpose()?;
    limit.protocol = given("protocol").map(|node| protocol(&node)).transpose()?;
    match (limit.source, limit.destination) {
        (Some(source), Some(destination)) if source.addr().is_ipv4() != destination.addr().is_ipv4() => {
            let message = "expected source and destination of one IP version, found both versions";
            Err(conditions.error(message))
        }
        _ => Ok(limit),
    }
}

/// Parses the token bucket of the peak rate, which is at least the committed rate and of the same type.
fn peak_meter(node: &Located<'_>, committed: Rate) -> Result<Meter, SpecError> {
    let fields = node.fields(&["rate", "burst"])?;
    let rate = fields.required("rate", "a rate such as 200Mbps or 40kpps")?;
    let (meter, peak) = meter(&rate, fields.required("burst", "a burst size in bytes or packets")?)?;
    let ordered = match (committed, peak) {
        (Rate::Bits(low), Rate::Bits(high)) | (Rate::Packets(low), Rate::Packets(high)) => low <= high,
        _ => return Err(rate.expected("a peak rate of the same unit as the rate: bits or packets")),
    };
    match ordered {
        true => Ok(meter),
        false => Err(rate.expected("a peak rate no lower than the rate")),
    }
}

/// Creates a token bucket from its rate and burst.
fn meter(rate: &Located<'_>, burst: Located<'_>) -> Result<(Meter, Rate), SpecError> {
    let (kind, burst) = match throughput(rate)? {
        Throughput::BitsPerSecond(bits) => {
            let bytes = burst.whole(1..=MOST_TOKENS)?;
            if bytes < LEAST_BYTES {
                let what = format!("at least {LEAST_BYTES} bytes, for a full frame to pass");
                return Err(burst.expected(&what));
            }
            (Rate::Bits(bits), bytes)
        }
        Throughput::PacketsPerSecond(packets) => (Rate::Packets(packets), burst.whole(1..=MOST_TOKENS)?),
    };
    Ok((Meter::new(kind, burst), kind))
}

/// Parses `pass`, `drop` or `{dscp: ef}`.
fn outcome(node: &Located<'_>) -> Result<ExceedAction, SpecError> {
    if !node.is_map() {
        return node.word(&[("pass", ExceedAction::Pass), ("drop", ExceedAction::Drop)]);
    }
    let fields = node.fields(&["dscp"])?;
    let point = fields.required("dscp", "a code point such as ef or 46")?;
    code_point(&point).map(ExceedAction::Mark)
}

/// Parses a differentiated services code point by number or name.
pub(crate) fn code_point(node: &Located<'_>) -> Result<u8, SpecError> {
    const WHAT: &str = "a code point from 0 to 63, or a name such as be, cs1, af11 or ef";
    if let Ok(point) = node.whole(0..=63) {
        return Ok(point as u8);
    }
    let text = node.text(WHAT)?;
    let found = CODE_POINTS.iter().find(|(name, _)| *name == text);
    let names = CODE_POINTS.iter().map(|(name, _)| *name);
    let found = found.ok_or_else(|| node.expected(WHAT).suggest(nearest(text, names)))?;
    Ok(found.1)
}
