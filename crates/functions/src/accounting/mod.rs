//! `Accounting`: packets and bytes of each flow, exported as a record when the flow ends.

mod counts;
mod export;
mod function;

pub(crate) use counts::{Counts, flags};
pub use export::{AccountingTable, ExportError, ExportFormat, Exported, Totals};
pub use function::Accounting;

#[cfg(test)]
mod tests;
