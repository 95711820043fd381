//! The `tailwater` command.
fn main() {}
