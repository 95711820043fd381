//! Controller and agents against a real API server.

mod definitions;
mod lifecycle;
mod restarts;
mod rights;
mod support;
