//! Admission of chains to a server.

use super::paths::{LONGEST_PATH, path};
use crate::error::SpecError;
use crate::located::Located;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Part of each core that is not promised.
const HEADROOM: RangeInclusive<f64> = 0.0..=0.9;
/// Headroom without the field.
const DEFAULT_HEADROOM: f64 = 0.1;

/// Admission of chains by their profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionSpec {
    /// File or folder of profiles, joined to the spec's folder.
    pub profiles: PathBuf,
    /// Treatment of chains with a throughput objective and without a profile.
    pub profile: Unprofiled,
    /// Part of each core that is not promised: 0 to 0.9.
    pub headroom: f64,
}

/// Treatment of chains with a throughput objective and without a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unprofiled {
    /// They are refused.
    #[default]
    Required,
    /// They run without a check.
    Optional,
}

/// Reads `admission`. No file is read.
pub(super) fn admission(node: &Located<'_>, base_dir: &Path) -> Result<AdmissionSpec, SpecError> {
    let fields = node.fields(&["profiles", "profile", "headroom"])?;
    let profiles = fields.required("profiles", "a file or folder of profiles")?;
    Ok(AdmissionSpec {
        profiles: path(&profiles, base_dir, LONGEST_PATH)?,
        profile: match fields.optional("profile") {
            None => Unprofiled::default(),
            Some(node) => node.word(&[("required", Unprofiled::Required), ("optional", Unprofiled::Optional)])?,
        },
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
    })
}
