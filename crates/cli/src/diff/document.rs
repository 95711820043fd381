//! Document of `tailwater diff`.

use serde::Serialize;
use tailwater_dataplane::comparison::{ChainComparison, ChangeVerdict, FigureChange, Method};

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// `true` if some figure of some chain differs.
    pub different: bool,
    /// Probability with which all intervals of a chain contain the true changes.
    pub confidence: f64,
    /// Largest relative change that does not count.
    pub tolerance: f64,
    /// Chains by name.
    pub chains: Vec<ChainDocument>,
}

/// Comparison of a chain.
#[derive(Debug, Serialize)]
pub struct ChainDocument {
    /// Name of the chain.
    pub chain: String,
    /// Number of runs before.
    pub runs_before: usize,
    /// Number of runs after.
    pub runs_after: usize,
    /// Source of the intervals.
    pub method: Method,
    /// Steps were compared in pairs.
    pub paired: bool,
    /// Length of a bootstrap's block in steps, or 0.
    pub block_steps: usize,
    /// Figures, in a fixed order.
    pub figures: Vec<FigureDocument>,
}

/// Comparison of a figure.
#[derive(Debug, Serialize)]
pub struct FigureDocument {
    /// Name of the figure: `p99_us`, `lost`, `acl/denied`.
    pub figure: String,
    /// Mean of the runs before.
    pub before: Option<f64>,
    /// Mean of the runs after.
    pub after: Option<f64>,
    /// For shares of packets their difference, otherwise the ratio minus one.
    pub change: Option<f64>,
    /// Lower end of the interval of `change`.
    pub low: Option<f64>,
    /// Upper end of the interval of `change`.
    pub high: Option<f64>,
    /// `change` is a difference of shares.
    pub is_share: bool,
    /// Outcome.
    pub verdict: ChangeVerdict,
}

impl From<&ChainComparison> for ChainDocument {
    fn from(found: &ChainComparison) -> ChainDocument {
        let figure = |change: &FigureChange| FigureDocument {
            figure: change.figure.name(),
            before: change.before,
            after: change.after,
            change: change.change,
            low: change.interval.map(|(low, _)| low),
            high: change.interval.map(|(_, high)| high),
            is_share: change.figure.is_share(),
            verdict: change.verdict,
        };
        ChainDocument {
            chain: found.chain.clone(),
            runs_before: found.runs.0,
            runs_after: found.runs.1,
            method: found.method,
            paired: found.paired,
            block_steps: found.block,
            figures: found.changes.iter().map(figure).collect(),
        }
    }
}
