//! Makes cargo build the build dependencies.

fn main() {}
