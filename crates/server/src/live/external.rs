//! Chains with external functions, whose interfaces one chain at a time can use.

use super::running::RunningChain;
use crate::machine::Refusal;
use tailwater_dataplane::external::kernel::KernelPorts;
use tailwater_functions::external::ExternalConfig;
use tailwater_functions::spec::ChainSpec;

/// Interfaces of a chain's external functions, for workers on so many cores.
fn interfaces(spec: &ChainSpec, cores: usize) -> Vec<(String, String)> {
    let functions = spec.externals();
    let all = functions.flat_map(|(name, external)| external.ports().map(move |port| (name, port)));
    let all = all.flat_map(|(name, port)| {
        let of_core = (0..cores as u16).filter_map(move |core| port.interface_of(core));
        of_core.map(move |interface| (name.to_owned(), interface))
    });
    all.collect()
}

/// Returns `true` if both chains use an interface, which the one that runs has to leave first.
pub(super) fn share_interfaces(running: &RunningChain, spec: &ChainSpec, cores: usize) -> bool {
    let used = interfaces(running.spec(), running.cores().len());
    let wanted = interfaces(spec, cores);
    wanted.iter().any(|(_, one)| used.iter().any(|(_, other)| one == other))
}

/// Returns `true` if both chains have the same external functions.
pub(super) fn are_same(one: &ChainSpec, other: &ChainSpec) -> bool {
    one.externals().eq(other.externals())
}

/// Checks that external functions have interfaces that no `other` chain uses.
pub(super) fn check<'c>(
    spec: &ChainSpec,
    cores: usize,
    mut others: impl Iterator<Item = &'c RunningChain>,
) -> Result<(), Refusal> {
    let ports = |(name, external): (&str, &ExternalConfig)| -> Option<String> {
        let other = external.ports().find(|port| !port.is_kernel())?;
        Some(format!(
            "function {name} is external, with port {other}: expected a kernel interface on a server, such as \
             interface=fw-in"
        ))
    };
    if let Some(wrong) = spec.externals().find_map(ports) {
        return Err(Refusal::new(wrong));
    }
    let wanted = interfaces(spec, cores);
    let taken = others.find_map(|other| {
        let used = interfaces(other.spec(), other.cores().len());
        let both = wanted
            .iter()
            .find_map(|(name, interface)| Some((name, used.iter().find(|(_, used)| used == interface)?)));
        both.map(|(name, (user, interface))| {
            format!(
                "function {name}: interface {interface} is used by function {user} of chain {} already",
                other.name()
            )
        })
    });
    taken.map_or(Ok(()), |taken| Err(Refusal::new(taken)))
}

/// Opens the interfaces, and closes them again.
pub(super) fn try_out(spec: &ChainSpec, cores: usize) -> Result<(), Refusal> {
    let Some((name, _)) = spec.externals().next() else {
        return Ok(());
    };
    let found = KernelPorts::find(spec, cores as u16);
    found
        .map(drop)
        .map_err(|error| Refusal::new(format!("function {name}: {error}")))
}
