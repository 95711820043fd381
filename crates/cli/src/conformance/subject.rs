//! Functions that are checked.

use std::path::PathBuf;
use tailwater_functions::spec::ChainSpec;

/// Functions that are checked.
pub struct Subject {
    /// Their chain.
    pub spec: ChainSpec,
    /// File of the spec or library.
    pub file: PathBuf,
    /// Text of the spec of a library, which has no file.
    pub text: Option<String>,
}
