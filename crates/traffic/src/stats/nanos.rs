//! Times in JSON.

use serde::Serializer;
use tailwater_net::Nanos;

/// Serialises a time as a whole number of nanoseconds.
pub(crate) fn as_nanos<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.0)
}
