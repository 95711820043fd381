//! Controller and agents against an API server.

mod definitions;
mod functions;
mod lifecycle;
mod pools;
mod profiling;
mod restarts;
mod rights;
mod rules;
mod slos;
mod support;
