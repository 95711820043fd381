//! Points of a campaign: the loads of competitors that are measured.

use super::competitor::SyntheticLoad;
use tailwater_predict::design::{
    COMPETITORS, DESCRIPTORS, FRAME_BYTES, Parameter, RATE, READS, STRUCTURE_BYTES, Scale, Setting, Space, WRITES,
};

/// Returns the space of synthetic loads on caches of these sizes, from nearly idle to saturated competitors, at most
/// `competitors` of them.
pub fn load_space(private_bytes: u64, last_bytes: u64, competitors: u32, seed: u64) -> Space {
    let most = u64::from(competitors.max(1));
    let parameters = vec![
        Parameter::whole(COMPETITORS, 1, most, Scale::Linear),
        Parameter::whole(
            STRUCTURE_BYTES,
            (private_bytes / 4).max(1),
            2 * last_bytes.max(private_bytes),
            Scale::Logarithmic,
        ),
        // Lines per packet. Without any, a competitor still touches its packets.
        Parameter::whole(READS, 1, 64, Scale::Logarithmic),
        Parameter::whole(WRITES, 0, 32, Scale::Linear),
        // One beyond its core's capacity saturates a competitor.
        Parameter::new(RATE, 2e5, 2e7, Scale::Logarithmic),
        Parameter::whole(FRAME_BYTES, 60, 1514, Scale::Logarithmic),
        Parameter::whole(DESCRIPTORS, 64, 1024, Scale::Logarithmic),
    ];
    Space::new(parameters, seed).expect("ranges are in order, names differ, and there is a competitor")
}

impl SyntheticLoad {
    /// Returns the load of a setting of [`load_space`].
    ///
    /// # Errors
    /// The name of a parameter that the setting lacks.
    pub fn of(setting: &Setting) -> Result<SyntheticLoad, &'static str> {
        let value = |name| setting.get(name).ok_or(name);
        Ok(SyntheticLoad {
            structure_bytes: value(STRUCTURE_BYTES)? as u64,
            reads: value(READS)? as u32,
            writes: value(WRITES)? as u32,
            rate: Some(value(RATE)?),
            frame_bytes: value(FRAME_BYTES)? as u16,
            descriptors: value(DESCRIPTORS)? as u32,
        })
    }
}
