//! Services, their backends, and the table that workers share and the control plane replaces.

use super::maglev::{Candidate, is_prime, populate};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use tailwater_chain::function::Explanation;
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// Largest number of services per balancer.
pub const MAX_SERVICES: usize = 1024;
/// Largest number of backends per service, if its table is large enough.
pub const MAX_BACKENDS: usize = 10_000;
/// Largest weight.
pub const MAX_WEIGHT: u32 = 1000;
/// Largest number of distinct destinations in a balancer's lifetime: removed ones keep their numbers.
const MAX_DESTINATIONS: usize = 1 << 20;

/// Seed of the hash that selects a flow's table entry. It is constant, so that all balancers choose alike.
const SPREAD: u64 = 0x6261_6c61_6e63_6572;

/// Virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Address prefix.
    pub address: IpNet,
    /// Port; `None` for all.
    pub port: Option<u16>,
    /// TCP or UDP.
    pub protocol: u8,
    /// Servers of the service.
    pub backends: Vec<Backend>,
}

/// Server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Destination of its packets.
    pub destination: Destination,
    /// Its share of new flows, relative to the others' weights: 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Administrative state.
    pub state: BackendState,
}

/// Destination of packets to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Rewrites the IP address, and the port if given.
    Address(IpAddr, Option<u16>),
    /// Rewrites the Ethernet address only. The server answers the client directly (direct server return).
    Mac([u8; 6]),
}

impl Destination {
    /// Returns the name that determines the backend's order in the look-up table.
    fn name(&self) -> Vec<u8> {
        match self {
            Destination::Address(IpAddr::V4(address), port) => {
                [&address.octets()[..], &port.unwrap_or(0).to_be_bytes()].concat()
            }
            Destination::Address(IpAddr::V6(address), port) => {
                [&address.octets()[..], &port.unwrap_or(0).to_be_bytes()].concat()
            }
            Destination::Mac(address) => [&b"mac"[..], address].concat(),
        }
    }
}

/// State of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendState {
    /// Receives new flows and keeps its own.
    #[default]
    Up,
    /// Keeps its flows, receives no new ones.
    Drain,
    /// Receives nothing; its flows move to other backends.
    Down,
}

/// Reasons services are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table size is not a prime.
    #[error("expected a prime table size from 101 to 10000019, found {0}")]
    Size(u32),
    /// Too many services.
    #[error("expected at most {MAX_SERVICES} services, found {0}")]
    Services(usize),
    /// Too many backends for the table size.
    #[error("expected at most {most} backends of service {service}, found {found}")]
    Backends {
        /// Index of the service in the list.
        service: usize,
        /// Limit for this table size.
        most: usize,
        /// Number found.
        found: usize,
    },
    /// A weight is out of range.
    #[error("expected weights from 1 to {MAX_WEIGHT} in service {service}, found {weight}")]
    Weight {
        /// Index of the service in the list.
        service: usize,
        /// Weight found.
        weight: u32,
    },
    /// A backend's IP version differs from its service's.
    #[error("expected backends of the IP version of service {service}, found {address}")]
    Version {
        /// Index of the service in the list.
        service: usize,
        /// The backend's address.
        address: IpAddr,
    },
    /// More destinations than a balancer can number in its lifetime.
    #[error("expected at most {0} different destinations since the start, found more")]
    Destinations(usize),
}

/// Returns the largest number of backends a table of this size balances evenly: with 100 entries each the imbalance is
/// 1 % (Maglev §5.3).
pub fn most_backends(size: u32) -> usize {
    (size as usize / 100).min(MAX_BACKENDS)
}

/// Treatment of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Pass,
    Refuse(u8),
    V4(Ipv4Addr, Option<u16>),
    V6(Ipv6Addr, Option<u16>),
    Mac([u8; 6]),
}

