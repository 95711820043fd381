//! Fields of the configuration of `upf`.

use super::{MAX_ADDRESSES, MAX_PROFILES, MAX_RULES, MAX_SESSIONS};
use crate::accounting::EXPORT;
use crate::kind::ALLOW_EMPTY;
use crate::policer::CODE_POINT_OR_COPY;
use std::ops::RangeInclusive;
use tailwater_api::schema::{ADDRESS, Entries, FILE, Field, LABEL, Map, Rule, Type};
use tailwater_api::values::PacketAction;
use tailwater_net::Nanos;

/// Maximum number of sessions in the spec itself.
pub(super) const MAX_INLINE: usize = 65_536;
/// Default capacity in sessions.
pub(super) const CAPACITY: usize = 65_536;
/// Range of bursts in bytes. The minimum is a full packet, which could never pass otherwise.
pub(super) const BURST: RangeInclusive<u64> = 1500..=1 << 40;
/// Range of intervals between usage reports.
pub(super) const TIME: RangeInclusive<Nanos> = Nanos::from_secs(1)..=Nanos::from_secs(30 * 86_400);

const _: () = assert!(CAPACITY == 65_536, "the default below");
const SESSION: Type = Type::Any(4096);

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "role",
            Type::Words(&["core", "access"]),
            "`access` is the base station's end: users are on the near side.",
        )
        .or("core"),
        Field::new(
            "addresses",
            Type::List(&Type::Text(&ADDRESS), 1, MAX_ADDRESSES),
            "Addresses of this end; the first of each IP version is the source of sent packets.",
        )
        .required()
        .example("[192.0.2.1]"),
        Field::new(
            "profiles",
            Type::Entries(&PROFILES),
            "Treatment of sessions, by the profile's name.",
        )
        .required()
        .example("{internet: {}}"),
        Field::new(
            "sessions",
            Type::List(&SESSION, 1, MAX_INLINE),
            "Sessions, one line each.",
        )
        .example("[1 ue 10.60.0.1 teid 0x1001 profile internet]"),
        Field::new("sessionsFile", Type::Text(&FILE), "File of sessions, of up to 1 GiB."),
        Field::new(ALLOW_EMPTY, Type::Bool, "Accepts a `sessionsFile` without a session.")
            .or("false")
            .only_with("sessionsFile"),
        Field::new("api", Type::Text(&FILE), "Unix socket to set and remove sessions.").otherwise("none"),
        Field::new("usage", Type::Map(&EXPORT), "Reports, as `csv` or `json` (lines).").otherwise("none"),
        Field::new(
            "capacity",
            Type::Whole(1, MAX_SESSIONS as u64),
            "Maximum sessions; memory is allocated at the start.",
        )
        .or("65536"),
        Field::new(
            "default",
            PacketAction::TYPE,
            "Packets that neither arrive by a tunnel nor go to a user.",
        )
        .or("drop"),
        Field::new("mtu", Type::Whole(576, 65_535), "Longest outer IP packet.").or("1500"),
        Field::new(
            "errorSources",
            Type::List(&Type::Text(&ADDRESS), 1, 2),
            "Sources of ICMP \"too big\" errors, at most one per IP version.",
        )
        .otherwise("none"),
        Field::new(
            "errorsPerSecond",
            Type::Whole(0, 1_000_000),
            "Maximum error indications, and ICMP errors.",
        )
        .or("100"),
        Field::new(
            "qfi",
            Type::Words(&["check", "ignore"]),
            "Whether packets with another QFI than their rule's are dropped.",
        )
        .or("ignore"),
        Field::new(
            "sourcePort",
            Type::Words(&["flow", "fixed"]),
            "2152, or one per inner flow, for RSS and multipath.",
        )
        .or("fixed"),
        Field::new(
            "udpChecksum",
            Type::Bool,
            "Checksum of UDP over IPv4; over IPv6 always.",
        )
        .or("false"),
        Field::new("ttl", Type::Whole(1, 255), "Time to live of outer headers.").or("64"),
        Field::new(
            "df",
            Type::Words(&["copy", "set", "clear"]),
            "\"Don't fragment\" of outer IPv4 headers.",
        )
        .or("copy"),
        Field::new(
            "cache",
            Type::Words(&["flow", "none"]),
            "Whether decisions about packets to users are kept with their flows.",
        )
        .or("none"),
    ],
    rules: &[
        Rule::AtMostOne(&["sessions", "sessionsFile"]),
        Rule::AtLeastOne(&["sessions", "sessionsFile", "api"]),
    ],
    nullable: true,
};
static PROFILES: Entries = Entries {
    key: "NAME",
    keys: &LABEL,
    value: Type::Map(&PROFILE),
    least: 1,
    most: MAX_PROFILES,
};
const QFI: Type = Type::Whole(0, 63);
/// Fields of a profile.
pub(super) static PROFILE: Map = Map {
    fields: &[
        Field::new(
            "qfi",
            QFI,
            "QFI of encapsulated packets; without it there is no container.",
        )
        .otherwise("none"),
        Field::new(
            "dscp",
            Type::Text(&CODE_POINT_OR_COPY),
            "Code point of outer headers, or `copy`.",
        )
        .or("copy"),
        Field::new(
            "sessionRates",
            Type::Map(&RATES),
            "The session's own rates (session AMBR).",
        )
        .otherwise("none"),
        Field::new(
            "usage",
            Type::Map(&USAGE),
            "Reports of usage. Requires the function's `usage`.",
        )
        .otherwise("none"),
        Field::new(
            "rules",
            Type::List(&Type::Map(&RULE), 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .otherwise("none"),
        Field::new("default", PacketAction::TYPE, "Packets that no rule matches.").or("pass"),
    ],
    nullable: true,
    ..Map::PLAIN
};
/// Fields of a profile's usage reports.
pub(super) static USAGE: Map = Map {
    fields: &[
        Field::new(
            "volume",
            Type::Whole(1, 1 << 50),
            "A report per so many bytes, up and down together.",
        )
        .example("1000000"),
        Field::new("time", Type::duration(&TIME), "A report per this time."),
    ],
    rules: &[Rule::AtLeastOne(&["volume", "time"])],
    ..Map::PLAIN
};
/// Fields of rates.
pub(super) static RATES: Map = Map {
    fields: &[
        Field::new("up", Type::BitRate, "Rate of uplink packets.").example("10Mbps"),
        Field::new("down", Type::BitRate, "Rate of downlink packets."),
        Field::new("burst", Type::whole(&BURST), "Bucket size in bytes.")
            .otherwise("traffic of 0.1 s, at least 15,000 bytes"),
    ],
    rules: &[Rule::AtLeastOne(&["up", "down"])],
    ..Map::PLAIN
};
/// Fields of a rule.
pub(super) static RULE: Map = Map {
    fields: &[
        Field::new(
            "flows",
            Type::Any(4096),
            "Packets that the rule applies to: a flow description.",
        )
        .required()
        .example("permit out udp from 198.51.100.0/24 53 to assigned"),
        Field::new("qfi", QFI, "QFI of encapsulated packets.").otherwise("the profile's"),
        Field::new(
            "dscp",
            Type::Text(&CODE_POINT_OR_COPY),
            "Code point of outer headers, or `copy`.",
        )
        .otherwise("the profile's"),
        Field::new(
            "gate",
            Type::Words(&["open", "closed", "up", "down"]),
            "Permitted directions.",
        )
        .or("open"),
        Field::new(
            "rates",
            Type::Map(&RATES),
            "Rates of these packets alone, per session (MBR); up to 8 rules of a profile.",
        )
        .otherwise("none"),
        Field::new(
            "sessionRates",
            Type::Bool,
            "Whether they count for the session's rates.",
        )
        .or("true"),
        Field::new("counted", Type::Bool, "Whether they count for usage.").or("true"),
    ],
    ..Map::PLAIN
};
