//! Document of `tailwater explain`.

use serde::Serialize;
use tailwater_dataplane::scaling::record::{Explanation, Replay, ServerExplanation, ServerReplay};

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Summary of the record.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// `true` if the file ends before the run did.
    pub cut_short: bool,
    /// Decisions lost since the file was written too slowly; `None` if the file is cut short.
    pub lost: Option<u64>,
    /// Replay of the observations to another policy.
    pub replay: Option<Replayed>,
    /// Decisions of the server mapper, if there was one.
    pub server: Option<ServerDocument>,
}

/// Decisions of a server mapper.
#[derive(Debug, Serialize)]
pub struct ServerDocument {
    /// Summary of the record.
    #[serde(flatten)]
    pub explanation: ServerExplanation,
    /// Replay of the observations to another policy.
    pub replay: Option<ServerReplayed>,
}

/// Replay of decisions on RSS buckets to another policy.
#[derive(Debug, Serialize)]
pub struct ServerReplayed {
    /// Name of the policy.
    pub policy: &'static str,
    /// Differing decisions.
    #[serde(flatten)]
    pub outcome: ServerReplay,
}

/// Replay of decisions to another policy.
#[derive(Debug, Serialize)]
pub struct Replayed {
    /// Name of the policy.
    pub policy: &'static str,
    /// Differing decisions.
    #[serde(flatten)]
    pub outcome: Replay,
}
