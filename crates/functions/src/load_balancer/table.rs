//! Services and their backends, and the table that all workers share and control code replaces.

use super::maglev::{Candidate, is_prime, populate};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// Most services of a balancer.
pub const MAX_SERVICES: usize = 1024;
/// Most backends of a service, if its table is large enough.
pub const MAX_BACKENDS: usize = 10_000;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 1000;
/// Most different destinations in a balancer's life: each keeps its number, also when it is gone.
const MAX_DESTINATIONS: usize = 1 << 20;

/// Selects a flow's place in a look-up table. The same everywhere: two balancers choose alike.
const SPREAD: u64 = 0x6261_6c61_6e63_6572;

/// A virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its addresses.
    pub address: IpNet,
    /// Its port; `None` for all.
    pub port: Option<u16>,
    /// TCP or UDP.
    pub protocol: u8,
    /// Who serves it.
    pub backends: Vec<Backend>,
}

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Where its packets go.
    pub destination: Destination,
    /// Its share of new flows, relative to the others' weights: 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Whether it gets any.
    pub state: BackendState,
}

/// Where packets to a backend go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// To another IP address, and another port unless it is `None`.
    Address(IpAddr, Option<u16>),
    /// To another Ethernet address, the IP packet unchanged: the server answers the client itself
    /// (direct server return).
    Mac([u8; 6]),
}

impl Destination {
    /// What the backend's order in the look-up table is made of.
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

/// What a backend gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendState {
    /// New flows and its own.
    #[default]
    Up,
    /// The flows it has, no new ones.
    Drain,
    /// Nothing: its flows move to others.
    Down,
}

/// Why services are refused.
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
        /// The service's place in the list.
        service: usize,
        /// What the table size allows.
        most: usize,
        /// What was found.
        found: usize,
    },
    /// A weight is out of range.
    #[error("expected weights from 1 to {MAX_WEIGHT} in service {service}, found {weight}")]
    Weight {
        /// The service's place in the list.
        service: usize,
        /// What was found.
        weight: u32,
    },
    /// A backend is of another IP version than its service.
    #[error("expected backends of the IP version of service {service}, found {address}")]
    Version {
        /// The service's place in the list.
        service: usize,
        /// The backend's address.
        address: IpAddr,
    },
    /// More destinations than a balancer can number in its life.
    #[error("more than {0} different destinations since the start")]
    Destinations(usize),
}

/// The most backends that a table of that size spreads flows over evenly: with 100 places each the
/// imbalance is 1 % (Maglev §5.3).
pub fn most_backends(size: u32) -> usize {
    (size as usize / 100).min(MAX_BACKENDS)
}

/// What becomes of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Pass,
    Refuse(u8),
    V4(Ipv4Addr, Option<u16>),
    V6(Ipv6Addr, Option<u16>),
    Mac([u8; 6]),
}

impl Target {
    /// A number by which other instances know the target (FNV-1a); 0 for those that are no destination.
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

/// A place in [`Choices::targets`]; kept in the flow's state. A number means the same in all
/// versions of a table, so that a worker can apply it whatever version it holds.
pub(super) type TargetNumber = u32;
/// The flow is of no service and passes. What fresh flow state holds.
pub(super) const PASS: TargetNumber = 0;
/// The flow is of no service and is dropped.
pub(super) const REFUSE_OTHERS: TargetNumber = 1;
/// The flow's service has no backend that is up.
pub(super) const REFUSE_UNSERVED: TargetNumber = 2;
/// Reasons for drops, as the function lists them.
pub(super) const NO_SERVICE: u8 = 0;
pub(super) const NO_BACKEND: u8 = 1;

/// One service, ready to choose.
#[derive(Debug)]
struct Choice {
    address: IpNet,
    port: Option<u16>,
    protocol: u8,
    /// Places in `backends`; empty if none is up.
    places: Vec<u16>,
    /// The backends that are up.
    backends: Vec<TargetNumber>,
    /// The backends whose flows stay: up or draining. Sorted.
    keeping: Vec<TargetNumber>,
}

impl Choice {
    fn matches(&self, key: &FlowKey) -> bool {
        self.protocol == key.protocol()
            && self.port.is_none_or(|port| port == key.destination_port())
            && self.address.contains(&key.destination())
    }
}

/// One version of the table: services ready to choose backends.
#[derive(Debug)]
pub struct Choices {
    pub(super) targets: Vec<Target>,
    /// What other instances know them by.
    pub(super) fingerprints: Vec<u64>,
    /// Services of one address and port.
    exact: HashMap<(IpAddr, u16, u8), Choice>,
    /// The others, in order.
    wide: Vec<Choice>,
    drop_others: bool,
}

impl Choices {
    /// What becomes of a flow whose state holds `present`.
    pub(super) fn choose(&self, key: &FlowKey, present: TargetNumber) -> TargetNumber {
        let exact = (key.destination(), key.destination_port(), key.protocol());
        let found = match self.exact.get(&exact) {
            // Fragments have no transport header to speak of: they are of no service.
            _ if key.is_fragment() => None,
            None => self.wide.iter().find(|choice| choice.matches(key)),
            found => found,
        };
        let Some(choice) = found else {
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

/// Numbers destinations for good.
#[derive(Debug)]
struct Numbering {
    numbers: HashMap<Destination, TargetNumber>,
    destinations: Vec<Destination>,
    /// As many as there may ever be.
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

    /// Whether there are numbers for the destinations of these services that flows can be sent to:
    /// each counts once, wherever it is listed, and not at all if it has a number.
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

/// The table of a balancer, shared by all workers.
#[derive(Debug)]
pub struct LoadBalancerTable {
    choices: Live<Choices>,
    /// For whoever changes the table.
    numbering: Mutex<Numbering>,
    size: u32,
    drop_others: bool,
}

impl LoadBalancerTable {
    /// A table of these services, with `size` places for each (a prime). Packets to none of them
    /// are dropped or passed.
    ///
    /// Of the services that a packet is for, one of a single address and a port decides, and else
    /// the first in the list.
    ///
    /// # Errors
    /// What is out of its range.
    pub fn new(services: &[Service], size: u32, drop_others: bool) -> Result<Self, TableError> {
        Self::with_most(MAX_DESTINATIONS, services, size, drop_others)
    }

    /// As [`new`](Self::new), for at most so many destinations in its life.
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

    /// Replaces the services under the running workers, which see it with their next batch. Flows
    /// stay with their backends where these are still listed for the service, up or draining.
    /// Returns the number of the new version.
    ///
    /// # Errors
    /// As [`new`](Self::new); the table stays as it was.
    pub fn replace(&self, services: &[Service]) -> Result<u32, TableError> {
        Ok(self.choices.replace(self.prepare(services)?))
    }

    /// Makes a version ready, to be put in force by [`live`](Self::live).
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn prepare(&self, services: &[Service]) -> Result<Choices, TableError> {
        let mut numbering = self.numbering.lock().unwrap_or_else(PoisonError::into_inner);
        compile(services, self.size, self.drop_others, &mut numbering)
    }

    /// The services in force.
    pub fn live(&self) -> &Live<Choices> {
        &self.choices
    }

    /// The number of the present version.
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
) -> Result<Choices, TableError> {
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
    Ok(Choices {
        fingerprints: targets.iter().map(Target::fingerprint).collect(),
        targets,
        exact,
        wide,
        drop_others,
    })
}

fn compile_service(service: &Service, size: u32, numbering: &mut Numbering) -> Choice {
    // By name, so that the order of the list does not matter.
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
