//! Names of a chain's cores.

/// Formats a core of the chain: its role, its number among those of this role, and its CPU if that is known.
pub fn core(role: &str, number: usize, cpus: &[u32]) -> String {
    match cpus.get(number) {
        Some(cpu) => format!("{role} core {number} (CPU {cpu})"),
        None => format!("{role} core {number}"),
    }
}
