//! `Accounting`: packets and bytes of each flow, exported as a record when the flow ends.

mod counts;
mod export;
mod function;
mod kind;
mod spec;

pub use crate::exporter::{ExportError, Exported};
pub(crate) use counts::{Counts, flags};
pub use export::{AccountingTable, ExportFormat, Totals};
pub use function::Accounting;
pub use kind::KIND;
pub use spec::{AccountingConfig, ExportConfig};
pub(crate) use spec::{EXPORT, export};

#[cfg(test)]
mod tests;
