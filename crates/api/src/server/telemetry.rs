//! Export of a server's events and packet traces by OpenTelemetry's protocol.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{Field, Map, OTLP_URL, Type};
use std::ops::RangeInclusive;

/// Traced packets of a chain in a second.
const PACKETS: RangeInclusive<u64> = 0..=100;
/// Default of `tracedPackets`.
const DEFAULT_PACKETS: u32 = 1;
/// Form of a URL in errors.
const EXPECTED: &str = "a URL such as http://127.0.0.1:4318";

/// Fields of `telemetry`.
pub(super) static TELEMETRY: Map = Map {
    fields: &[
        Field::new(
            "otlp",
            Type::Text(&OTLP_URL),
            "URL of a collector that accepts OTLP over HTTP; `/v1/logs` and `/v1/traces` are added to it.",
        )
        .otherwise("`$OTEL_EXPORTER_OTLP_ENDPOINT`, or none")
        .example("http://127.0.0.1:4318"),
        Field::new(
            "tracedPackets",
            Type::whole(&PACKETS),
            "Packets of each chain in a second that are traced and exported.",
        )
        .or("1"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// Export of events and packet traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetrySpec {
    /// URL of a collector, if the spec names one: `http` or `https`, with a host.
    pub otlp: Option<String>,
    /// Packets of each chain that are traced in a second.
    pub traced_packets: u32,
}

impl Default for TelemetrySpec {
    fn default() -> TelemetrySpec {
        TelemetrySpec {
            otlp: None,
            traced_packets: DEFAULT_PACKETS,
        }
    }
}

/// Reads `telemetry`.
pub(super) fn telemetry(node: &Located<'_>) -> Result<TelemetrySpec, SpecError> {
    let fields = node.fields_of(&TELEMETRY)?;
    let url = |node: Located<'_>| {
        let url = node.text(EXPECTED)?;
        is_url(url)
            .then(|| url.to_owned())
            .ok_or_else(|| node.expected(EXPECTED))
    };
    Ok(TelemetrySpec {
        otlp: fields.optional("otlp").map(url).transpose()?,
        traced_packets: match fields.optional("tracedPackets") {
            None => DEFAULT_PACKETS,
            Some(node) => node.whole(PACKETS)? as u32,
        },
    })
}

/// Returns `true` for `http://HOST` or `https://HOST`, with anything behind it but spaces.
fn is_url(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = host.unwrap_or_default();
    let has_host = host.starts_with(|first: char| !matches!(first, '/' | '?' | '#' | ':'));
    has_host && url.len() <= OTLP_URL.most && url.chars().all(|c| c.is_ascii_graphic())
}
