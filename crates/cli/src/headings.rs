//! Headings of options in the help, in the order of the first option of each.

pub const TRAFFIC: &str = "Traffic and ports";
pub const CORES: &str = "Cores and policy";
pub const REPORT: &str = "Measurements and reports";
pub const ISOLATION: &str = "Isolation";
pub const MACHINE: &str = "Cores, cache and runs";
pub const PREDICTION: &str = "Predicted contention";
pub const OPTIMAL: &str = "Plans with the fewest servers";
pub const STATE: &str = "State and its migration";
#[cfg(feature = "cluster")]
pub use rack::*;

/// Headings of the commands of a rack.
#[cfg(feature = "cluster")]
mod rack {
    pub const ELECTION: &str = "Election of the controller";
    pub const SERVERS: &str = "Servers and their signs of life";
    pub const CONSOLIDATION: &str = "Fewer servers";
    pub const JOBS: &str = "Jobs that measure profiles";
    pub const RACK: &str = "Rack";
    pub const SECURITY: &str = "Security of connections";
    pub const SWITCH: &str = "Switch";
    pub const ROWS: &str = "Packets and rows";
    pub const SOFTWARE: &str = "Forwarding without a switch";
}
