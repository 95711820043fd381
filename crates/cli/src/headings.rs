//! Headings of options in the help, in the order of the first option of each.

pub const TRAFFIC: &str = "Traffic and ports";
pub const CORES: &str = "Cores and policy";
pub const REPORT: &str = "Measurements and reports";
pub const ISOLATION: &str = "Isolation";
