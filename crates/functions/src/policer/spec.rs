//! Configuration of `policer`.

use crate::kind::Context;
use crate::policer::{ExceedAction, Limit, MAX_LIMITS, Meter, Rate, Scope};
use tailwater_api::error::{SpecError, nearest};
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, Map, PREFIX, PROTOCOL, Text, Type};
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

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "limits",
            Type::List(&Type::Map(&LIMIT), 1, MAX_LIMITS),
            "Limits in order; the first that matches applies.",
        )
        .required()
        .example("[{rate: 20kpps, burst: 64}]"),
        Field::new(
            "default",
            OUTCOME,
            "Packets that no limit matches; `drop` counts as `no-limit`.",
        )
        .or("pass"),
    ],
    nullable: true,
    ..Map::PLAIN
};
const OUTCOME: Type = Type::OneOf(&OUTCOMES);
static OUTCOMES: [Type; 2] = [Type::Words(&["pass", "drop"]), Type::Map(&MARK)];
static MARK: Map = Map {
    fields: &[Field::new(
        "dscp",
        Type::Text(&CODE_POINT),
        "Code point by number or name, which is set.",
    )
    .required()
    .example("ef")],
    ..Map::PLAIN
};
static CODE_POINT: Text = Text {
    what: "a code point by number or name",
    pattern: "^(be|le|cs[1-7]|af[1-4][1-3]|ef)$",
    most: 4,
    example: "ef",
    whole: Some((0, 63)),
};
/// Code point, or `copy`.
pub(crate) static CODE_POINT_OR_COPY: Text = Text {
    what: "a code point by number or name, or copy",
    pattern: "^(copy|be|le|cs[1-7]|af[1-4][1-3]|ef)$",
    most: 4,
    example: "copy",
    whole: Some((0, 63)),
};
const BURST: Type = Type::Whole(1, MOST_TOKENS);
static LIMIT: Map = Map {
    fields: &[
        Field::new("match", Type::Map(&MATCH), "Packets that the limit applies to.").otherwise("all"),
        Field::new(
            "per",
            Type::Words(&["limit", "flow"]),
            "One bucket for all matching packets, or one per flow.",
        )
        .or("limit"),
        Field::new("rate", Type::Rate, "Fill rate: of bits of frames, or of packets.")
            .required()
            .example("20kpps"),
        Field::new(
            "burst",
            BURST,
            "Bucket size: bytes (at least 1,514), or packets if the rate is in packets.",
        )
        .required()
        .example("64"),
        Field::new("peak", Type::Map(&PEAK), "Second bucket, no slower, in the same unit.").otherwise("none"),
        Field::new("conforming", OUTCOME, "Packets within both rates.").or("pass"),
        Field::new("exceeding", OUTCOME, "Packets beyond `rate`, within the peak.")
            .or("pass")
            .only_with("peak"),
        Field::new(
            "violating",
            OUTCOME,
            "Packets beyond the peak; without one, beyond `rate`.",
        )
        .or("drop"),
    ],
    ..Map::PLAIN
};
static PEAK: Map = Map {
    fields: &[
        Field::new("rate", Type::Rate, "Fill rate, in the unit of the other.")
            .required()
            .example("40kpps"),
        Field::new("burst", BURST, "Bucket size in bytes or packets.")
            .required()
            .example("64"),
    ],
    ..Map::PLAIN
};
static MATCH: Map = Map {
    fields: &[
        Field::new(
            "source",
            Type::Text(&PREFIX),
            "Source addresses; of the IP version of `destination`.",
        )
        .otherwise("any"),
        Field::new(
            "destination",
            Type::Text(&PREFIX),
            "Destination addresses; of the IP version of `source`.",
        )
        .otherwise("any"),
        Field::new("protocol", Type::Text(&PROTOCOL), "IP protocol.").otherwise("any"),
    ],
    ..Map::PLAIN
};

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
        let fields = node.fields_of(&FIELDS)?;
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
    let fields = node.fields_of(&LIMIT)?;
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
    let fields = conditions.fields_of(&MATCH)?;
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
    let fields = node.fields_of(&PEAK)?;
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
    let fields = node.fields_of(&MARK)?;
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
