//! Files of campaigns and models: YAML in the form of all Tailwater objects, with a checksum of the values.
//!
//! `docs/reference/contention-files.md` describes every field. A checksum is that of the file as this program writes
//! it, so comments and spaces do not count, and a file that was cut short or changed is refused.

mod campaign;
mod fitted;
mod model;
mod response;
mod values;

pub use values::VERSION;