impl Target {
    /// Returns a hash (FNV-1a) that identifies the target to other instances; 0 for targets that are not destinations.
    pub(super) fn fingerprint(&self) -> u64 {
        let destination = match *self {
            Target::Pass | Target::Refuse(_) => return 0,
            Target::V4(address, port) => Destination::Address(address.into(), port),
            Target::V6(address, port) => Destination::Address(address.into(), port),
            Target::Mac(address) => Destination::Mac(address),
        };
        let name = destination.name();
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash.max(1)
    }
}

impl From<Destination> for Target {
    fn from(destination: Destination) -> Target {
        match destination {
            Destination::Address(IpAddr::V4(address), port) => Target::V4(address, port),
            Destination::Address(IpAddr::V6(address), port) => Target::V6(address, port),
            Destination::Mac(address) => Target::Mac(address),
        }
    }
}

/// Index in [`ServiceTable::targets`], kept in the flow state. A number means the same in all versions of a table, so a
/// worker can apply it whatever version it holds.
pub(super) type TargetNumber = u32;
/// The flow belongs to no service and passes. Value of fresh flow state.
pub(super) const PASS: TargetNumber = 0;
/// The flow belongs to no service and is dropped.
pub(super) const REFUSE_OTHERS: TargetNumber = 1;
/// The flow's service has no backend that is up.
pub(super) const REFUSE_UNSERVED: TargetNumber = 2;
/// Drop reasons, in the order the function lists them.
pub(super) const NO_SERVICE: u8 = 0;
pub(super) const NO_BACKEND: u8 = 1;

/// One service, compiled for backend selection.
#[derive(Debug)]
struct Choice {
    address: IpNet,
    port: Option<u16>,
    protocol: u8,
    /// Maglev table of indices into `backends`; empty if none is up.
    places: Vec<u16>,
    /// Backends that are up.
    backends: Vec<TargetNumber>,
    /// Backends that keep their flows: up or draining. Sorted.
    keeping: Vec<TargetNumber>,
}

impl Choice {
    fn matches(&self, key: &FlowKey) -> bool {
        self.protocol == key.protocol()
            && self.port.is_none_or(|port| port == key.destination_port())
            && self.address.contains(&key.destination())
    }
}

/// One version of the table: all services compiled for backend selection.
#[derive(Debug)]
pub struct ServiceTable {
    pub(super) targets: Vec<Target>,
    /// Fingerprints of `targets`, by which other instances identify them.
    pub(super) fingerprints: Vec<u64>,
    /// Services with a single address and port.
    exact: HashMap<(IpAddr, u16, u8), Choice>,
    /// All other services, in order.
    wide: Vec<Choice>,
    drop_others: bool,
}

impl ServiceTable {
    /// Returns the service of packets with this key.
    #[inline]
    fn service(&self, key: &FlowKey) -> Option<&Choice> {
        let exact = (key.destination(), key.destination_port(), key.protocol());
        match self.exact.get(&exact) {
            // Fragments have no usable transport header and belong to no service.
            _ if key.is_fragment() => None,
            None => self.wide.iter().find(|choice| choice.matches(key)),
            found => found,
        }
    }

