//! Arguments of `tailwater predict`.

use crate::output::ReportOutput;
use crate::values;
use clap::Args;
use std::path::PathBuf;
use tailwater_predict::Kind;

/// Help text of `tailwater predict`.
pub const PREDICT_EXAMPLES: &str = "\
Predicts a chain's throughput and p99 beside other chains on the same server, with intervals, names the
resource that binds, and what would help. Files are models, or campaigns of co-runs, from which a model
is then trained.

Examples:
  tailwater predict --target nat.model.yaml --with ids.model.yaml,ids.model.yaml
      One chain beside two others.
  tailwater predict --target nat.model.yaml --with ids.model.yaml --report nat.html
      Also a page with charts.
  tailwater predict --target nat.campaign.yaml --save nat.model.yaml
      Trains a model, and prints its error.
Exit codes: 0 done, 2 wrong input, or outside of what the campaign covers.";

/// Arguments of `tailwater predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Model or campaign of the chain whose performance is predicted
    #[arg(long, value_name = "FILE")]
    pub target: PathBuf,
    /// Models or campaigns of the chains beside it; a file can be repeated
    #[arg(long = "with", value_name = "FILE,...", value_delimiter = ',')]
    pub competitors: Vec<PathBuf>,
    /// Probability with which the intervals hold
    #[arg(long, value_name = "P%", default_value = "90%", value_parser = values::confidence)]
    pub confidence: f64,
    /// Property of the target that differs from its campaign, such as flows=50000
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = property)]
    pub properties: Vec<(String, f64)>,
    /// Method of models that are trained from campaigns
    #[arg(long, value_name = "NAME", default_value_t = Kind::Boosted, value_parser = method)]
    pub method: Kind,
    /// Machine that all models must be of
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// File for a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// File to which the target's model is written
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Parses the name of a method.
fn method(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.to_string() == text);
    found.ok_or_else(|| {
        let names = Kind::ALL.map(|kind| kind.to_string());
        format!("expected one of {}", names.join(", "))
    })
}

/// Parses `name=value`.
fn property(text: &str) -> Result<(String, f64), String> {
    let pair = text.split_once('=');
    let pair = pair.and_then(|(name, value)| Some((name.to_owned(), value.parse::<f64>().ok()?)));
    pair.filter(|(name, value)| !name.is_empty() && value.is_finite())
        .ok_or_else(|| "expected NAME=VALUE, such as flows=50000".to_owned())
}
