//! The function as a program, for chains whose functions are isolated.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailwater_sdk::run::<dns_filter::DnsFilter>()
}
