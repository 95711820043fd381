//! Controller and agents against an API server.

mod definitions;
mod lifecycle;
mod restarts;
mod rights;
mod rules;
mod support;