    /// Appends the service of packets with this key, and the reason for which their flow has the target `number`.
    /// `is_new` is `true` for its first packet.
    pub(super) fn explain(&self, key: &FlowKey, number: TargetNumber, is_new: bool, text: &mut Explanation) {
        let Some(service) = self.service(key) else {
            return text.add(format_args!("no service"));
        };
        text.add(format_args!("service {}", service.address));
        if let Some(port) = service.port {
            text.add(format_args!(" port {port}"));
        }
        match self.targets.get(number as usize) {
            Some(Target::V4(address, port)) => backend((*address).into(), *port, text),
            Some(Target::V6(address, port)) => backend((*address).into(), *port, text),
            Some(Target::Mac([a, b, c, d, e, f])) => {
                text.add_part(format_args!("backend {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
            }
            _ => return text.add_part(format_args!("no backend is up")),
        }
        match (is_new, service.backends.contains(&number)) {
            (true, _) => text.add_part(format_args!(
                "by the flow's hash, of {} that are up",
                service.backends.len()
            )),
            (false, true) => text.add_part(format_args!("chosen for the flow before")),
            (false, false) => text.add_part(format_args!("chosen for the flow before, now draining")),
        }
    }

    /// Returns the target of a flow whose state holds `present`.
    pub(super) fn choose(&self, key: &FlowKey, present: TargetNumber) -> TargetNumber {
        let Some(choice) = self.service(key) else {
            return if self.drop_others { REFUSE_OTHERS } else { PASS };
        };
        if choice.keeping.binary_search(&present).is_ok() {
            return present;
        }
        let places = choice.places.len() as u64;
        if places == 0 {
            return REFUSE_UNSERVED;
        }
        let place = choice.places[(key.hash(SPREAD) % places) as usize];
        choice.backends[usize::from(place)]
    }
}

fn backend(address: IpAddr, port: Option<u16>, text: &mut Explanation) {
    text.add_part(format_args!("backend {address}"));
    if let Some(port) = port {
        text.add(format_args!(" port {port}"));
    }
}

/// Permanent numbers of destinations.
#[derive(Debug)]
struct Numbering {
    numbers: HashMap<Destination, TargetNumber>,
    destinations: Vec<Destination>,
    /// Largest number of destinations.
    most: usize,
}

impl Numbering {
    fn new(most: usize) -> Numbering {
        Numbering {
            numbers: HashMap::new(),
            destinations: Vec::new(),
            most,
        }
    }

    /// Returns `true` if numbers are left for these services' destinations. Each counts once, however often it is
    /// listed. Destinations that are down or already numbered do not count.
    fn has_room(&self, services: &[Service]) -> bool {
        let listed = services.iter().flat_map(|service| &service.backends);
        let fresh: HashSet<Destination> = listed
            .filter(|backend| backend.state != BackendState::Down)
            .map(|backend| backend.destination)
            .filter(|destination| !self.numbers.contains_key(destination))
            .collect();
        self.destinations.len() + fresh.len() <= self.most
    }

    fn number(&mut self, destination: Destination) -> TargetNumber {
        *self.numbers.entry(destination).or_insert_with(|| {
            self.destinations.push(destination);
            REFUSE_UNSERVED + self.destinations.len() as u32
        })
    }

    fn targets(&self) -> Vec<Target> {
        let fixed = [Target::Pass, Target::Refuse(NO_SERVICE), Target::Refuse(NO_BACKEND)];
        let destinations = self.destinations.iter().copied().map(Target::from);
        fixed.into_iter().chain(destinations).collect()
    }
}

/// Table of a balancer, shared by all workers.
#[derive(Debug)]
pub struct LoadBalancerTable {
    choices: Live<ServiceTable>,
    /// Used by the control plane only.
    numbering: Mutex<Numbering>,
    size: u32,
    drop_others: bool,
}

impl LoadBalancerTable {
    /// Builds a table of these services, each with `size` entries (a prime). `drop_others` drops packets that belong to
    /// none of them.
    ///
    /// Among the matching services, one with a single address and port takes precedence; otherwise the first in the
    /// list.
    ///
    /// # Errors
    /// A value is out of range, or there are too many destinations.
    pub fn new(services: &[Service], size: u32, drop_others: bool) -> Result<Self, TableError> {
        Self::with_most(MAX_DESTINATIONS, services, size, drop_others)
    }

    /// Like [`new`](Self::new), with a limit of `most` destinations.
    pub(super) fn with_most(
        most: usize,
        services: &[Service],
        size: u32,
        drop_others: bool,
    ) -> Result<Self, TableError> {
        if !(101..=10_000_019).contains(&size) || !is_prime(size) {
            return Err(TableError::Size(size));
        }
        let mut numbering = Numbering::new(most);
        let choices = compile(services, size, drop_others, &mut numbering)?;
        Ok(LoadBalancerTable {
            choices: Live::new(choices),
            numbering: Mutex::new(numbering),
            size,
            drop_others,
        })
    }

    /// Replaces the services under running workers, which see the change with their next batch. A flow keeps its
    /// backend if that is still listed for the service, up or draining. Returns the new version number.
    ///
    /// # Errors
    /// As [`new`](Self::new); the table is then unchanged.
    pub fn replace(&self, services: &[Service]) -> Result<u32, TableError> {
        Ok(self.choices.replace(self.prepare(services)?))
    }

    /// Compiles a version, to be activated through [`live`](Self::live).
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn prepare(&self, services: &[Service]) -> Result<ServiceTable, TableError> {
        let mut numbering = self.numbering.lock().unwrap_or_else(PoisonError::into_inner);
        compile(services, self.size, self.drop_others, &mut numbering)
    }

    /// Returns the active services.
    pub fn live(&self) -> &Live<ServiceTable> {
        &self.choices
    }

    /// Returns the active version number.
    #[inline]
    pub fn version(&self) -> u32 {
        self.choices.number()
    }
}

fn compile(
    services: &[Service],
    size: u32,
    drop_others: bool,
    numbering: &mut Numbering,
) -> Result<ServiceTable, TableError> {
    if services.len() > MAX_SERVICES {
        return Err(TableError::Services(services.len()));
    }
    for (service, Service { backends, .. }) in services.iter().enumerate() {
        let (most, found) = (most_backends(size), backends.len());
        if found > most {
            return Err(TableError::Backends { service, most, found });
        }
        for Backend {
            destination, weight, ..
        } in backends
        {
            if !(1..=MAX_WEIGHT).contains(weight) {
                let weight = *weight;
                return Err(TableError::Weight { service, weight });
            }
            if let Destination::Address(address, _) = *destination
                && address.is_ipv4() != services[service].address.addr().is_ipv4()
            {
                return Err(TableError::Version { service, address });
            }
        }
    }
    if !numbering.has_room(services) {
        return Err(TableError::Destinations(numbering.most));
    }
    let (mut exact, mut wide) = (HashMap::new(), Vec::new());
    for service in services {
        let choice = compile_service(service, size, numbering);
        match service.port {
            Some(port) if service.address.prefix_len() == service.address.max_prefix_len() => {
                let key = (service.address.addr(), port, service.protocol);
                exact.entry(key).or_insert(choice);
            }
            _ => wide.push(choice),
        }
    }
    let targets = numbering.targets();
    Ok(ServiceTable {
        fingerprints: targets.iter().map(Target::fingerprint).collect(),
        targets,
        exact,
        wide,
        drop_others,
    })
}

fn compile_service(service: &Service, size: u32, numbering: &mut Numbering) -> Choice {
    // Sorted by name, so that the order of the list does not matter.
    let mut backends: Vec<&Backend> = service.backends.iter().collect();
    backends.sort_by_cached_key(|backend| backend.destination.name());
    backends.dedup_by_key(|backend| backend.destination);
    let mut keeping: Vec<TargetNumber> = backends
        .iter()
        .filter(|backend| backend.state != BackendState::Down)
        .map(|backend| numbering.number(backend.destination))
        .collect();
    keeping.sort_unstable();
    backends.retain(|backend| backend.state == BackendState::Up);
    let candidates: Vec<Candidate> = backends
        .iter()
        .map(|backend| Candidate::new(&backend.destination.name(), backend.weight, size))
        .collect();
    Choice {
        address: service.address,
        port: service.port,
        protocol: service.protocol,
        places: populate(size, &candidates),
        backends: backends
            .iter()
            .map(|backend| numbering.number(backend.destination))
            .collect(),
        keeping,
    }
}
