//! `Accounting`: packets and bytes of each flow, and a record of it when it has ended.

mod counts;
mod export;
mod function;

pub(crate) use counts::{Counts, flags};
pub use export::{AccountingTable, ExportError, ExportFormat, Exported, Totals};
pub use function::Accounting;

#[cfg(test)]
mod tests;
