//! Limits on resources, as the kernel takes them.

use crate::confinement::Limits;

/// Returns the limits that are set, as pairs of resource (`RLIMIT_*`) and value.
pub(crate) fn limits(limits: &Limits) -> impl Iterator<Item = (u32, u64)> {
    [
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_AS, limits.address_space),
        (libc::RLIMIT_NOFILE, limits.descriptors),
        (libc::RLIMIT_FSIZE, limits.file_size),
        (libc::RLIMIT_CORE, limits.core),
        (libc::RLIMIT_MEMLOCK, limits.locked),
        (libc::RLIMIT_RTPRIO, limits.real_time),
    ]
    .into_iter()
    .filter_map(|(resource, value)| Some((resource, value?)))
}
