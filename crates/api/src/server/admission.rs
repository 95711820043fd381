//! Admission of chains to a server.

use super::paths::{LONGEST_PATH, path};
use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{FILE, Field, Map, Type};
use crate::values::duration;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tailwater_net::Nanos;

/// Part of each core that is not promised.
const HEADROOM: RangeInclusive<f64> = 0.0..=0.9;
/// Headroom without the field.
const DEFAULT_HEADROOM: f64 = 0.1;
/// Time of a measurement.
const TIME: RangeInclusive<Nanos> = Nanos::from_secs(1)..=Nanos::from_secs(300);
/// Time of a measurement without the field.
const DEFAULT_TIME: Nanos = Nanos::from_secs(60);
/// Cores that a plan has to free, at most.
const MOST_SAVED: u64 = 1024;
/// Highest number of a core.
const MOST_CORE: u64 = 65_535;

/// Fields of `admission`.
pub(super) static ADMISSION: Map = Map {
    fields: &[
        Field::new(
            "profiles",
            Type::Text(&FILE),
            "File of profiles, or a folder of files `*.curves.yaml`; relative to the spec's folder. With \
             `profile: auto` a folder, which is created.",
        )
        .required()
        .example("profiles/"),
        Field::new(
            "profile",
            Type::Words(&["required", "optional", "auto"]),
            "Chains with a throughput objective and without a profile are refused, run unchecked, or are \
             profiled first.",
        )
        .or("required"),
        Field::new(
            "headroom",
            Type::number(*HEADROOM.start(), *HEADROOM.end()),
            "Part of each core that is not promised.",
        )
        .or("0.1"),
        Field::new("measure", Type::Map(&MEASURE), "Measurements of profiles.").only_if("profile", "auto"),
        Field::new(
            "cap",
            Type::Words(&["none", "promise"]),
            "`promise`: chains with a promise are capped at it.",
        )
        .or("none"),
        Field::new(
            "consolidate",
            Type::Whole(1, MOST_SAVED),
            "Cores that a plan of the solver has to free to be taken.",
        )
        .otherwise("no plan is looked for"),
    ],
    ..Map::PLAIN
};
static MEASURE: Map = Map {
    fields: &[
        Field::new("time", Type::duration(&TIME), "Longest time of a measurement.").or("60s"),
        Field::new(
            "core",
            Type::Whole(0, MOST_CORE),
            "Core to measure on; none of `spec.cores`.",
        )
        .otherwise("an auxiliary core that is not lent"),
    ],
    ..Map::PLAIN
};

/// Admission of chains by their profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionSpec {
    /// File or folder of profiles, joined to the spec's folder.
    pub profiles: PathBuf,
    /// Treatment of chains with a throughput objective and without a profile.
    pub profile: Unprofiled,
    /// Part of each core that is not promised: 0 to 0.9.
    pub headroom: f64,
    /// Measurements of profiles, with [`Unprofiled::Auto`].
    pub measure: MeasureSpec,
    /// Chains with a promise are capped at their promised throughput.
    pub caps: bool,
    /// Cores that a plan of the solver has to free to be taken: 1 to 1,024. `None`: no plan is looked for.
    pub consolidate: Option<u32>,
}

/// Measurements of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureSpec {
    /// Longest time of one: 1 s to 300 s.
    pub time: Nanos,
    /// Core to measure on. `None`: an auxiliary core that is not lent.
    pub core: Option<u32>,
}

impl Default for MeasureSpec {
    fn default() -> MeasureSpec {
        MeasureSpec {
            time: DEFAULT_TIME,
            core: None,
        }
    }
}

/// Treatment of chains with a throughput objective and without a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unprofiled {
    /// They are refused.
    #[default]
    Required,
    /// They run without a check.
    Optional,
    /// They are measured first.
    Auto,
}

/// Reads `admission`. No file is read.
pub(super) fn admission(node: &Located<'_>, base_dir: &Path) -> Result<AdmissionSpec, SpecError> {
    let fields = node.fields_of(&ADMISSION)?;
    let profiles = fields.required("profiles", "a file or folder of profiles")?;
    let profile = match fields.optional("profile") {
        None => Unprofiled::default(),
        Some(node) => node.word(&[
            ("required", Unprofiled::Required),
            ("optional", Unprofiled::Optional),
            ("auto", Unprofiled::Auto),
        ])?,
    };
    Ok(AdmissionSpec {
        profiles: path(&profiles, base_dir, LONGEST_PATH)?,
        profile,
        headroom: match fields.optional("headroom") {
            None => DEFAULT_HEADROOM,
            Some(node) => {
                const WHAT: &str = "a part of a core from 0 to 0.9, such as 0.1";
                let headroom = node.number(WHAT)?;
                match HEADROOM.contains(&headroom) {
                    true => headroom,
                    false => return Err(node.expected(WHAT)),
                }
            }
        },
        measure: match fields.optional("measure") {
            None => MeasureSpec::default(),
            Some(node) if profile != Unprofiled::Auto => return Err(node.error("expected only with profile: auto")),
            Some(node) => measure(&node)?,
        },
        caps: match fields.optional("cap") {
            None => false,
            Some(node) => node.word(&[("none", false), ("promise", true)])?,
        },
        consolidate: match fields.optional("consolidate") {
            None => None,
            Some(node) => u32::try_from(node.whole(1..=MOST_SAVED)?).ok(),
        },
    })
}

/// Reads `admission.measure`.
fn measure(node: &Located<'_>) -> Result<MeasureSpec, SpecError> {
    let fields = node.fields_of(&MEASURE)?;
    Ok(MeasureSpec {
        time: match fields.optional("time") {
            None => DEFAULT_TIME,
            Some(node) => duration(&node, TIME)?,
        },
        core: match fields.optional("core") {
            None => None,
            Some(node) => u32::try_from(node.whole(0..=MOST_CORE)?).ok(),
        },
    })
}
